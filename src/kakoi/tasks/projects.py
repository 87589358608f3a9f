"""What a project says about its own environment: its settings, and an image of its own.

That is known once it has been cloned. Where it wants another container than it was cloned into, it
is cloned again, into that.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Final

from kakoi.egress.variables import proxy_variables
from kakoi.errors import ConfigurationError, SandboxError
from kakoi.images.project import MAX_CONTEXT_BYTES, BuildLimits, ProjectBuilder
from kakoi.process.executor import ProcessExecutor
from kakoi.runner.commands import Channel, Command
from kakoi.sandbox.docker_cli import Program
from kakoi.sandbox.docker_engine import Engine
from kakoi.tasks.checkout import PROJECT
from kakoi.tasks.collecting import files_there, written_by
from kakoi.tasks.reaching import is_proxied
from kakoi.tasks.values import EnvironmentOptions

_MAX_SETTINGS_BYTES: Final = 256 * 1024
_ARCHIVE_S: Final = 300.0
# The names and the contents of a project's files of settings, those that are there.
Read = Callable[[Mapping[str, bytes]], EnvironmentOptions]


class Projects:
    """Finds out what projects want.

    `files`: the names that their settings may have. `read`: what these make of our own options.
    `builder`: an engine that keeps the limits of builds; None builds nothing.
    """

    def __init__(self, files: tuple[str, ...], read: Read | None, builder: Engine | None) -> None:
        self._files = files if read is not None else ()
        self._read = read
        self._builder = builder

    async def read(self, channel: Channel, ours: EnvironmentOptions) -> EnvironmentOptions:
        """What holds for the project that is there; `ours` itself, if it says nothing."""
        found = await files_there(channel, PROJECT, self._files, most_bytes=_MAX_SETTINGS_BYTES)
        return self._read(found) if found and self._read is not None else ours

    async def built(
        self, channel: Channel, own: EnvironmentOptions, container: str
    ) -> EnvironmentOptions:
        """The same, with the image of the project's Dockerfile, if there is one.

        `container`: where the project is. What it reaches, a build reaches, and by the same proxy.
        """
        if not own.dockerfile:
            return own
        if self._builder is None:
            raise ConfigurationError(
                "a Dockerfile of a project is built with docker only",
                hint="name an image in tasks.base_image",
            )
        by_proxy = is_proxied(own.network)
        limits = BuildLimits(
            network=f"container:{container}" if by_proxy else own.network,
            variables=proxy_variables() if by_proxy else {},
            memory_bytes=own.limits.memory_bytes,
            cpus=own.limits.cpus,
            timeout_s=own.timeout_s,
        )
        archive = await _archive(channel)
        image = await ProjectBuilder(self._builder, limits).build(archive, own.dockerfile)
        return dataclasses.replace(own, image=image, dockerfile="")


async def _archive(channel: Channel) -> bytes:
    """The project's files as they were committed."""
    argv = ["git", "-c", "core.hooksPath=/dev/null", "archive", "--format=tar", "HEAD"]
    data, result = await written_by(
        channel,
        Command(command=argv, cwd=PROJECT, timeout_s=_ARCHIVE_S),
        most_bytes=MAX_CONTEXT_BYTES,
        too_much=SandboxError(
            f"the project has more than {MAX_CONTEXT_BYTES} bytes; no image is built of it",
            hint="build the image yourself, and name it in tasks.base_image",
        ),
    )
    if not result.ok:
        raise SandboxError(f"the project's files cannot be had: {result.stderr.strip()[:300]}")
    return data


def build_engine(
    executor: ProcessExecutor, program: Program, env: Mapping[str, str]
) -> Engine | None:
    """An engine whose builds keep limits: that is docker's older builder."""
    if program != "docker":
        return None
    return Engine(executor, program=program, env={**env, "DOCKER_BUILDKIT": "0"})
