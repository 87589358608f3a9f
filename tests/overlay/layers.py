"""Overlays with handmade layers, as a kernel would leave them, without a sandbox."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kakoi.overlay import Overlay


@dataclass(frozen=True)
class Desk:
    """A project, and its overlay."""

    root: Path

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def overlay(self) -> Overlay:
        return Overlay(self.project, self.root / "overlays")

    @property
    def upper(self) -> Path:
        """The writable layer."""
        overlay = self.overlay
        mounts = overlay.open()
        overlay.close()
        return Path(mounts.folder, mounts.stack[0])

    def apply(self, *paths: str, force: bool = False) -> tuple[list[str], dict[str, str]]:
        """Apply the paths. Returns the applied ones, and the refused ones with reasons."""
        applied = self.overlay.apply(paths, force=force)
        return list(applied.done), dict(applied.refused)

    def conflicts(self) -> dict[str, str]:
        return {each.path: each.conflict for each in self.overlay.changes() if each.conflict}


def a_desk(root: Path, fill: Callable[[Path], object] | None = None) -> Desk:
    desk = Desk(root)
    desk.project.mkdir(parents=True)
    if fill is not None:
        fill(desk.project)
    return desk


def write(path: Path, text: str | bytes = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def white_out(path: Path) -> None:
    """Mark the path as deleted from the lower layer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, 0o020000, os.makedev(0, 0))


def make_opaque(path: Path) -> Path:
    """Make a directory hide its contents in the lower layer."""
    path.mkdir(parents=True, exist_ok=True)
    os.setxattr(path, "user.overlay.opaque", b"y")
    return path


def copied_up(path: Path, text: str) -> Path:
    """Create a file in the layer that the project already had."""
    write(path, text)
    os.setxattr(path, "user.overlay.origin", b"somewhere")
    return path


def copy_of(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to, symlinks=True))
