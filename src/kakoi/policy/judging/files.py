"""Files that a command reads, writes or removes, checked against the roots and the rules."""

import re
from typing import Final

from kakoi._support.late import pattern
from kakoi.policy.effects.programs import Effect, Invocation
from kakoi.policy.judging.command_words import program_name
from kakoi.policy.judging.decision import Report
from kakoi.policy.judging.folders import WorkingFolder
from kakoi.policy.judging.paths import Location, absolute, locate, within
from kakoi.policy.judging.secrets import holds_secrets, is_private, is_secret
from kakoi.policy.parsing.script import Script, SimpleCommand
from kakoi.policy.parsing.words import FOUND, Expands, Word, literal_word

_READING: Final = frozenset({"reads", "lists", "names"})
DOWNLOADERS = frozenset("curl wget aria2c http https fetch lynx w3m ftp scp nc".split())


# Stands for the previous value of PATH in a new one.
OLD_PATH: Final = "\x01"
_SYSTEM_PROGRAM: Final = pattern(r"/(?:usr/(?:local/)?)?s?bin/|/opt/")
# Where the system and the user's package managers keep programs.
_PROGRAM_FOLDER: Final = pattern(
    r"(?:/usr(?:/local)?|/opt|/snap|/nix)/(?!.*\.\.)[^\0]*|/s?bin"
    r"|(?:/home/[^/]+|/root)/(?:\.local|\.cargo|\.rustup|go|\.bun|\.deno|\.nvm|\.npm-global|\.yarn|\.volta"
    r"|\.poetry|\.pixi|\.pyenv|\.rbenv|\.dotnet|\.elan|\.ghcup|\.opam|\.juliaup|\.sdkman"
    r"|(?:mini|ana)conda3|miniforge3)(?!.*\.\.)/[^\0]*"
)


# Where the system keeps what programs only read.
_READ_ONLY: Final = pattern(
    r"(?!.*\.\.)(?:/usr(?:/local)?/(?:share|lib\w*|include)|/opt|/lib\w*|/nix|/proc|/sys|/etc/(?:ssl|pki|alternatives))(?:/|$)"
)
_NODE_FILES: Final = r"package\.json|.*\.config\.[cm]?[jt]s|\..*rc\.[cm]?js"
_PYTHON_FILES: Final = r"setup\.(?:py|cfg)|pyproject\.toml|conftest\.py|requirements.*\.txt"
# The files of a folder that a program runs without being told so.
_RUN_BY: Final = {
    **dict.fromkeys(("make", "gmake"), r"(?:GNU)?[mM]akefile|.*\.mk"),
    **dict.fromkeys("npm yarn pnpm bun npx jest vite vitest eslint webpack".split(), _NODE_FILES),
    **dict.fromkeys("pip pip3 uv pytest py.test poetry pdm hatch tox nox".split(), _PYTHON_FILES),
    **dict.fromkeys(("gradle", "gradlew"), r".*\.gradle(?:\.kts)?"),
    **dict.fromkeys(("mvn", "mvnw", "maven"), r"pom\.xml"),
    "cmake": r"CMakeLists\.txt|.*\.cmake",
    "cargo": r"build\.rs|Cargo\.toml|.*\.rs",
    "just": r"\.?justfile",
    "rake": r"Rakefile",
    "bundle": r"Gemfile|.*\.gemspec",
    "meson": r"meson\.build",
    "composer": r"composer\.json",
    "go": r".*\.go|go\.mod",
    "pre-commit": r"\.pre-commit-config\.yaml",
    "tox": rf"tox\.(?:ini|toml)|{_PYTHON_FILES}",
    "nox": rf"noxfile\.py|{_PYTHON_FILES}",
}
_CODE: Final = frozenset("python node ruby perl php script-file".split())
_UNPACKERS: Final = frozenset("tar unzip 7z 7za 7zr bsdtar jar cpio ar patch".split())
_RUNNERS: Final = frozenset(
    "go deno bun java cargo just swift kotlin scala dotnet pip pip3 jupyter streamlit".split()
)


