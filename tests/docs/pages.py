"""The pages of this repository, and the blocks of code in them."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Of the hidden folders only the one that holds the entry point of the build is ours.
NOT_OURS = {"__pycache__", "build", "dist"}
# Before a block, in sight of whoever reads the page.
NOT_RUN = re.compile(r"\*(?:Not run by the tests: \S.*\.|テストでは実行しません: ?\S.*。)\*")
# The last words before a block that is a file: "… into `.kakoi.yaml`:"
NAMED = re.compile(r"`([^`\s]+)`[^`]*:")


def our_files(suffix: str = "") -> list[Path]:
    found = []
    # os.walk, not rglob: other tests write caches meanwhile, and a folder may vanish on the way.
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(
            name
            for name in folders
            if name not in NOT_OURS and (name == ".ci" or not name.startswith("."))
        )
        # In a worktree `.git` is a file that says where the repository is.
        names = sorted(name for name in files if name != ".git" and name.endswith(suffix))
        found += [Path(folder, name) for name in names]
    return found


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line it begins on, and the words before it."""

    line: int
    language: str
    text: str
    before: str = ""

    @property
    def is_run(self) -> bool:
        return NOT_RUN.fullmatch(self.before) is None

    @property
    def file(self) -> str:
        """The name of the file that it is, as the sentence before it says; or nothing."""
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
