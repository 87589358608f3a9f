"""A cluster, controlled with `kubectl`: one short call at a time, each with a timeout.

An agent's commands never take this path; they go over a channel.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kakoi.backends.kubernetes.errors import (
    GONE,
    PodState,
    explain,
    pod_state,
    start_error,
    start_timeout_error,
)
from kakoi.backends.kubernetes.pod import (
    MANAGED,
    OWNER,
    KubernetesSettings,
    PodPlan,
    cluster_args,
    exec_args,
    expired_pods,
    label,
    manifest,
    parse_pods,
)
from kakoi.errors import (
    EnvironmentUnavailableError,
    ExecutionError,
    ExecutionTimeoutError,
    KakoiError,
    SandboxError,
)
from kakoi.process import ProcessExecutor, ProcessResult, SpawnOptions

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
    """The cluster that the settings name. Every failure raises SandboxError with a hint.

    `env`: environment variables for kubectl itself, such as PATH and KUBECONFIG.
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
        """Run `kubectl args` and return the result, whatever its exit code."""
        words = [*cluster_args(self._settings), *args]
        options = SpawnOptions(env=self._env, stdin=stdin, timeout=timeout_s * 1000)
        try:
            return await self._executor.spawn("kubectl", words, options)
        except ExecutionTimeoutError as error:
            raise SandboxError(
                f"kubectl did not finish {doing} after {timeout_s:g} s",
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
        """Run `kubectl args` and return its output; a non-zero exit code raises SandboxError."""
        result = await self.call(args, doing=doing, stdin=stdin)
        if result.exit_code != 0:
            raise explain(result.stderr, doing=doing, about=about)
        return result.stdout

    async def would_take(self, plan: PodPlan) -> None:
        """Raise SandboxError if the cluster would refuse the pod. Creates nothing."""
        await self._create(plan, "--dry-run=server", doing="asking whether a pod can be created")

    async def create(self, plan: PodPlan) -> None:
        """Create a pod. It is not running yet when this returns."""
        await self._create(plan, doing="creating a pod")

    async def _create(self, plan: PodPlan, *options: str, doing: str) -> None:
        args = ["create", _REQUEST, *options, "-o", "name", "-f", "-"]
        text = json.dumps(manifest(plan)).encode("utf-8")
        await self.must(args, doing=doing, about=plan.name, stdin=text)

    async def wait_until_running(self, plan: PodPlan) -> None:
        """Return once the pod runs; raises SandboxError as soon as it is clear that it will not."""
        limit_s = plan.settings.start_timeout_s
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + limit_s
        pause_s = _FIRST_LOOK_S
        while True:
            state = await self.state(plan.name)
            if state.running:
                return
            if (error := start_error(state, name=plan.name, image=plan.settings.image)) is not None:
                raise error
            if loop.time() >= give_up_s:
                raise start_timeout_error(state, name=plan.name, waited_s=limit_s)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LAST_LOOK_S)

    async def state(self, name: str) -> PodState:
        """Return the state of a pod."""
        args = ["get", _REQUEST, "pod", name, "--ignore-not-found", "-o", "json"]
        text = await self.must(args, doing="looking at a pod", about=name)
        return pod_state(_parsed(text)) if text.strip() else GONE

    async def settled(self, name: str) -> PodState:
        """Return the state of a pod that seems to have ended; wait until the cluster knows it."""
        state = await self.state(name)
        for _ in range(_SETTLING):
            if not state.running:
                break
            await asyncio.sleep(_PAUSE_S)
            state = await self.state(name)
        return state

    async def run_inside(self, name: str, argv: Sequence[str], *, timeout_s: float) -> int:
        """Run one of kakoi's own programs in a pod and return its exit code."""
        words = exec_args(self._settings, name, argv)[1 + len(cluster_args(self._settings)) :]
        done = await self.call(words, doing="looking into a pod", timeout_s=timeout_s)
        return done.exit_code

    async def delete(self, name: str) -> None:
        """Delete a pod. It is gone when this returns; raises SandboxError if it stays."""
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
        """Delete the owner's expired pods without waiting for the end; returns their names."""
        selector = f"{MANAGED}=kakoi,{OWNER}={label(owner)}"
        args = ["get", _REQUEST, "pods", "-l", selector, "-o", "json"]
        found = parse_pods(_parsed(await self.must(args, doing="listing pods")))
        names = [pod.name for pod in expired_pods(found, now_s=now_s)]
        if names:
            args = ["delete", _REQUEST, "pod", *names, "--ignore-not-found", "--wait=false"]
            await self.must(args, doing="deleting old pods")
        return names


async def delete_or_warn(cluster: Cluster, name: str) -> None:
    """Delete a pod; log a failure. The cluster ends the pod anyway at its maximum age."""
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
        raise SandboxError("the cluster's answer cannot be read", details={"text": text[:500]})
    return found
