"""A cluster, by `kubectl`: one short call at a time, each with a time limit.

Commands of an agent never come this way; they go over a channel.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kakoi.errors import (
    EnvironmentUnavailableError,
    ExecutionError,
    ExecutionTimeoutError,
    KakoiError,
    SandboxError,
)
from kakoi.process import ProcessExecutor, ProcessResult, SpawnOptions
from kakoi.sandbox.kubernetes_advice import (
    GONE,
    PodState,
    explain,
    not_started,
    pod_state,
    trouble,
)
from kakoi.sandbox.kubernetes_pod import (
    MANAGED,
    OWNER,
    KubernetesSettings,
    PodPlan,
    chosen_args,
    exec_args,
    label,
    listed,
    manifest,
    stale,
)

_LOG = logging.getLogger(__name__)
_REQUEST: Final = "--request-timeout=20s"
_CALL_S: Final = 60.0
_DELETE_S: Final = 60.0
_TRIES: Final = 3
_PAUSE_S: Final = 0.5
_SETTLING: Final = 20
_FIRST_LOOK_S: Final = 0.2
_LAST_LOOK_S: Final = 2.0


class Cluster:
    """The cluster of the settings. Every failure is a SandboxError that says what to do.

    `env`: variables of kubectl itself, such as PATH and KUBECONFIG.
    """

    def __init__(
        self, executor: ProcessExecutor, settings: KubernetesSettings, *, env: Mapping[str, str]
    ) -> None:
        self._executor = executor
        self._settings = settings
        self._env = dict(env)

    async def call(
        self,
        args: Sequence[str],
        *,
        doing: str,
        stdin: bytes | None = None,
        timeout_s: float = _CALL_S,
    ) -> ProcessResult:
        """Run `kubectl args`; whatever its exit status is."""
        words = [*chosen_args(self._settings), *args]
        options = SpawnOptions(env=self._env, stdin=stdin, timeout=timeout_s * 1000)
        try:
            return await self._executor.spawn("kubectl", words, options)
        except ExecutionTimeoutError as error:
            raise SandboxError(
                f"kubectl was not done with {doing} after {timeout_s:g} s",
                details={"program": "kubectl", "doing": doing},
                hint="does `kubectl get pods` answer?",
            ) from error
        except ExecutionError as error:
            raise EnvironmentUnavailableError(
                f"kubectl cannot be started: {error}",
                details={"environmentType": "kubernetes"},
                hint="install kubectl (https://kubernetes.io/docs/tasks/tools/), and see that it "
                "is on PATH",
            ) from error

    async def must(
        self, args: Sequence[str], *, doing: str, about: str = "", stdin: bytes | None = None
    ) -> str:
        """Run `kubectl args` and give its output; a failure is explained."""
        result = await self.call(args, doing=doing, stdin=stdin)
        if result.exit_code != 0:
            raise explain(result.stderr, doing=doing, about=about)
        return result.stdout

    async def would_take(self, plan: PodPlan) -> None:
        """SandboxError if it would refuse the pod. Nothing is made."""
        await self._create(plan, "--dry-run=server", doing="asking if a pod may be made")

    async def create(self, plan: PodPlan) -> None:
        """Make a pod; it does not run yet."""
        await self._create(plan, doing="making a pod")

    async def _create(self, plan: PodPlan, *options: str, doing: str) -> None:
        args = ["create", _REQUEST, *options, "-o", "name", "-f", "-"]
        text = json.dumps(manifest(plan)).encode("utf-8")
        await self.must(args, doing=doing, about=plan.name, stdin=text)

    async def wait_until_running(self, plan: PodPlan) -> None:
        """Return when it runs; SandboxError as soon as it is clear that it will not."""
        limit_s = plan.settings.start_timeout_s
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + limit_s
        pause_s = _FIRST_LOOK_S
        while True:
            state = await self.state(plan.name)
            if state.running:
                return
            if (error := trouble(state, name=plan.name, image=plan.settings.image)) is not None:
                raise error
            if loop.time() >= give_up_s:
                raise not_started(state, name=plan.name, waited_s=limit_s)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LAST_LOOK_S)

    async def state(self, name: str) -> PodState:
        """What became of a pod."""
        args = ["get", _REQUEST, "pod", name, "--ignore-not-found", "-o", "json"]
        text = await self.must(args, doing="looking at a pod", about=name)
        return pod_state(_parsed(text)) if text.strip() else GONE

    async def settled(self, name: str) -> PodState:
        """What became of a pod that seems to have ended, when the cluster knows of it."""
        state = await self.state(name)
        for _ in range(_SETTLING):
            if not state.running:
                break
            await asyncio.sleep(_PAUSE_S)
            state = await self.state(name)
        return state

    async def run_inside(self, name: str, argv: Sequence[str], *, timeout_s: float) -> int:
        """Run something of ours in a pod; its exit status."""
        words = exec_args(self._settings, name, argv)[1 + len(chosen_args(self._settings)) :]
        done = await self.call(words, doing="looking into a pod", timeout_s=timeout_s)
        return done.exit_code

    async def delete(self, name: str) -> None:
        """Take a pod away. It is gone when this returns; SandboxError if it stays."""
        error: SandboxError | None = None
        for attempt in range(_TRIES):
            if attempt:
                await asyncio.sleep(_PAUSE_S * attempt)
            try:
                args = ["delete", "pod", name, "--ignore-not-found", "--grace-period=1"]
                args += ["--wait=true", f"--timeout={_DELETE_S:g}s"]
                done = await self.call(args, doing="deleting a pod", timeout_s=_DELETE_S + 20)
            except SandboxError as failure:
                error = failure
                continue
            if done.exit_code == 0:
                return
            error = explain(done.stderr, doing="deleting a pod", about=name)
        raise error or SandboxError(f"the pod `{name}` could not be deleted")

    async def sweep(self, *, owner: str, now_s: float) -> list[str]:
        """Delete the owner's pods whose time is up, and give their names. Does not wait for it."""
        selector = f"{MANAGED}=kakoi,{OWNER}={label(owner)}"
        args = ["get", _REQUEST, "pods", "-l", selector, "-o", "json"]
        found = listed(_parsed(await self.must(args, doing="listing pods")))
        names = [pod.name for pod in stale(found, now_s=now_s)]
        if names:
            args = ["delete", _REQUEST, "pod", *names, "--ignore-not-found", "--wait=false"]
            await self.must(args, doing="deleting old pods")
        return names


async def see_gone(cluster: Cluster, name: str) -> None:
    """Delete a pod; a failure is logged. The cluster ends it in any case when its time is up."""
    try:
        await cluster.delete(name)
    except KakoiError as error:
        _LOG.warning("the pod %s could not be deleted: %s", name, error)


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise SandboxError("the cluster's answer can't be read", details={"text": text[:500]})
    return found
