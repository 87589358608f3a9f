"""KubernetesAdapter: runs commands in a pod, one pod per sandbox.

    created    at the first command (`kubectl create`)
    entered    by one long-running `kubectl exec -i`, over which we send our runner
    ends       at `cleanup` (`kubectl delete`); if we die first, when its maximum age is reached

A pod is on another machine: its workspace starts empty, and it sees nothing of this machine.
"""

import asyncio
import contextlib
import dataclasses
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from kakoi._support.asyncio import finish
from kakoi.backends.adapter import (
    Availability,
    LimitReport,
    SandboxAdapter,
)
from kakoi.backends.built_in import BuiltInAdapter
from kakoi.backends.docker.checks import check_confinement, ignored_limits, kernel_limits
from kakoi.backends.docker.container import IN_USE, default_owner, ending_script
from kakoi.backends.kubernetes.cluster import Cluster, delete_or_warn
from kakoi.backends.kubernetes.errors import PodState, explain
from kakoi.backends.kubernetes.pod import KubernetesSettings, PodPlan, exec_args
from kakoi.backends.landlock import SCOPES, LandlockRules, Restrictions, unavailable_error
from kakoi.backends.seccomp import FAMILIES, system_call_filters
from kakoi.channel.api import Channel, Command, check_type, new_id
from kakoi.channel.connection import Connection, Deadline, closed_on_failure
from kakoi.channel.delivery import NoPythonError, RunnerSettings, any_argv
from kakoi.channel.runner_channel import open_channel
from kakoi.errors import (
    EnvironmentUnavailableError,
    KakoiError,
    LimitError,
    SandboxError,
    UnsupportedError,
)
from kakoi.process import ProcessExecutor
from kakoi.process.options import default_environment
from kakoi.process.stream import Launch
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.restrictions import REFER

_LOG = logging.getLogger(__name__)
_DEFAULTS: Final = KubernetesSettings()
_NAME: Final = "kubernetes"
_KILL_S: Final = 30.0
_REOPEN_S: Final = 30.0
# Uids that no node uses, so that the kernel counts the processes of each pod separately.
_FIRST_UID, _UIDS = 1_900_000_000, 200_000_000
_AF_UNIX: Final = 1
# Landlock keeps commands from controlling processes outside their domain, also by ptrace and
# /proc/PID/mem: a process that `exec` has just started is not under the system call filter yet.
# From this version on, Landlock does so without forbidding moves between directories.
_DOMAIN_ABI: Final = 2
_ANYWHERE: Final = LandlockRules(handled=REFER, paths=(("/", REFER),), scopes=SCOPES)
_ENFORCED_BY: Final = {
    "memory_bytes": "a control group",
    "cpus": "a control group",
    "processes": "rlimit: of a user that only this pod has",
    "open_files": "rlimit: of each process",
    "file_bytes": "rlimit: of each file",
    "disk_bytes": "ephemeral-storage: its node ends a pod that takes more, a while after",
}


