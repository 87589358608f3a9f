"""Install the dependencies of a project in its environment.

The files at the top of a project decide which commands run. A lock file wins, and a project of
several kinds gets one command for each kind. A failure is reported, and the task continues.

If only listed packages may be installed, each file is checked against the lists first. A file that
asks for anything else is not installed at all, and neither is one that kakoi cannot read, such as a
lock file. The package manager then gets what was checked, in a separate folder, and never a file of
the project. It runs no code of the project or of packages: npm runs no scripts and no git, and pip,
which takes wheels only, starts no program. The result names everything that was installed.

`PackageCache` shares package downloads between tasks, without sharing anything that a task can
write. The host keeps one archive for each package manager, and each task gets its own copy before
it installs. Changes to a copy end with its container. Only `PackageCache.fill` creates an archive:
in a fresh environment, for a project that the user names, with commands that download packages but
run none of their scripts.
"""

import asyncio
import contextlib
import logging
import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from kakoi._support.late import dataclass
from kakoi._support.redact import redact
from kakoi._support.text import shown
from kakoi.backends.adapter import SandboxAdapter
from kakoi.channel.api import Channel, Command
from kakoi.errors import SandboxError, SecurityError, UserCancelledError
from kakoi.gate import Call, Gate
from kakoi.packages.allowlist import AllowlistConfig
from kakoi.packages.installer import plain
from kakoi.packages.manifests import check_manifest
from kakoi.packages.targets import WHEELS, parse_installed
from kakoi.packages.wheels import PIP_PROGRAM
from kakoi.results import ExecutionResult, Reason
from kakoi.tasks.checkout import PROJECT, TEMPORARY
from kakoi.tasks.network import TaskProxy, refusal_hint
from kakoi.tasks.transfer import send_file

MAX_BYTES: Final = 1024 * 1024 * 1024
_COPY_S: Final = 600.0
_FILL_S: Final = 1800.0
# Where each package manager keeps its downloads, relative to the user's home.
FOLDERS: Final[Mapping[str, str]] = {
    "pip": ".cache/pip",
    "npm": ".npm/_cacache",
    "go": "go/pkg/mod/cache/download",
    "cargo": ".cargo/registry",
    "mvn": ".m2/repository",
}
# The command that downloads for a file, and runs none of the downloaded code. (Maven plugins do
# run.)
_DOWNLOADS: Final[Mapping[str, str]] = {
    "requirements.txt": f"pip download --only-binary :all: --dest {TEMPORARY}/downloads "
    "-r requirements.txt",
    "npm-shrinkwrap.json": "npm ci --ignore-scripts --git false",
    "package-lock.json": "npm ci --ignore-scripts --git false",
    "package.json": "npm install --ignore-scripts --git false --no-package-lock",
    "go.mod": "go mod download",
    "Cargo.lock": "cargo fetch --locked",
    "Cargo.toml": "cargo fetch",
    "pom.xml": "mvn --batch-mode dependency:go-offline",
}


