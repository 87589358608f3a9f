"""`kakoi env cp`: copy a file into a task's environment, or out of it."""

import asyncio
import os
import posixpath
import secrets
from pathlib import Path

import click

from kakoi.channel.api import MAX_FILE_BYTES, Channel
from kakoi.cli.group import help_end
from kakoi.cli.io.approval import Approval
from kakoi.cli.io.format import format_size
from kakoi.cli.options import config_option, settings_from
from kakoi.errors import ConfigurationError, ExecutionError
from kakoi.policy.file_access import FileAccess
from kakoi.settings.model import Settings
from kakoi.tasks.checkout import PROJECT
from kakoi.tasks.environments import find_environment
from kakoi.tasks.from_settings import environment_manager


@click.command(
    epilog=help_end(
        "kakoi env cp 3f2a:report.txt .",
        "kakoi env cp notes.md 3f2a:docs/notes.md",
        exit_codes="0 copied; 2 usage error, refused, no such file or environment, or too big.",
    )
)
@click.argument("source")
@click.argument("target")
@click.option("--yes", is_flag=True, help="Approve in advance what the policy would ask about.")
@config_option
def command(*, source: str, target: str, yes: bool, config_file: Path | None) -> None:
    """Copy one file: `kakoi env cp TASK:PATH PATH` or `kakoi env cp PATH TASK:PATH`.

    Relative paths in the environment start in the project. The copy is judged as a read or a write
    of the file, and recorded. To copy several files, make an archive with `kakoi env
    exec`.
    """
    inside, outside = _inside(source), _inside(target)
    if (inside is None) == (outside is None):
        raise click.UsageError("one of SOURCE and TARGET must be TASK:PATH, the other a local path")
    settings = settings_from(config_file)
    try:
        if inside is not None:
            data = asyncio.run(_transfer(settings, *inside, yes=yes, data=None))
            _write(Path(target), data, posixpath.basename(inside[1]))
        elif outside is not None:
            asyncio.run(_transfer(settings, *outside, yes=yes, data=_read(Path(source))))
    except OSError as error:
        name = error.filename or source
        raise ExecutionError(f"cannot copy `{name}`: {error.strerror}") from error


def _inside(argument: str) -> tuple[str, str] | None:
    """TASK:PATH as a task and a full path; None for a local path such as `./a:b` or `/a:b`."""
    task, colon, path = argument.partition(":")
    if not colon or "/" in task or not task:
        return None
    if not path or path.endswith("/"):
        raise click.UsageError(f"{argument!r} does not name a file in the environment")
    return task, posixpath.normpath(posixpath.join(PROJECT, path))


async def _transfer(
    settings: Settings, task: str, path: str, *, yes: bool, data: bytes | None
) -> bytes:
    """Write `data` to a file in the environment, or return its content if there is no data."""
    manager = environment_manager(settings, approver=Approval(yes=yes))
    found = await find_environment(manager, task)
    async with manager.attached(found.task) as environment:

        async def read(channel: Channel) -> bytes:
            size = (await channel.stat_file(path)).size
            if size > MAX_FILE_BYTES:
                raise _too_big(size)
            return await channel.read_file(path)

        async def write(channel: Channel) -> bytes:
            await channel.write_file(path, data or b"")
            return b""

        if data is None:
            return await environment.gate.access(FileAccess("read", path), read)
        return await environment.gate.access(FileAccess("write", path), write)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            # The size of a device is unknown.
            raise _too_big(max(len(data), os.fstat(file.fileno()).st_size))
    return data


def _write(path: Path, data: bytes, name: str) -> None:
    """Write all of it or nothing: an existing file stays until the new one is complete.

    Works on descriptors: commands may be able to write to that directory, and swap what is in it.
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
        f"the file has {format_size(size)}; at most {format_size(MAX_FILE_BYTES)} can be copied",
        hint="split it with `kakoi env exec`",
    )
