"""Build the image that a project's own Dockerfile describes. It is not trusted.

The build sees the project's files and nothing else: no folder of this machine, no argument, no
credential. The image is named after its content, so the same files are built only once.

RUN steps run in containers, but ADD downloads a URL with the engine's own network, which reaches
this machine itself. So ADD takes only files, also in the ONBUILD steps of a base image, and no
image is pulled from a private address. Builders disagree about unusual spaces and line ends, which
could hide an instruction from us: they are refused.
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
from dataclasses import field
from typing import Final

from kakoi._support.late import dataclass, pattern
from kakoi.backends.docker.arguments import IMAGE
from kakoi.backends.docker.engine import Engine
from kakoi.errors import ConfigurationError, SandboxError
from kakoi.images.build import KEY_LABEL, VARIANT_LABEL, last_lines
from kakoi.network.addresses import unreachable_range
from kakoi.network.domains import BadHostError, parse_host
from kakoi.process import ProcessResult

REPOSITORY: Final = "kakoi-project"
VARIANT: Final = "project"
MAX_CONTEXT_BYTES: Final = 64 * 1024 * 1024
_MAX_FILES: Final = 20_000
_MAX_DOCKERFILE: Final = 256 * 1024
_ESCAPE: Final = pattern(r"\s*#\s*escape\s*=\s*[^\\\s]", re.IGNORECASE)
_BLANKS: Final = " \t"
_ARG: Final = pattern(r"(\w+)=([\w.:/@-]*)")
_REFERENCE: Final = pattern(r"\$(?:\{(\w+)\}|(\w+))")
_COPIED: Final = pattern(r"--from=(\S*)", re.IGNORECASE)
# Without one of these characters no word is a URL, however it is quoted.
_IN_URLS: Final = pattern(r"[:$\\]")
_WORDS: Final = frozenset(
    "ADD ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK LABEL MAINTAINER ONBUILD RUN SHELL "
    "STOPSIGNAL USER VOLUME WORKDIR".split()
)
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_OF_BUILDS: Final = frozenset((*_PROXIES, *map(str.lower, _PROXIES)))
_PERIOD_US: Final = 100_000
_TRIES: Final = 40
_PAUSE_S: Final = 0.25
# Images that a build has created itself, and not found in the cache.
_MADE: Final = pattern(r"(?<!---> Using cache\n)^ ---> ([0-9a-f]{12})$", re.MULTILINE)
_LOST: Final = "No such image"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildLimits:
    """The limits of a build. `image_bytes` is checked when the build is done.

    `variables`: of a proxy. Those that are predefined build arguments are passed to the build, and
    do not stay in the image.
    """

    network: str = "none"
    variables: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None
    cpus: float | None = None
    timeout_s: float = 1800.0
    image_bytes: int = 10 * 1024**3


class ProjectBuilder:
    """Builds images of projects.

    `engine`: one whose builder enforces limits (DOCKER_BUILDKIT=0).
    """

    def __init__(self, engine: Engine, limits: BuildLimits) -> None:
        self._engine = engine
        self._limits = limits

    async def build(self, archive: bytes, dockerfile: str) -> str:
        """Return the name of the image of these files (a tar archive); build it if it is missing.

        Raises ConfigurationError if the Dockerfile does something that a project's may not, and
        SandboxError if the build failed.
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
        """Return the id of an image, after checking that its ONBUILD steps add no URL."""
        await check_pull(self._engine, name)
        image = await self._engine.get_image(name)
        form = "{{json .Config.OnBuild}}"
        args = ["image", "inspect", "--format", form, image.id]
        later = json.loads(await self._engine.must(args, doing="looking at an image"))
        for line in later or ():
            _check_add(str(line), f"ONBUILD of {name}")
        return image.id

    async def _build(self, name: str, context: bytes, dockerfile: str, key: str) -> None:
        # The user's own docker configuration has credentials, and variables for every build.
        with tempfile.TemporaryDirectory(prefix="kakoi-build-") as empty:
            form = ["context", "inspect", "--format", "{{.Endpoints.docker.Host}}"]
            host = (await self._engine.must(form, doing="finding the engine")).strip()
            args = ["--config", empty, "--host", host, *self._args(name, dockerfile, key), "-"]
            done = await self._try(args, context, dockerfile)
            if done.exit_code != 0 and _LOST in done.stderr:
                # It was based on layers of another build, which failed and removed them.
                done = await self._try(args, context, dockerfile)
        if done.exit_code != 0:
            raise SandboxError(
                f"building the project's {dockerfile} failed: "
                f"{last_lines(done.stdout + done.stderr)}",
                hint="does `docker build` work with it, without arguments and secrets?",
            )
        form = ["image", "inspect", "--format", "{{.Size}}", name]
        size = int(await self._engine.must(form, doing="looking at an image"))
        if size > self._limits.image_bytes:
            await self._engine.call(["image", "rm", name], doing="removing an image")
            raise SandboxError(
                f"the image of the project's {dockerfile} has {size} bytes; "
                f"the limit is {self._limits.image_bytes}"
            )

    async def _try(self, args: Sequence[str], context: bytes, dockerfile: str) -> ProcessResult:
        """Build it once. A build that fails leaves nothing behind."""
        before = await self._images()
        try:
            done = await self._engine.call(
                args,
                doing=f"building {dockerfile}",
                stdin=context,
                timeout_s=self._limits.timeout_s,
            )
        except SandboxError as error:
            output = str(getattr(error.__cause__, "details", {}).get("stdout", ""))
            await self._remove_unfinished(output, before)
            raise
        if done.exit_code != 0:
            await self._remove_unfinished(done.stdout, before)
        return done

    async def _images(self) -> set[str]:
        """Return the ids of all images, including unfinished ones, as the builder prints them."""
        output = await self._engine.must(["image", "ls", "-a", "-q"], doing="listing images")
        return set(output.split())

    async def _remove_unfinished(self, output: str, before: set[str]) -> None:
        """Remove the images of a failed build, which nothing else would find again.

        They have no labels, because these come with the last step. The builder prints what it
        creates. A RUN step of the project can print the same, but it knows no id of an image that
        did not exist before and is not its own.
        """
        for each in reversed(_MADE.findall(output)):
            if each not in before:
                await self._remove_image(each)

    async def _remove_image(self, identity: str) -> None:
        """Remove an image, and the layers below it that nothing else uses."""
        for _ in range(_TRIES):
            args = ["image", "rm", identity]
            done = await self._engine.call(args, doing="removing an image")
            # After a timeout the engine ends the build and its container a little later.
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
    """Return a tar archive without owners and times, and its files.

    Raises SandboxError for names that lead out of it, too many files or damaged content.
    """
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
                    raise SandboxError(
                        "the project has invalid file names or too many files for a build"
                    )
                # A sparse file can claim any size.
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
        raise ConfigurationError(
            f"tasks.dockerfile is {path!r:.80}, which is not a path in the project"
        )
    if path not in files:
        raise ConfigurationError(f"tasks.dockerfile is {path!r:.80}, which was not found")
    try:
        text = files[path].decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not UTF-8 text") from None
    if len(text) > _MAX_DOCKERFILE:
        raise ConfigurationError(f"{path} has more than {_MAX_DOCKERFILE} characters")
    return text


