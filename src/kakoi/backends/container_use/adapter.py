"""ContainerAdapter: runs commands in an environment of container-use.

We rely on this behavior, taken from its sources (github.com/dagger/container-use):

    container-use stdio         an MCP server on its standard streams; it connects to Dagger first
    environment_create          environment_source (an absolute path, in a git repository), title;
                                returns a JSON object with `id`, followed by more text if there are
                                uncommitted changes, which the environment does not include
    environment_config          environment_source, environment_id, config: {base_image}; rebuilds
                                that environment, and leaves the repository's settings alone
    environment_run_cmd         environment_source, environment_id, command, shell (default sh);
                                runs `sh -c COMMAND` in a new container with the state that the last
                                one left, in the work directory; returns stdout, then "stderr: …",
                                then its own text, but no exit code
    container-use delete ID     in the repository; deletes the environment and its branch

A tool that fails returns `isError` and a text. Two commands at once would both start from the same
state, and the changes of one would be lost, so commands run one after the other.

Limitations: there are no jobs, no terminal, no stdin and no files (`channel` raises). A signal is
only visible as exit code 128 + its number. A process that left the command's process group and
closed its output ends only when container-use ends the container. The workspace is a copy of the
last commit at another path: a `cwd` in the workspace is translated, paths in a command are not.
"""

import asyncio
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from kakoi._support.asyncio import finish
from kakoi._support.fields import read_section
from kakoi._support.late import dataclass
from kakoi.backends.adapter import (
    LEAST,
    Availability,
    LimitReport,
)
from kakoi.backends.built_in import BuiltInAdapter
from kakoi.backends.container_use.script import unwrap, wrap
from kakoi.backends.select import BackendContext
from kakoi.backends.settings import ENVIRONMENT_ID, ContainerUseSettings
from kakoi.backends.workspace import identify
from kakoi.channel.api import Channel, Command, check_type
from kakoi.errors import ConfigurationError, KakoiError, SandboxError, UnsupportedError
from kakoi.process import ProcessExecutor, SpawnOptions
from kakoi.process.mcp_stdio import McpError, McpLine
from kakoi.process.options import default_environment, encode_env
from kakoi.process.stream import Launch
from kakoi.results import ExecutionResult, Reason

_LOG = logging.getLogger(__name__)
_DEFAULTS: Final = ContainerUseSettings()
_PROGRAM: Final = "container-use"
_INSTALL: Final = "install container-use (github.com/dagger/container-use) and Docker"
_WHY: Final = "kakoi runs commands here"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerUseTimeouts:
    """Timeouts for container-use, in seconds.

    `answer_s`: to start and list its tools; it may have to download its engine first.
    `create_s`: to create an environment. `late_s`: to answer after a command's own timeout.
    `delete_s`: to delete an environment.
    """

    answer_s: float = 120.0
    create_s: float = 900.0
    late_s: float = 60.0
    delete_s: float = 120.0


_DEFAULT_TIMEOUTS: Final = ContainerUseTimeouts()


