"""Build the image that a project's own Dockerfile describes. Strangers wrote it.

The build sees the project's files and nothing else: no folder of this machine, no argument, no
credential. Its image is named by what it is made of, so the same files are built once.

RUN steps run in containers, but ADD fetches an address with the engine's own network, which reaches
this machine itself. So ADD takes files only, here and in what a base image has for later (ONBUILD).
"""

import asyncio
import hashlib
import io
import json
import posixpath
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kakoi.errors import ConfigurationError, SandboxError
from kakoi.images.building import KEY_LABEL, VARIANT_LABEL, end_of
from kakoi.process import ProcessResult
from kakoi.sandbox.docker_cli import IMAGE
from kakoi.sandbox.docker_engine import Engine

REPOSITORY: Final = "kakoi-project"
VARIANT: Final = "project"
MAX_CONTEXT_BYTES: Final = 64 * 1024 * 1024
_MAX_FILES: Final = 20_000
_MAX_DOCKERFILE: Final = 256 * 1024
_ESCAPE: Final = re.compile(r"\s*#\s*escape\s*=\s*[^\\\s]", re.IGNORECASE)
_ARG: Final = re.compile(r"(\w+)=([\w.:/@-]*)")
_REFERENCE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
# Without one of these no word is an address, however it is quoted.
_IN_ADDRESSES: Final = re.compile(r"[:$\\]")
_WORDS: Final = frozenset(
    "ADD ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK LABEL MAINTAINER ONBUILD RUN SHELL "
    "STOPSIGNAL USER VOLUME WORKDIR".split()
)
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_OF_BUILDS: Final = frozenset((*_PROXIES, *map(str.lower, _PROXIES)))
_PERIOD_US: Final = 100_000
_TRIES: Final = 40
_PAUSE_S: Final = 0.25
# What a build has made itself, and not found.
_MADE: Final = re.compile(r"(?<!---> Using cache\n)^ ---> ([0-9a-f]{12})$", re.MULTILINE)
_LOST: Final = "No such image"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildLimits:
    """What a build may use. `image_bytes` is looked at when it is done.

    `variables`: of a proxy. Those that every build knows are told to it, and stay in no image.
    """

    network: str = "none"
    variables: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None
    cpus: float | None = None
    timeout_s: float = 1800.0
    image_bytes: int = 10 * 1024**3


