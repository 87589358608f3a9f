"""Command groups that import subcommands when used and suggest names, and help with examples."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


def help_end(*examples: str, exit_codes: str = "") -> str:
    """The epilog of a command's help: its exit codes, then examples that work as written."""
    codes = f"Exit codes: {exit_codes}\n\n" if exit_codes else ""
    return f"{codes}\b\nExamples:\n" + "\n".join(f"  {each}" for each in examples)


class CommandGroup(click.Group):
    """A group that suggests a command when the typed one does not exist.

    `elsewhere` maps names that people try here to the command in another group.
    """

    def __init__(self, *args: Any, elsewhere: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._elsewhere = dict(elsewhere or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of their definition."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args[0] in names or args[0].startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        import difflib

        known = self._elsewhere | {name: name for name in names}
        close = difflib.get_close_matches(args[0], known, n=1)
        advice = f" Did you mean `{ctx.command_path} {known[close[0]]}`?" if close else ""
        ctx.fail(f"No such command {args[0]!r}.{advice}")


class LazyGroup(CommandGroup):
    """Imports a subcommand's module only when that subcommand is used.

    `sections` maps a heading of the help to subcommands and their one-line help. The module of the
    same name in `package` holds a click command named `command`.
    """

    def __init__(
        self, *args: Any, package: str, sections: Mapping[str, Mapping[str, str]], **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self._package = package
        self._sections = sections

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in self._sections.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        found: click.Command = import_module(f"{self._package}.{cmd_name}").command
        return found

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list["click.shell_completion.CompletionItem"]:
        from click.shell_completion import CompletionItem

        texts = {name: text for part in self._sections.values() for name, text in part.items()}
        names = [name for name in texts if name.startswith(incomplete)]
        found = [CompletionItem(name, help=texts[name]) for name in names]
        # Not the group's own way, which imports each subcommand to ask it for its help.
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.list_commands(ctx)))
        for title, commands in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", text) for name, text in commands.items()])
