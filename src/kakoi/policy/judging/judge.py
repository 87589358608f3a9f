"""The walk over one script: every command, redirect and assignment is held against the policy."""

import re
from collections.abc import Callable, Iterable
from typing import Final

from kakoi.policy.judging.disguise import disguised, offers_options
from kakoi.policy.judging.files import fetches
from kakoi.policy.judging.folders import Folder, Folders
from kakoi.policy.judging.inputs import feeds_dot_commands, standard_input
from kakoi.policy.judging.naming import (
    DELETERS,
    callable_functions,
    named,
    program_name,
    starts_itself_without_end,
)
from kakoi.policy.judging.paths import absolute
from kakoi.policy.judging.texts import MAX_TEXTS, Context, Reading, readings, reads_in_its_own_way
from kakoi.policy.judging.values import Values
from kakoi.policy.judging.variables import (
    STATE_BUILTINS,
    Meaning,
    assigns_in_turn,
    meaning_of,
    setting_of,
)
from kakoi.policy.parsing.script import Assignment, Command, Redirect, Unreadable
from kakoi.policy.programs import Effect, Invocation, invoke
from kakoi.policy.reading.code_readers import code_effects
from kakoi.policy.reading.effects import effects_of
from kakoi.policy.rules import Verdict
from kakoi.policy.words import Expands, Expansion, Word, literal_word, make_word

MAX_WRAPPERS: Final = 8


