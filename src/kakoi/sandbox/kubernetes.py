"""KubernetesAdapter: commands in a pod, one pod for each sandbox.

    made       at the first command (`kubectl create`)
    entered    by one `kubectl exec -i` that stays, over which our runner is sent
    ends       at `cleanup` (`kubectl delete`); if we die before, when its time is up

A pod is elsewhere: its workspace begins empty, and nothing of this machine is seen in it.
"""

import asyncio
import contextlib
import dataclasses
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from kakoi.errors import EnvironmentUnavailableError, KakoiError, LimitError, SandboxError
from kakoi.process import ProcessExecutor
from kakoi.process.options import default_environment
from kakoi.process.stream import Launch
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.channel import open_channel
from kakoi.runner.commands import Channel, Command, check_type, new_id
from kakoi.runner.connection import Connection, closed_on_failure
from kakoi.runner.delivery import NoPythonError, RunnerSettings, any_argv
from kakoi.runner.walls import REFER
from kakoi.sandbox.adapter import (
    Availability,
    ExecuteOptions,
    Holding,
    as_command,
    exit_code_or_raise,
)
from kakoi.sandbox.docker_checks import check_confinement, ignored_limits, kernel_limits
from kakoi.sandbox.docker_container import IN_USE, default_owner, ending_script
from kakoi.sandbox.kubernetes_advice import PodState, explain
from kakoi.sandbox.kubernetes_cluster import Cluster, see_gone
from kakoi.sandbox.kubernetes_pod import KubernetesSettings, PodPlan, exec_args
from kakoi.sandbox.landlock import SCOPES, Rules, Walls, as_unavailable
from kakoi.sandbox.seccomp import FAMILIES, system_call_filters
from kakoi.waiting import finish

_LOG = logging.getLogger(__name__)
_DEFAULTS: Final = KubernetesSettings()
_NAME: Final = "kubernetes"
_KILL_S: Final = 30.0
_REOPEN_S: Final = 30.0
# Users that no node has, so that the kernel counts the processes of each pod by themselves.
_FIRST_UID, _UIDS = 1_900_000_000, 200_000_000
_AF_UNIX: Final = 1
# Keeps commands from driving a process outside of their domain, ptrace and /proc/PID/mem included:
# one that has just been started by `exec` is not in the filter yet. From this version on it can do
# so without forbidding to move files between directories.
_DOMAIN_ABI: Final = 2
_ANYWHERE: Final = Rules(handled=REFER, paths=(("/", REFER),), scopes=SCOPES)
_KEPT_BY: Final = {
    "memory_bytes": "a control group",
    "cpus": "a control group",
    "processes": "rlimit: of a user that only this pod has",
    "open_files": "rlimit: of each process",
    "file_bytes": "rlimit: of each file",
    "disk_bytes": "ephemeral-storage: its node ends a pod that takes more, a while after",
}