class KubernetesAdapter(BuiltInAdapter):
    """A pod as a sandbox.

    `clock`: the time of day in seconds; with it, the owner's expired pods are swept before a new
        pod is created.
    `owner`: who owns the pods; only the owner's kakoi sweeps them. Empty: this user here.
    `cluster_env`: environment variables for kubectl itself, such as KUBECONFIG.
    `lifetime_s`: the cluster ends the pod after this time, if that is before its maximum age.
    """

    def __init__(
        self,
        config: KubernetesSettings = _DEFAULTS,
        executor: ProcessExecutor | None = None,
        *,
        clock: Callable[[], float] | None = None,
        owner: str = "",
        cluster_env: Mapping[str, str] | None = None,
        lifetime_s: float | None = None,
    ) -> None:
        check_type("config", config, KubernetesSettings)
        check_type("executor", executor, ProcessExecutor, type(None))
        check_type("cluster_env", cluster_env, Mapping, type(None))
        self._config = config
        self._timeout_s = config.timeout_s
        self._executor = executor or ProcessExecutor()
        self._env = {**default_environment(), **(cluster_env or {})}
        self._cluster = Cluster(self._executor, config, env=self._env)
        self._clock = clock
        self._owner = owner or default_owner()
        self._plan: PodPlan | None = None
        self._limit_report = LimitReport()
        self._deadline = Deadline(lifetime_s)
        self._connection = Connection(self._open, self._deadline)

    @property
    def name(self) -> str:
        """`kubernetes`"""
        return _NAME

    @property
    def pod(self) -> str | None:
        """The name of the pod, once it exists."""
        return None if self._plan is None else self._plan.name

    @property
    def limit_report(self) -> LimitReport:
        """Which limits are enforced, and how, once the pod exists."""
        return self._limit_report

    # --- Availability ------------------------------------------------------------------------

    async def availability(self) -> Availability:
        """Create the pod and enter it: nothing less proves that it works. The pod stays."""
        try:
            await self._connection.channel()
        except KakoiError as error:
            return Availability(False, str(error), error.hint)
        return Availability(True, f"the pod {self.pod} runs")

    async def would_be_taken(self) -> Availability:
        """Return whether the cluster would accept our pod. Creates nothing."""
        try:
            await self._cluster.would_take(self._planned())
        except KakoiError as error:
            return Availability(False, str(error), error.hint)
        return Availability(True, "the cluster would accept a pod; none was created")

    # --- Commands ----------------------------------------------------------------------------

    async def run(self, command: Command) -> ExecutionResult:
        """Run `command`; see `SandboxAdapter.run`."""
        # If `cleanup` runs meanwhile, a new connection would create another pod.
        connection = self._connection
        result = await (await connection.channel()).run(command)
        return self._deadline.explained(await self._explain_loss(result, connection))

    async def pause(self) -> None:
        """Raise UnsupportedError: a cluster cannot freeze a pod."""
        raise _unsupported("pause")

    async def resume(self) -> None:
        """Do nothing: a pod is never paused."""

    async def fork(self, count: int) -> list[SandboxAdapter]:
        """Raise UnsupportedError: a cluster cannot copy a pod."""
        raise _unsupported("fork")

    async def cleanup(self) -> None:
        """End everything and delete the pod. Failures are logged, never raised."""
        await finish(self._cleanup())

    async def _cleanup(self) -> None:
        self._deadline = Deadline(self._deadline.lifetime_s)
        connection = self._connection
        self._connection = Connection(self._open, self._deadline)
        await connection.close()
        plan, self._plan = self._plan, None
        if plan is not None:
            await delete_or_warn(self._cluster, plan.name)

    # --- The pod -----------------------------------------------------------------------------

    def _planned(self) -> PodPlan:
        own = _FIRST_UID + secrets.randbelow(_UIDS)
        return PodPlan(
            settings=self._config,
            name=f"kakoi-{new_id()}",
            owner=self._owner,
            uid=own if self._config.user is None else self._config.user,
            has_own_user=self._config.user is None,
            lifetime_s=self._deadline.lifetime_s,
        )

    async def _open(self) -> Channel:
        if self._plan is None:
            return await self._open_fresh()
        return await self._open_again(self._plan)

    async def _open_fresh(self) -> Channel:
        await self._sweep()
        plan = self._planned()
        _refuse_unenforced(plan)
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
            # Unless it was refused, the pod may exist although kubectl reported a failure.
            if not is_refused:
                await finish(delete_or_warn(self._cluster, plan.name))
            raise
        self._plan = plan
        self._limit_report = pod_limit_report(plan)
        _LOG.warning("the pod %s starts with an empty %s", plan.name, self._config.inside)
        return channel

    async def _sweep(self) -> None:
        if self._clock is None:
            return
        try:
            gone = await self._cluster.sweep(owner=self._owner, now_s=self._clock())
        except EnvironmentUnavailableError:
            raise
        except SandboxError as error:
            _LOG.warning("cannot look for old pods: %s", error)
            return
        if gone:
            _LOG.info("deleted old pods: %s", ", ".join(gone))

    async def _open_again(self, plan: PodPlan) -> Channel:
        """Connect to its runner. If the runner is gone, end everything that it started."""
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
        """See `Container.end_everything`. If that fails, delete the pod and raise SandboxError."""
        argv = ["sh", "-c", ending_script(unless_in_use=unless_in_use)]
        status = await self._cluster.run_inside(plan.name, argv, timeout_s=_KILL_S)
        if status in (0, IN_USE):
            return status == 0
        # A node reports the end of a pod to its cluster with a short delay.
        _refuse_ended(plan, await self._cluster.settled(plan.name))
        await finish(delete_or_warn(self._cluster, plan.name))
        raise SandboxError(
            f"what ran in the pod `{plan.name}` could not be ended, so the pod was deleted",
            details={"pod": plan.name},
            hint="its files are lost; create a new sandbox",
        )

    async def _enter(self, plan: PodPlan) -> Channel:
        # `enforced`: it ends when we do, together with the programs that it started to log in.
        launch = Launch(
            argv=exec_args(self._config, plan.name, any_argv()), env=self._env, kept=True
        )
        with _explaining(plan):
            return await open_channel(launch, runner_settings(plan), self._executor.stream)

    async def _check(self, channel: Channel, plan: PodPlan) -> None:
        """Raise SandboxError if the pod is not as requested."""
        await check_confinement(channel)
        # Kubernetes has no limit on the number of processes.
        asked = dataclasses.replace(plan.settings.limits, processes=None)
        found = await kernel_limits(channel)
        # Where the kernel says nothing, trust the pod that the cluster accepted.
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
        """If the sandbox was lost, report why, and make sure that nothing in it keeps running."""
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
    """The settings of the runner in a pod."""
    limits = plan.settings.limits
    return RunnerSettings(
        linger=True,
        max_processes=limits.processes if plan.has_own_user else None,
        restrictions=pod_restrictions(plan.settings),
        rlimits=limits.rlimits,
    )


