"""The walk over one script: every command, redirect and assignment is held against the policy."""

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kakoi.policy.code_readers import code_effects
from kakoi.policy.decision import Finding
from kakoi.policy.effects import effects_of
from kakoi.policy.paths import SCRATCH, Location, absolute, is_secret, locate, within
from kakoi.policy.programs import Effect, Invocation, invoke
from kakoi.policy.rules import Policy, Rule, Verdict
from kakoi.policy.script import Assignment, Command, Redirect, Script, Unreadable
from kakoi.policy.shell_readers import ASSIGNED
from kakoi.policy.syntax import parse
from kakoi.policy.values import Values, printed_by
from kakoi.policy.variables import Meaning, meaning_of
from kakoi.policy.words import Expands, Expansion, Word, literal_word

MAX_WRAPPERS: Final = 8
_SYSTEM_FOLDERS: Final = frozenset(
    "/bin /usr/bin /usr/local/bin /sbin /usr/sbin /usr/local/sbin /opt/conda/bin /usr/local/go/bin".split()
)
# Folders of a project where its package manager puts the programs of its dependencies.
_PACKAGE_FOLDER: Final = re.compile(
    r"(?:\./)?(?:[\w.-]+/)*(?:node_modules/\.bin|\.?v?env/bin|\.venv/bin|vendor/bin|\.tox/[\w.-]+/bin|\.nox/[\w.-]+/bin)"
)
_PROJECT_WRAPPERS: Final = frozenset({"./gradlew", "./mvnw", "../gradlew", "../mvnw"})
_DOWNLOADERS: Final = frozenset("curl wget aria2c http https fetch lynx w3m ftp scp nc".split())
_DECODERS: Final = frozenset("base64 base32 xxd openssl gpg uudecode".split())
_DELETERS: Final = frozenset({"rm", "unlink", "shred", "rmdir"})
_VARIABLE_COMMANDS: Final = frozenset("export declare local readonly typeset unset".split())
_WRITING: Final = frozenset({">", ">>", ">|", "&>", "&>>", "<>"})


@dataclass
class Context:
    """What a nested text shares with the text around it."""

    policy: Policy
    cwd: str
    roots: tuple[str, ...]
    findings: list[Finding] = field(default_factory=list)
    depth: int = 0
    # Set while judging a nested text: findings point at the word that held it.
    span: tuple[int, int] | None = None