class KubernetesAdapter:
    """A pod as a sandbox.

    `clock`: the time of day in seconds; with it, old pods of ours are swept before one is made.
    `owner`: whose the pods are; only the owner's kakoi sweeps them. Empty: this user's here.
    `cluster_env`: variables of kubectl itself, such as KUBECONFIG.
    """

    def __init__(
        self,
        config: KubernetesSettings = _DEFAULTS,
        executor: ProcessExecutor | None = None,
        *,
        clock: Callable[[], float] | None = None,
        owner: str = "",
        cluster_env: Mapping[str, str] | None = None,
    ) -> None:
        check_type("config", config, KubernetesSettings)
        check_type("executor", executor, ProcessExecutor, type(None))
        check_type("cluster_env", cluster_env, Mapping, type(None))
        self._config = config
        self._executor = executor or ProcessExecutor()
        self._env = {**default_environment(), **(cluster_env or {})}
        self._cluster = Cluster(self._executor, config, env=self._env)
        self._clock = clock
        self._owner = owner or default_owner()
        self._plan: PodPlan | None = None
        self._holding = Holding()
        self._connection = Connection(self._open)

    @property
    def name(self) -> str:
        """`kubernetes`"""
        return _NAME

    @property
    def pod(self) -> str | None:
        """The name of the pod, once there is one."""
        return None if self._plan is None else self._plan.name

    @property
    def holding(self) -> Holding:
        """Which of the limits hold, and by what, once there is a pod."""
        return self._holding

    # --- Can it be used? ---------------------------------------------------------------------

    async def availability(self) -> Availability:
        """Make the pod and enter it: nothing less shows that it can be used. It is kept."""
        try:
            await self._connection.channel()
        except KakoiError as error:
            return Availability(False, str(error), error.hint)
        return Availability(True, f"the pod {self.pod} runs")

    async def is_available(self) -> bool:
        """Is it there and does it work?"""
        return bool(await self.availability())

    async def would_be_taken(self) -> Availability:
        """Would the cluster take a pod of ours? It is asked, and nothing is made."""
        try:
            await self._cluster.would_take(self._planned())
        except KakoiError as error:
            return Availability(False, str(error), error.hint)
        return Availability(True, "the cluster would take a pod; none was made")

    # --- Commands ----------------------------------------------------------------------------

    async def run(self, command: Command) -> ExecutionResult:
        """Run `command`; see `SandboxAdapter.run`."""
        # Kept in hand: after a cleanup meanwhile, another one would make another pod.
        connection = self._connection
        result = await (await connection.channel()).run(command)
        return await self._explain_loss(result, connection)

    async def execute(
        self, command: str | Sequence[str], options: ExecuteOptions | None = None
    ) -> ExecutionResult:
        """Run `command` as spec B has it; see `SandboxAdapter.execute`."""
        wanted = as_command(command, options, timeout_s=self._config.timeout_s)
        return exit_code_or_raise(await self.run(wanted), wanted)

    async def channel(self) -> Channel:
        """The way in, opened at first use and again after it was lost."""
        return await self._connection.channel()

    async def shell(self) -> str:
        """What reads commands there; see `SandboxAdapter.shell`."""
        return (await self.channel()).shell

    async def cleanup(self) -> None:
        """End everything and delete the pod. Failures are logged, never raised."""
        await finish(self._cleanup())

    async def _cleanup(self) -> None:
        connection, self._connection = self._connection, Connection(self._open)
        await connection.close()
        plan, self._plan = self._plan, None
        if plan is not None:
            await see_gone(self._cluster, plan.name)

    # --- The pod -----------------------------------------------------------------------------

    def _planned(self) -> PodPlan:
        own = _FIRST_UID + secrets.randbelow(_UIDS)
        return PodPlan(
            settings=self._config,
            name=f"kakoi-{new_id()}",
            owner=self._owner,
            uid=own if self._config.user is None else self._config.user,
            has_own_user=self._config.user is None,
        )

    async def _open(self) -> Channel:
        if self._plan is None:
            return await self._open_fresh()
        return await self._open_again(self._plan)

    async def _open_fresh(self) -> Channel:
        await self._sweep()
        plan = self._planned()
        _refuse_unkept(plan)
        is_refused = False
        try:
            try:
                await self._cluster.create(plan)
            except EnvironmentUnavailableError:
                is_refused = True
                raise
            await self._cluster.wait_until_running(plan)
            async with closed_on_failure(await self._enter(plan)) as channel:
                await self._check(channel, plan)
        except BaseException:
            # Otherwise it may have been made, though kubectl says that it failed.
            if not is_refused:
                await finish(see_gone(self._cluster, plan.name))
            raise
        self._plan = plan
        self._holding = holding_of(plan)
        _LOG.warning("the pod %s begins with an empty %s", plan.name, self._config.inside)
        return channel

    async def _sweep(self) -> None:
        if self._clock is None:
            return
        try:
            gone = await self._cluster.sweep(owner=self._owner, now_s=self._clock())
        except EnvironmentUnavailableError:
            raise
        except SandboxError as error:
            _LOG.warning("old pods could not be looked for: %s", error)
            return
        if gone:
            _LOG.info("deleted old pods: %s", ", ".join(gone))

    async def _open_again(self, plan: PodPlan) -> Channel:
        """Find the runner that lives there. If there is none, nothing it started may live on."""
        _refuse_ended(plan, await self._cluster.state(plan.name))
        if not await self._end_everything(plan, unless_in_use=True):
            try:
                async with asyncio.timeout(_REOPEN_S):
                    return await self._enter(plan)
            except (SandboxError, TimeoutError) as error:
                _LOG.warning("the runner in %s does not answer: %s", plan.name, error)
            await self._end_everything(plan, unless_in_use=False)
        return await self._enter(plan)

    async def _end_everything(self, plan: PodPlan, *, unless_in_use: bool) -> bool:
        """As `Container.end_everything` has it. What cannot be ended ends with the pod."""
        argv = ["sh", "-c", ending_script(unless_in_use=unless_in_use)]
        status = await self._cluster.run_inside(plan.name, argv, timeout_s=_KILL_S)
        if status in (0, IN_USE):
            return status == 0
        # A node tells its cluster of an end a moment after it.
        _refuse_ended(plan, await self._cluster.settled(plan.name))
        await finish(see_gone(self._cluster, plan.name))
        raise SandboxError(
            f"what ran in the pod `{plan.name}` could not be ended, so the pod was deleted",
            details={"pod": plan.name},
            hint="its files are gone; make a new sandbox",
        )

    async def _enter(self, plan: PodPlan) -> Channel:
        # Kept: it ends with us, with whatever it has started to log in.
        launch = Launch(
            argv=exec_args(self._config, plan.name, any_argv()), env=self._env, kept=True
        )
        with _explaining(plan):
            return await open_channel(launch, runner_settings(plan), self._executor.stream)

    async def _check(self, channel: Channel, plan: PodPlan) -> None:
        """SandboxError if the pod is not what was asked for."""
        await check_confinement(channel)
        # The cluster has no word for the number of processes.
        asked = dataclasses.replace(plan.settings.limits, processes=None)
        found = await kernel_limits(channel)
        # Where the kernel is silent, a pod that the cluster has taken counts as it was asked.
        silent = {name: getattr(asked, name) for name, value in found.items() if value is None}
        if faults := ignored_limits(asked, found, silent):
            raise LimitError(
                f"the cluster did not set these limits: {', '.join(faults)}",
                details={"limits": faults},
                hint="has an admission controller changed the pod? `kubectl get pod -o yaml` "
                "shows it; `none` as a limit asks for none",
            )

    async def _explain_loss(
        self, result: ExecutionResult, connection: Connection
    ) -> ExecutionResult:
        """A lost sandbox: say what became of it, and see to it that nothing of it goes on."""
        plan = self._plan
        if result.reason is not Reason.SANDBOX_LOST or plan is None:
            return result
        try:
            state = await self._cluster.state(plan.name)
            if state.running:
                with contextlib.suppress(SandboxError):
                    await connection.channel()
                    return result
                state = await self._cluster.state(plan.name)
        except KakoiError as error:
            return dataclasses.replace(result, error=f"{result.error}; {error}")
        if state.out_of_memory:
            return dataclasses.replace(result, reason=Reason.OUT_OF_MEMORY, exit_code=137)
        return dataclasses.replace(result, error=f"{result.error}; its pod is {state}")


