"""The files of a `kakoi.sync.Sandbox`."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Self

from kakoi.channel.api import MAX_FILE_BYTES, FileEvent, FileInfo
from kakoi.sandbox import files as asynchronous
from kakoi.sandbox.files import PathLike
from kakoi.sync.job import iterate, wait_for


class Watch:
    """What happens in a directory; see `kakoi.Files.watch`."""

    def __init__(self, watch: asynchronous.Watch) -> None:
        self._watch = watch

    def __iter__(self) -> Iterator[FileEvent]:
        return iterate(aiter(self._watch))

    def __enter__(self) -> Self:
        wait_for(self._watch.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        wait_for(self._watch.__aexit__(*error))


class Files:
    """The files in a sandbox; see `kakoi.Files`."""

    def __init__(self, files: asynchronous.Files) -> None:
        self._files = files

    def read(self, path: PathLike, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a file."""
        return wait_for(self._files.read(path, max_bytes=max_bytes))

    def read_text(
        self, path: PathLike, *, encoding: str = "utf-8", max_bytes: int = MAX_FILE_BYTES
    ) -> str:
        """Return the text of a file."""
        return wait_for(self._files.read_text(path, encoding=encoding, max_bytes=max_bytes))

    def stream(self, path: PathLike) -> Iterator[bytes]:
        """Yield the content of a file of any size, in parts."""
        return iterate(self._files.stream(path))

    def write(
        self, path: PathLike, data: str | bytes | Iterable[bytes], *, mode: int | None = None
    ) -> None:
        """Create or replace a file; directories that are missing above it are made."""
        if isinstance(data, bytearray | memoryview):
            data = bytes(data)
        if isinstance(data, str | bytes):
            wait_for(self._files.write(path, data, mode=mode))
        else:
            wait_for(self._files.write(path, _in_thread(data), mode=mode))

    def stat(self, path: PathLike) -> FileInfo:
        """Describe what is at `path`."""
        return wait_for(self._files.stat(path))

    def exists(self, path: PathLike) -> bool:
        """Whether something is at `path`."""
        return wait_for(self._files.exists(path))

    def list(self, path: PathLike = ".", depth: int = 1) -> "list[FileInfo]":
        """Return what is in a directory."""
        return wait_for(self._files.list(path, depth))

    def make_dir(self, path: PathLike) -> bool:
        """Make a directory, and those above it; returns False if it was there already."""
        return wait_for(self._files.make_dir(path))

    def move(self, source: PathLike, destination: PathLike) -> None:
        """Rename a file or directory; a file at `destination` is replaced."""
        wait_for(self._files.move(source, destination))

    def remove(self, path: PathLike, *, missing_ok: bool = False) -> None:
        """Remove a file, or a directory with everything in it."""
        wait_for(self._files.remove(path, missing_ok=missing_ok))

    def watch(self, path: PathLike = ".", *, recursive: bool = False) -> Watch:
        """Watch a directory."""
        return Watch(self._files.watch(path, recursive=recursive))

    def upload(self, local: PathLike, path: PathLike = ".") -> None:
        """Copy a file or directory of this machine into the sandbox."""
        wait_for(self._files.upload(local, path))

    def download(self, path: PathLike, local: PathLike) -> None:
        """Copy a file or directory of the sandbox to this machine."""
        wait_for(self._files.download(path, local))


async def _in_thread(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the parts; each is computed in a thread, so the loop keeps running meanwhile."""
    waiting = iter(parts)
    while (part := await asyncio.to_thread(next, waiting, None)) is not None:
        yield part