def check_dockerfile(text: str, path: str) -> list[str]:
    """Return the base images; raise ConfigurationError if it does what a project's may not."""
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
        elif word == "COPY" and (copied := _COPIED.search(rest)):
            name = _filled_in(copied[1], {}, path)
            if name.lower() not in stages and not name.isdecimal():
                bases.append(name)
        else:
            _check_add(f"{word} {rest}", path)
    if not bases:
        raise ConfigurationError(f"{path} has no base image")
    return bases


def _instructions(text: str, path: str) -> Iterator[tuple[str, str]]:
    """Yield each instruction in capitals with its arguments, joined as the builder joins lines."""
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    if any(map(_ESCAPE.match, lines)):
        raise ConfigurationError(f"{path} sets another escape character", hint="use `\\`")
    begun = ""
    for number, line in enumerate(lines, 1):
        if not line.strip(_BLANKS) or line.lstrip(_BLANKS).startswith("#"):
            continue
        if _is_unclear(line):
            raise ConfigurationError(
                f"{path}:{number}: builders disagree about where this instruction ends",
                hint="end a continued line with a single `\\`, and use plain spaces around lines",
            )
        begun += line.rstrip(_BLANKS)
        if begun.endswith("\\"):
            begun = begun[:-1]
            continue
        yield _instruction(begun, path)
        begun = ""
    if begun:
        yield _instruction(begun, path)


def _is_unclear(line: str) -> bool:
    """Tell if some builder could see another end of a line, another comment or another blank."""
    seen = line.strip()
    if seen != line.strip(_BLANKS) and (not seen or seen[0] == "#" or seen[-1] == "\\"):
        return True
    return seen.endswith("\\\\")


def _instruction(line: str, path: str) -> tuple[str, str]:
    word, rest = [*line.split(maxsplit=1), "", ""][:2]
    if word.upper() not in _WORDS:
        raise ConfigurationError(f"{path}: `{word[:40]}` is not a Dockerfile instruction")
    return word.upper(), rest.strip()


def _check_add(line: str, path: str) -> None:
    words: Sequence[str] = line.split(maxsplit=1)
    while words and words[0].upper() == "ONBUILD" and len(words) == 2:
        words = words[1].split(maxsplit=1)
    if words and words[0].upper() == "ADD" and _IN_URLS.search("".join(words[1:])):
        raise ConfigurationError(
            f"{path}: `{line[:80]}` could download a URL with the engine's own network",
            hint="use COPY for files, and RUN with curl for URLs",
        )


async def check_pull(engine: Engine, name: str) -> None:
    """Raise ConfigurationError if an image that a project has chosen must not be pulled.

    The engine's network reaches this machine and private networks, which a project's does not.
    """
    if _is_on_private_registry(name) and await engine.find_image(name) is None:
        raise ConfigurationError(
            f"the image {name:.80} is on a registry with a private address",
            hint=f"pull it yourself: {engine.program} pull {name:.80}",
        )


def _is_on_private_registry(name: str) -> bool:
    """Tell if an image comes from this machine or from a private address, by its name alone."""
    registry, slash, _ = name.partition("/")
    if not slash:
        return False
    host = registry.partition(":")[0].lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        found = parse_host(host)
    except BadHostError:
        return host[-1:].isdecimal()  # Another notation of an address.
    return not isinstance(found, str) and bool(unreachable_range(found))


def _argument(word: str) -> tuple[str, str]:
    found = _ARG.fullmatch(word)
    return (found[1], found[2]) if found else ("", "")


def _filled_in(name: str, variables: Mapping[str, str], path: str) -> str:
    whole = _REFERENCE.sub(lambda found: variables.get(found[1] or found[2], "$"), name)
    if not IMAGE.fullmatch(whole):
        raise ConfigurationError(
            f"{path}: `FROM {name[:80]}` is not a plain image name", hint="write it out in full"
        )
    return whole.lower() if "/" not in whole and ":" not in whole else whole