def runner_settings(plan: PodPlan) -> RunnerSettings:
    """What the runner in a pod is told."""
    limits = plan.settings.limits
    return RunnerSettings(
        linger=True,
        max_processes=limits.processes if plan.has_own_user else None,
        walls=walls_of(plan.settings),
        rlimits=limits.rlimits,
    )


def walls_of(settings: KubernetesSettings) -> dict[str, object]:
    """What the runner raises around itself and its commands, as runner/walls.py takes it.

    Without a network there are no sockets but those between processes, and no way around it.
    """
    has_network = settings.network == "bridge"
    families = FAMILIES if has_network else (_AF_UNIX,)
    calls = system_call_filters(deny_setuid=False, families=families)
    told = Walls(commands=_ANYWHERE, runner_filter=calls).handed_over()
    return told if has_network else {**told, "needs_abi": _DOMAIN_ABI}


def holding_of(plan: PodPlan) -> Holding:
    """Which limits hold in a pod of the plan; those of its control group are read back."""
    limits = plan.settings.limits
    kept = {name: by for name, by in _KEPT_BY.items() if getattr(limits, name) is not None}
    if plan.has_own_user or "processes" not in kept:
        return Holding(kept)
    del kept["processes"]
    return Holding(kept, {"processes": "its user is not its own (sandbox.kubernetes.user)"})


def _refuse_ended(plan: PodPlan, state: PodState) -> None:
    if not state.running:
        raise SandboxError(
            f"the pod `{plan.name}` does not run any more: it is {state}",
            details={"pod": plan.name, "phase": state.phase, "reason": state.reason},
            hint="its files are gone; make a new sandbox",
        )


def _refuse_unkept(plan: PodPlan) -> None:
    holding_of(plan).refuse_unkept(plan.settings.limits, sandbox=_NAME)


@contextlib.contextmanager
def _explaining(plan: PodPlan) -> Iterator[None]:
    try:
        yield
    except NoPythonError as error:
        raise EnvironmentUnavailableError(
            f"the image `{plan.settings.image}` has no python3, 3.8 or newer",
            details={"environmentType": _NAME},
            hint="name another one in sandbox.kubernetes.image",
        ) from error
    except SandboxError as error:
        told = as_unavailable(error, sandbox=_NAME)
        if told is not error:
            told.hint = f"{told.hint}; or take the cluster's network (`network: bridge`)"
            raise told from error
        stderr = str(error.details.get("stderr") or "")
        if not stderr:
            raise
        raise explain(stderr, doing="entering the pod", about=plan.name) from error
