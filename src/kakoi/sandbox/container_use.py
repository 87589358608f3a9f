"""ContainerAdapter: commands in an environment of container-use (github.com/dagger/container-use).

What its sources say, and what is relied on:

    container-use stdio         an MCP server on its standard streams; it connects to Dagger first
    environment_create          environment_source (an absolute path, in a git repository), title;
                                answers a JSON object with `id`, and more text behind it if there
                                are changes that are not committed, which it leaves out
    environment_config          environment_source, environment_id, config: {base_image}; builds
                                that environment anew, and leaves the repository's settings alone
    environment_run_cmd         environment_source, environment_id, command, shell (default sh);
                                runs `sh -c COMMAND` in a new container with the state that the last
                                one left, in the work directory; answers stdout, then "stderr: …",
                                then words of its own, and no exit status
    container-use delete ID     in the repository; takes the environment and its branch away

A tool that fails answers with `isError` and a text. Two commands at once would each go on from the
same state, and one of the two would be lost: they run one after the other.

What this sandbox is not: it has no jobs, no terminal, no input and no files (`channel` says so); a
signal is seen as 128 + its number only; what left the command's process group and closed its output
is ended by container-use alone, with the container. The workspace is a copy of the last commit, and
elsewhere: a `cwd` within the workspace is translated, paths in a command are not.
"""

import asyncio
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kakoi.errors import ConfigurationError, KakoiError, SandboxError
from kakoi.process import ProcessExecutor, SpawnOptions
from kakoi.process.options import default_environment, encode_env
from kakoi.process.stream import Launch
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import Channel, Command, check_type
from kakoi.sandbox.adapter import (
    LEAST,
    Availability,
    ExecuteOptions,
    Holding,
    as_command,
    exit_code_or_raise,
)
from kakoi.sandbox.container_use_script import unwrap, wrap
from kakoi.sandbox.mcp_line import McpError, McpLine
from kakoi.sandbox.settings import ENVIRONMENT_ID, ContainerUseSettings
from kakoi.sandbox.workspace import look_at
from kakoi.waiting import finish

