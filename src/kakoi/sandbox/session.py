"""A session in a `Sandbox`: directory and exported variables stay between commands."""

import asyncio
import posixpath
from collections.abc import Mapping, Sequence

from kakoi._support.keywords import naming_nearest
from kakoi.gate import Call, carry_variables
from kakoi.policy.decide import Decision
from kakoi.results import ExecutionResult
from kakoi.sandbox.commands import check_success, command_from
from kakoi.sandbox.lifecycle import SandboxLife


class Session:
    """Runs commands one after another, as in a terminal; from `Sandbox.session`.

    `cwd`: where the next command starts. `env`: the exported variables that it gets; those that the
    policy would refuse in front of a command are left behind, and `left_behind` says why.

        async with box.session() as s:
            await s.run("cd src && export MODE=test")
            await s.run("echo $MODE in $PWD")
    """

    def __init__(self, life: SandboxLife) -> None:
        self._life = life
        self._turn = asyncio.Lock()
        self.cwd = ""
        self.env: Mapping[str, str] = {}
        self.left_behind: Mapping[str, str] = {}

    async def __aenter__(self) -> "Session":
        self.cwd = self.cwd or (await self._life.ready()).workspace
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    @naming_nearest
    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        max_output: int | str | None = None,
        check: bool = False,
    ) -> ExecutionResult:
        """Run `command` where the last one ended; see `Sandbox.run`."""
        async with self._turn:
            await self.__aenter__()
            opened = await self._life.ready()
            asked = command_from(
                opened.options,
                opened.workspace,
                command,
                cwd=self.cwd,
                stdin=stdin,
                timeout=timeout,
                idle_timeout=idle_timeout,
                max_output=max_output,
                report_shell=True,
            )
            result = await opened.gate.run(asked, Call(variables=self.env))
            await self._follow(result)
        if check:
            check_success(result, asked)
        return result

    async def check(self, command: str | Sequence[str]) -> Decision:
        """Judge `command` as this session would run it. Nothing runs."""
        await self.__aenter__()
        opened = await self._life.ready()
        asked = command_from(opened.options, opened.workspace, command, cwd=self.cwd)
        return await opened.gate.judge(asked, Call(variables=self.env))

    async def _follow(self, result: ExecutionResult) -> None:
        """Remember where the shell ended and what it exported, as the sandbox reports it."""
        if result.cwd and result.cwd.startswith("/") and "\0" not in result.cwd:
            self.cwd = posixpath.normpath(result.cwd)
        if result.exports is not None:
            opened = await self._life.ready()
            carried = await asyncio.to_thread(
                carry_variables, opened.gate.policy, self.env, result.exports, cwd=self.cwd
            )
            self.env, self.left_behind = carried.variables, carried.left_behind