class ContainerAdapter(BuiltInAdapter):
    """An environment of container-use, created at the first command and deleted by `cleanup`.

    `config`: can also be the `container_use` section of a file, as a mapping.
    `config.env_id`: an existing environment to use; we neither create nor delete it.
    `workspace`: a directory in a git repository; the environment starts from its last commit.
    `engine_env`: environment variables for container-use itself, such as PATH and DOCKER_HOST.
    """

    def __init__(
        self,
        config: ContainerUseSettings | Mapping[str, object] = _DEFAULTS,
        executor: ProcessExecutor | None = None,
        *,
        workspace: str | Path = ".",
        engine_env: Mapping[str, str] | None = None,
        timeouts: ContainerUseTimeouts = _DEFAULT_TIMEOUTS,
    ) -> None:
        if isinstance(config, Mapping):
            config = read_section(ContainerUseSettings, config, origin="container_use")
        check_type("config", config, ContainerUseSettings)
        check_type("executor", executor, ProcessExecutor, type(None))
        self._config = config
        self._timeout_s = config.timeout_s
        self._executor = executor or ProcessExecutor()
        self._workspace = _directory(workspace)
        check_type("timeouts", timeouts, ContainerUseTimeouts)
        self._env = {**default_environment(), **_checked(engine_env)}
        self._timeouts = timeouts
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
        """The id of the environment, once it exists."""
        return self._id or None

    # --- Availability ------------------------------------------------------------------------

    async def availability(self) -> Availability:
        """Start the server, and check that it has the tools we need."""
        try:
            async with self._turn:
                line = await self._open_line()
                found = await line.tools(timeout_s=self._timeouts.answer_s)
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

    # --- Commands ----------------------------------------------------------------------------

    async def run(self, command: Command) -> ExecutionResult:
        """Run `command`; see `SandboxAdapter.run`. SandboxError: it cannot run here at all."""
        _refuse_what_is_missing(command)
        wrapped = wrap(
            command,
            nonce=secrets.token_hex(16),
            suffix=secrets.token_hex(8),
            cwd=self._inside(command.cwd),
        )
        async with self._turn:
            line = await self._open_line()
            await self._enter(line)
            began_s = time.monotonic()
            limit_s = (
                None if command.timeout_s is None else command.timeout_s + self._timeouts.late_s
            )
            arguments = {**self._about(), "command": wrapped.text, "shell": "sh"}
            try:
                answer = await line.call("environment_run_cmd", arguments, timeout_s=limit_s)
                result = unwrap(wrapped, answer, duration_ms=_ms_since(began_s))
            except TimeoutError:
                # The call is cancelled, but only ending the server makes sure the command ends.
                await finish(self._close_line(at_once=True))
                late_s = self._timeouts.late_s
                why = f"no answer {late_s:g} s after its timeout; its server was ended"
                result = _without_output(Reason.TIMED_OUT, _ms_since(began_s), why)
            except asyncio.CancelledError:
                await finish(self._close_line(at_once=True))
                raise
            except SandboxError as error:
                result = _without_output(Reason.SANDBOX_LOST, _ms_since(began_s), str(error))
        return replace(result, id=command.id)

    async def channel(self) -> Channel:
        """Raise UnsupportedError: there is no channel."""
        raise _cannot("live output, input, jobs and files")

    async def shell(self) -> str:
        """Return `sh`. Commands run in the image's bash if it has one, but we cannot know that."""
        return "sh"

    # --- The environment ---------------------------------------------------------------------

    @property
    def limit_report(self) -> LimitReport:
        """No limit except the timeout is enforced: container-use cannot set any."""
        return LimitReport(unenforced=dict.fromkeys(LEAST, "container-use sets no limits"))

    async def cleanup(self) -> None:
        """End the server and delete the environment if we created it. Never raises."""
        await finish(self._cleanup())

    async def _cleanup(self) -> None:
        self._is_over = True
        await self._close_line()  # A running command holds the lock; this makes it fail.
        async with self._turn:
            await self._close_line()
            mine, self._id = self._id, self._config.env_id
            if self._is_ours:
                self._is_ours = False
                await self._delete(mine)

    async def _delete(self, name: str) -> None:
        options = SpawnOptions(
            cwd=self._workspace, env=self._env, timeout=self._timeouts.delete_s * 1000
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
                f"`{self._workspace}` is not in a git repository; container-use works on commits",
                hint=f"git init {self._workspace}, and commit something",
            )
        launch = Launch(argv=[_PROGRAM, "stdio"], env=self._env, cwd=self._workspace, kept=True)
        self._line = await McpLine.open(self._executor, launch, timeout_s=self._timeouts.answer_s)
        return self._line

    async def _close_line(self, *, at_once: bool = False) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.close(at_once=at_once)

    async def _enter(self, line: McpLine) -> None:
        """Make sure that there is an environment; create one with the requested image."""
        if self._id:
            return
        source = {"environment_source": self._workspace, "explanation": _WHY}
        try:
            reply = await line.call(
                "environment_create",
                {**source, "title": "kakoi"},
                timeout_s=self._timeouts.create_s,
            )
        except (TimeoutError, asyncio.CancelledError) as error:
            await finish(self._close_line(at_once=True))
            _LOG.warning(
                "an environment was being created; `container-use list` shows whether it exists"
            )
            if isinstance(error, TimeoutError):
                raise SandboxError("container-use did not create an environment in time") from error
            raise
        self._id = _created(reply)
        self._is_ours = True
        if self._config.image:
            await self._set_image(line)

    async def _set_image(self, line: McpLine) -> None:
        arguments = {**self._about(), "config": {"base_image": self._config.image}}
        try:
            await line.call("environment_config", arguments, timeout_s=self._timeouts.create_s)
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
        """Translate a directory of the workspace to a path from where commands start inside."""
        root = _repository(self._workspace) or self._workspace
        path = os.path.normpath(cwd or self._workspace)
        if path == root:
            return None
        return os.path.relpath(path, root) if path.startswith(root.rstrip("/") + "/") else path