_LOG = logging.getLogger(__name__)
_DEFAULTS: Final = ContainerUseSettings()
_PROGRAM: Final = "container-use"
_INSTALL: Final = "install container-use (github.com/dagger/container-use) and Docker"
_WHY: Final = "kakoi runs commands here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How long container-use may take, in seconds.

    `answer`: to start and to say what it can do; it may have to fetch its engine first.
    `create`: to make an environment. `late`: beyond a command's own time. `delete`.
    """

    answer_s: float = 120.0
    create_s: float = 900.0
    late_s: float = 60.0
    delete_s: float = 120.0


_PATIENT: Final = Waits()


class ContainerAdapter:
    """An environment of container-use, made at the first command and deleted by `cleanup`.

    `config.env_id`: one that exists; it is neither made nor deleted here.
    `workspace`: a directory in the git repository whose last commit the environment begins with.
    `engine_env`: variables of container-use itself, such as PATH and DOCKER_HOST.
    """

    def __init__(
        self,
        config: ContainerUseSettings = _DEFAULTS,
        executor: ProcessExecutor | None = None,
        *,
        workspace: str | Path = ".",
        engine_env: Mapping[str, str] | None = None,
        waits: Waits = _PATIENT,
    ) -> None:
        check_type("config", config, ContainerUseSettings)
        check_type("executor", executor, ProcessExecutor, type(None))
        self._config = config
        self._executor = executor or ProcessExecutor()
        self._workspace = _directory(workspace)
        check_type("waits", waits, Waits)
        self._env = {**default_environment(), **_checked(engine_env)}
        self._waits = waits
        self._line: McpLine | None = None
        self._id = config.env_id
        self._is_ours = False
        self._is_over = False
        self._turn = asyncio.Lock()

    @property
    def name(self) -> str:
        """`container-use`"""
        return _PROGRAM

    @property
    def environment(self) -> str | None:
        """The id of the environment, once there is one."""
        return self._id or None

    # --- Can it be used? ---------------------------------------------------------------------

    async def availability(self) -> Availability:
        """Start the server, greet it, and look for its tools."""
        try:
            async with self._turn:
                line = await self._open_line()
                found = await line.tools(timeout_s=self._waits.answer_s)
        except TimeoutError:
            return Availability(False, "container-use does not list its tools in time", _INSTALL)
        except KakoiError as error:
            return Availability(False, str(error), error.hint)
        needed = {"environment_create", "environment_run_cmd"}
        if self._config.image and not self._config.env_id:
            needed.add("environment_config")
        if missing := sorted(needed - found):
            return Availability(
                False, f"container-use has no {', '.join(missing)}", "install a newer container-use"
            )
        return Availability(True, "container-use answers, and has the tools that are needed")

    async def is_available(self) -> bool:
        """Is it there and does it answer?"""
        return bool(await self.availability())

    # --- Commands ----------------------------------------------------------------------------

    async def run(self, command: Command) -> ExecutionResult:
        """Run `command`; see `SandboxAdapter.run`. SandboxError: it cannot be run here at all."""
        _refuse_what_is_missing(command)
        wrapped = wrap(
            command,
            nonce=secrets.token_hex(16),
            place=secrets.token_hex(8),
            cwd=self._inside(command.cwd),
        )
        async with self._turn:
            line = await self._open_line()
            await self._enter(line)
            began_s = time.monotonic()
            limit_s = None if command.timeout_s is None else command.timeout_s + self._waits.late_s
            arguments = {**self._about(), "command": wrapped.text, "shell": "sh"}
            try:
                answer = await line.call("environment_run_cmd", arguments, timeout_s=limit_s)
                return unwrap(wrapped, answer, duration_ms=_ms_since(began_s))
            except TimeoutError:
                # Taken back by now; that it is over is certain only when the server is gone.
                await finish(self._close_line(at_once=True))
                why = (
                    f"no answer {self._waits.late_s:g} s after its time was up; its server is ended"
                )
                return _without_output(Reason.TIMED_OUT, _ms_since(began_s), why)
            except asyncio.CancelledError:
                await finish(self._close_line(at_once=True))
                raise
            except SandboxError as error:
                return _without_output(Reason.SANDBOX_LOST, _ms_since(began_s), str(error))

    async def execute(
        self, command: str | Sequence[str], options: ExecuteOptions | None = None
    ) -> ExecutionResult:
        """Run `command` as spec B has it; see `SandboxAdapter.execute`."""
        wanted = as_command(command, options, timeout_s=self._config.timeout_s)
        return exit_code_or_raise(await self.run(wanted), wanted)

    async def channel(self) -> Channel:
        """There is none."""
        raise _cannot("live output, input, jobs and files")

    async def shell(self) -> str:
        """The image's bash if it has one, which is not known here."""
        return "sh"

    # --- The environment ---------------------------------------------------------------------

    @property
    def holding(self) -> Holding:
        """Nothing is limited but time: container-use has no words for it."""
        return Holding(not_kept=dict.fromkeys(LEAST, "container-use sets no limits"))

    async def cleanup(self) -> None:
        """End the server and delete an environment that was made here. Never raises."""
        await finish(self._cleanup())

    async def _cleanup(self) -> None:
        self._is_over = True
        await self._close_line()  # A command under way has its turn, and is lost now.
        async with self._turn:
            await self._close_line()
            mine, self._id = self._id, self._config.env_id
            if self._is_ours:
                self._is_ours = False
                await self._delete(mine)

    async def _delete(self, name: str) -> None:
        options = SpawnOptions(
            cwd=self._workspace, env=self._env, timeout=self._waits.delete_s * 1000
        )
        try:
            done = await self._executor.spawn(_PROGRAM, ["delete", name], options)
            why = "" if done.exit_code == 0 else done.stderr.strip() or f"status {done.exit_code}"
        except KakoiError as error:
            why = str(error)
        if why:
            _LOG.warning("the environment %s could not be deleted: %s", name, why[:500])

    async def _open_line(self) -> McpLine:
        if self._is_over:
            raise SandboxError("the sandbox has been cleaned up")
        if self._line is not None and not self._line.lost:
            return self._line
        await self._close_line()
        if shutil.which(_PROGRAM, path=self._env["PATH"]) is None:
            raise SandboxError(f"`{_PROGRAM}` was not found on PATH", hint=_INSTALL)
        if _repository(self._workspace) is None:
            raise SandboxError(
                f"`{self._workspace}` is in no git repository; container-use works on commits",
                hint=f"git init {self._workspace}, and commit something",
            )
        launch = Launch(argv=[_PROGRAM, "stdio"], env=self._env, cwd=self._workspace, kept=True)
        self._line = await McpLine.open(self._executor, launch, timeout_s=self._waits.answer_s)
        return self._line

    async def _close_line(self, *, at_once: bool = False) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.close(at_once=at_once)

    async def _enter(self, line: McpLine) -> None:
        """See to it that there is an environment, of the image that was asked for."""
        if self._id:
            return
        source = {"environment_source": self._workspace, "explanation": _WHY}
        try:
            said = await line.call(
                "environment_create", {**source, "title": "kakoi"}, timeout_s=self._waits.create_s
            )
        except (TimeoutError, asyncio.CancelledError) as error:
            await finish(self._close_line(at_once=True))
            _LOG.warning("an environment was being made; `container-use list` shows if it is there")
            if isinstance(error, TimeoutError):
                raise SandboxError("container-use has not made an environment in time") from error
            raise
        self._id = _created(said)
        self._is_ours = True
        if self._config.image:
            await self._set_image(line)

    async def _set_image(self, line: McpLine) -> None:
        arguments = {**self._about(), "config": {"base_image": self._config.image}}
        try:
            await line.call("environment_config", arguments, timeout_s=self._waits.create_s)
        except BaseException as error:
            mine, self._id, self._is_ours = self._id, "", False
            await finish(self._close_line(at_once=True))
            await finish(self._delete(mine))
            if isinstance(error, TimeoutError | McpError):
                why = str(error) or "it takes too long"
                raise SandboxError(
                    f"the image `{self._config.image}` cannot be used: {why}"
                ) from error
            raise

    def _about(self) -> dict[str, object]:
        return {
            "environment_source": self._workspace,
            "environment_id": self._id,
            "explanation": _WHY,
        }

    def _inside(self, cwd: str | None) -> str | None:
        """Where a directory of the workspace is, seen from where commands start inside."""
        root = _repository(self._workspace) or self._workspace
        path = os.path.normpath(cwd or self._workspace)
        if path == root:
            return None
        return os.path.relpath(path, root) if path.startswith(root.rstrip("/") + "/") else path