class FileRules:
    """Judges paths.

    `downloads` are the files that the text downloads, by absolute path; `download_names` are the
    names of downloads that come from their URLs, in any directory. `contents` are the files that
    the text writes by a redirect or `tee`: what it puts there, None if that is not certain.
    `path_folders` are the folders that the text adds to PATH.
    """

    def __init__(self, report: Report, text: str, roots: tuple[str, ...]) -> None:
        self.report = report
        self.text = text
        self.roots = roots
        self.downloads: set[str] = set()
        self.download_names: set[str] = set()
        self.contents: dict[str, Word | None] = {}
        self.path_folders: dict[str, Word] = {}
        self.unpacks = False

    def path(
        self,
        effect: Effect,
        invocation: Invocation,
        sources: list[SimpleCommand],
        at: WorkingFolder,
    ) -> None:
        """Judge an effect on a path; `sources` are the commands whose output it gets."""
        if effect.kind in _READING:
            self.read(effect.word, invocation, at, effect.kind)
        elif effect.kind == "odd-place":
            self.read(effect.word, invocation, at, "names")
            self.place(effect.word, invocation, at)
        elif effect.kind == "links":
            folder = absolute(effect.text, at.path) if at.path is not None else None
            if is_secret(effect.word, folder):
                self.report.hit("reads-secret", effect.word, invocation)
            elif locate(effect.word, folder, self.roots) is Location.OUTSIDE:
                self.report.hit("links-outside", effect.word, invocation)
        else:
            self.written(effect.kind, effect.word, invocation, sources, at)

    def read(
        self, word: Word, invocation: Invocation | None, at: WorkingFolder, kind: str = "reads"
    ) -> None:
        """Judge a file that is read: secrets, private folders, connections that look like files.

        `kind`: `lists` only learns the names in a folder, `names` may not be a path at all.
        """
        hidden = word.shape is None and re.search(r"/dev/(?:tcp|udp)", self.text)
        tree = invocation is not None and kind == "reads" and invocation.reads_trees
        if is_secret(word, at.path) or (tree and holds_secrets(word, at.path)):
            self.report.hit("reads-secret", word, invocation)
        elif kind != "lists" and (
            is_private(word, at.path, self.roots, surely_path=kind == "reads")
            or (_is_found(word) and holds_secrets(word, at.path))
        ):
            self.report.hit("reads-outside", word, invocation)
        elif locate(word, at.path, self.roots) is Location.NETWORK or (hidden and not invocation):
            self.report.hit("network-device", word, invocation)

    def written(
        self,
        kind: str,
        word: Word,
        invocation: Invocation | None,
        sources: list[SimpleCommand],
        at: WorkingFolder,
    ) -> None:
        """Judge a file that is written or removed: it must be inside the workspace."""
        if len(word.parts) == 1 and any(p.kind is Expands.PROCESS for p in word.expansions()):
            return
        if word.text:
            self._note_download(absolute(word.text, at.path or "/"), sources, at)
        location = locate(word, at.path, self.roots)
        if kind == "writes" and re.search(r"(?:^|/)-[^/]+$", word.text or ""):
            self.report.hit("names-option", word, invocation)
        if location is Location.INSIDE and self._could_be_elsewhere(word, at):
            location = Location.UNCLEAR
        if location is Location.NETWORK:
            self.report.hit("network-device", word, invocation)
        elif location is not Location.INSIDE:
            # After a `cd` only the full path explains the refusal.
            relative = word.text is not None and not word.tilde and at.path is not None
            whole = absolute(word.text or "", at.path or "/") if relative else ""
            self.report.hit(f"{kind}-{location.value}", word, invocation, whole)

    def _note_download(self, path: str, sources: list[SimpleCommand], at: WorkingFolder) -> None:
        """Remember a file that contains a download, or a copy of one."""
        if any(program_name(source) in DOWNLOADERS for source in sources):
            self.downloads.add(path)
        words = [w for s in sources for w in (*s.words[1:], *(r.target for r in s.redirects))]
        copied = {absolute(w.text, at.path or "/") for w in words if w.text} & self.downloads
        for original in copied - {path}:
            # The destination of the copy can be a directory.
            self.downloads |= {path, f"{path}/{original.rpartition('/')[2]}"}
        originals = {absolute(w.text, at.path or "/") for w in words if w.text} - {path}
        for original in originals:
            # A copy of a program of the system is that program, by another name.
            if original in self.contents or _SYSTEM_PROGRAM.match(original):
                for copy in (path, f"{path}/{original.rpartition('/')[2]}"):
                    self.contents[copy] = self.contents.get(original)

    def note_content(self, target: Word, content: Word | None, at: WorkingFolder) -> None:
        """Remember what the text writes into a file; None if that is not certain."""
        if target.text:
            path = absolute(target.text, at.path or "/")
            self.contents[path] = None if path in self.contents else content

    def _could_be_elsewhere(self, word: Word, at: WorkingFolder) -> bool:
        """Whether a path that looks fine is outside if a `cd` fails or a value has `..`."""
        outside = Location.OUTSIDE
        if word.shape is None:
            return ".." in self.text
        # If the directory is unknown, a path with `..` can lead anywhere.
        return any(
            ".." in word.shape if other is None else locate(word, other, self.roots) is outside
            for other in at.others
        )

    def extends_path(self, shape: str | None, value: Word, at: WorkingFolder) -> bool:
        """Whether a value of PATH only adds folders of the project, the system or its user."""
        folders = (shape or "").split(":")
        known = all(
            folder == OLD_PATH
            or _PROGRAM_FOLDER.fullmatch(folder)
            or self._is_folder_of_programs(folder, at)
            for folder in folders
        )
        if known:
            added = {absolute(each, at.path or "/") for each in folders if each != OLD_PATH}
            self.path_folders |= dict.fromkeys(added, value)
        return known and OLD_PATH in folders

    def _is_folder_of_programs(self, folder: str, at: WorkingFolder) -> bool:
        path = absolute(folder, at.path or "/")
        inside = locate(literal_word(folder, 0, 0), at.path, self.roots) is Location.INSIDE
        return bool(folder and inside and re.search(r"/\.?bin$", path)) and any(
            within(path, root) for root in self.roots
        )

    def folders_with_new_programs(self) -> list[Word]:
        """Return where the text adds a folder to PATH in which it writes a file itself."""
        return [
            word
            for folder, word in self.path_folders.items()
            if any(within(path, folder) for path in (*self.contents, *self.downloads))
        ]

    def all_inside(self, shapes: list[str | None], at: WorkingFolder) -> bool:
        """Whether every directory of a search path is inside the workspace."""
        return all(
            shape is not None
            and (
                not re.search(r"^[/~]|\.\.", folder)
                or locate(literal_word(folder, 0, 0), at.path, self.roots) is Location.INSIDE
            )
            for shape in shapes
            for folder in filter(None, (shape or "?").split(":"))
        )

    def comes_from_outside(self, word: Word, at: WorkingFolder) -> bool:
        """Whether code or settings at `word` come from outside the project."""
        address = re.match(r"[A-Za-z][\w+.-]*://|data:|npm:|git\+", word.prefix)
        return bool(address) or locate(word, at.path, self.roots) is Location.OUTSIDE

    def place(self, word: Word, invocation: Invocation, at: WorkingFolder) -> None:
        """Judge a place that a program may write to, in a way that nobody knows."""
        word = word.after(5) if word.prefix.startswith("file:") else word
        outside = locate(word, at.path, self.roots) is Location.OUTSIDE
        if outside and not _READ_ONLY.match(word.prefix):
            self.report.hit("odd-place", word, invocation)

    def downloads_run_by(self, invocation: Invocation, at: WorkingFolder) -> list[Word]:
        """Return the words through which a program runs a download: `make` runs its Makefile."""
        names = {path.rpartition("/")[2] for path in self.downloads} | self.download_names
        runs = _RUN_BY.get(invocation.program)
        if runs and any(re.fullmatch(runs, name) for name in names):
            return [invocation.words[0]]
        if invocation.program not in _RUNNERS:
            return []
        return [
            word
            for word in invocation.words[1:]
            if word.text
            and (
                word.text in self.download_names
                or absolute(word.text, at.path or "/") in self.downloads
            )
        ]

    def judge_downloads(self, invocation: Invocation, at: WorkingFolder) -> None:
        """Judge what a program does with the files that this text downloads."""
        for word in self.downloads_run_by(invocation, at):
            self.report.hit("download-run", word, invocation)
        if self._builds_unpacked(invocation):
            self.report.hit("download-build", invocation.named_by, invocation)

    def _builds_unpacked(self, invocation: Invocation) -> bool:
        """Whether a program builds or runs what may come out of an archive that was downloaded."""
        archives = {path.rpartition("/")[2] for path in self.downloads} | self.download_names
        if invocation.program in _UNPACKERS:
            words = (word.text or "" for word in invocation.words[1:])
            self.unpacks |= any(word.rpartition("/")[2] in archives for word in words if word)
            return False
        runs = invocation.program in _RUN_BY or invocation.program in _RUNNERS
        code = invocation.spec.reader in _CODE and bool(invocation.arguments.operands)
        return self.unpacks and (runs or code)

    def is_download(self, word: Word, at: WorkingFolder, script: Script) -> bool:
        """Whether `word` names a file that this text downloaded, or downloads something itself."""
        path = absolute(word.prefix, at.path or "/")
        named = path.rpartition("/")[2] in self.download_names
        return named or path in self.downloads or fetches(word, script)


def _is_found(word: Word) -> bool:
    """Whether the word stands for every file that find finds below a folder."""
    return any(part.name == FOUND for part in word.expansions())


def fetches(word: Word, script: Script) -> bool:
    """Whether an expansion in `word` downloads something."""
    return any(
        program_name(script.commands[index]) in DOWNLOADERS
        for part in word.expansions()
        for index in part.commands
        if index < len(script.commands)
    )
