"""Build kakoi's images: with the Dockerfile, or without a registry from Debian packages."""

import asyncio
import contextlib
import fcntl
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Final

from kakoi._support.late import dataclass
from kakoi._support.redact import redact
from kakoi.backends.docker.engine import Engine, Image
from kakoi.errors import (
    EnvironmentUnavailableError,
    ExecutionError,
    ExecutionTimeoutError,
    SandboxError,
)
from kakoi.images.description import (
    CA,
    Variant,
    archive,
    content_key,
    contents,
    files,
    image_settings,
)
from kakoi.process import ProcessExecutor, ProcessResult, SpawnOptions

_log = logging.getLogger(__name__)
VARIANT_LABEL: Final = "kakoi.image"
KEY_LABEL: Final = "kakoi.key"
_SUITE: Final = "bookworm"
_BUILD_S: Final = 3600.0
_TURN_S: Final = 0.5
_INSIDE: Final = "/opt/kakoi-image"
_MAX_OUTPUT: Final = 32 * 1024 * 1024
_LAST_LINES: Final = 6
# Documentation, which nobody reads in a container.
_WITHOUT: Final = (
    "/usr/share/doc/*",
    "/usr/share/man/*",
    "/usr/share/locale/*",
    "/usr/share/info/*",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSpec:
    """What to build. The same spec gives the same image.

    `apt`: additional Debian packages. `uid`: the agent's; that of the owner of mounted projects.
    `base`, `mamba`: images to start from, and to copy mamba from, instead of the Dockerfile's own.
    `ca`: certificates to trust while building; they do not stay in the image.
    `sources`: an apt sources file for the Debian packages; None uses the default.
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
        """The files that the build needs."""
        return files(apt=self.apt)

    @property
    def all_labels(self) -> Mapping[str, str]:
        """The labels by which the image is found, and known to be up to date."""
        other = (self.mamba,) if self.mamba else ()
        key = content_key(self.files, self.variant, str(self.uid), self.base, *other)
        return {**self.labels, VARIANT_LABEL: self.variant, KEY_LABEL: key}

    def archive(self) -> bytes:
        """Return `files` and the certificates as a tar archive."""
        trusted = {CA: self.ca.read_bytes()} if self.ca is not None else {}
        return archive({**self.files, **trusted})


class Builder:
    """Builds images. `env`: the environment of the programs that it starts."""

    def __init__(self, engine: Engine, executor: ProcessExecutor, env: Mapping[str, str]) -> None:
        self._engine = engine
        self._executor = executor
        self._env = dict(env)

    async def is_built(self, spec: BuildSpec) -> bool:
        """Tell if exactly this image exists already."""
        form = f'{{{{index .Config.Labels "{KEY_LABEL}"}}}}'
        args = ["image", "inspect", "--format", form, spec.name]
        found = await self._engine.call(args, doing="looking for the image")
        return found.exit_code == 0 and found.stdout.strip() == spec.all_labels[KEY_LABEL]

    async def build(self, spec: BuildSpec) -> None:
        """Build with the Dockerfile, from an image of a registry. Raises SandboxError."""
        before = await self._engine.find_image(spec.name)
        labels = [word for pair in spec.all_labels.items() for word in ("--label", "=".join(pair))]
        args = ["build", "--tag", spec.name, "--target", spec.variant, *labels]
        args += ["--build-arg", f"AGENT_UID={spec.uid}"]
        args += ["--build-arg", f"BASE={spec.base}"] if spec.base else []
        args += ["--build-arg", f"MAMBA={spec.mamba}"] if spec.mamba else []
        done = await self._engine.call(
            [*args, "-"], doing="building an image", stdin=spec.archive(), timeout_s=_BUILD_S
        )
        if done.exit_code != 0:
            raise SandboxError(
                f"building {spec.name} failed: {last_lines(done.stdout + done.stderr)}",
                hint="without a registry: kakoi image build --without-registry",
            )
        await self._remove_old(before, spec)

    async def build_without_registry(self, spec: BuildSpec, *, cache: Path | None = None) -> None:
        """Build from Debian packages. `cache`: the folder that keeps the image's files."""
        before = await self._engine.find_image(spec.name)
        with tempfile.TemporaryDirectory(prefix="kakoi-image-") as folder:
            kept = cache or Path(folder)
            await asyncio.to_thread(kept.mkdir, parents=True, exist_ok=True)
            async with _locked(kept):
                done = await self._import(spec, kept, Path(folder))
        if done.exit_code != 0:
            raise SandboxError(f"importing {spec.name} failed: {last_lines(done.stderr)}")
        await self._remove_old(before, spec)

    async def _import(self, spec: BuildSpec, kept: Path, folder: Path) -> ProcessResult:
        tree = kept / f"{spec.variant}-{spec.all_labels[KEY_LABEL]}.tar"
        if not tree.exists():
            await self._make_tree(spec, tree, folder)
        dockerfile = spec.files["Dockerfile"].decode()
        settings = image_settings(dockerfile, spec.all_labels)
        changes = [word for line in settings for word in ("--change", line)]
        return await self._engine.call(
            ["import", *changes, str(tree), spec.name],
            doing="importing an image",
            timeout_s=_BUILD_S,
        )

    async def _remove_old(self, before: Image | None, spec: BuildSpec) -> None:
        """Remove the image that had this name: unnamed, nothing would find it again."""
        after = await self._engine.find_image(spec.name)
        if before is not None and after is not None and before.id != after.id:
            # If it has another name or a container uses it, the engine refuses, and it stays.
            await self._engine.call(["image", "rm", before.id], doing="removing an image")

    async def _make_tree(self, spec: BuildSpec, tree: Path, folder: Path) -> None:
        given = folder / "files.tar"
        await asyncio.to_thread(given.write_bytes, spec.archive())
        part = tree.with_suffix(".part")
        args = mmdebstrap_args(spec, given, part)
        options = SpawnOptions(env=self._env, timeout=_BUILD_S * 1000, max_output_bytes=_MAX_OUTPUT)
        try:
            await self._mmdebstrap(args, options)
            part.replace(tree)
        finally:
            part.unlink(missing_ok=True)
        for old in set(tree.parent.glob(f"{spec.variant}-{'?' * 16}.tar")) - {tree}:
            old.unlink(missing_ok=True)

    async def _mmdebstrap(self, args: Sequence[str], options: SpawnOptions) -> None:
        try:
            done = await self._executor.spawn("mmdebstrap", args, options)
        except ExecutionTimeoutError as error:
            raise SandboxError(f"mmdebstrap timed out after {_BUILD_S:g} s") from error
        except ExecutionError as error:
            raise EnvironmentUnavailableError(
                f"mmdebstrap cannot be started: {error}",
                details={"environmentType": "docker"},
                hint="install it: sudo apt-get install mmdebstrap",
            ) from error
        if done.exit_code != 0:
            raise SandboxError(
                f"mmdebstrap failed: {last_lines(done.stdout + done.stderr)}",
                hint="does `apt-get update` work on this machine? mmdebstrap uses the same sources",
            )


@contextlib.asynccontextmanager
async def _locked(folder: Path) -> AsyncIterator[None]:
    """Wait while another build uses the folder: it writes the same files, and removes old ones."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        has_warned = False
        while not _try_lock(handle):
            if not has_warned:
                _log.warning("waiting for another build that keeps its files in %s", folder)
                has_warned = True
            await asyncio.sleep(_TURN_S)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def mmdebstrap_args(spec: BuildSpec, given: Path, target: Path) -> list[str]:
    """Return the arguments of `mmdebstrap`: Debian packages, then setup.sh inside."""
    packages = [*contents(spec.variant).apt, *spec.apt]
    setup = f'env -i PATH="$PATH" HOME=/root AGENT_UID={spec.uid} sh {_INSIDE}/setup.sh'
    hooks = (
        f'mkdir -p "$1{_INSIDE}"',
        f"tar-in {given} {_INSIDE}",
        f'chroot "$1" {setup} {spec.variant}',
        f'rm -rf "$1{_INSIDE}"',
    )
    return [
        "--verbose",
        "--variant=minbase",
        f"--include={','.join(packages)}",
        *(f"--dpkgopt=path-exclude={path}" for path in _WITHOUT),
        # Some packages link their man pages even if there are none.
        '--essential-hook=mkdir -p "$1/usr/share/man/man1"',
        *(f"--customize-hook={hook}" for hook in hooks),
        "--format=tar",
        _SUITE,
        str(target),
        *([str(spec.sources)] if spec.sources is not None else []),
    ]


def find_sources(named: str = "") -> Path | None:
    """Return an apt sources file of this machine for the Debian release of the images, or None."""
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


def last_lines(output: str) -> str:
    """Return the last lines of an output on one line, without secrets."""
    lines = [line.strip() for line in redact(output).splitlines() if line.strip()]
    return " | ".join(lines[-_LAST_LINES:])