# Variables that container-use needs to find its engine, and to use git as the user.
_VARIABLES: Final = """PATH HOME XDG_RUNTIME_DIR SSH_AUTH_SOCK DOCKER_HOST DOCKER_CONTEXT
    DOCKER_CONFIG DOCKER_TLS_VERIFY DOCKER_CERT_PATH DOCKER_API_VERSION CONTAINER_HOST
    CONTAINER_CONNECTION CONTAINERS_CONF USER LANG XDG_CONFIG_HOME XDG_CACHE_HOME XDG_DATA_HOME
    CONTAINER_USE_CONFIG_DIR GIT_CONFIG_GLOBAL""".split()


def make_backend(context: BackendContext) -> ContainerAdapter:
    """Make the backend `container-use`; an entry point in the group `kakoi.backends` names it."""
    environ = context.environ
    if context.config.lifetime_s is not None:
        raise UnsupportedError(
            "the sandbox `container-use` does not support a lifetime",
            hint="use the sandbox `bubblewrap` or `docker`, or leave `lifetime` out",
        )
    return ContainerAdapter(
        context.config.container_use,
        context.executor,
        workspace=context.workspace,
        engine_env={name: environ[name] for name in _VARIABLES if name in environ},
    )


def _refuse_what_is_missing(command: Command) -> None:
    check_type("command", command, Command)
    if command.stdin or command.stdin_open:
        raise _cannot("input for commands")
    if command.terminal is not None:
        raise _cannot("terminals")
    if command.idle_timeout_s is not None:
        raise _cannot("a limit on silence")


def _cannot(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"the sandbox `container-use` has no {what}: it can only run a command to its end",
        hint="use the sandbox `bubblewrap` or `docker`",
    )


def _created(reply: str) -> str:
    """Return the id in the output of `environment_create`."""
    try:
        found, end = json.JSONDecoder().raw_decode(reply)
    except (ValueError, RecursionError):
        found, end = None, 0
    name = found.get("id") if isinstance(found, dict) else None
    if not isinstance(name, str) or not re.fullmatch(ENVIRONMENT_ID, name):
        raise SandboxError("container-use did not report which environment it created")
    if "uncommitted changes" in reply[end:]:
        _LOG.warning("uncommitted changes are not in the environment %s", name)
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
    seen = identify(workspace, what="the workspace")
    try:
        seen.path.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"the workspace is {seen.path!r}; container-use accepts only UTF-8 names"
        ) from None
    if not seen.is_directory:
        raise ConfigurationError(f"the workspace is {seen.path!r}, which is not a directory")
    return seen.path


def _repository(path: str) -> str | None:
    """The root of the git repository that contains a directory; None if there is none."""
    places = [path, *map(str, Path(path).parents)]
    return next((each for each in places if os.path.exists(os.path.join(each, ".git"))), None)
