"""`kakoi cp`: a file into the environment of a task, or out of it."""

import asyncio
import os
import posixpath
import secrets
from pathlib import Path

import click

from kakoi.cli.asking import Approval
from kakoi.cli.managing import find, settings_from, size_in_words
from kakoi.cli.opening import config_option
from kakoi.config.environments import environment_manager
from kakoi.config.settings import Settings
from kakoi.errors import ConfigurationError, ExecutionError
from kakoi.runner.commands import MAX_FILE_BYTES, Channel, Command
from kakoi.tasks.checkout import PROJECT


@click.command(
    epilog="Exit status: 0 copied, 2 wrong usage, refused, no such file or environment, too big."
)
@click.argument("source")
@click.argument("target")
@click.option("--yes", is_flag=True, help="Say yes beforehand where the policy asks.")
@config_option
def command(*, source: str, target: str, yes: bool, config_file: Path | None) -> None:
    """Copy one file: `kakoi cp TASK:PATH PATH` or `kakoi cp PATH TASK:PATH`.

    Paths in the environment begin in the project. It is judged as a command that reads or writes
    the file would be, and recorded. Of more than one file make an archive with `kakoi exec`.
    """
    inside, outside = _inside(source), _inside(target)
    if (inside is None) == (outside is None):
        raise click.UsageError("one of SOURCE and TARGET is TASK:PATH, and the other a path here")
    settings = settings_from(config_file)
    try:
        if inside is not None:
            data = asyncio.run(_at(settings, *inside, yes=yes, data=None))
            _write(Path(target), data, posixpath.basename(inside[1]))
        elif outside is not None:
            asyncio.run(_at(settings, *outside, yes=yes, data=_read(Path(source))))
    except OSError as error:
        name = error.filename or source
        raise ExecutionError(f"cannot copy `{name}`: {error.strerror}") from error


def _inside(words: str) -> tuple[str, str] | None:
    """TASK:PATH as a task and a full path. `./a:b` and `/a:b` are paths here."""
    task, colon, path = words.partition(":")
    if not colon or "/" in task or not task:
        return None
    if not path or path.endswith("/"):
        raise click.UsageError(f"{words!r} names no file in the environment")
    return task, posixpath.normpath(posixpath.join(PROJECT, path))


async def _at(settings: Settings, task: str, path: str, *, yes: bool, data: bytes | None) -> bytes:
    manager = environment_manager(settings, approver=Approval(yes=yes))
    found = await find(manager, task)
    async with manager.attached(found.task) as environment:

        async def read(channel: Channel) -> bytes:
            size = (await channel.stat_file(path)).size
            if size > MAX_FILE_BYTES:
                raise _too_big(size)
            return await channel.read_file(path)

        async def write(channel: Channel) -> bytes:
            await channel.write_file(path, data or b"")
            return b""

        words, work = (["cat"], read) if data is None else (["tee"], write)
        return await environment.gate.perform(Command(command=[*words, "--", path]), work)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            # Of a device nobody knows how much there is.
            raise _too_big(max(len(data), os.fstat(file.fileno()).st_size))
    return data


def _write(path: Path, data: bytes, name: str) -> None:
    """All of it or nothing: a file that was there stays until the new one is whole.

    By descriptors: commands may be able to write to that directory, and to swap what is in it.
    """
    target = path / name if path.is_dir() else path
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        part = f".kakoi-{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(part, flags, 0o600, dir_fd=folder)
        try:
            with open(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(fd, 0o644)
            os.replace(part, target.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(part, dir_fd=folder)
            raise
    finally:
        os.close(folder)


def _too_big(size: int) -> ConfigurationError:
    return ConfigurationError(
        f"the file has {size_in_words(size)}; at most {size_in_words(MAX_FILE_BYTES)} are copied",
        hint="split it with `kakoi exec`",
    )
