"""The walk over one script: checks every command, redirect and assignment against the policy."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from kakoi._support.late import dataclass, pattern
from kakoi.policy.effects.arguments import is_pipe
from kakoi.policy.effects.invocation_effects import effects_of
from kakoi.policy.effects.languages.inline import LANGUAGES
from kakoi.policy.effects.programs import Effect, Invocation, invoke
from kakoi.policy.effects.readers.code import DROPS, code_effects
from kakoi.policy.judging.command_words import (
    DELETERS,
    callable_functions,
    find_program,
    has_option_like_values,
    may_name_program,
    names_everything,
    names_known_program,
    possible_options,
    program_name,
    starts_itself_without_end,
)
from kakoi.policy.judging.files import OLD_PATH, FileRules, fetches
from kakoi.policy.judging.folders import WorkingFolder, WorkingFolders
from kakoi.policy.judging.interpreter_input import (
    feeds_dot_commands,
    hides_programs,
    script_language,
    standard_input,
    text_written_by,
)
from kakoi.policy.judging.leaks import NETWORK, secret_that_leaves
from kakoi.policy.judging.paths import absolute
from kakoi.policy.judging.values import Values
from kakoi.policy.judging.variables import (
    STATE_BUILTINS,
    Meaning,
    assigns_in_turn,
    meaning_before,
    meaning_of,
    programs_given,
    setting_of,
)
from kakoi.policy.parsing.parser import Reading, readings, reads_in_its_own_way
from kakoi.policy.parsing.script import Assignment, Redirect, SimpleCommand, Unreadable
from kakoi.policy.parsing.words import (
    FOUND,
    STDIN_NAMES,
    Expands,
    Expansion,
    Literal,
    Word,
    literal_word,
    make_word,
)
from kakoi.policy.rules import Verdict

MAX_WRAPPERS: Final = 8
_OVERWRITES: Final = pattern(r"(?:.*/)?(?:cp|tee|install|sponge|ln|dd)")
# No one writes more texts than this in one command, and each is parsed.
MAX_TEXTS: Final = 100


@dataclass
class TextContext:
    """What a nested text shares with the text around it."""

    files: FileRules
    cwd: str
    depth: int = 0
    texts: int = 0


class Judge:
    """Judges one script; a text inside it (`sh -c …`) gets a judge of its own, one level deeper."""

    def __init__(
        self, context: TextContext, reading: Reading, outer: "Judge | None" = None
    ) -> None:
        self.context = context
        self.report = context.files.report
        self.hit = self.report.hit
        self.files = context.files
        self.policy = self.report.policy
        self.script = script = reading.script
        self.outer = outer
        inherited = outer.values.to_inherit() if outer else {}
        self.values: Values = Values(script, inherited, posix=reading.posix)
        self.here = WorkingFolder(context.cwd)
        self.folders = WorkingFolders(context.cwd, script)
        self.functions = callable_functions(script)
        self.has_option_like_values = has_option_like_values(script)
        self.index = 0

    def judge(self) -> None:
        """Find every objection to the script."""
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
        for word in self.files.folders_with_new_programs():
            self.hit("sets-variable", word, subject="PATH")

    # ── commands ──

    def command(self, command: SimpleCommand) -> None:
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
                if names_everything(word):
                    self.hit("mass-delete", word)
        for words in self.every_argv(command):
            self.argv(words, command)

    def every_argv(self, command: SimpleCommand) -> Iterator[tuple[Word, ...]]:
        """Yield the words of a command with every value that its variables can have."""
        first = command.words[0]
        if not names_known_program(first):
            for words in self.values.variants(command.words[1:], self.index):
                yield (first, *words)
            return
        for words in self.values.variants(command.words, self.index):
            yield words if words and may_name_program(words[0]) else (first, *words[1:])

    def argv(self, words: tuple[Word, ...], command: SimpleCommand, lenient: str = "") -> None:
        """Judge one program, and all that it starts; `lenient`: a package manager finds it."""
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
            name = find_program(text, self.here.path, self.files.roots, known)
            lenient = lenient or ("runs-project" if name.from_package else "")
            if name.effect:
                self.runs_file(Effect(name.effect, words[0]), None)
            if not name.program:
                return
            program = name.program
        has_subcommands = program in self.policy.programs_with_subcommands
        invocation = invoke(program, words, has_subcommands=has_subcommands)
        self.invocation(invocation, command, lenient)

    def invocation(self, invocation: Invocation, command: SimpleCommand, lenient: str) -> None:
        word = invocation.named_by
        verdicts: set[Verdict] = set()
        for rule in self.policy.rules_by_program.get(invocation.program, ()):
            if rule.applies_to(invocation):
                verdicts.add(self.report.rule(rule, word, invocation.short_name))
        if Verdict.DENY not in verdicts:
            self.listed(invocation, word, lenient, asked=Verdict.ASK in verdicts)
        for effect in effects_of(invocation):
            self.effect(effect, invocation, command)
        if invocation.program in NETWORK:
            leaves = secret_that_leaves(invocation, self.script)
            if leaves is not None:
                self.hit("sends-secret", leaves, invocation)
        if self.files.downloads or self.files.download_names:
            self.files.judge_downloads(invocation, self.here)
        for operand in possible_options(invocation) if self.has_option_like_values else ():
            self.hit("unclear-option", operand, invocation)

    def listed(self, invocation: Invocation, word: Word, lenient: str, *, asked: bool) -> None:
        """Check that the program, with its subcommand, is on the list.

        `asked`: a rule asks already, and its reason is more exact.
        """
        entry = self.policy.entry(invocation.names)
        verdict = Verdict.DENY
        if entry is not None:
            verdict = entry.verdict_where(confined=self.report.confined)
        if entry is not None and verdict is not Verdict.DENY:
            if entry.verdict is Verdict.ASK and (asked or invocation.only_shows):
                return  # More is said elsewhere, or there is nothing to ask about.
            if entry.verdict is not Verdict.ALLOW:
                hint = entry.hint or "Ask your user, or use a command that only reads."
                hint = "" if verdict is Verdict.ALLOW else hint
                self.report.find("asks-first", verdict, word, entry.command, entry.reason, hint)
        elif self.policy.is_open:
            # Only a rule that was added can object: there is no list that could name it.
            if lenient:
                self.hit("package-program", word, subject=invocation.short_name)
        elif (
            self.policy.any_command
            or self.policy.only_shows_itself(invocation)
            or (lenient == "runs-project" and invocation.program.endswith(".py"))
            or (self.report.confined and not lenient and invocation.only_asks_about_itself)
        ):
            return
        elif lenient:
            kind = "project-program" if lenient == "runs-project" else "package-program"
            self.hit(kind, word, subject=invocation.short_name)
        else:
            self.hit("not-listed", word, subject=invocation.short_name)

    def calls_function(self, name: str, word: Word, command: SimpleCommand) -> bool:
        """Whether the name certainly calls a function of the script: its body is judged anyway."""
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

    def assignment(self, assignment: Assignment, command: SimpleCommand) -> None:
        # `IFS=, read -r a b` splits one line; alone it would change how every later word is read.
        if assignment.name == "IFS" and program_name(command) in ("read", "mapfile", "readarray"):
            return
        word = literal_word(assignment.name, assignment.start, assignment.end)
        for program in programs_given(command, self.script, self.index):
            self.variable(assignment.name, assignment.value, word, program)
        value = assignment.value
        if self.script.evaluates and value is not None and assigns_in_turn(value):
            self.hit("arithmetic-text", word, subject=value.shown)

    def variable(
        self, name: str, value: Word | None, word: Word, program: str | None = None
    ) -> None:
        """Judge a variable; `program` is the one that it is given to, if it is."""
        known = meaning_of(name, value)
        meaning = known if program is None else meaning_before(name, value, program)
        if meaning is Meaning.UNKNOWN and value is not None and self.starts_denied(value):
            meaning = Meaning.RUNS
        if meaning is Meaning.RUNS and value is not None:
            self.text(value)
        elif meaning is Meaning.PATHS and value is not None and self.stays_inside(name, value):
            return
        elif meaning is Meaning.CHANGES and value is not None and self.extends_path(name, value):
            self.hit("extends-path", word, subject=name)
        elif meaning is not Meaning.HARMLESS:
            self.hit(meaning.value, word, subject=name)

    def starts_denied(self, value: Word) -> bool:
        """Whether the value is a command line that begins with a program that is never allowed."""
        first = (value.static or "").split()[:1]
        return bool(first) and first[0].rpartition("/")[2] in self.policy.denied_programs

    def stays_inside(self, name: str, value: Word) -> bool:
        """Whether a search path has only directories of the workspace and its previous value."""
        parts = (p for p in value.parts if not (isinstance(p, Expansion) and p.name == name))
        own = make_word(tuple(parts), value.start, value.end)
        shapes = [w.shape for words in self.values.variants((own,), self.index) for w in words]
        return self.files.all_inside(shapes, self.here)

    def extends_path(self, name: str, value: Word) -> bool:
        """Whether `PATH=$PWD/bin:$PATH` keeps the old value, and every other folder is known."""
        if name != "PATH":
            return name == "LD_LIBRARY_PATH" and self.stays_inside(name, value)
        is_old = [isinstance(p, Expansion) and p.name == "PATH" for p in value.parts]
        parts = tuple(
            Literal(OLD_PATH, True) if old else part
            for old, part in zip(is_old, value.parts, strict=True)
        )
        if is_old.count(True) != 1 or any(getattr(p, "operator", "") for p in value.parts):
            return False
        own = make_word(parts, value.start, value.end)
        shapes = [w.shape for words in self.values.variants((own,), self.index) for w in words]
        return bool(shapes) and all(self.files.extends_path(s, value, self.here) for s in shapes)

    def redirect(self, redirect: Redirect, command: SimpleCommand) -> None:
        if redirect.descriptor.startswith("{"):
            name = redirect.descriptor.strip("{}")
            self.variable(name, None, literal_word(name, redirect.start, redirect.end))
        if redirect.copies_descriptor or redirect.operator.startswith("<<"):
            return
        for words in self.values.variants((redirect.target,), self.index):
            for word in words:
                if redirect.writes:
                    self.files.written("writes", word, None, self.sources(command), self.here)
                    content = None if redirect.operator == ">>" else text_written_by(command)
                    self.files.note_content(word, content, self.here)
                else:
                    self.files.read(word, None, self.here)

    # ── effects ──

    def effect(self, effect: Effect, invocation: Invocation, command: SimpleCommand) -> None:
        handler = _HANDLERS.get(effect.kind)
        if handler is not None:
            handler(self, effect, invocation, command)
        elif effect.option is not None:
            both = literal_word(effect.word.shown, effect.option.start, effect.word.end)
            self.hit(effect.kind, both, invocation, self.report.source(both))
        else:
            self.hit(effect.kind, effect.word, invocation)

    def every_effect(
        self, effects: Iterable[Effect], invocation: Invocation, command: SimpleCommand
    ) -> None:
        for each in effects:
            self.effect(each, invocation, command)

    def runs(self, effect: Effect, invocation: Invocation, command: SimpleCommand) -> None:
        argv = effect.argv
        if effect.text == "xargs":
            argv = self.values.fed(argv, command)
        if effect.text in ("xargs", "find") and (argv[0].static or "").split("/")[-1] in DELETERS:
            self.hit("mass-delete", argv[0], invocation)
            # `-exec cp /dev/null {}` empties what is found.
        elif effect.text in ("xargs", "find") and _OVERWRITES.fullmatch(argv[0].static or ""):
            is_found = any(
                part.name == FOUND or part.kind is Expands.FED for part in argv[-1].expansions()
            )
            if is_found and argv[-1].parts and isinstance(argv[-1].parts[-1], Expansion):
                self.hit("mass-delete", argv[0], invocation)
        if invocation.program in ("command", "builtin") and argv[0].static in STATE_BUILTINS:
            self.hit("wrapped-builtin", argv[0], invocation)
        lenient = effect.text if effect.text in ("runs-package", "runs-project") else ""
        self.context.depth += 1
        self.argv(argv, command, lenient)
        self.context.depth -= 1

    def runs_text(self, effect: Effect, invocation: Invocation, command: SimpleCommand) -> None:
        self.text(effect.word, invocation, same_shell=effect.kind == "runs-here")

    def text(
        self, word: Word, invocation: Invocation | None = None, *, same_shell: bool = False
    ) -> None:
        """Judge a word that is shell text.

        Another shell does not know the functions and variables of this one.
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
        """Judge one way in which a shell can read the text of `word`."""
        if isinstance(reading, Unreadable):
            self.report.unreadable(word, reading.reason)
            return
        outside = [s for s in self.script.hidden if not word.start <= s[0] < word.end]
        if reading.script.evaluates and outside:
            self.hit("arithmetic-text", word, invocation)
        self.context.depth += 1
        with self.report.pointing_at(word):
            inner = Judge(self.context, reading, self if same_shell else None)
            # A trap runs in the directory where the shell is when the trap fires.
            folder = None if same_shell and self.values.moves else self.here.path
            inner.folders = WorkingFolders(folder, reading.script)
            inner.judge()
        self.context.depth -= 1

    def runs_stdin(self, effect: Effect, invocation: Invocation, command: SimpleCommand) -> None:
        """An interpreter that reads its program from standard input."""
        stdin = standard_input(command, self.script)
        shell = effect.text == "sh"
        if stdin.file is not None:
            kind = stdin.effect or ("runs-file" if shell else "runs-code-file")
            self.runs_file(Effect(kind, stdin.file), invocation)
        elif stdin.effect in ("runs-input", "download-run"):
            self.hit(stdin.effect, effect.word, invocation)
        elif shell and (stdin.effect or not stdin.texts):
            self.hit("runs-input", effect.word, invocation)
        else:
            for text in stdin.texts:
                self.program_text(text, effect.text, invocation, command)

    def runs_sql_input(
        self, effect: Effect, invocation: Invocation, command: SimpleCommand
    ) -> None:
        """A database shell that reads commands: its dot-commands run programs."""
        file = standard_input(command, self.script).file
        if file is not None and self.files.is_download(file, self.here, self.script):
            self.hit("download-run", file, invocation)
        elif feeds_dot_commands(command, self.script):
            self.hit("runs-input", effect.word, invocation)

    def fed_commands(self, effect: Effect, invocation: Invocation, command: SimpleCommand) -> None:
        """The input of a program with commands of its own."""
        stdin = standard_input(command, self.script)
        if any(re.search(effect.text, text.shown.replace("\\n", "\n")) for text in stdin.texts):
            self.hit("runs-input", effect.word, invocation)
        elif stdin.effect in ("runs-input", "download-run"):
            self.hit(stdin.effect, effect.word, invocation)
        if any(DROPS.search(text.shown) for text in stdin.texts):
            self.hit("database-deletes", effect.word, invocation)

    def program_text(
        self, text: Word, language: str, invocation: Invocation, command: SimpleCommand
    ) -> None:
        if language == "sh":
            self.text(text, invocation)
        elif fetches(text, self.script):
            self.hit("download-run", text, invocation)
        else:
            self.every_effect(code_effects(language, text), invocation, command)

    def runs_code(self, effect: Effect, invocation: Invocation, command: SimpleCommand) -> None:
        language = effect.kind.removeprefix("code-")
        self.every_effect(code_effects(language, effect.word), invocation, command)

    def runs_module(self, effect: Effect, invocation: Invocation, command: SimpleCommand) -> None:
        """`python -m NAME`, `pnpm NAME`: judged as the program of that name, if it is known."""
        name = effect.word.static or ""
        if name in self.policy.programs:
            self.runs(effect, invocation, command)
        elif effect.kind == "runs-module":
            self.every_effect(effects_of(invoke(name, effect.argv)), invocation, command)

    def loads_outside(self, effect: Effect, invocation: Invocation, _: SimpleCommand) -> None:
        word = effect.word
        piped = word.static in STDIN_NAMES or word.prefix.startswith(("/dev/fd/", "/proc/self/fd/"))
        if piped or is_pipe(word) or self.files.comes_from_outside(word, self.here):
            self.hit("loads", effect.word, invocation)

    def runs_file(self, effect: Effect, invocation: Invocation | None, *_: SimpleCommand) -> None:
        """A script or program file; one that this text downloads is a download that is run."""
        word, kind = effect.word, effect.kind
        path = absolute(word.prefix, self.here.path or "/")
        if kind in ("runs-code-file", "runs-file"):
            # What an interpreter cannot read as code it prints, at least the line.
            self.files.read(word, invocation, self.here)
        if self.files.is_download(word, self.here, self.script):
            kind = "download-run"
        elif kind == "runs-file" and any(p.kind is Expands.PROCESS for p in word.expansions()):
            kind = "hidden-text"
        elif kind == "runs-file" and path in self.files.contents:
            kind = self.runs_written(
                self.files.contents[path], invocation.program if invocation else ""
            )
        elif kind == "runs-file" and word.shape is None and self.report.confined:
            kind = "runs-written"
        self.hit(kind, word, invocation)

    def runs_written(self, content: Word | None, ran_by: str) -> str:
        """Judge a script that this text writes and runs; return the effect of running it.

        What would be asked about in the open is not asked here, as for a script that nobody sees.
        """
        language = script_language(content) if content is not None else None
        if content is None or language is None or content.text is None:
            return "runs-written"
        if not self.report.confined:
            return "runs-file"
        before = len(self.report.findings)
        if language == "sh":
            is_bash = ran_by == "bash" or "bash" in content.text.partition("\n")[0]
            self.text(content, invoke("bash" if is_bash else "sh", (content,)))
        else:
            for effect in code_effects(language, content):
                if effect.kind == "program-runs" and effect.text:
                    self.text(literal_word(effect.text, content.start, content.end))
        found = self.report.findings[before:]
        self.report.findings[before:] = [f for f in found if f.verdict is Verdict.DENY]
        return "runs-file"

    def program_file(self, effect: Effect, invocation: Invocation, _: SimpleCommand) -> None:
        """`awk -f FILE`: a file of the project, unless the text itself provides it."""
        word, path = effect.word, absolute(effect.word.prefix, self.here.path or "/")
        self.files.read(word, invocation, self.here, "names")
        fed = word.shape is None or (word.static or "") in STDIN_NAMES or path.startswith("/proc/")
        if self.files.is_download(word, self.here, self.script):
            self.hit("download-run", word, invocation)
        elif fed or path in self.files.contents or path.startswith("/dev/"):
            self.hit("program-file-fed", word, invocation)
        else:
            self.hit(effect.kind, word, invocation)

    def loads_code(self, effect: Effect, invocation: Invocation, _: SimpleCommand) -> None:
        """A plugin, a parser, a reporter: a file of the project that becomes part of a tool."""
        if self.files.comes_from_outside(effect.word, self.here):
            self.hit("loads", effect.word, invocation)
        elif re.search(r"^[.{]|/|\.(?:[cm]?[jt]s|py|rb|php|so)$", effect.word.shown.lstrip("@")):
            self.hit("loads-file", effect.word, invocation)

    def sources_activate(self, effect: Effect, invocation: Invocation, _: SimpleCommand) -> None:
        """`source VENV/bin/activate`: of a virtual environment, unless this text writes it."""
        path = absolute(effect.word.prefix, self.here.path or "/")
        if path in self.files.contents or self.files.is_download(
            effect.word, self.here, self.script
        ):
            self.hit("sources-file", effect.word, invocation)

    def unclear(self, effect: Effect, invocation: Invocation, command: SimpleCommand) -> None:
        kind = "download-run" if fetches(effect.word, self.script) else effect.kind
        self.hit(kind, effect.word, invocation)

    def program_runs(self, effect: Effect, invocation: Invocation, command: SimpleCommand) -> None:
        """Code that starts programs: a command that it spells out is judged like any other."""
        hides = not effect.text and hides_programs(effect.word.shown, self.policy.denied_programs)
        self.hit("program-hides" if hides else effect.kind, effect.word, invocation)
        if effect.text:
            self.text(literal_word(effect.text, effect.word.start, effect.word.end))

    def sets(self, effect: Effect, invocation: Invocation, command: SimpleCommand) -> None:
        setting = setting_of(effect.word, invocation.program)
        if setting.effect:
            self.hit(setting.effect, effect.word, invocation)
        elif setting.name:
            operands = [w for w in invocation.arguments.operands if "=" not in w.prefix]
            is_given = invocation.program in ("env", "cross-env") and operands
            program = (operands[0].static or "").rpartition("/")[2] if is_given else None
            self.variable(setting.name, setting.value, effect.word, program)

    def chdir(self, effect: Effect, invocation: Invocation, command: SimpleCommand) -> None:
        """The rest of this command happens in another directory."""
        known = effect.word.text
        self.files.read(effect.word, invocation, self.here, "names")
        if invocation.program != "git":  # It builds there.
            self.files.place(effect.word, invocation, self.here)
        self.here = WorkingFolder(None if known is None else absolute(known, self.here.path or "/"))

    def replaces_folder(
        self, effect: Effect, invocation: Invocation, command: SimpleCommand
    ) -> None:
        """A folder that is emptied before it is written."""
        self.hit("mass-delete", effect.word, invocation)
        self.path(Effect("writes", effect.word), invocation, command)

    def path(self, effect: Effect, invocation: Invocation, command: SimpleCommand) -> None:
        self.files.path(effect, invocation, self.sources(command), self.here)
        if invocation.program == "tee":
            self.files.note_content(effect.word, text_written_by(command), self.here)

    def sources(self, command: SimpleCommand) -> list[SimpleCommand]:
        return [command, *(self.script.commands[index] for index in command.feeders)]

    def downloads(self, effect: Effect, *_: object) -> None:
        """A download that gets its name from the end of its URL."""
        self.files.download_names.add(effect.text)


_HANDLERS: Final[dict[str, Callable[[Judge, Effect, Invocation, SimpleCommand], None]]] = {
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
    "fed-commands": Judge.fed_commands,
    "loads-outside": Judge.loads_outside,
    "loads-code": Judge.loads_code,
    "sources-activate": Judge.sources_activate,
    "program-file": Judge.program_file,
    **{f"code-{language}": Judge.runs_code for language in LANGUAGES},
    "replaces-folder": Judge.replaces_folder,
    **dict.fromkeys(
        ("reads", "lists", "names", "writes", "deletes", "links", "odd-place"), Judge.path
    ),
}