def pod_restrictions(settings: KubernetesSettings) -> dict[str, object]:
    """The restrictions of the runner and its commands, for runner/restrictions.py.

    Without a network, only AF_UNIX sockets are possible, and commands cannot bypass that.
    """
    has_network = settings.network == "bridge"
    families = FAMILIES if has_network else (_AF_UNIX,)
    calls = system_call_filters(deny_setuid=False, families=families)
    restrictions = Restrictions(commands=_ANYWHERE, runner_filter=calls).for_runner()
    return restrictions if has_network else {**restrictions, "needs_abi": _DOMAIN_ABI}


def pod_limit_report(plan: PodPlan) -> LimitReport:
    """Which limits a pod of the plan enforces; those of its control group are read back."""
    limits = plan.settings.limits
    enforced = {name: by for name, by in _ENFORCED_BY.items() if getattr(limits, name) is not None}
    if plan.has_own_user or "processes" not in enforced:
        return LimitReport(enforced)
    del enforced["processes"]
    return LimitReport(enforced, {"processes": "its user is not its own (sandbox.kubernetes.user)"})


def _unsupported(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"kubernetes cannot {what} a sandbox", hint="use bubblewrap, docker or podman"
    )


def _refuse_ended(plan: PodPlan, state: PodState) -> None:
    if not state.running:
        raise SandboxError(
            f"the pod `{plan.name}` is no longer running: it is {state}",
            details={"pod": plan.name, "phase": state.phase, "reason": state.reason},
            hint="its files are lost; create a new sandbox",
        )


def _refuse_unenforced(plan: PodPlan) -> None:
    pod_limit_report(plan).check_enforced(plan.settings.limits, sandbox=_NAME)


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
        explained = unavailable_error(error, sandbox=_NAME)
        if explained is not error:
            explained.hint = f"{explained.hint}; or take the cluster's network (`network: bridge`)"
            raise explained from error
        stderr = str(error.details.get("stderr") or "")
        if not stderr:
            raise
        raise explain(stderr, doing="entering the pod", about=plan.name) from error