class ProjectBuilder:
    """Builds images of projects. `engine`: one whose builder keeps limits (DOCKER_BUILDKIT=0)."""

    def __init__(self, engine: Engine, limits: BuildLimits) -> None:
        self._engine = engine
        self._limits = limits

    async def build(self, archive: bytes, dockerfile: str) -> str:
        """The name of the image of these files (a tar archive); built, if it is not there.

        ConfigurationError: the Dockerfile asks for what a project's may not. SandboxError: it
        could not be built, and why.
        """
        context, files = repacked(archive)
        text = _dockerfile(files, dockerfile)
        bases = [await self._base(name) for name in check_dockerfile(text, dockerfile)]
        key = hashlib.sha256("\0".join((dockerfile, *bases)).encode() + b"\0" + context)
        name = f"{REPOSITORY}:{key.hexdigest()[:32]}"
        if await self._engine.find_image(name) is None:
            await self._build(name, context, dockerfile, key.hexdigest()[:32])
        return name

    async def _base(self, name: str) -> str:
        """The id of an image to start from, which adds nothing from addresses later."""
        image = await self._engine.get_image(name)
        form = "{{json .Config.OnBuild}}"
        args = ["image", "inspect", "--format", form, image.id]
        later = json.loads(await self._engine.must(args, doing="looking at an image"))
        for line in later or ():
            _check_add(str(line), f"ONBUILD of {name}")
        return image.id

    async def _build(self, name: str, context: bytes, dockerfile: str, key: str) -> None:
        # The user's own settings of docker hold credentials, and variables for every build.
        with tempfile.TemporaryDirectory(prefix="kakoi-build-") as empty:
            form = ["context", "inspect", "--format", "{{.Endpoints.docker.Host}}"]
            host = (await self._engine.must(form, doing="finding the engine")).strip()
            args = ["--config", empty, "--host", host, *self._args(name, dockerfile, key), "-"]
            done = await self._try(args, context, dockerfile)
            if done.exit_code != 0 and _LOST in done.stderr:
                # It stood on what another build had made, which failed and took it away.
                done = await self._try(args, context, dockerfile)
        if done.exit_code != 0:
            raise SandboxError(
                f"building the project's {dockerfile} failed: {end_of(done.stdout + done.stderr)}",
                hint="does `docker build` work with it, without arguments and secrets?",
            )
        form = ["image", "inspect", "--format", "{{.Size}}", name]
        size = int(await self._engine.must(form, doing="looking at an image"))
        if size > self._limits.image_bytes:
            await self._engine.call(["image", "rm", name], doing="removing an image")
            raise SandboxError(
                f"the image of the project's {dockerfile} has {size} bytes; "
                f"{self._limits.image_bytes} are allowed"
            )

    async def _try(self, args: Sequence[str], context: bytes, dockerfile: str) -> ProcessResult:
        """Build it once. Of a build that fails nothing is left."""
        before = await self._images()
        try:
            done = await self._engine.call(
                args,
                doing=f"building {dockerfile}",
                stdin=context,
                timeout_s=self._limits.timeout_s,
            )
        except SandboxError as error:
            said = str(getattr(error.__cause__, "details", {}).get("stdout", ""))
            await self._remove_unfinished(said, before)
            raise
        if done.exit_code != 0:
            await self._remove_unfinished(done.stdout, before)
        return done

    async def _images(self) -> set[str]:
        """Every image that there is, unfinished ones as well, as the builder names them."""
        said = await self._engine.must(["image", "ls", "-a", "-q"], doing="listing images")
        return set(said.split())

    async def _remove_unfinished(self, said: str, before: set[str]) -> None:
        """Take away what a build has made that failed; nobody would find it again.

        The labels of an image come with its last step, so these have none. The builder says what
        it makes; a RUN of the project's can say as much, but knows no name of anything that was
        not there before, and is not its own.
        """
        for each in reversed(_MADE.findall(said)):
            if each not in before:
                await self._remove_image(each)

    async def _remove_image(self, identity: str) -> None:
        """And all that it stands on, as far as nobody else has a use for it."""
        for _ in range(_TRIES):
            args = ["image", "rm", identity]
            done = await self._engine.call(args, doing="removing an image")
            # A build that is given up ends in the engine, with its container, a little later.
            if done.exit_code == 0 or "container" not in done.stderr:
                return
            await asyncio.sleep(_PAUSE_S)

    def _args(self, name: str, dockerfile: str, key: str) -> list[str]:
        limits = self._limits
        args = ["build", "--tag", name, "--file", dockerfile, "--force-rm"]
        args += ["--network", limits.network]
        args += ["--label", f"{VARIANT_LABEL}={VARIANT}", "--label", f"{KEY_LABEL}={key}"]
        for variable in sorted(_OF_BUILDS & limits.variables.keys()):
            args += ["--build-arg", f"{variable}={limits.variables[variable]}"]
        if limits.memory_bytes is not None:
            args += ["--memory", str(limits.memory_bytes)]
            args += ["--memory-swap", str(limits.memory_bytes)]
        if limits.cpus is not None:
            args += ["--cpu-period", str(_PERIOD_US)]
            args += ["--cpu-quota", str(round(limits.cpus * _PERIOD_US))]
        return args


