"""The files of a `Sandbox`: judged by what is done at which path, and recorded."""

import asyncio
import errno
import os
import posixpath
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Literal, TypeVar

from kakoi._support.text import short_repr
from kakoi.channel.api import MAX_FILE_BYTES, Channel, FileEvent, FileInfo, check_type
from kakoi.errors import ConfigurationError, FileError, MissingFileError
from kakoi.policy.file_access import FileAccess
from kakoi.sandbox.commands import inside_path
from kakoi.sandbox.lifecycle import SandboxLife
from kakoi.sandbox.options import path_text
from kakoi.sandbox.transfer import MOST_FILES, receive_tree, send_tree

_Done = TypeVar("_Done")
PathLike = str | os.PathLike[str]


class Files:
    """The files in a sandbox; `Sandbox.files`.

    A path is relative to the workspace, or absolute as commands see it. Every call is judged by the
    policy as what it does (a read, a write, a removal at that path) and recorded. It happens inside
    the sandbox with the rights of its commands, so links never lead out of it. On the backend
    "host", which confines nothing, it is judged and done at the path to which links lead.

    Errors of the file system are `FileError`, which is also an `OSError`; a missing file is
    `MissingFileError`, which is also a `FileNotFoundError`.
    """

    def __init__(self, life: SandboxLife) -> None:
        self._life = life

    # --- Reading -----------------------------------------------------------------------------

    async def read(self, path: PathLike, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a file of at most `max_bytes`; `stream` reads any size.

        data = await box.files.read("logo.png")
        """
        check_type("max_bytes", max_bytes, int)
        if max_bytes < 0:
            raise ConfigurationError(f"max_bytes is {max_bytes}; it must not be negative")
        full = await self._full("path", path)

        async def work(channel: Channel) -> bytes:
            parts, size = [], 0
            async for part in channel.stream_file(full):
                size += len(part)
                if size > max_bytes:
                    raise OSError(errno.EFBIG, f"more than {max_bytes} bytes")
                parts.append(part)
            return b"".join(parts)

        return await self._do("read", full, work)

    async def read_text(
        self, path: PathLike, *, encoding: str = "utf-8", max_bytes: int = MAX_FILE_BYTES
    ) -> str:
        """Return the text of a file. Raises ConfigurationError if it is not in that encoding."""
        data = await self.read(path, max_bytes=max_bytes)
        try:
            return data.decode(encoding)
        except UnicodeDecodeError as error:
            raise ConfigurationError(
                f"{short_repr(os.fspath(path))} is not {encoding} text (byte {error.start})",
                hint="read() returns its bytes",
            ) from None
        except LookupError:
            raise ConfigurationError(f"encoding is {encoding!r}, which is unknown") from None

    async def stream(self, path: PathLike) -> AsyncIterator[bytes]:
        """Yield the content of a file of any size, in parts.

        async for part in box.files.stream("big.log"):
            ...
        """
        full = await self._full("path", path)
        async with AsyncExitStack() as stack:
            with _as_file_error(full):
                opened = await self._life.ready()
                access = FileAccess("read", full)
                channel = await stack.enter_async_context(opened.gate.accessing(access))
                async for part in channel.stream_file(full):
                    yield part

    async def stat(self, path: PathLike) -> FileInfo:
        """Describe what is at `path`; of a link, the link, not what it points to."""
        full = await self._full("path", path, follow=False)
        return await self._do("list", full, lambda channel: channel.stat_file(full))

    async def exists(self, path: PathLike) -> bool:
        """Whether something is at `path`."""
        try:
            await self.stat(path)
        except MissingFileError:
            return False
        except FileError as error:
            if error.errno == errno.ENOTDIR:
                return False
            raise
        return True

    async def list(self, path: PathLike = ".", depth: int = 1) -> "list[FileInfo]":
        """Return what is in a directory, and below it down to `depth` levels, by name.

        Links are not followed.
        """
        check_type("depth", depth, int)
        if depth < 1:
            raise ConfigurationError(f"depth is {depth}; it must be at least 1")
        full = await self._full("path", path)
        return await self._do(
            "list", full, lambda channel: channel.list_files(full, depth=depth, limit=MOST_FILES)
        )

    def watch(self, path: PathLike = ".", *, recursive: bool = False) -> "Watch":
        """Watch a directory: `async for event in box.files.watch("src")`.

        With `async with`, watching has begun when the block is entered, so nothing is missed:

            async with box.files.watch("out") as events:
                await box.run("make")
                async for event in events:
                    print(event.kind, event.path)
        """
        return Watch(self, path, recursive=recursive)

    # --- Writing -----------------------------------------------------------------------------

    async def write(
        self,
        path: PathLike,
        data: str | bytes | AsyncIterable[bytes],
        *,
        mode: int | None = None,
    ) -> None:
        """Create or replace a file; directories that are missing above it are made.

        A reader sees the old or the new content, never a part.
        `data`: text, bytes, or an asynchronous iterator of bytes, which can be of any size.
        `mode`: its permissions; None: those it has, or 0o644.
        """
        full = await self._full("path", path)
        content = _content(data)
        if mode is not None:
            check_type("mode", mode, int)
            if not 0 <= mode <= 0o777:
                raise ConfigurationError(f"mode is {mode:#o}; it must be at most 0o777")

        async def work(channel: Channel) -> None:
            found = await _mode(channel, full)
            if found is None:
                await channel.make_dir(posixpath.dirname(full))
            await channel.write_file(
                full, content, mode=mode if mode is not None else found or 0o644
            )

        await self._do("write", full, work)

    async def make_dir(self, path: PathLike) -> bool:
        """Make a directory, and those above it; returns False if it was there already."""
        full = await self._full("path", path)
        return await self._do("write", full, lambda channel: channel.make_dir(full))

    async def move(self, source: PathLike, destination: PathLike) -> None:
        """Rename a file or directory; a file at `destination` is replaced."""
        old = await self._full("source", source, follow=False)
        new = await self._full("destination", destination, follow=False)

        async def work(channel: Channel) -> None:
            await channel.make_dir(posixpath.dirname(new))
            await channel.move_file(old, new)

        await self._do("move", old, work, destination=new)

    async def remove(self, path: PathLike, *, missing_ok: bool = False) -> None:
        """Remove a file, or a directory with everything in it. Links are removed, not followed.

        It is judged as a removal at that path. The rule against `rm -r` is about commands, whose
        patterns and variables can name more than was meant.
        """
        full = await self._full("path", path, follow=False)
        opened = await self._life.ready()
        if full in ("/", opened.workspace):
            raise ConfigurationError(
                f"path is {short_repr(os.fspath(path))}, which is the workspace or above it",
                hint="remove what is in it",
            )
        try:
            await self._do(
                "remove", full, lambda channel: channel.remove_file(full, recursive=True)
            )
        except MissingFileError:
            if not missing_ok:
                raise

    # --- Between this machine and the sandbox ------------------------------------------------

    async def upload(self, local: PathLike, path: PathLike = ".") -> None:
        """Copy a file or directory of this machine into the sandbox.

        `path`: its new path; if that is a directory, it goes into it under its own name. A link is
        replaced by what it points to, unless that is outside of the copied directory: then
        ConfigurationError is raised. `local` can be in the workspace if it leads through no link.
        """
        source = _local(local)
        full = await self._full("path", path, entering=source)
        workspace = (await self._life.ready()).workspace

        async def work(channel: Channel) -> None:
            where = await _target(channel, full, source)
            await send_tree(channel, source, where, workspace=workspace)

        await self._do("write", full, work)

    async def download(self, path: PathLike, local: PathLike) -> None:
        """Copy a file or directory of the sandbox to this machine.

        `local`: its new path; if that is a directory, it goes into it under its own name. Missing
        directories above it are made. Names that come from the sandbox are not trusted: nothing is
        written elsewhere, no link is followed, and links, devices and sockets are left out.
        """
        full = await self._full("path", path)
        target = path_text("local", local)
        workspace = (await self._life.ready()).workspace

        async def work(channel: Channel) -> None:
            await receive_tree(channel, full, target, workspace=workspace)

        await self._do("read", full, work)

    # --- Through the gate --------------------------------------------------------------------

    async def _full(
        self, argument: str, path: PathLike, *, follow: bool = True, entering: str = ""
    ) -> str:
        """Return the path that is judged and used.

        `follow`: the call follows a link at `path`. `entering`: what goes into `path`, under its
        own name, if that is a directory.
        """
        opened = await self._life.ready()
        full = inside_path(argument, path, opened.workspace)
        if opened.adapter.name != "host":
            return full
        # The sandbox is this machine, so a link that a command made could lead anywhere.
        return await asyncio.to_thread(_without_links, full, follow=follow, entering=entering)

    async def _do(
        self,
        action: Literal["read", "list", "write", "remove", "move"],
        path: str,
        work: Callable[[Channel], Awaitable[_Done]],
        *,
        destination: str = "",
    ) -> _Done:
        access = FileAccess(action, path, destination)
        opened = await self._life.ready()
        with _as_file_error(path):
            return await opened.gate.access(access, work)


class Watch:
    """What happens in a directory; from `Files.watch`."""

    def __init__(self, files: Files, path: PathLike, *, recursive: bool) -> None:
        self._files = files
        self._path = path
        self._recursive = recursive
        self._stack = AsyncExitStack()
        self._events: AsyncIterator[FileEvent] | None = None

    async def __aenter__(self) -> "Watch":
        if self._events is not None:
            raise ConfigurationError("this is being watched already", hint="call `watch` again")
        full = await self._files._full("path", self._path)
        with _as_file_error(full):
            opened = await self._files._life.ready()
            async with AsyncExitStack() as stack:
                access = FileAccess("list", full)
                channel = await stack.enter_async_context(opened.gate.accessing(access))
                self._events = await stack.enter_async_context(
                    channel.watch_files(full, recursive=self._recursive)
                )
                self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._events = None
        await self._stack.aclose()

    async def __aiter__(self) -> AsyncIterator[FileEvent]:
        async with AsyncExitStack() as own:
            if self._events is None:
                await own.enter_async_context(self)
            async for event in self._entered():
                yield event

    def _entered(self) -> AsyncIterator[FileEvent]:
        if self._events is None:
            raise ConfigurationError("the watch has ended")
        return self._events


@contextmanager
def _as_file_error(path: str) -> Iterator[None]:
    """Raise an OSError of the sandbox's file system as one of ours."""
    try:
        yield
    except OSError as error:
        if getattr(error, "code", ""):  # It is one of ours already.
            raise
        kind = MissingFileError if error.errno == errno.ENOENT else FileError
        why = error.strerror or str(error)
        raise kind(
            f"{short_repr(path)}: {why}", number=error.errno or errno.EIO, path=path
        ) from error


def _without_links(path: str, *, follow: bool, entering: str) -> str:
    if not follow:
        folder, name = os.path.split(path)
        return os.path.join(os.path.realpath(folder), name)
    real = os.path.realpath(path)
    if entering and os.path.isdir(real):
        real = os.path.realpath(os.path.join(real, os.path.basename(entering.rstrip("/"))))
    return real


async def _mode(channel: Channel, path: str) -> int | None:
    """Return the permissions of a file; None if there is none yet."""
    try:
        found = await channel.stat_file(path)
    except FileNotFoundError:
        return None
    return found.mode & 0o777 if found.kind == "file" else 0o644


async def _target(channel: Channel, path: str, source: str) -> str:
    """Return where to copy `source`: to `path`, or into it if it is a directory."""
    name = posixpath.basename(source.rstrip("/"))
    try:
        found = await channel.stat_file(path)
    except FileNotFoundError:
        return path
    return posixpath.join(path, name) if found.kind == "directory" else path


def _content(data: object) -> bytes | AsyncIterable[bytes]:
    if isinstance(data, str):
        return data.encode("utf-8", "surrogateescape")
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    if isinstance(data, AsyncIterable):
        return _parts(data)
    raise ConfigurationError(
        f"data is {type(data).__name__}; it must be text, bytes, or an async iterable of bytes"
    )


async def _parts(data: AsyncIterable[object]) -> AsyncIterator[bytes]:
    async for part in data:
        if not isinstance(part, bytes | bytearray | memoryview):
            raise ConfigurationError(
                f"data has a part of type {type(part).__name__}; each must be bytes"
            )
        yield bytes(part)


def _local(path: object) -> str:
    text = path_text("local", path)
    if not os.path.exists(text):
        raise ConfigurationError(f"local is {short_repr(text)}, which does not exist")
    return text
