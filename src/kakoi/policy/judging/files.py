"""Files that a command reads, writes or removes, held against the roots and the rules."""

import re

from kakoi.policy.judging.folders import Folder
from kakoi.policy.judging.naming import program_name
from kakoi.policy.judging.paths import Location, absolute, is_secret, locate
from kakoi.policy.judging.report import Report
from kakoi.policy.parsing.script import Command, Script
from kakoi.policy.programs import Effect, Invocation
from kakoi.policy.words import Expands, Word, literal_word

DOWNLOADERS = frozenset("curl wget aria2c http https fetch lynx w3m ftp scp nc".split())


class Files:
    """Judges paths.

    `downloads` are the files that the text fetches, by absolute path; `download_names` those that
    their addresses name, in whichever directory.
    """

    def __init__(self, report: Report, text: str, roots: tuple[str, ...]) -> None:
        self.report = report
        self.text = text
        self.roots = roots
        self.downloads: set[str] = set()
        self.download_names: set[str] = set()

    def path(
        self, effect: Effect, invocation: Invocation, sources: list[Command], at: Folder
    ) -> None:
        """An effect on a path; `sources` are the commands whose output it holds."""
        if effect.kind == "reads":
            self.read(effect.word, invocation, at)
        elif effect.kind == "links":
            folder = absolute(effect.text, at.path) if at.path is not None else None
            if locate(effect.word, folder, self.roots) is Location.OUTSIDE:
                self.report.hit("links-outside", effect.word, invocation)
        else:
            self.written(effect.kind, effect.word, invocation, sources, at)

    def read(self, word: Word, invocation: Invocation | None, at: Folder) -> None:
        """A file that is read: secrets, and connections that look like files."""
        hidden = word.shape is None and re.search(r"/dev/(?:tcp|udp)", self.text)
        if is_secret(word, at.path):
            self.report.hit("reads-secret", word, invocation)
        elif locate(word, at.path, self.roots) is Location.NETWORK or (hidden and not invocation):
            self.report.hit("network-device", word, invocation)

    def written(
        self,
        kind: str,
        word: Word,
        invocation: Invocation | None,
        sources: list[Command],
        at: Folder,
    ) -> None:
        """A file that is written or removed: only inside."""
        if len(word.parts) == 1 and any(p.kind is Expands.PROCESS for p in word.expansions()):
            return
        if word.text:
            self._note_download(absolute(word.text, at.path or "/"), sources, at)
        place = locate(word, at.path, self.roots)
        if kind == "writes" and re.search(r"(?:^|/)-[^/]+$", word.text or ""):
            self.report.hit("names-option", word, invocation)
        if place is Location.INSIDE and self._could_be_elsewhere(word, at):
            place = Location.UNCLEAR
        if place is Location.NETWORK:
            self.report.hit("network-device", word, invocation)
        elif place is not Location.INSIDE:
            # After a `cd` only the whole path shows why.
            relative = word.text is not None and not word.tilde and at.path is not None
            whole = absolute(word.text or "", at.path or "/") if relative else ""
            self.report.hit(f"{kind}-{place.value}", word, invocation, whole)

    def _note_download(self, path: str, sources: list[Command], at: Folder) -> None:
        """Take note of a file that holds a download, or a copy of one."""
        if any(program_name(source) in DOWNLOADERS for source in sources):
            self.downloads.add(path)
        words = [w for s in sources for w in (*s.words[1:], *(r.target for r in s.redirects))]
        copied = {absolute(w.text, at.path or "/") for w in words if w.text} & self.downloads
        for original in copied - {path}:
            # What it is copied to may be a directory.
            self.downloads |= {path, f"{path}/{original.rpartition('/')[2]}"}

    def _could_be_elsewhere(self, word: Word, at: Folder) -> bool:
        """Whether a path that looks fine leads out if a `cd` fails or a value climbs up."""
        outside = Location.OUTSIDE
        if word.shape is None:
            return ".." in self.text
        # Where nobody knows the directory, a path that climbs may lead anywhere.
        return any(
            ".." in word.shape if other is None else locate(word, other, self.roots) is outside
            for other in at.others
        )

    def all_inside(self, shapes: list[str | None], at: Folder) -> bool:
        """Whether every directory of a search path is one of ours."""
        return all(
            shape is not None
            and (
                not re.search(r"^[/~]|\.\.", folder)
                or locate(literal_word(folder, 0, 0), at.path, self.roots) is Location.INSIDE
            )
            for shape in shapes
            for folder in filter(None, (shape or "?").split(":"))
        )

    def comes_from_outside(self, word: Word, at: Folder) -> bool:
        """Whether code or settings at `word` are not the project's own."""
        address = re.match(r"[A-Za-z][\w+.-]*://|data:|npm:|git\+", word.prefix)
        return bool(address) or locate(word, at.path, self.roots) is Location.OUTSIDE

    def is_download(self, word: Word, at: Folder, script: Script) -> bool:
        """Whether `word` names a file that this text fetched, or fetches something itself."""
        path = absolute(word.prefix, at.path or "/")
        named = path.rpartition("/")[2] in self.download_names
        return named or path in self.downloads or fetches(word, script)


def fetches(word: Word, script: Script) -> bool:
    """Whether an expansion in `word` downloads something."""
    return any(
        program_name(script.commands[index]) in DOWNLOADERS
        for part in word.expansions()
        for index in part.commands
        if index < len(script.commands)
    )