class PackageCache:
    """The archives in one folder on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sizes(self) -> dict[str, int]:
        """The size in bytes of each archive that exists, by package manager."""
        found = {}
        for name in FOLDERS:
            with contextlib.suppress(OSError):
                found[name] = self._path(name).stat().st_size
        return found

    def clear(self) -> None:
        """Delete all archives."""
        for name in FOLDERS:
            self._path(name).unlink(missing_ok=True)

    async def give(self, channel: Channel, manager: str) -> None:
        """Copy the archive of a package manager into an environment.

        If that fails, the installation only takes longer.
        """
        path = self._path(manager)
        if manager not in FOLDERS or not path.is_file():
            return
        command = Command(command='tar -x -f - -C "$HOME"', timeout_s=_COPY_S)
        with contextlib.suppress(OSError, SandboxError):
            await send_file(channel, command, path)

    async def fill(self, gate: Gate, file: str, command: str) -> int:
        """Download what `file` asks for, and store it; returns the size of the archive in bytes.

        `command`: what would install it; the download is judged and recorded as that. The
        environment behind `gate` must be used for nothing else. SandboxError: kakoi cannot download
        for such a file without running code, or the download failed, and why. SecurityError: the
        policy denies it.
        """
        download, manager = _DOWNLOADS.get(file), command.split()[0]
        if download is None:
            raise SandboxError(f"cannot download the packages of {file} without running their code")
        words = _without_building(download) if manager == "pip" else download

        async def work(channel: Channel) -> ExecutionResult:
            # Start from the existing archive: a cache only grows.
            await self.give(channel, manager)
            return await channel.run(Command(command=words, cwd=PROJECT, timeout_s=_FILL_S))

        wanted = Command(command=command, cwd=PROJECT)
        done = await gate.perform(wanted, work, Call(approved_by="kakoi cache fill"))
        if not done.ok:
            output = (done.stderr or done.stdout or done.error).strip()[-500:]
            raise SandboxError(f"`{download}` failed: {output}")
        return await self._store(await (await gate.open_sandbox()).channel(), manager)

    async def _store(self, channel: Channel, name: str) -> int:
        await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True, mode=0o700)
        command = Command(command=f'cd "$HOME" && tar -c -f - {FOLDERS[name]}', timeout_s=_COPY_S)
        number, part = tempfile.mkstemp(prefix=f".{name}-", dir=self._folder)
        size = 0
        try:
            file = await asyncio.to_thread(os.fdopen, number, "wb")
            with contextlib.closing(file):
                async with channel.open(command) as running:
                    async for stream, data in running.output():
                        size += len(data)
                        if size > MAX_BYTES:
                            raise SandboxError(f"{name} downloaded more than {MAX_BYTES} bytes")
                        if stream == "stdout":
                            await asyncio.to_thread(file.write, data)
                    result = await running.result()
            if not result.ok:
                raise SandboxError(f"cannot read the downloads of {name}: {result.stderr[-300:]}")
            os.replace(part, self._path(name))
        finally:
            with contextlib.suppress(FileNotFoundError):
                await asyncio.to_thread(os.unlink, part)
        return size

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.tar"


def _without_building(download: str) -> list[str]:
    """The same with a pip that starts no program: a requirements file can ask for sources."""
    return ["python3", "-I", "-c", PIP_PROGRAM, "", "", *download.split()[1:]]


@dataclass(frozen=True, slots=True)
class InstallStep:
    """One command, and the project's file that asks for it. `before`: runs first; it may fail."""

    file: str
    command: str
    before: str = ""

    @property
    def manager(self) -> str:
        """The package manager: the first word of the command."""
        return self.command.split()[0]


@dataclass(frozen=True, slots=True)
class InstalledDependencies:
    """The result of one step. `output`: what was installed, or why the step failed."""

    step: InstallStep
    ok: bool
    output: str = ""


# Debian's Python refuses packages. If the image has a folder of the user on its PATH, as kakoi's
# images do, packages go there.
HAS_VENV: Final = 'case ":$PATH:" in *":$HOME/.venv/bin:"*) true;; *) false;; esac'
# Isolated: a project file may have the name of a standard module.
_VENV: Final = (
    f'if {HAS_VENV}; then test -e "$HOME/.venv/pyvenv.cfg" || python3 -I -m venv "$HOME/.venv"; fi'
)


# For each kind of project, the most reliable file first: the first one that exists decides.
_KINDS: Final[tuple[tuple[tuple[str, str], ...], ...]] = (
    (
        ("pnpm-lock.yaml", "pnpm install --frozen-lockfile"),
        ("bun.lock", "bun install --frozen-lockfile"),
        ("bun.lockb", "bun install --frozen-lockfile"),
        ("yarn.lock", "yarn install --frozen-lockfile"),
        ("npm-shrinkwrap.json", "npm ci"),
        ("package-lock.json", "npm ci"),
        ("package.json", "npm install"),
    ),
    (
        ("uv.lock", "uv sync --frozen"),
        ("poetry.lock", "poetry install --no-interaction"),
        ("pdm.lock", "pdm install --frozen-lockfile"),
        ("Pipfile.lock", "pipenv sync --dev"),
        ("requirements.txt", "pip install -r requirements.txt"),
        ("pyproject.toml", "pip install -e ."),
        ("setup.py", "pip install -e ."),
    ),
    (
        ("condaenv.yaml", "mamba env create -f condaenv.yaml"),
        ("environment.yml", "mamba env create -f environment.yml"),
    ),
    (("go.mod", "go mod download"),),
    (("Cargo.lock", "cargo fetch --locked"), ("Cargo.toml", "cargo fetch")),
    (("pom.xml", "mvn --batch-mode dependency:resolve"),),
    (
        ("build.gradle", "gradle --no-daemon dependencies"),
        ("build.gradle.kts", "gradle --no-daemon dependencies"),
    ),
    (("Gemfile", "bundle install"),),
    (("composer.json", "composer install --no-interaction --no-scripts"),),
)
# A lock file counts only beside the file that it belongs to.
_NEEDS: Final = {
    "pnpm-lock.yaml": "package.json",
    "bun.lock": "package.json",
    "bun.lockb": "package.json",
    "yarn.lock": "package.json",
    "npm-shrinkwrap.json": "package.json",
    "package-lock.json": "package.json",
    "uv.lock": "pyproject.toml",
    "poetry.lock": "pyproject.toml",
    "pdm.lock": "pyproject.toml",
    "Cargo.lock": "Cargo.toml",
}


