"""inspect_ai: samples of an evaluation that run in kakoi. `pip install 'kakoi[inspect-ai]'`.

Task(dataset, solver=…, sandbox=("kakoi", KakoiConfig(backend="docker", image="python:3.12")))
"""

import asyncio
import errno
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast, overload

import yaml

from kakoi._support.extras import missing_framework

try:
    from inspect_ai.approval import Approval, Approver, approver
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxConnection,
        SandboxEnvironment,
        SandboxEnvironmentLimits,
        SandboxUnavailableError,
        SandboxUserUnsupportedError,
        sandboxenv,
    )
    from pydantic import BaseModel
except ModuleNotFoundError as error:
    raise missing_framework(error, extra="inspect-ai") from error

from kakoi.errors import FileError, SandboxError
from kakoi.integrations.commands import REFUSALS, check_kept, refusal_text
from kakoi.integrations.files import builtin_error, write_plainly
from kakoi.policy.decide import decide
from kakoi.policy.explanation import format_decision
from kakoi.policy.profiles import load_policy
from kakoi.results import ExecutionResult, Reason
from kakoi.sandbox.sandbox import Sandbox


class KakoiConfig(BaseModel, frozen=True, extra="forbid"):
    """Arguments of `kakoi.Sandbox`. `policy="open"`: confined and recorded, not judged."""

    backend: str = "auto"
    image: str | None = None
    network: Literal["none", "open", "host"] | tuple[str, ...] = "none"
    memory: int | str | None = "4GiB"
    cpus: float | None = 2
    processes: int | None = 512
    disk: int | str | None = "10GiB"
    env: dict[str, str] = {}
    policy: str = "open"

    def __hash__(self) -> int:
        """Return a hash, by which samples of the same configuration are found."""
        return hash(self.model_dump_json())


@sandboxenv(name="kakoi")
class KakoiSandboxEnvironment(SandboxEnvironment):
    """One sample's sandbox: `sandbox="kakoi"`, with a KakoiConfig or the path of a YAML file."""

    def __init__(self, box: Sandbox) -> None:
        super().__init__()
        self.box = box
        self._users: tuple[str, ...] = ()

    @classmethod
    def config_files(cls) -> list[str]:
        """Return the file that is found next to a task."""
        return ["kakoi-sandbox.yaml"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Return the configuration of a log."""
        return KakoiConfig(**config)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Open the sandbox of a sample."""
        if isinstance(config, str):
            config = KakoiConfig(**yaml.safe_load(await asyncio.to_thread(Path(config).read_text)))
        given: dict[str, Any] = dict(cast(KakoiConfig, config or KakoiConfig()))
        box = Sandbox(**given, labels={"task": task_name})
        return {"default": cls(await box.open())}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Close the sandbox of a sample."""
        for environment in environments.values():
            await environment.as_type(KakoiSandboxEnvironment).box.close()

    def default_polling_interval(self) -> float:
        """Return how often to ask for output, in seconds."""
        return 0.2

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command. One that the policy refuses has the exit code 126, and says why."""
        await self._check_user(user)
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        with _as_inspect_errors():
            try:
                result = await self.box.run(
                    cmd,
                    stdin=input,
                    cwd=cwd,
                    env=env,
                    timeout=timeout or math.inf,
                    max_output=limit,
                )
            except REFUSALS as error:
                return ExecResult(False, 126, "", f"{refusal_text(error)}\n")
            check_kept(result)
        return _exec_result(result)

    async def _check_user(self, user: str | None) -> None:
        if user is None:
            return
        if not self._users:
            found = await self.box.run("id -un; id -u")
            self._users = tuple(found.stdout.split())
        if user not in self._users:
            raise SandboxUserUnsupportedError(
                f"commands run as {self._users[0]}, never as {user}: kakoi gives no user rights"
                " that others lack"
            )

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file, and make the directories above it."""
        with _as_inspect_errors():
            await write_plainly(self.box, file, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...
    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Return the content of a file."""
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        with _as_inspect_errors():
            data = await self.box.files.read(file, max_bytes=limit)
        return data.decode("utf-8") if text else data

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """Return how to look into the sandbox: of containers only."""
        await self._check_user(user)
        info = self.box.info
        if info.backend not in ("docker", "podman"):
            raise NotImplementedError(f"nobody can log into a sandbox of {info.backend}")
        command = f"{info.backend} exec -it {info.id} /bin/sh"
        return SandboxConnection(type="kakoi", command=command, container=info.id)


@approver(name="kakoi")
def policy_approver(policy: str = "coding-agent", argument: str = "cmd") -> Approver:
    """Approve tool calls by a policy of kakoi: what it would ask about is escalated.

    `argument`: the argument of the tool that holds the shell text, such as `cmd` of `bash`.
    """

    async def approve(message: Any, call: Any, view: Any, history: Any) -> Approval:
        command = call.arguments.get(argument)
        if not isinstance(command, str):
            return Approval(decision="escalate", explanation="it has no shell command to judge")
        decision = await asyncio.to_thread(decide, load_policy(policy), command)
        verdicts: dict[str, Literal["approve", "escalate", "reject"]] = {
            "allow": "approve",
            "ask": "escalate",
        }
        verdict = verdicts.get(decision.verdict.value, "reject")
        return Approval(decision=verdict, explanation=format_decision(decision))

    return approve


def _exec_result(result: ExecutionResult) -> ExecResult[str]:
    if result.reason in (Reason.TIMED_OUT, Reason.IDLE_TIMEOUT):
        raise TimeoutError(f"the command was ended after {result.duration:.1f} seconds")
    if result.reason is Reason.NEVER_STARTED and result.exit_code == 126:
        raise PermissionError(errno.EACCES, result.error)
    if result.truncated:
        raise OutputLimitExceededError(
            SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.stdout
        )
    stderr = result.stderr or result.error
    return ExecResult(result.ok, result.exit_code, result.stdout, stderr)


@contextmanager
def _as_inspect_errors() -> Iterator[None]:
    """Raise kakoi's errors as those that inspect_ai knows."""
    try:
        yield
    except SandboxError as error:
        raise SandboxUnavailableError(f"{error} {error.hint}".strip()) from error
    except FileError as error:
        if error.errno == errno.EFBIG:
            limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
            raise OutputLimitExceededError(limit, None) from error
        raise builtin_error(error) from error
    except REFUSALS as error:
        raise PermissionError(errno.EACCES, refusal_text(error)) from error