def _refuse_what_is_missing(command: Command) -> None:
    check_type("command", command, Command)
    if command.stdin or command.stdin_open:
        raise _cannot("input for commands")
    if command.terminal is not None:
        raise _cannot("terminals")
    if command.idle_timeout_s is not None:
        raise _cannot("a limit on silence")


def _cannot(what: str) -> SandboxError:
    return SandboxError(
        f"the sandbox `container-use` has no {what}: it can only run a command to its end",
        hint="use the sandbox `bubblewrap` or `docker`",
    )


def _created(said: str) -> str:
    """The id in the answer of `environment_create`."""
    try:
        found, end = json.JSONDecoder().raw_decode(said)
    except (ValueError, RecursionError):
        found, end = None, 0
    name = found.get("id") if isinstance(found, dict) else None
    if not isinstance(name, str) or not re.fullmatch(ENVIRONMENT_ID, name):
        raise SandboxError("container-use does not say which environment it has made")
    if "uncommitted changes" in said[end:]:
        _LOG.warning("changes that are not committed are not in the environment %s", name)
    return name


def _without_output(reason: Reason, duration_ms: int, error: str) -> ExecutionResult:
    status = 124 if reason is Reason.TIMED_OUT else 125
    return ExecutionResult(status, "", "", duration_ms, reason=reason, error=error)


def _ms_since(began_s: float) -> int:
    return round((time.monotonic() - began_s) * 1000)


def _checked(env: Mapping[str, str] | None) -> dict[str, str]:
    encode_env({} if env is None else env)
    return dict(env or {})


def _directory(workspace: str | Path) -> str:
    seen = look_at(workspace, what="the workspace")
    try:
        seen.path.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"the workspace is {seen.path!r}; container-use takes names in UTF-8 only"
        ) from None
    if not seen.is_directory:
        raise ConfigurationError(f"the workspace is {seen.path!r}, which is not a directory")
    return seen.path


def _repository(path: str) -> str | None:
    """The top of the git repository that a directory is in."""
    places = [path, *map(str, Path(path).parents)]
    return next((each for each in places if os.path.exists(os.path.join(each, ".git"))), None)
