"""Build an image: from a registry's with the Dockerfile, or without one from Debian's packages."""

import asyncio
import contextlib
import fcntl
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kakoi.errors import (
    EnvironmentUnavailableError,
    ExecutionError,
    ExecutionTimeoutError,
    SandboxError,
)
from kakoi.images.description import CA, Variant, archive, contents, files, image_settings, key_of
from kakoi.process import ProcessExecutor, ProcessResult, SpawnOptions
from kakoi.redact import redact
from kakoi.sandbox.docker_engine import Engine, Image

_log = logging.getLogger(__name__)
VARIANT_LABEL: Final = "kakoi.image"
KEY_LABEL: Final = "kakoi.key"
_SUITE: Final = "bookworm"
_BUILD_S: Final = 3600.0
_TURN_S: Final = 0.5
_INSIDE: Final = "/opt/kakoi-image"
_MAX_OUTPUT: Final = 32 * 1024 * 1024
_LAST_LINES: Final = 6
# Documents that nobody reads there.
_WITHOUT: Final = (
    "/usr/share/doc/*",
    "/usr/share/man/*",
    "/usr/share/locale/*",
    "/usr/share/info/*",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to build. Built twice, it is the same.

    `apt`: more packages of Debian's. `uid`: the agent's; that of whoever owns mounted projects.
    `base`, `mamba`: images to start from, and to take mamba from, instead of the Dockerfile's own.
    `ca`: certificates to trust while building; they do not stay in the image.
    `sources`: where Debian's packages come from, a file of apt's; None is its own default.
    """

    variant: Variant
    name: str
    apt: Sequence[str] = ()
    uid: int = 1000
    base: str = ""
    mamba: str = ""
    ca: Path | None = None
    sources: Path | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def files(self) -> Mapping[str, bytes]:
        """What the build is fed."""
        return files(apt=self.apt)

    @property
    def all_labels(self) -> Mapping[str, str]:
        """How the image is found again, and seen to be up to date."""
        other = (self.mamba,) if self.mamba else ()
        key = key_of(self.files, self.variant, str(self.uid), self.base, *other)
        return {**self.labels, VARIANT_LABEL: self.variant, KEY_LABEL: key}

    def archive(self) -> bytes:
        """`files` and the certificates, as a tar file."""
        trusted = {CA: self.ca.read_bytes()} if self.ca is not None else {}
        return archive({**self.files, **trusted})


class Builder:
    """Builds images. `env`: of the programs that it starts."""

    def __init__(self, engine: Engine, executor: ProcessExecutor, env: Mapping[str, str]) -> None:
        self._engine = engine
        self._executor = executor
        self._env = dict(env)

    async def is_built(self, order: Order) -> bool:
        """Is that very image there already?"""
        form = f'{{{{index .Config.Labels "{KEY_LABEL}"}}}}'
        args = ["image", "inspect", "--format", form, order.name]
        found = await self._engine.call(args, doing="looking for the image")
        return found.exit_code == 0 and found.stdout.strip() == order.all_labels[KEY_LABEL]

    async def build(self, order: Order) -> None:
        """From an image of a registry, with the Dockerfile. SandboxError: it says what failed."""
        before = await self._engine.find_image(order.name)
        labels = [word for pair in order.all_labels.items() for word in ("--label", "=".join(pair))]
        args = ["build", "--tag", order.name, "--target", order.variant, *labels]
        args += ["--build-arg", f"AGENT_UID={order.uid}"]
        args += ["--build-arg", f"BASE={order.base}"] if order.base else []
        args += ["--build-arg", f"MAMBA={order.mamba}"] if order.mamba else []
        done = await self._engine.call(
            [*args, "-"], doing="building an image", stdin=order.archive(), timeout_s=_BUILD_S
        )
        if done.exit_code != 0:
            raise SandboxError(
                f"building {order.name} failed: {end_of(done.stdout + done.stderr)}",
                hint="without a registry: kakoi image build --without-registry",
            )
        await self._forget(before, order)

    async def build_without_registry(self, order: Order, *, cache: Path | None = None) -> None:
        """From Debian's packages. `cache`: where the files of the image are kept for next time."""
        before = await self._engine.find_image(order.name)
        with tempfile.TemporaryDirectory(prefix="kakoi-image-") as folder:
            kept = cache or Path(folder)
            await asyncio.to_thread(kept.mkdir, parents=True, exist_ok=True)
            async with _alone_in(kept):
                done = await self._import(order, kept, Path(folder))
        if done.exit_code != 0:
            raise SandboxError(f"importing {order.name} failed: {end_of(done.stderr)}")
        await self._forget(before, order)

    async def _import(self, order: Order, kept: Path, folder: Path) -> ProcessResult:
        tree = kept / f"{order.variant}-{order.all_labels[KEY_LABEL]}.tar"
        if not tree.exists():
            await self._make_tree(order, tree, folder)
        dockerfile = order.files["Dockerfile"].decode()
        settings = image_settings(dockerfile, order.all_labels)
        changes = [word for line in settings for word in ("--change", line)]
        return await self._engine.call(
            ["import", *changes, str(tree), order.name],
            doing="importing an image",
            timeout_s=_BUILD_S,
        )

    async def _forget(self, before: Image | None, order: Order) -> None:
        """Remove the image that had this name: without one nobody would find it again."""
        after = await self._engine.find_image(order.name)
        if before is not None and after is not None and before.id != after.id:
            # Not if it has another name, or a container needs it: then the engine refuses.
            await self._engine.call(["image", "rm", before.id], doing="removing an image")

    async def _make_tree(self, order: Order, tree: Path, folder: Path) -> None:
        given = folder / "files.tar"
        await asyncio.to_thread(given.write_bytes, order.archive())
        part = tree.with_suffix(".part")
        args = mmdebstrap_args(order, given, part)
        options = SpawnOptions(env=self._env, timeout=_BUILD_S * 1000, max_output_bytes=_MAX_OUTPUT)
        try:
            await self._mmdebstrap(args, options)
            part.replace(tree)
        finally:
            part.unlink(missing_ok=True)
        for old in set(tree.parent.glob(f"{order.variant}-{'?' * 16}.tar")) - {tree}:
            old.unlink(missing_ok=True)

    async def _mmdebstrap(self, args: Sequence[str], options: SpawnOptions) -> None:
        try:
            done = await self._executor.spawn("mmdebstrap", args, options)
        except ExecutionTimeoutError as error:
            raise SandboxError(f"mmdebstrap was not done after {_BUILD_S:g} s") from error
        except ExecutionError as error:
            raise EnvironmentUnavailableError(
                f"mmdebstrap cannot be started: {error}",
                details={"environmentType": "docker"},
                hint="install it: sudo apt-get install mmdebstrap",
            ) from error
        if done.exit_code != 0:
            raise SandboxError(
                f"mmdebstrap failed: {end_of(done.stdout + done.stderr)}",
                hint="does `apt-get update` work on this machine? It needs the same sources",
            )


@contextlib.asynccontextmanager
async def _alone_in(folder: Path) -> AsyncIterator[None]:
    """While others build, wait: they write to the files that we would, and remove old ones."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        is_told = False
        while not _is_locked(handle):
            if not is_told:
                _log.warning("waiting for another build that keeps its files in %s", folder)
                is_told = True
            await asyncio.sleep(_TURN_S)
        yield
    finally:
        os.close(handle)


def _is_locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def mmdebstrap_args(order: Order, given: Path, target: Path) -> list[str]:
    """The arguments of `mmdebstrap`: Debian's packages, then setup.sh inside."""
    packages = [*contents(order.variant).apt, *order.apt]
    setup = f'env -i PATH="$PATH" HOME=/root AGENT_UID={order.uid} sh {_INSIDE}/setup.sh'
    hooks = (
        f'mkdir -p "$1{_INSIDE}"',
        f"tar-in {given} {_INSIDE}",
        f'chroot "$1" {setup} {order.variant}',
        f'rm -rf "$1{_INSIDE}"',
    )
    return [
        "--verbose",
        "--variant=minbase",
        f"--include={','.join(packages)}",
        *(f"--dpkgopt=path-exclude={path}" for path in _WITHOUT),
        # Some packages link their manuals whether or not there are any.
        '--essential-hook=mkdir -p "$1/usr/share/man/man1"',
        *(f"--customize-hook={hook}" for hook in hooks),
        "--format=tar",
        _SUITE,
        str(target),
        *([str(order.sources)] if order.sources is not None else []),
    ]


def find_sources(named: str = "") -> Path | None:
    """A file of apt's on this machine that has the packages of the images' Debian."""
    if named:
        return Path(named)
    folder = Path("/etc/apt/sources.list.d")
    for path in [*sorted(folder.glob("*.sources")), Path("/etc/apt/sources.list")]:
        try:
            if _SUITE in path.read_text("utf-8"):
                return path
        except (OSError, UnicodeDecodeError):
            continue
    return None


def end_of(said: str) -> str:
    """What went wrong, as far as it is told at the end."""
    lines = [line.strip() for line in redact(said).splitlines() if line.strip()]
    return " | ".join(lines[-_LAST_LINES:])