def install_steps(files: Collection[str]) -> list[InstallStep]:
    """The steps for a project with these files at its top; empty if it has no dependencies."""
    steps = []
    for kind in _KINDS:
        for file, command in kind:
            if file in files and _NEEDS.get(file, file) in files:
                steps.append(
                    InstallStep(file, command, _VENV if command.startswith("pip ") else "")
                )
                break
    return steps


_log = logging.getLogger(__name__)
# With this setting the operator has approved the installation.
_APPROVAL: Final = "the setting tasks.clone.auto_install_deps"
_INSTALL_S: Final = 600.0
_MAX_MANIFEST_BYTES: Final = 1024 * 1024
_MAX_OUTPUT: Final = 2000
_MAX_NAMES: Final = 20_000
_MAX_REFUSED: Final = 5
# Beside a package.json, these can change where packages come from, or what they depend on.
_CHANGES_NPM: Final = (".npmrc", "node_modules")
_WORK: Final = f"{TEMPORARY}/kakoi-install"
# Run in a folder that holds nothing of the project. The limit on file size holds whatever an index
# sends; shells count in blocks of 512 or 1024 bytes.
_LISTED_COMMANDS: Final = {
    "requirements.txt": f"cd {_WORK} && {{ {HAS_VENV} && venv=$HOME/.venv || venv=; }} && "
    f'TMPDIR=$PWD python3 -I - "$venv" "$PWD" -r requirements.txt',
    "package.json": f"""set -e; cd {_WORK}; ulimit -f 4194304
npm install --ignore-scripts --git false --no-workspaces --no-audit --no-fund \\
    --no-update-notifier >&2
[ ! -e package-lock.json ] || node -e '
    const all = JSON.parse(require("fs").readFileSync("package-lock.json", "utf8")).packages
    for (const [path, about] of Object.entries(all))
        if (path) console.log(about.name || path.replace(/^.*node_modules\\//, ""), about.version)'
[ ! -d node_modules ] || mv node_modules {PROJECT}/""",
}


async def install_dependencies(
    gate: Gate,
    lists: AllowlistConfig | None,
    *,
    task_uuid: str,
    cache: PackageCache | None = None,
    task_proxy: TaskProxy | None = None,
    timeout_s: float = _INSTALL_S,
) -> tuple[InstalledDependencies, ...]:
    """Run the steps one after the other, each judged and recorded by the gate.

    A step that the policy denies does not run. One that it asks about is approved by the operator's
    setting, and recorded as such.

    `lists`: the allowed packages; None allows everything. `cache`: earlier downloads, of which each
    step gets a copy. `task_proxy`: knows which connections were refused. `timeout_s`: for each
    step. SandboxError: the environment itself is lost, so the task cannot continue.
    """
    adapter = await gate.open_sandbox()
    found = await (await adapter.channel()).list_files(PROJECT)
    files = [each.name for each in found if each.kind in ("file", "link")]
    done = []
    for wanted in install_steps(files):
        step, objection = wanted, ""
        if lists is not None:
            names = [each.name for each in found]
            step, objection = await _listed_step(adapter, wanted, names, lists)
        if cache is not None and not objection:
            await cache.give(await adapter.channel(), wanted.manager)
        if objection:
            done.append(InstalledDependencies(step, ok=False, output=objection))
        else:
            installing = _Installing(adapter, step, task_proxy, lists is not None, timeout_s)
            done.append(await _run(gate, wanted, installing))
        if not done[-1].ok:
            _log.warning("dependencies of %s were not installed in task %s", step.file, task_uuid)
    return tuple(done)


async def _run(gate: Gate, wanted: InstallStep, installing: "_Installing") -> InstalledDependencies:
    """Let the gate judge and record the step by the command that the project asks for."""
    command = Command(command=wanted.command, cwd=PROJECT)
    try:
        result = await gate.perform(command, installing.run, Call(approved_by=_APPROVAL))
    except (SecurityError, UserCancelledError) as error:
        await installing.clean_up()
        why = f"the policy refuses `{wanted.command}`: {error}"
        text = _harmless([f"{wanted.file} is not installed: {why}", error.hint])
        return InstalledDependencies(wanted, ok=False, output=text)
    return await installing.report(result)