def repacked(archive: bytes) -> tuple[bytes, Mapping[str, bytes]]:
    """A tar archive without owners and times, and its files; SandboxError if it is odd."""
    data = io.BytesIO()
    files: dict[str, bytes] = {}
    try:
        with (
            tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as given,
            tarfile.open(fileobj=data, mode="w") as made,
        ):
            for entry in sorted(given, key=lambda each: each.name):
                plain = tarfile.TarInfo(posixpath.normpath(entry.name))
                if plain.name.startswith(("/", "..")) or len(files) >= _MAX_FILES:
                    raise SandboxError("the project has odd names, or too many files, for a build")
                # A file with holes may say that it is as large as it likes.
                if entry.size > len(archive):
                    raise SandboxError("the project has a file that is larger than its archive")
                plain.type, plain.linkname = entry.type, entry.linkname
                plain.mode = 0o755 if entry.mode & 0o111 or entry.isdir() else 0o644
                if entry.isfile() and (file := given.extractfile(entry)) is not None:
                    files[plain.name] = file.read()
                    plain.size = len(files[plain.name])
                    made.addfile(plain, io.BytesIO(files[plain.name]))
                elif entry.isdir() or entry.issym():
                    made.addfile(plain)
    except tarfile.TarError as error:
        raise SandboxError(f"the project's files cannot be read: {error}") from error
    return data.getvalue(), files


def _dockerfile(files: Mapping[str, bytes], path: str) -> str:
    if posixpath.normpath(path) != path or path.startswith(("/", "..", "-")):
        raise ConfigurationError(f"tasks.dockerfile is {path!r:.80}; it is no path in the project")
    if path not in files:
        raise ConfigurationError(f"tasks.dockerfile names {path!r:.80}, and there is no such file")
    try:
        text = files[path].decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is no UTF-8 text") from None
    if len(text) > _MAX_DOCKERFILE:
        raise ConfigurationError(f"{path} has more than {_MAX_DOCKERFILE} letters")
    return text


def check_dockerfile(text: str, path: str) -> list[str]:
    """The images that it starts from; ConfigurationError if it asks for what it may not."""
    variables: dict[str, str] = {}
    stages: set[str] = set()
    bases: list[str] = []
    for word, rest in _instructions(text, path):
        if word == "ARG" and not stages and not bases:
            variables |= {name: value for name, value in map(_argument, rest.split()) if name}
        elif word == "FROM":
            words = [each for each in rest.split() if not each.startswith("--")]
            name = _filled_in(words[0] if words else "", variables, path)
            if name not in stages and name != "scratch":
                bases.append(name)
            stages |= {words[2].lower()} if len(words) == 3 else set()
        else:
            _check_add(f"{word} {rest}", path)
    if not bases:
        raise ConfigurationError(f"{path} starts from no image")
    return bases


def _instructions(text: str, path: str) -> Iterator[tuple[str, str]]:
    """Each instruction in capitals, with its words, put together as the builder does it."""
    lines = text.removeprefix("\ufeff").split("\n")
    if any(map(_ESCAPE.match, lines)):
        raise ConfigurationError(f"{path} has an escape character of its own", hint="use `\\`")
    begun = ""
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        begun += line.rstrip()
        if begun.endswith("\\"):
            begun = begun[:-1]
            continue
        yield _instruction(begun, path)
        begun = ""
    if begun:
        yield _instruction(begun, path)


def _instruction(line: str, path: str) -> tuple[str, str]:
    word, rest = [*line.split(maxsplit=1), "", ""][:2]
    if word.upper() not in _WORDS:
        raise ConfigurationError(f"{path}: `{word[:40]}` is no instruction of a Dockerfile")
    return word.upper(), rest.strip()


def _check_add(line: str, path: str) -> None:
    words: Sequence[str] = line.split(maxsplit=1)
    while words and words[0].upper() == "ONBUILD" and len(words) == 2:
        words = words[1].split(maxsplit=1)
    if words and words[0].upper() == "ADD" and _IN_ADDRESSES.search("".join(words[1:])):
        raise ConfigurationError(
            f"{path}: `{line[:80]}` could fetch an address with the engine's own network",
            hint="use COPY for files, and RUN with curl for addresses",
        )


def _argument(word: str) -> tuple[str, str]:
    found = _ARG.fullmatch(word)
    return (found[1], found[2]) if found else ("", "")


def _filled_in(name: str, variables: Mapping[str, str], path: str) -> str:
    whole = _REFERENCE.sub(lambda found: variables.get(found[1] or found[2], "$"), name)
    if not IMAGE.fullmatch(whole):
        raise ConfigurationError(
            f"{path}: `FROM {name[:80]}` is no plain name of an image", hint="write it out"
        )
    return whole.lower() if "/" not in whole and ":" not in whole else whole
