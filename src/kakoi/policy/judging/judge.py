"""The walk over one script: every command, redirect and assignment is held against the policy."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kakoi.policy.judging.files import Files, fetches
from kakoi.policy.judging.folders import Folder, Folders
from kakoi.policy.judging.inputs import DOT_COMMAND, standard_input
from kakoi.policy.judging.naming import callable_functions, named, program_name
from kakoi.policy.judging.paths import absolute
from kakoi.policy.judging.values import Values
from kakoi.policy.judging.variables import Meaning, meaning_of
from kakoi.policy.parsing.script import Assignment, Command, Redirect, Script, Unreadable
from kakoi.policy.programs import Effect, Invocation, invoke
from kakoi.policy.reading.code_readers import code_effects
from kakoi.policy.reading.effects import effects_of
from kakoi.policy.reading.shell_readers import ASSIGNED, placeholder
from kakoi.policy.rules import Verdict
from kakoi.policy.syntax import parse
from kakoi.policy.words import Expands, Expansion, Word, literal_word, make_word

MAX_WRAPPERS: Final = 8
_DELETERS: Final = frozenset({"rm", "unlink", "shred", "rmdir"})
# Builtins that name variables without giving them a value.
_KEEPING: Final = frozenset("export declare local readonly typeset unset".split())
# Builtins that change the shell itself: behind `command` nobody follows what they do.
_STATE_BUILTINS: Final = _KEEPING | frozenset(
    "cd pushd popd read mapfile readarray getopts printf trap set shopt eval source hash".split()
)


@dataclass
class Context:
    """What a nested text shares with the text around it."""

    files: Files
    cwd: str
    depth: int = 0


class Judge:
    """Judges one script; a text inside it (`sh -c …`) gets a judge of its own, one level deeper."""

    def __init__(self, context: Context, script: Script, outer: "Judge | None" = None) -> None:
        self.context = context
        self.report = context.files.report
        self.hit = self.report.hit
        self.files = context.files
        self.policy = self.report.policy
        self.script = script
        self.outer = outer
        self.values: Values = Values(script, outer.values.to_inherit() if outer else {})
        self.here = Folder(context.cwd)
        self.folders = Folders(context.cwd, script)
        self.functions = callable_functions(script)
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
        if program_name(command) in _DELETERS:
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
        piped = any(program_name(self.script.commands[i]) == name for i in command.feeders)
        if command.function == name and (piped or command.background):
            self.hit("fork-bomb", word)
        return True

    # ── assignments and redirects ──

    def assignment(self, assignment: Assignment, command: Command) -> None:
        # `IFS=, read -r a b` splits one line; alone it would change how every later word is read.
        if assignment.name == "IFS" and program_name(command) in ("read", "mapfile", "readarray"):
            return
        word = literal_word(assignment.name, assignment.start, assignment.end)
        self.variable(assignment.name, assignment.value, word)
        if self.script.evaluates and assignment.value is not None:
            # A value may assign in its turn: `x='IFS=1'; ((x))`.
            for name in re.findall(r"([A-Za-z_]\w*)\s*[-+*/%&|^]?=", assignment.value.shown):
                if meaning_of(name, None) is Meaning.CHANGES:
                    self.hit("arithmetic-text", word, subject=assignment.value.shown)

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
        if effect.text in ("xargs", "find") and (argv[0].static or "").split("/")[-1] in _DELETERS:
            self.hit("mass-delete", argv[0], invocation)
        if invocation.program in ("command", "builtin") and argv[0].static in _STATE_BUILTINS:
            self.hit("wrapped-builtin", argv[0], invocation)
        lenient = effect.text if effect.text in ("runs-package", "runs-project") else ""
        self.context.depth += 1
        self.argv(argv, command, lenient)
        self.context.depth -= 1

    def runs_text(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        self.text(effect.word, invocation)

    def runs_here(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        self.text(effect.word, invocation, same_shell=True)

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
        if self.context.depth >= MAX_WRAPPERS:
            self.hit("wrapped-too-deep", word)
            return
        script = parse(word.text)
        if isinstance(script, Unreadable):
            hint = "Write the inner command in plain shell, or run it without the wrapper."
            reason = f"inside it, {script.reason}"
            self.report.find("unreadable", Verdict.DENY, word, word.shown[:40], reason, hint)
            return
        outside = [s for s in self.script.hidden if not word.start <= s[0] < word.end]
        if script.evaluates and outside:
            self.hit("arithmetic-text", word, invocation)
        self.context.depth += 1
        with self.report.pointing_at(word):
            inner = Judge(self.context, script, self if same_shell else None)
            # A trap runs wherever the shell is when it goes off.
            folder = None if same_shell and self.values.moves else self.here.path
            inner.folders = Folders(folder, script)
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
        given = standard_input(command, self.script)
        runs = any(DOT_COMMAND.search(text.shown) for text in given.texts)
        if runs or given.effect not in ("", "fed-words"):
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
        """`python -m NAME`: judged as the program of that name, where the policy knows one."""
        if effect.word.static in self.policy.programs:
            self.runs(effect, invocation, command)

    def loads_outside(self, effect: Effect, invocation: Invocation, command: Command) -> None:
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
        word = effect.word
        assigned = ASSIGNED.match(word.prefix)
        if re.search(r"\[.*(?:\$|`)", word.static or "", re.DOTALL):
            self.hit("hidden-text", word, invocation)
        elif assigned:
            self.variable(assigned[1], word.after(assigned.end()), word)
        elif word.static is None:
            self.hit("sets-unclear", word, invocation)
        elif invocation.program not in _KEEPING or (
            word.static in ("PATH", "IFS") and invocation.program not in ("export", "readonly")
        ):
            self.variable(word.static.split("[")[0], placeholder(word), word)

    def chdir(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        """What follows in this command happens in another directory."""
        known = effect.word.text
        self.here = Folder(None if known is None else absolute(known, self.here.path or "/"))

    def path(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        self.files.path(effect, invocation, self.sources(command), self.here)

    def sources(self, command: Command) -> list[Command]:
        return [command, *(self.script.commands[index] for index in command.feeders)]

    def downloads(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        """A download under the name that its address ends with."""
        self.files.downloads.add(absolute(effect.text, self.here.path or "/"))


_HANDLERS: Final[dict[str, Callable[[Judge, Effect, Invocation, Command], None]]] = {
    "runs": Judge.runs,
    "runs-shell": Judge.runs_text,
    "runs-stdin": Judge.runs_stdin,
    "runs-file": Judge.runs_file,
    "runs-code-file": Judge.runs_file,
    **dict.fromkeys(("hidden-text", "unclear-program", "code-text"), Judge.unclear),
    "program-runs": Judge.program_runs,
    "sets": Judge.sets,
    "chdir": Judge.chdir,
    "runs-here": Judge.runs_here,
    "downloads": Judge.downloads,
    "runs-module": Judge.runs_module,
    "runs-sql-input": Judge.runs_sql_input,
    "loads-outside": Judge.loads_outside,
    **{f"code-{language}": Judge.runs_code for language in ("node", "python", "ruby", "php")},
    "reads": Judge.path,
    "writes": Judge.path,
    "deletes": Judge.path,
    "links": Judge.path,
}