@dataclass(frozen=True, slots=True)
class _Installing:
    """One step on its way. `is_listed`: a successful result also names what was installed."""

    adapter: SandboxAdapter
    step: InstallStep
    task_proxy: TaskProxy | None
    is_listed: bool
    timeout_s: float

    async def run(self, _channel: Channel) -> ExecutionResult:
        step, timeout_s = self.step, self.timeout_s
        watch = None if self.task_proxy is None else self.task_proxy.proxy.watch_refusals()
        if step.before:
            await self.adapter.run(Command(command=step.before, cwd=PROJECT, timeout_s=timeout_s))
        is_pip = self.is_listed and step.file == "requirements.txt"
        program = WHEELS.read_bytes() if is_pip else None
        result = await self.adapter.run(
            Command(command=step.command, cwd=PROJECT, stdin=program, timeout_s=timeout_s)
        )
        return result if watch is None else replace(result, blocked_connections=watch.blocked)

    async def clean_up(self) -> None:
        if self.is_listed:
            await self.adapter.run(Command(command=("rm", "-rf", "--", _WORK), cwd="/"))

    async def report(self, result: ExecutionResult) -> InstalledDependencies:
        if result.reason is Reason.SANDBOX_LOST:
            # A script may have killed only the runner. If the container is gone, this raises.
            await (await self.adapter.channel()).stat_file(PROJECT)
        await self.clean_up()
        if result.ok:
            names = _installed_names(result.stdout) if self.is_listed else ""
            return InstalledDependencies(self.step, ok=True, output=names)
        refused = result.blocked_connections[:_MAX_REFUSED]
        blocked = [f"{each}; {refusal_hint(each)}" for each in refused]
        output = result.stderr.strip() or result.stdout.strip()
        why = [result.error or result.reason.value.replace("_", " ")]
        if result.reason is Reason.EXITED:
            why = [] if output else [f"exit code {result.exit_code}"]
        return InstalledDependencies(
            self.step, ok=False, output=_harmless([*blocked, output[-_MAX_OUTPUT:], *why])
        )


def _harmless(texts: Sequence[str]) -> str:
    """The output of programs and servers: printable lines, without secrets, and not too long."""
    lines = redact("\n".join(texts)).splitlines()
    return "\n".join(shown(line) for line in lines if line.strip())[-2 * _MAX_OUTPUT :]


def _installed_names(output: str) -> str:
    """Everything that was installed, one per line, up to a limit."""
    lines = parse_installed(output)
    text = "\n".join(lines)
    if len(text) <= _MAX_NAMES:
        return text
    kept = text[:_MAX_NAMES].splitlines()[:-1]
    return "\n".join([*kept, f"(and {len(lines) - len(kept)} more)"])


async def _listed_step(
    adapter: SandboxAdapter, step: InstallStep, names: Collection[str], lists: AllowlistConfig
) -> tuple[InstallStep, str]:
    """The step as it is allowed to run, or the reason why the lists forbid it."""
    beside = [each for each in _CHANGES_NPM if each in names and step.file == "package.json"]
    if beside:
        why = f"{beside[0]} beside it could change what it means"
        return step, f"{step.file} is not installed: {why}"
    channel = await adapter.channel()
    try:
        data = await channel.read_file(f"{PROJECT}/{step.file}", limit=_MAX_MANIFEST_BYTES)
    except OSError as error:
        return step, f"{step.file} is not installed: it cannot be read ({error.strerror})"
    manifest = check_manifest(step.file, data, lists)
    if manifest.objections:
        entries = "; ".join(f"`{plain(each.entry)}`: {each.reason}" for each in manifest.objections)
        return step, f"{step.file} is not installed: the lists do not allow it. {entries}"[
            :_MAX_OUTPUT
        ]
    make_folder = Command(command=f"rm -rf {_WORK} && mkdir -m 700 {_WORK}", cwd="/")
    if not (done := await channel.run(make_folder)).ok:
        return step, f"{step.file} is not installed: {_harmless([done.stderr, done.error])}"
    await channel.write_file(f"{_WORK}/{step.file}", manifest.text.encode("ascii"))
    return replace(step, command=_LISTED_COMMANDS[step.file], before=""), ""
