"""Fakes with behaviour, for tests that cannot use the real thing."""

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from kakoi.channel.api import MAX_FILE_BYTES, Command, FileInfo
from kakoi.channel.delivery import RunnerSettings
from kakoi.channel.posix.resident_shell import Launcher
from kakoi.errors import ExecutionError, SandboxError
from kakoi.process import ProcessExecutor, ProcessResult
from kakoi.process.options import GivenSpawnOptions, as_spawn_options
from kakoi.process.stream import Launch, ProcessStream
from kakoi.results import ExecutionResult

_NO_SUCH = "Error response from daemon: No such container: {}\n"


def answer(stdout: str = "", *, exit_code: int = 0, stderr: str = "") -> ProcessResult:
    return ProcessResult(stdout, stderr, exit_code)


class ScriptedExecutor(ProcessExecutor):
    """An in-memory engine with images and containers. Records every call and answers like docker.

    `images`: the local images, with the user of each. `pullable`: the images that a registry has.
    `scripted`: overrides the answer to calls that begin with certain words: a result, an error to
    raise, or a list of these, one for each call.
    """

    def __init__(
        self,
        images: Mapping[str, str] | None = None,
        *,
        pullable: Sequence[str] = (),
        scripted: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__()
        self.images = dict(images or {})
        self.pullable = set(pullable)
        self.containers: dict[str, str] = {}
        self.calls: list[list[str]] = []
        self.stdins: list[str | bytes | None] = []
        self.timeouts_ms: set[float | None] = set()
        self._scripted = {
            words: list(said) if isinstance(said, list) else said
            for words, said in (scripted or {}).items()
        }

    def called(self, words: str) -> list[list[str]]:
        """Return every call that began with these words."""
        return [call for call in self.calls if _begins(call[1:], words)]

    async def spawn(
        self, command: str, args: Sequence[str] = (), options: GivenSpawnOptions = None
    ) -> ProcessResult:
        self.calls.append([command, *args])
        given = as_spawn_options(options)
        self.stdins.append(given.stdin)
        self.timeouts_ms.add(given.timeout)
        for words, said in self._scripted.items():
            if _begins(args, words):
                chosen = said.pop(0) if isinstance(said, list) else said
                if isinstance(chosen, Exception):
                    raise chosen
                assert isinstance(chosen, ProcessResult)
                return chosen
        return self._answers()[args[0]](list(args[1:]))

    def _answers(self) -> dict[str, Callable[[list[str]], ProcessResult]]:
        return {
            "version": lambda _args: answer("20.10.24\n"),
            "info": lambda _args: answer('2 20.10.24 ["name=seccomp,profile=default"]\n'),
            "image": self._image,
            "pull": self._pull,
            "create": self._create,
            "run": lambda _args: answer(),
            "cp": lambda _args: answer(),
            "start": self._start,
            "restart": self._start,
            "exec": lambda _args: answer(),
            "container": self._inspect,
            "rm": self._remove,
            "events": lambda _args: answer(),
        }

    def _image(self, args: list[str]) -> ProcessResult:
        image = args[-1]
        if image in self.images:
            return answer(f"sha256:{image} {self.images[image]}\n")
        return answer(exit_code=1, stderr=f"Error: No such image: {image}\n")

    def _pull(self, args: list[str]) -> ProcessResult:
        image = args[-1]
        if image in self.pullable:
            self.images[image] = ""
            return answer(f"{image}\n")
        said = f"Error response from daemon: manifest for {image} not found: manifest unknown\n"
        return answer(exit_code=1, stderr=said)

    def _create(self, args: list[str]) -> ProcessResult:
        name = args[args.index("--name") + 1] if "--name" in args else "0123456789ab"
        self.containers[name] = "created"
        return answer("0123456789ab\n")

    def _start(self, args: list[str]) -> ProcessResult:
        self.containers[args[-1]] = "running"
        return answer(f"{args[-1]}\n")

    def _inspect(self, args: list[str]) -> ProcessResult:
        name = args[-1]
        if args[-2] == "{{.Id}}":  # Also of one that another program started, with `run`.
            return answer("0123456789ab\n")
        if name not in self.containers:
            return answer(exit_code=1, stderr=_NO_SUCH.format(name))
        if "HostConfig" in args[-2]:
            return answer('{"Memory": 0, "PidsLimit": null, "NanoCpus": 0}')
        return answer(f'{{"Status": "{self.containers[name]}", "ExitCode": 137}} {{}}')

    def _remove(self, args: list[str]) -> ProcessResult:
        if self.containers.pop(args[-1], None) is None:
            return answer(exit_code=1, stderr=_NO_SUCH.format(args[-1]))
        return answer(f"{args[-1]}\n")


def _begins(args: Sequence[str], words: str) -> bool:
    wanted = words.split()
    return list(args[: len(wanted)]) == wanted


def no_program(name: str) -> ExecutionError:
    """Return the error that a real executor raises if the program does not exist."""
    return ExecutionError(f"cannot start `{name}`: `{name}` was not found on PATH")


CONFINED = {
    "/proc/self/status": b"Uid:\t65533\t65533\t65533\t65533\nCapPrm:\t0\nCapEff:\t0\nCapBnd:\t0\nNoNewPrivs:\t1\n",
    "/sys/fs/cgroup/memory.max": b"4294967296\n",
    "/sys/fs/cgroup/pids.max": b"512\n",
    "/sys/fs/cgroup/cpu.max": b"200000 100000\n",
}


class ScriptedChannel:
    """A channel that returns the same result for every command, and has a few files."""

    def __init__(
        self, result: ExecutionResult | None = None, files: Mapping[str, bytes] = CONFINED
    ) -> None:
        self.result = result or ExecutionResult(0, "", "", 1)
        self.files = dict(files)
        self.commands: list[Command] = []
        self.lost = False
        self.shell = "bash"

    async def run(self, command: Command) -> ExecutionResult:
        self.commands.append(command)
        return self.result

    async def read_file(self, path: str, *, offset: int = 0, limit: int = MAX_FILE_BYTES) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.files[path][offset : offset + limit]

    async def close(self) -> None:
        self.lost = True

    def open(self, command: Command) -> NoReturn:
        raise NotImplementedError

    async def start(self, command: Command) -> NoReturn:
        raise NotImplementedError

    async def list_jobs(self) -> NoReturn:
        raise NotImplementedError

    async def read_output(self, job: str, stream: object, **options: object) -> NoReturn:
        raise NotImplementedError

    async def write_stdin(self, job: str, data: bytes, *, close: bool = False) -> NoReturn:
        raise NotImplementedError

    async def stop_job(self, job: str) -> NoReturn:
        raise NotImplementedError

    async def wait_job(self, job: str, *, wait_s: float | None = None) -> NoReturn:
        raise NotImplementedError

    async def signal_job(self, job: str, number: int) -> NoReturn:
        raise NotImplementedError

    async def resize_job(self, job: str, size: object) -> NoReturn:
        raise NotImplementedError

    def stream_file(self, path: str, *, offset: int = 0) -> NoReturn:
        raise NotImplementedError

    async def write_file(self, path: str, data: object, *, mode: int = 0o644) -> NoReturn:
        raise NotImplementedError

    async def list_files(self, path: str, *, depth: int = 1, limit: int = 10_000) -> list[FileInfo]:
        raise NotImplementedError

    async def make_dir(self, path: str, *, mode: int = 0o755, parents: bool = True) -> NoReturn:
        raise NotImplementedError

    async def move_file(self, source: str, destination: str) -> NoReturn:
        raise NotImplementedError

    async def remove_file(self, path: str, *, recursive: bool = False) -> NoReturn:
        raise NotImplementedError

    def watch_files(self, path: str, *, recursive: bool = False) -> NoReturn:
        raise NotImplementedError

    async def stat_file(self, path: str) -> FileInfo:
        raise NotImplementedError


class ScriptedHolder:
    """A program that runs until it is stopped."""

    def __init__(self) -> None:
        self.is_ended = False

    async def end(self, grace_s: float = 0) -> None:
        self.is_ended = True


class ScriptedStreams:
    """Opens the given channels in order, repeating the last one, or raises the given errors.

    `held`: programs that were started to keep running. `opened`: launches of a runner. `shells`:
    launches of a shell instead of a runner.
    """

    def __init__(
        self,
        *outcomes: ScriptedChannel | SandboxError,
        hold_error: SandboxError | None = None,
    ) -> None:
        self._outcomes = list(outcomes) or [ScriptedChannel()]
        self._hold_error = hold_error
        self.held: list[Launch] = []
        self.holders: list[ScriptedHolder] = []
        self.opened: list[Launch] = []
        self.shells: list[Launch] = []

    async def hold(self, launch: Launch) -> ScriptedHolder:
        self.held.append(launch)
        if self._hold_error is not None:
            raise self._hold_error
        self.holders.append(ScriptedHolder())
        return self.holders[-1]

    async def open(self, launch: Launch, settings: RunnerSettings) -> ScriptedChannel:
        self.opened.append(launch)
        return self._next()

    async def open_shells(self, launcher: Launcher, rlimits: Mapping[str, int]) -> ScriptedChannel:
        self.shells.append(launcher(["sh"], env={"A": "1"}, terminal=True))
        return self._next()

    def _next(self) -> ScriptedChannel:
        outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]
        if isinstance(outcome, SandboxError):
            raise outcome
        return outcome


class RecordingExecutor(ProcessExecutor):
    """A real executor that records every process it is asked to start."""

    def __init__(self) -> None:
        super().__init__()
        self.spawned: list[list[str]] = []
        self.streamed: list[Launch] = []

    async def spawn(
        self, command: str, args: Sequence[str] = (), options: GivenSpawnOptions = None
    ) -> ProcessResult:
        self.spawned.append([command, *args])
        return await super().spawn(command, args, options)

    def stream(self, launch: Launch) -> ProcessStream:
        self.streamed.append(launch)
        return super().stream(launch)