class Judge:
    """Judges one script; a text inside it (`sh -c …`) gets a judge of its own, one level deeper."""

    def __init__(self, context: Context, script: Script, outer: "Judge | None" = None) -> None:
        self.context = context
        self.policy = context.policy
        self.script = script
        self.values = Values(script, outer.values.known if outer else {})
        self.folders: dict[tuple[int, ...], str | None] = {(): outer.folder if outer else context.cwd}
        self.folder: str | None = self.folders[()]
        self.before: str | None = None
        self.downloads: set[str] = outer.downloads if outer else set()
        self.functions = outer.functions if outer else _callable(script)
        self.index = 0

    # ── findings ──

    def find(self, rule: str, verdict: Verdict, word: Word, subject: str, reason: str, hint: str) -> None:
        start, end = self.context.span or (word.start, word.end)
        self.context.findings.append(Finding(rule, verdict, start, end, subject, reason, hint))

    def report(self, rule: Rule, word: Word, subject: str = "") -> None:
        text = subject or word.shown
        named = {"subject": text}
        self.find(
            rule.id, rule.verdict, word, text, _told(rule.reason, named), _told(rule.hint, named)
        )

    def hit(self, kind: str, word: Word, invocation: Invocation | None = None, subject: str = "") -> None:
        """Hold an effect against the rules."""
        effect = Effect(kind, word)
        for rule in self.policy.rules_by_effect.get(kind, ()):
            if rule.catches(effect, invocation):
                self.report(rule, word, subject)

    # ── the script ──

    def judge(self) -> None:
        for definition in self.script.definitions:
            if definition.name in self.policy.programs:
                word = literal_word(definition.name, definition.start, definition.end)
                self.hit("shadows-program", word)
        for trap in self.script.traps:
            if not (trap.pointer and self.values.are_names(trap.pointer)):
                self.hit("hidden-text", literal_word(trap.what, trap.start, trap.end))
        for binding in self.script.bindings:
            word = literal_word(binding.name, binding.start, binding.end)
            self.variable(binding.name, None, word)
        for index, command in enumerate(self.script.commands):
            self.index = index
            self.folder = self.folder_of(command.scope)
            self.command(command)
            self.move(command)

    def command(self, command: Command) -> None:
        for assignment in command.assignments:
            self.assignment(assignment, command)
        for redirect in command.redirects:
            self.redirect(redirect, command)
        if not command.words:
            return
        first = command.words[0]
        for words in self.values.variants(command.words):
            self.argv((first, *words[1:]) if words else (first,), command)

    def folder_of(self, scope: tuple[int, ...]) -> str | None:
        known = scope
        while known not in self.folders:
            known = known[:-1]
        return self.folders.setdefault(scope, self.folders[known])

    def move(self, command: Command) -> None:
        """Follow `cd`, so that a relative write is held against the right directory."""
        name = command.words[0].static if command.words else None
        if name not in ("cd", "pushd", "popd"):
            return
        words = next(iter(self.values.variants(command.words)))
        operands = [w for w in words[1:] if w.static not in ("-P", "-L", "-e", "--")]
        before, target = self.folder, operands[0] if operands else None
        if name == "popd" or (target is not None and target.static == "-"):
            after = self.before
        elif target is None or target.tilde:
            after = "/home/user"
        elif target.text is None:
            known = locate(target, before, self.context.roots) is Location.INSIDE
            after = absolute(target.prefix, before or "/") if known else None
        else:
            after = None if before is None and target.text[:1] != "/" else absolute(target.text, before or "/")
        self.before = before
        self.folders[command.scope] = after

    # ── assignments and redirects ──

    def assignment(self, assignment: Assignment, command: Command) -> None:
        word = literal_word(assignment.name, assignment.start, assignment.end)
        program = command.words[0].static if command.words else None
        # `IFS=, read -r a b` splits one line; alone it would change how every later word is read.
        if assignment.name == "IFS" and program in ("read", "mapfile", "readarray"):
            return
        self.variable(assignment.name, assignment.value, word)

    def variable(self, name: str, value: Word | None, word: Word) -> None:
        meaning = meaning_of(name, value)
        if meaning is Meaning.RUNS and value is not None and value.static is not None:
            self.text(value)
        elif meaning is not Meaning.HARMLESS:
            kind = Meaning.CHANGES if meaning is Meaning.RUNS else meaning
            self.hit(kind.value, word, subject=name)

    def redirect(self, redirect: Redirect, command: Command) -> None:
        if redirect.descriptor.startswith("{"):
            name = redirect.descriptor.strip("{}")
            self.variable(name, None, literal_word(name, redirect.start, redirect.end))
        duplicates = redirect.operator in (">&", "<&") and re.fullmatch(
            r"\d*-?", redirect.target.static or "x"
        )
        if duplicates or redirect.operator in ("<<", "<<-", "<<<"):
            return
        for words in self.values.variants((redirect.target,)):
            for word in words:
                if redirect.operator in _WRITING or redirect.operator == ">&":
                    self.written("writes", word, None)
                    self.downloaded_to(word, command)
                else:
                    self.read(word, None)

    # ── programs ──

    def argv(self, words: tuple[Word, ...], command: Command, lenient: str = "") -> None:
        """Judge one program with its arguments, and whatever it starts in turn."""
        if self.context.depth > MAX_WRAPPERS:
            self.hit("wrapped-too-deep", words[0])
            return
        first = words[0]
        if lenient == "runs-package" and first.static and "@" in first.static[1:]:
            bare = re.sub(r"(?<=.)@[^/@]*$", "", first.static)
            first = literal_word(bare, first.start, first.end)
            words = (first, *words[1:])
        if not lenient and first.static and _PACKAGE_FOLDER.match(first.static):
            lenient = "runs-project"
        name = self.program(first, lenient)
        if name is None:
            return
        if name in self.functions and self.callable(name):
            piped = any(_name(self.script.commands[i]) == name for i in command.feeders)
            if command.function == name and (piped or command.background):
                self.hit("fork-bomb", first)
            return
        invocation = invoke(name, words)
        self.listed(invocation, lenient)
        for effect in effects_of(invocation):
            self.effect(effect, invocation, command)

    def program(self, word: Word, lenient: str) -> str | None:
        """The name a program word stands for; None when that alone decides."""
        text = word.static
        if text is None or word.from_braces or text == "":
            self.hit("dynamic-program", word)
            return None
        if "/" not in text or text in self.policy.entries or text in _PROJECT_WRAPPERS:
            return posixpath.basename(text) if text in _PROJECT_WRAPPERS else text
        folder, name = posixpath.split(text)
        if folder in _SYSTEM_FOLDERS or _PACKAGE_FOLDER.fullmatch(folder):
            return name
        if lenient == "runs-package":
            return text
        path = absolute(text, self.folder or "/")
        if path in self.downloads:
            self.hit("download-run", word)
        elif name in self.policy.rules_by_program:
            return name
        elif any(within(path, root) for root in (*self.context.roots, *SCRATCH)):
            self.hit("runs-file", word)
        else:
            self.hit("runs-elsewhere", word)
        return None

    def listed(self, invocation: Invocation, lenient: str) -> None:
        """Is the program (with its subcommand) on the list, and does a rule name it?"""
        word = invocation.words[0]
        for rule in self.policy.rules_by_program.get(invocation.program, ()):
            if rule.applies_to(invocation):
                self.report(rule, word, invocation.names[0])
        entry = self.policy.entry(invocation.names)
        if entry is not None:
            if entry.verdict is not Verdict.ALLOW:
                hint = "Ask your user, or use a command that only reads."
                self.find("asks-first", entry.verdict, word, entry.command, entry.reason, hint)
            return
        if self.policy.any_command or self._has_listed_subcommand(invocation):
            return
        if lenient and invocation.program not in self.policy.rules_by_program:
            script = lenient == "runs-project" and invocation.program.endswith(".py")
            if not script:
                self.hit("package-program", word, subject=invocation.names[0])
        elif invocation.program not in self.policy.rules_by_program or not any(
            finding.start == word.start and finding.verdict is Verdict.DENY
            for finding in self.context.findings
        ):
            self.hit("not-listed", word, subject=invocation.names[0])

    def _has_listed_subcommand(self, invocation: Invocation) -> bool:
        """`git --version`: no subcommand, so nothing is done."""
        if invocation.subcommand:
            return False
        return any(name.startswith(invocation.program + " ") for name in self.policy.entries)

    def callable(self, name: str) -> bool:
        """Whether a call of function `name` here surely reaches the function."""
        return self.script.commands[self.index].function != "" or self.functions[name] <= self.index

    # ── effects ──

    def effect(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        handler = _HANDLERS.get(effect.kind)
        if handler is not None:
            handler(self, effect, invocation, command)
        else:
            self.hit(effect.kind, effect.word, invocation)

    def runs(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        argv = effect.argv
        if effect.text == "xargs":
            argv = self.fed(argv, command)
        if effect.text in ("xargs", "find") and (argv[0].static or "").split("/")[-1] in _DELETERS:
            self.hit("mass-delete", argv[0], invocation)
        self.context.depth += 1
        lenient = effect.text if effect.text.startswith("runs-") else ""
        self.argv(argv, command, lenient)
        self.context.depth -= 1

    def fed(self, argv: tuple[Word, ...], command: Command) -> tuple[Word, ...]:
        """Put the shape of the lines that xargs reads, if known, in the place of its arguments."""
        commands = self.script.commands
        if not command.feeders:
            return argv
        first, *filters = (commands[index] for index in command.feeders)
        shape = printed_by(first)
        names = [c.words[0].static if c.words else None for c in filters]
        if shape is None or any(n not in ("grep", "head", "tail", "sort", "uniq") for n in names):
            return argv
        return tuple(_with_shape(word, shape) for word in argv)

    def runs_text(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        self.text(effect.word, invocation)

    def text(self, word: Word, invocation: Invocation | None = None) -> None:
        """Judge shell text that a word holds."""
        if word.text is None:
            kind = "download-run" if self.downloads_in(word) else "hidden-text"
            self.hit(kind, word, invocation)
            return
        self.context.depth += 1
        if self.context.depth > MAX_WRAPPERS:
            self.hit("wrapped-too-deep", word)
        else:
            self.nested(word)
        self.context.depth -= 1

    def nested(self, word: Word) -> None:
        script = parse(word.text or "")
        if isinstance(script, Unreadable):
            self.find(
                "unreadable", Verdict.DENY, word, word.shown[:40], f"inside it, {script.reason}",
                "Write the inner command in plain shell, or run it without the wrapper.",
            )  # fmt: skip
            return
        before = self.context.span
        self.context.span = before or (word.start, word.end)
        Judge(self.context, script, self).judge()
        self.context.span = before

    def runs_split(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        """`env -S TEXT ARG…`: the text is split like a shell's, then the arguments follow."""
        script = parse(effect.word.static) if effect.word.static is not None else None
        if not isinstance(script, Script) or len(script.commands) != 1:
            self.hit("hidden-text", effect.word, invocation)
            return
        inner = script.commands[0].words
        # env itself knows no variables inside quotes and no redirects, so both are refused here.
        if any(w.text is None for w in inner) or script.commands[0].redirects:
            self.hit("hidden-text", effect.word, invocation)
            return
        at = (effect.word.start, effect.word.end)
        words = tuple(literal_word(w.text or "", *at) for w in inner)
        env = literal_word("env", *at)
        sets = tuple(literal_word(f"{a.name}={a.value.shown if a.value else ''}", *at) for a in script.commands[0].assignments)
        self.runs(Effect("runs", effect.word, (env, *sets, *words, *effect.argv)), invocation, command)

    def runs_stdin(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        """An interpreter that reads its program from standard input."""
        shell = effect.text == "sh"
        for redirect in reversed(command.redirects):
            if redirect.body is not None:
                if shell:
                    self.text(redirect.body, invocation)
                elif self.downloads_in(redirect.body):
                    self.hit("download-run", redirect.body, invocation)
                else:
                    self.all_effects(code_effects(effect.text, redirect.body), invocation, command)
                return
            if redirect.operator == "<":
                kind = "runs-file" if shell else "runs-code-file"
                self.runs_file(Effect(kind, redirect.target), invocation, command)
                return
        feeders = [self.script.commands[i] for i in command.feeders]
        programs = {(_name(feeder) or "").split("/")[-1] for feeder in feeders}
        if programs & _DOWNLOADERS:
            self.hit("download-run", effect.word, invocation)
        elif shell or programs & _DECODERS:
            self.hit("runs-stdin", effect.word, invocation)
        elif len(feeders) == 1 and programs <= {"echo", "printf"}:
            for word in feeders[0].words[1:]:
                self.all_effects(code_effects(effect.text, word), invocation, command)

    def all_effects(self, effects: Iterable[Effect], invocation: Invocation, command: Command) -> None:
        for each in effects:
            self.effect(each, invocation, command)

    def runs_file(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        """A script file: one that this very text downloads is a download that is run."""
        path = absolute(effect.word.prefix, self.folder or "/")
        fetched = path in self.downloads or self.downloads_in(effect.word)
        kind = "download-run" if fetched else effect.kind
        if kind == "runs-file" and any(p.kind is Expands.PROCESS for p in effect.word.expansions()):
            kind = "hidden-text"
        self.hit(kind, effect.word, invocation)

    def unclear(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        kind = "download-run" if self.downloads_in(effect.word) else effect.kind
        self.hit(kind, effect.word, invocation)

    def program_runs(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        """Code that starts programs: what it names is judged like any command."""
        self.hit(effect.kind, effect.word, invocation)
        if effect.text:
            self.text(literal_word(effect.text, effect.word.start, effect.word.end))

    def chdir(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        """What follows in this command happens in another directory."""
        known = effect.word.text
        self.folder = None if known is None else absolute(known, self.folder or "/")

    def sets(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        word = effect.word
        assigned = ASSIGNED.match(word.prefix)
        if assigned:
            self.variable(assigned[1], word.after(assigned.end()), word)
        elif word.static is None:
            self.hit("sets-unclear", word, invocation)
        elif "[" in word.static and re.search(r"\[.*(?:\$|`)", word.static, re.DOTALL):
            self.hit("hidden-text", word, invocation)
        elif invocation.program not in _VARIABLE_COMMANDS:
            self.variable(word.static.split("[")[0], _unknown(word), word)

    # ── files ──

    def path_effect(self, effect: Effect, invocation: Invocation, command: Command) -> None:
        if effect.kind == "reads":
            self.read(effect.word, invocation)
        elif effect.kind == "links":
            at = absolute(effect.text, self.folder) if self.folder is not None else None
            if locate(effect.word, at, self.context.roots) is Location.OUTSIDE:
                self.hit("links-outside", effect.word, invocation)
        else:
            self.written(effect.kind, effect.word, invocation)
            self.downloaded_to(effect.word, command)

    def read(self, word: Word, invocation: Invocation | None) -> None:
        if is_secret(word, self.folder):
            self.hit("reads-secret", word, invocation)
        elif locate(word, self.folder, self.context.roots) is Location.NETWORK:
            self.hit("network-device", word, invocation)

    def written(self, kind: str, word: Word, invocation: Invocation | None) -> None:
        if any(part.kind is Expands.PROCESS for part in word.expansions()):
            return
        place = locate(word, self.folder, self.context.roots)
        if place is Location.NETWORK:
            self.hit("network-device", word, invocation)
        elif place is not Location.INSIDE:
            self.hit(f"{kind}-{place.value}", word, invocation)

    def downloads_in(self, word: Word) -> bool:
        """Whether an expansion in `word` fetches something."""
        return any(
            (_name(self.script.commands[index]) or "").split("/")[-1] in _DOWNLOADERS
            for part in word.expansions()
            for index in part.commands
            if index < len(self.script.commands)
        )

    def downloaded_to(self, word: Word, command: Command) -> None:
        if word.text and (_name(command) or "").split("/")[-1] in _DOWNLOADERS:
            self.downloads.add(absolute(word.text, self.folder or "/"))


def _name(command: Command) -> str | None:
    return command.words[0].static if command.words else None


def _unknown(word: Word) -> Word:
    return Word((Expansion(Expands.VARIABLE, True),), word.start, word.end, None)


def _with_shape(word: Word, shape: str) -> Word:
    """The word with xargs' unknown argument replaced by a stand-in of that shape."""
    if word.text is not None:
        return word
    text = "".join(shape if isinstance(part, Expansion) else part.text for part in word.parts)
    return literal_word(text, word.start, word.end)


def _told(text: str, named: dict[str, str]) -> str:
    return text.replace("{subject}", named["subject"])


def _callable(script: Script) -> dict[str, int]:
    """Functions that are defined for certain, with the first command that may call them.

    A definition in a branch may never happen, and the call would then reach a program of that name.
    """
    functions: dict[str, int] = {}
    for definition in script.definitions:
        if definition.certain and definition.name not in functions:
            functions[definition.name] = definition.before
    first_use = min(
        (
            index
            for index, command in enumerate(script.commands)
            if not command.function and _name(command) in functions
        ),
        default=len(script.commands),
    )
    return {name: before for name, before in functions.items() if before <= first_use}


_HANDLERS: Final = {
    "runs": Judge.runs,
    "runs-shell": Judge.runs_text,
    "runs-split": Judge.runs_split,
    "runs-stdin": Judge.runs_stdin,
    "runs-file": Judge.runs_file,
    "runs-code-file": Judge.runs_file,
    "hidden-text": Judge.unclear,
    "unclear-program": Judge.unclear,
    "program-runs": Judge.program_runs,
    "sets": Judge.sets,
    "chdir": Judge.chdir,
    "reads": Judge.path_effect,
    "writes": Judge.path_effect,
    "deletes": Judge.path_effect,
    "links": Judge.path_effect,
}
