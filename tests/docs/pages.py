"""The pages of this repository, and their code blocks."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Hidden folders are skipped as well, except for the one with the entry point of the build.
NOT_OURS = {"__pycache__", "build", "dist"}
# Stands before a block, where readers of the page can see it.
NOT_RUN = re.compile(r"\*(?:Not run by the tests: \S.*\.|テストでは実行しません: ?\S.*。)\*")
# The end of the sentence before a block that is a file: "… into `.kakoi.yaml`:"
NAMED = re.compile(r"`([^`\s]+)`[^`]*:")


def our_files(suffix: str = "") -> list[Path]:
    found = []
    # os.walk and not rglob, because other tests write caches and a folder may vanish meanwhile.
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(
            name
            for name in folders
            if name not in NOT_OURS and (name == ".ci" or not name.startswith("."))
        )
        # In a worktree, `.git` is a file with the path of the repository.
        names = sorted(name for name in files if name != ".git" and name.endswith(suffix))
        found += [Path(folder, name) for name in names]
    return found


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, its first line number, and the words before it."""

    line: int
    language: str
    text: str
    before: str = ""

    @property
    def is_run(self) -> bool:
        return NOT_RUN.fullmatch(self.before) is None

    @property
    def file(self) -> str:
        """The file name in the sentence before the block, or an empty string."""
        names = NAMED.findall(self.before) if self.before.endswith(":") else []
        return str(names[-1]) if names and re.search(r"[./]|^Dockerfile$", names[-1]) else ""


def blocks(text: str) -> Iterator[Block]:
    # Blocks in lists are indented.
    fenced = r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$"
    for match in re.finditer(fenced, text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, match.start()) + 1
        before = text[: match.start()].rstrip().rpartition("\n\n")[2]
        indent = len(match[1])
        lines = [each[indent:] for each in match[3].splitlines(keepends=True)]
        yield Block(
            line, match[2], "".join(each or "\n" for each in lines), " ".join(before.split())
        )


PAGES = our_files(".md")