class Judge:
    """Judges one script; a text inside it (`sh -c …`) gets a judge of its own, one level deeper."""

    def __init__(self, context: Context, reading: Reading, outer: "Judge | None" = None) -> None:
        self.context = context
        self.report = context.files.report
        self.hit = self.report.hit
        self.files = context.files
        self.policy = self.report.policy
        self.script = script = reading.script
        self.outer = outer
        inherited = outer.values.to_inherit() if outer else {}
        self.values: Values = Values(script, inherited, posix=reading.posix)
        self.here = Folder(context.cwd)
        self.folders = Folders(context.cwd, script)
        self.functions = callable_functions(script)
        self.offers_options = offers_options(script)
        self.index = 0

    def judge(self) -> None:
        """Find everything that stands against the script."""
        for definition in self.script.definitions:
            if definition.name in self.policy.programs:
                word = literal_word(definition.name, definition.start, definition.end)
                self.hit("shadows-program", word)
        for trap in self.script.traps:
            if not (trap.pointer and self.values.are_names(trap.pointer)):
                self.hit(trap.effect, literal_word(trap.what, trap.start, trap.end))
        for binding in self.script.bindings:
            word = literal_word(binding.name, binding.start, binding.end)
            self.variable(binding.name, None, word)
        for index, command in enumerate(self.script.commands):
            self.index = index
            self.here = self.folders.of(command)
            self.command(command)
            self.folders.follow(command, index, self.values)

    # ── commands ──

    def command(self, command: Command) -> None:
        for assignment in command.assignments:
            self.assignment(assignment, command)
        for redirect in command.redirects:
            self.redirect(redirect, command)
        if not command.words:
            return
        first = command.words[0]
        if first.static and self.calls_function(first.static, first, command):
            return
        if program_name(command) in DELETERS:
            for word in command.words[1:]:
                if any(part.kind is Expands.COMMAND for part in word.expansions()):
                    self.hit("mass-delete", word)
        for words in self.values.variants(command.words[1:], self.index):
            self.argv((first, *words), command)

    def argv(self, words: tuple[Word, ...], command: Command, lenient: str = "") -> None:
        """Judge one program with its arguments, and whatever it starts in turn.

        `lenient` is set for a program that a package manager finds (`npx`, `bundle exec`).
        """
        if self.context.depth > MAX_WRAPPERS:
            self.hit("wrapped-too-deep", words[0])
            return
        text = words[0].static
        if not text or words[0].from_braces:
            self.hit("dynamic-program", words[0])
            return
        if lenient == "runs-project":
            text = text.rpartition(":")[2]  # hatch's `env:command`
        if lenient == "runs-package":
            program = re.sub(r"(?<=.)@[\w.^~<>=*-]+$", "", text)
        elif text in self.policy.entries:
            program = text
        else:
            known = frozenset(self.policy.rules_by_program)
            name = named(text, self.here.path, self.files.roots, known)
            lenient = lenient or ("runs-project" if name.from_package else "")
            if name.effect:
                self.runs_file(Effect(name.effect, words[0]), None)
            if not name.program:
                return
            program = name.program
        has_subcommands = program in self.policy.programs_with_subcommands
        invocation = invoke(program, words, has_subcommands=has_subcommands)
        self.invocation(invocation, command, lenient)

    def invocation(self, invocation: Invocation, command: Command, lenient: str) -> None:
        word = invocation.named_by
        denied = False
        for rule in self.policy.rules_by_program.get(invocation.program, ()):
            if rule.applies_to(invocation):
                self.report.rule(rule, word, invocation.names[0])
                denied = denied or rule.verdict is Verdict.DENY
        if not denied:
            self.listed(invocation, word, lenient)
        for effect in effects_of(invocation):
            self.effect(effect, invocation, command)
        for operand in disguised(invocation) if self.offers_options else ():
            self.hit("unclear-option", operand, invocation)

    def listed(self, invocation: Invocation, word: Word, lenient: str) -> None:
        """Is the program, with its subcommand, on the list?"""
        entry = self.policy.entry(invocation.names)
        if entry is not None:
            if entry.verdict is not Verdict.ALLOW:
                hint = entry.hint or "Ask your user, or use a command that only reads."
                self.report.find(
                    "asks-first", entry.verdict, word, entry.command, entry.reason, hint
                )
        elif (
            self.policy.any_command
            or self.policy.only_shows_itself(invocation)
            or (lenient == "runs-project" and invocation.program.endswith(".py"))
        ):
            return
        else:
            kind = "package-program" if lenient else "not-listed"
            self.hit(kind, word, subject=invocation.names[0])

    def calls_function(self, name: str, word: Word, command: Command) -> bool:
        """Whether the name surely reaches a function of the script, whose body is judged anyway."""
        judge: Judge | None = self
        while judge is not None and name not in judge.functions:
            judge = judge.outer
        if judge is None:
            return False
        inside_function = judge.script.commands[judge.index].function != ""
        if not inside_function and judge.functions[name] > judge.index:
            return False
        if starts_itself_without_end(name, command, self.script):
            self.hit("fork-bomb", word)
        return True

    # ── assignments and redirects ──

    def assignment(self, assignment: Assignment, command: Command) -> None:
        # `IFS=, read -r a b` splits one line; alone it would change how every later word is read.
        if assignment.name == "IFS" and program_name(command) in ("read", "mapfile", "readarray"):
            return
        word = literal_word(assignment.name, assignment.start, assignment.end)
        self.variable(assignment.name, assignment.value, word)
        value = assignment.value
        if self.script.evaluates and value is not None and assigns_in_turn(value):
            self.hit("arithmetic-text", word, subject=value.shown)

    def variable(self, name: str, value: Word | None, word: Word) -> None:
        meaning = meaning_of(name, value)
        if meaning is Meaning.RUNS and value is not None:
            self.text(value)
        elif meaning is Meaning.PATHS and value is not None and self.stays_inside(name, value):
            return
        elif meaning is not Meaning.HARMLESS:
            self.hit(meaning.value, word, subject=name)

    def stays_inside(self, name: str, value: Word) -> bool:
        """Whether a search path holds only directories of ours, and what it was before."""
        parts = (p for p in value.parts if not (isinstance(p, Expansion) and p.name == name))
        own = make_word(tuple(parts), value.start, value.end)
        shapes = [w.shape for words in self.values.variants((own,), self.index) for w in words]
        return self.files.all_inside(shapes, self.here)

    def redirect(self, redirect: Redirect, command: Command) -> None:
        if redirect.descriptor.startswith("{"):
            name = redirect.descriptor.strip("{}")
            self.variable(name, None, literal_word(name, redirect.start, redirect.end))
        if redirect.copies_descriptor or redirect.operator.startswith("<<"):
            return
        for words in self.values.variants((redirect.target,), self.index):
            for word in words:
                if redirect.writes:
                    self.files.written("writes", word, None, self.sources(command), self.here)
                else:
                    self.files.read(word, None, self.here)

    # ── effects ──

    def effect(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        handler = _HANDLERS.get(effect.kind)
        if handler is not None:
            handler(self, effect, invocation, command)
        elif effect.option is not None:
            both = literal_word(effect.word.shown, effect.option.start, effect.word.end)
            self.hit(effect.kind, both, invocation, self.report.source(both))
        else:
            self.hit(effect.kind, effect.word, invocation)

    def every_effect(
        self, effects: Iterable[Effect], invocation: Invocation, command: Command
    ) -> None:
        for each in effects:
            self.effect(each, invocation, command)

    def runs(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        argv = effect.argv
        if effect.text == "xargs":
            argv = self.values.fed(argv, command)
        if effect.text in ("xargs", "find") and (argv[0].static or "").split("/")[-1] in DELETERS:
            self.hit("mass-delete", argv[0], invocation)
        if invocation.program in ("command", "builtin") and argv[0].static in STATE_BUILTINS:
            self.hit("wrapped-builtin", argv[0], invocation)
        lenient = effect.text if effect.text in ("runs-package", "runs-project") else ""
        self.context.depth += 1
        self.argv(argv, command, lenient)
        self.context.depth -= 1

    def runs_text(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        self.text(effect.word, invocation, same_shell=effect.kind == "runs-here")

    def text(
        self, word: Word, invocation: Invocation | None = None, *, same_shell: bool = False
    ) -> None:
        """Judge shell text that a word holds.

        In another shell neither functions nor variables of this one are known.
        """
        if word.text is None:
            kind = "download-run" if fetches(word, self.script) else "hidden-text"
            self.hit(kind, word, invocation)
            return
        self.context.texts += 1
        if self.context.depth >= MAX_WRAPPERS or self.context.texts > MAX_TEXTS:
            self.hit("wrapped-too-deep", word)
            return
        shell = "bash" if same_shell else invocation.program if invocation else "sh"
        if reads_in_its_own_way(word.text, shell):
            self.hit("other-shell", word, invocation, shell)
        for reading in readings(word.text, shell):
            self.reading(reading, word, invocation, same_shell=same_shell)

    def reading(
        self,
        reading: Reading | Unreadable,
        word: Word,
        invocation: Invocation | None,
        *,
        same_shell: bool,
    ) -> None:
        """Judge one way in which a shell may read the text of `word`."""
        if isinstance(reading, Unreadable):
            hint = "Write the inner command in plain shell, or run it without the wrapper."
            reason = f"inside it, {reading.reason}"
            self.report.find("unreadable", Verdict.DENY, word, word.shown[:40], reason, hint)
            return
        outside = [s for s in self.script.hidden if not word.start <= s[0] < word.end]
        if reading.script.evaluates and outside:
            self.hit("arithmetic-text", word, invocation)
        self.context.depth += 1
        with self.report.pointing_at(word):
            inner = Judge(self.context, reading, self if same_shell else None)
            # A trap runs wherever the shell is when it goes off.
            folder = None if same_shell and self.values.moves else self.here.path
            inner.folders = Folders(folder, reading.script)
            inner.judge()
        self.context.depth -= 1

    def runs_stdin(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        """An interpreter that reads its program from standard input."""
        given = standard_input(command, self.script)
        shell = effect.text == "sh"
        if given.file is not None:
            kind = given.effect or ("runs-file" if shell else "runs-code-file")
            self.runs_file(Effect(kind, given.file), invocation)
        elif given.effect in ("runs-input", "download-run"):
            self.hit(given.effect, effect.word, invocation)
        elif shell and (given.effect or not given.texts):
            self.hit("runs-input", effect.word, invocation)
        else:
            for text in given.texts:
                self.program_text(text, effect.text, invocation, command)

    def runs_sql_input(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        """A database shell that is fed commands: dot-commands among them run programs."""
        if feeds_dot_commands(command, self.script):
            self.hit("runs-input", effect.word, invocation)

    def program_text(
        self, text: Word, language: str, invocation: Invocation, command: Command
    ) -> None:
        if language == "sh":
            self.text(text, invocation)
        elif fetches(text, self.script):
            self.hit("download-run", text, invocation)
        else:
            self.every_effect(code_effects(language, text), invocation, command)

    def runs_code(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        language = effect.kind.removeprefix("code-")
        self.every_effect(code_effects(language, effect.word), invocation, command)

    def runs_module(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        """`python -m NAME`, `pnpm NAME`: judged as the program of that name, if we know one."""
        if effect.word.static in self.policy.programs:
            self.runs(effect, invocation, command)

    def loads_outside(self, effect: Effect, invocation: Invocation, _: Command) -> None:
        if self.files.comes_from_outside(effect.word, self.here):
            self.hit("loads", effect.word, invocation)

    def runs_file(self, effect: Effect, invocation: Invocation | None, *_: Command) -> None:
        """A script or program file: one that this very text downloads is a download that is run."""
        word, kind = effect.word, effect.kind
        if self.files.is_download(word, self.here, self.script):
            kind = "download-run"
        elif kind == "runs-file" and any(p.kind is Expands.PROCESS for p in word.expansions()):
            kind = "hidden-text"
        self.hit(kind, word, invocation)

    def unclear(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        kind = "download-run" if fetches(effect.word, self.script) else effect.kind
        self.hit(kind, effect.word, invocation)

    def program_runs(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        """Code that starts programs: what it names is judged like any command."""
        self.hit(effect.kind, effect.word, invocation)
        if effect.text:
            self.text(literal_word(effect.text, effect.word.start, effect.word.end))

    def sets(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        setting = setting_of(effect.word, invocation.program)
        if setting.effect:
            self.hit(setting.effect, effect.word, invocation)
        elif setting.name:
            self.variable(setting.name, setting.value, effect.word)

    def chdir(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        """What follows in this command happens in another directory."""
        known = effect.word.text
        self.here = Folder(None if known is None else absolute(known, self.here.path or "/"))

    def path(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        self.files.path(effect, invocation, self.sources(command), self.here)

    def sources(self, command: Command) -> list[Command]:
        return [command, *(self.script.commands[index] for index in command.feeders)]

    def downloads(self, effect: Effect, *_: object) -> None:
        """A download under the name that its address ends with."""
        self.files.download_names.add(effect.text)


_HANDLERS: Final[dict[str, Callable[[Judge, Effect, Invocation, Command], None]]] = {
    "runs": Judge.runs,
    **dict.fromkeys(("runs-shell", "runs-here"), Judge.runs_text),
    "runs-stdin": Judge.runs_stdin,
    **dict.fromkeys(("runs-file", "runs-code-file"), Judge.runs_file),
    **dict.fromkeys(("hidden-text", "unclear-program", "code-text"), Judge.unclear),
    "program-runs": Judge.program_runs,
    "sets": Judge.sets,
    "chdir": Judge.chdir,
    "downloads": Judge.downloads,
    **dict.fromkeys(("runs-module", "runs-script"), Judge.runs_module),
    "runs-sql-input": Judge.runs_sql_input,
    "loads-outside": Judge.loads_outside,
    **{f"code-{language}": Judge.runs_code for language in ("node", "python", "ruby", "php")},
    **dict.fromkeys(("reads", "writes", "deletes", "links"), Judge.path),
}
