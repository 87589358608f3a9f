"""Error output of kubectl → an error that states the fact and the next step. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from kakoi._support.late import dataclass
from kakoi._support.redact import redact
from kakoi.backends.error_patterns import error_pattern, find_pattern, last_line, redacted_end
from kakoi.errors import EnvironmentUnavailableError, ImagePullError, SandboxError

_ROLE: Final = (
    "ask for a Role with pods: create, get, list, delete and pods/exec: create, get; "
    "`kubectl auth can-i --list` shows what this user may do"
)


# {it} (the pod in question) and {why} are filled in.
# The order matters: more specific patterns come first.
_ERROR_PATTERNS: Final = (
    error_pattern(
        r"context .* does not exist|no context exists with the name|context was not found"
        r"|current-context",
        "the kubeconfig has no such context: {why}",
        "`kubectl config get-contexts` lists them; sandbox.kubernetes.context names one",
        EnvironmentUnavailableError,
    ),
    error_pattern(
        r"must be logged in|unauthorized|provide credentials|getting credentials"
        r"|exec plugin|executable .* not found",
        "the cluster did not accept the login: {why}",
        "log in to the cluster; `kubectl get pods` must work without a prompt",
        EnvironmentUnavailableError,
    ),
    error_pattern(
        r"connection to the server .* refused|unable to connect to the server|dial tcp"
        r"|no such host|i/o timeout|server could not find the requested resource"
        r"|no configuration has been provided|missing or incomplete configuration info"
        r"|context deadline exceeded|client\.timeout exceeded|network is unreachable",
        "no cluster answers: {why}",
        "`kubectl cluster-info` shows which address is tried; KUBECONFIG and "
        "sandbox.kubernetes.context choose another",
        EnvironmentUnavailableError,
    ),
    error_pattern(
        r"x509|tls: ",
        "the cluster's certificate is not trusted: {why}",
        "get a new kubeconfig of this cluster",
        EnvironmentUnavailableError,
    ),
    error_pattern(
        r"exceeded quota|maximum .* usage per|limitrange",
        "the namespace has no room for such a pod: {why}",
        "lower `resources` (memory_limit, cpu_limit, disk_limit), or have the quota raised",
        EnvironmentUnavailableError,
    ),
    error_pattern(
        r"violates podsecurity|pod ?security ?policy|security context constraint",
        "the cluster's own rules refuse the pod: {why}",
        "the pods need no privileges; on OpenShift set sandbox.kubernetes.user to a number "
        "of the namespace's range",
        EnvironmentUnavailableError,
    ),
    error_pattern(
        r"runtimeclass.* not found",
        "the cluster has no such RuntimeClass: {why}",
        "`kubectl get runtimeclasses` lists them; leave sandbox.kubernetes.runtime_class out",
        EnvironmentUnavailableError,
    ),
    error_pattern(
        r"namespaces? .* not found|namespace .* is being terminated",
        "the namespace does not exist: {why}",
        "kubectl create namespace NAME, or set sandbox.kubernetes.namespace to another one",
        EnvironmentUnavailableError,
    ),
    error_pattern(
        r"forbidden", "this user may not do that: {why}", _ROLE, EnvironmentUnavailableError
    ),
    error_pattern(
        r"serviceaccount .* not found",
        "the namespace is not ready yet: {why}",
        "try again in a moment",
    ),
    error_pattern(
        r"pods? .* not found|container not found|cannot exec (in|into) a (stopped|deleted)"
        r"|completed pod",
        "the pod `{it}` is no longer running",
        "`kubectl describe pod {it}` shows why; make a new sandbox",
    ),
    error_pattern(
        r"error dialing backend|unable to upgrade connection",
        "the cluster does not reach the node of the pod: {why}",
        "`kubectl get nodes` shows whether it is ready",
    ),
    error_pattern(
        r"executable file not found|no such file or directory",
        "the image has no `sh` or no `python3`, and commands need both",
        "name an image with python3, 3.8 or newer, in sandbox.kubernetes.image",
    ),
    error_pattern(
        r"unknown (shorthand )?flag",
        "this kubectl is too old: {why}",
        "install kubectl 1.20 or newer",
        EnvironmentUnavailableError,
    ),
)


def explain(stderr: str, *, doing: str, about: str = "") -> SandboxError:
    """The error when kubectl failed at `doing` something `about` a pod."""
    text = redacted_end(stderr)
    why = _last_line(text)
    details: dict[str, Any] = {"program": "kubectl", "doing": doing, "stderr": text}
    found = find_pattern(_ERROR_PATTERNS, text)
    if found is not None:
        if found.error is EnvironmentUnavailableError:
            details["environmentType"] = "kubernetes"
        return found.as_error({"it": about, "why": why}, details)
    return SandboxError(
        f"kubectl failed while {doing}: {why or 'no reason given'}",
        details=details,
        hint="`kubectl get events` may say more",
    )


def _last_line(text: str) -> str:
    server = r"^(error: |Error from server( \(\w+\))?: )+"
    return last_line(text, but=("command terminated with",), without=server)


# --- Pods ------------------------------------------------------------------------------------

# Reasons that a kubelet gives for a container that will never start.
_IMAGE_TROUBLE: Final = ("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_START_TROUBLE: Final = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "StartError",
    "ContainerCannotRun",
)


@dataclass(frozen=True, slots=True)
class PodState:
    """The state of a pod. `phase`: the cluster's word, or `gone`.

    `reason`, `message`: why it is not running, if the cluster says so.
    """

    phase: str
    ready: bool = False
    reason: str = ""
    message: str = ""
    labels: Mapping[str, str] | None = None

    @property
    def running(self) -> bool:
        """Whether commands can run in it."""
        return self.phase == "Running" and self.ready

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.phase in ("Failed", "Succeeded", "gone")

    @property
    def out_of_memory(self) -> bool:
        """Whether it was killed because it exceeded its memory limit."""
        return self.reason == "OOMKilled"

    def __str__(self) -> str:
        why = ": ".join(part for part in (self.reason, self.message) if part)
        return f"{self.phase.lower()} ({why})" if why else self.phase.lower()


GONE: Final = PodState("gone")


def pod_state(pod: Mapping[str, Any]) -> PodState:
    """Parse the output of `kubectl get pod -o json`; raises SandboxError if it is not a pod."""
    try:
        status = pod["status"]
        labels = {str(name): str(value) for name, value in (_of(pod, "metadata", "labels")).items()}
        containers = status.get("containerStatuses") or [{}]
        state = containers[0].get("state") or {}
        found = state.get("waiting") or state.get("terminated") or {}
        if not found and "running" not in state:
            found = _unscheduled(status)
        return PodState(
            phase="Terminating"
            if _of(pod, "metadata").get("deletionTimestamp")
            else str(status.get("phase") or "Pending"),
            ready="running" in state,
            reason=_text(status.get("reason") or found.get("reason")),
            message=_text(status.get("message") or found.get("message")),
            labels=labels,
        )
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise SandboxError("the cluster's description of a pod cannot be read") from error


def _of(pod: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    found: Any = pod
    for name in path:
        found = found.get(name) or {}
    return found  # type: ignore[no-any-return]


def _unscheduled(status: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = status.get("conditions") or ()
    return next((each for each in conditions if each.get("status") == "False"), {})


def _text(value: object) -> str:
    return redact(" ".join(str(value or "").split()))[:500]


def start_error(state: PodState, *, name: str, image: str) -> SandboxError | None:
    """The error for a starting pod that will never run; None if it still can."""
    if state.reason in _IMAGE_TROUBLE:
        return ImagePullError(
            f"the nodes cannot get the image `{image}`: {state.message or state.reason}",
            details={"image": image, "reason": state.reason},
            hint="is the name right, and may the cluster pull it? "
            f"`kubectl describe pod {name}` shows each attempt while the pod is there",
        )
    if state.reason in _START_TROUBLE:
        return explain(f"{state.reason}: {state.message}", doing="starting the pod", about=name)
    if state.ended:
        return SandboxError(
            f"the pod `{name}` ended before it ran: {state}",
            details={"pod": name, "reason": state.reason},
            hint="does the image have python3, 3.8 or newer?",
        )
    return None


def start_timeout_error(state: PodState, *, name: str, waited_s: float) -> SandboxError:
    """The error for a pod that did not start in time."""
    details = {"environmentType": "kubernetes", "pod": name, "reason": state.reason}
    if state.reason == "Unschedulable":
        return EnvironmentUnavailableError(
            f"no node has room for the pod: {state.message}",
            details=details,
            hint="lower `resources` (memory_limit, cpu_limit), or add a node; "
            "`kubectl describe nodes` shows what is taken",
        )
    return EnvironmentUnavailableError(
        f"the pod `{name}` does not run after {waited_s:g} s: it is {state}",
        details=details,
        hint="`kubectl get events` says what it waits for; a large image needs a longer "
        "sandbox.kubernetes.start_timeout",
    )
