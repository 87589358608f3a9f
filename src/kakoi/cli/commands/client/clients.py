"""The clients that can use `kakoi mcp`: where each keeps its servers, and in which format.

Facts from the vendors' documentation (November 2026):
Claude Code keeps the user's servers in ~/.claude.json (in $CLAUDE_CONFIG_DIR if that is set) and a
project's in .mcp.json, under `mcpServers`. Cursor: ~/.cursor/mcp.json and .cursor/mcp.json, under
`mcpServers`. Codex: $CODEX_HOME/config.toml, by default ~/.codex, and .codex/config.toml of a
project that is trusted, in tables [mcp_servers.NAME]. VS Code: mcp.json in the user's profile
(~/.config/Code/User on Linux) and .vscode/mcp.json, under `servers`, with a `type`. Gemini CLI:
~/.gemini/settings.json and .gemini/settings.json, under `mcpServers`.
"""

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kakoi._support.late import dataclass
from kakoi.cli.commands.client.config_file import with_json_entry, with_toml_entry
from kakoi.errors import ConfigurationError

SERVER: Final = "kakoi"


@dataclass(frozen=True, slots=True, kw_only=True)
class McpClient:
    """An MCP client. `by_hand`: its own command for this; `check`: how to see that it worked."""

    title: str
    user_file: Callable[[Mapping[str, str]], Path]
    project_file: str
    section: str = "mcpServers"
    typed: bool = False
    by_hand: str = ""
    check: str

    def file(self, scope: str, project: Path, environ: Mapping[str, str]) -> Path:
        """The settings file of a scope. A project's file must really be inside the project."""
        if scope == "user":
            return self.user_file(environ)
        path = Path(project, self.project_file)
        if not path.resolve().is_relative_to(project.resolve()):
            raise ConfigurationError(
                f"{path} is a link to a file outside the project", hint="remove the link"
            )
        return path

    def entry(self, argv: Sequence[str]) -> dict[str, Any]:
        """The entry of a server that is started by `argv`."""
        kind = {"type": "stdio"} if self.typed else {}
        return {**kind, "command": argv[0], "args": list(argv[1:])}

    def merged(self, text: str, argv: Sequence[str]) -> str:
        """The text of the client's file with kakoi's entry. Raises CannotMerge."""
        merge = with_toml_entry if self.project_file.endswith(".toml") else with_json_entry
        return merge(text, self.section, SERVER, self.entry(argv))

    def by_hand_for(self, argv: Sequence[str], scope: str) -> str:
        """What to type or write by hand, if kakoi cannot change the file."""
        if self.by_hand:
            return self.by_hand.format(scope=scope, command=shlex.join(argv))
        return f"add to `{self.section}`: {json.dumps({SERVER: self.entry(argv)})}"


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or os.path.expanduser("~"))


def _claude(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("CLAUDE_CONFIG_DIR") or _home(environ), ".claude.json")


def _codex(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("CODEX_HOME") or _home(environ) / ".codex", "config.toml")


def _vscode(environ: Mapping[str, str]) -> Path:
    folder = environ.get("XDG_CONFIG_HOME", "")
    settings = Path(folder) if os.path.isabs(folder) else _home(environ) / ".config"
    return settings / "Code" / "User" / "mcp.json"


CLIENTS: Final[Mapping[str, McpClient]] = {
    "claude": McpClient(
        title="Claude Code",
        user_file=_claude,
        project_file=".mcp.json",
        typed=True,
        by_hand="claude mcp add --scope {scope} kakoi -- {command}",
        check="claude mcp get kakoi",
    ),
    "cursor": McpClient(
        title="Cursor",
        user_file=lambda environ: _home(environ) / ".cursor" / "mcp.json",
        project_file=".cursor/mcp.json",
        check="Cursor Settings, MCP",
    ),
    "codex": McpClient(
        title="Codex",
        user_file=_codex,
        project_file=".codex/config.toml",
        section="mcp_servers",
        by_hand="codex mcp add kakoi -- {command}",
        check="codex mcp list",
    ),
    "vscode": McpClient(
        title="VS Code",
        user_file=_vscode,
        project_file=".vscode/mcp.json",
        section="servers",
        typed=True,
        check="MCP: List Servers",
    ),
    "gemini": McpClient(
        title="Gemini CLI",
        user_file=lambda environ: _home(environ) / ".gemini" / "settings.json",
        project_file=".gemini/settings.json",
        by_hand="gemini mcp add -s {scope} kakoi {command}",
        check="gemini mcp list",
    ),
}
