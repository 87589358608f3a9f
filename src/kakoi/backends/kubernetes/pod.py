"""Pod settings → its manifest, and arguments for `kubectl`. Pure: nothing runs here."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import Any, Final, get_args

from kakoi._support.fields import COUNT, SECONDS, TEXT, choice, described, or_none
from kakoi._support.late import dataclass, pattern
from kakoi.backends.adapter import Limits, Network, timeout_field
from kakoi.backends.docker.arguments import HOME, IMAGE, check_env, check_inside
from kakoi.channel.api import MIB, check_type
from kakoi.errors import ConfigurationError

CONTAINER: Final = "sandbox"
MANAGED: Final = "app.kubernetes.io/managed-by"
OWNER: Final = "kakoi.owner"
# A system call filter around the runner enforces `none`; `bridge` is the cluster's network.
POD_NETWORKS: Final[tuple[Network, ...]] = ("none", "bridge")

_NAMESPACE: Final = pattern(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_CLASS: Final = pattern(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_CONTROL: Final = pattern(r"[\x00-\x1f\x7f]")
_LONGEST_S: Final = 30 * 24 * 3600.0
_LAST_ID: Final = 2**31 - 1
# Enough for a pod that waits. The limits say how much it can use; requesting all of that up front
# would reserve room on a node that is seldom needed.
_REQUESTS: Final = {"cpu": 0.05, "memory": 64 * MIB, "ephemeral-storage": 64 * MIB}
# The pod ignores the request to end: the first process of a PID namespace has no default signal
# actions. Zero would make the cluster forget the pod, whether or not it has ended.
_GRACE_S: Final = 1
_TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108 - as images have them

# The first process. The kernel delivers no signals to it from inside and reaps its orphans for it.
# It is outside the filter that blocks the network, so prctl(PR_SET_DUMPABLE, 0) keeps commands,
# which have the same user, from reading its memory or controlling it.
_FIRST: Final = """\
import ctypes, signal
if ctypes.CDLL(None).prctl(4, 0, 0, 0, 0):
    raise SystemExit("the first process cannot be closed to others")
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    signal.pause()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """Settings for pods. Invalid values raise ConfigurationError here, not later.

    The python3 of the image must be 3.8 or newer. The network `none` needs a node whose kernel can
    enforce it; `bridge` is the cluster's own network, with everything reachable from it. The user
    is never 0.

    `inside`: the directory where commands start. It is empty at first.
    `env`: environment variables of every command. Anyone who can view pods sees them: pass secrets
        with a command (`Command.env`).
    """

    context: str = described("", TEXT, "The kubeconfig context; empty means the current one.")
    namespace: str = described("", TEXT, "The namespace for pods; empty means the context's.")
    image: str = described("python:3.12-slim", TEXT, "The image for pods; it must contain python3.")
    network: Network | None = described("none", choice(*POD_NETWORKS), "What pods can reach.")
    runtime_class: str = described("", TEXT, "A RuntimeClass of the cluster to run pods with.")
    timeout_s: float = timeout_field()
    start_timeout_s: float = described(
        120.0, SECONDS, "Timeout in seconds for a pod to start, including the image pull."
    )
    max_age_s: float = described(
        24 * 3600.0, SECONDS, "Seconds after which the cluster ends a pod."
    )
    user: int | None = described(
        None, or_none(COUNT), "The uid that commands run as; `none` gives each pod its own."
    )
    limits: Limits = field(default_factory=Limits)
    inside: str = "/workspace"
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_types()
        if _CONTROL.search(self.context):
            raise ConfigurationError(
                f"context is {self.context!r}; it contains a control character"
            )
        if self.namespace and not _NAMESPACE.fullmatch(self.namespace):
            raise ConfigurationError(
                f"namespace is {self.namespace!r}; it must be lower-case letters, digits and dashes"
            )
        if self.runtime_class and not _CLASS.fullmatch(self.runtime_class):
            raise ConfigurationError(
                f"runtime_class is {self.runtime_class!r}; it must be the name of a RuntimeClass"
            )
        if not IMAGE.fullmatch(self.image):
            raise ConfigurationError(f"image is {self.image!r}; it must be the name of an image")
        self._check_network()
        for name in ("timeout_s", "start_timeout_s", "max_age_s"):
            if not 0 < getattr(self, name) < _LAST_ID:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it must be above zero")
        if not 60 <= self.max_age_s <= _LONGEST_S:
            raise ConfigurationError(
                f"max_age_s is {self.max_age_s:g}; it must be from a minute to 30 days"
            )
        if self.user is not None and not 0 < self.user <= _LAST_ID:
            raise ConfigurationError(f"user is {self.user}; it must be a uid")
        _check_path(self.inside)
        check_env(self.env)

    def _check_types(self) -> None:
        for name in ("context", "namespace", "image", "runtime_class", "inside"):
            check_type(name, getattr(self, name), str)
        for name in ("timeout_s", "start_timeout_s", "max_age_s"):
            check_type(name, getattr(self, name), int, float)
        check_type("limits", self.limits, Limits)
        check_type("env", self.env, Mapping)
        check_type("user", self.user, int, type(None))

    def _check_network(self) -> None:
        if self.network not in (*get_args(Network), None):
            wanted = ", ".join(POD_NETWORKS)
            raise ConfigurationError(f"network is {self.network!r}; it must be one of {wanted}")
        if self.network not in (*POD_NETWORKS, None):
            raise ConfigurationError(
                f"network is `{self.network}`; a pod can have `none`, or `bridge`, the cluster's",
                hint="use docker for `open` and `allowlist`",
            )


def _check_path(path: str) -> None:
    check_inside(path)
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"a directory inside is {path!r}; a cluster accepts only UTF-8 names"
        ) from None
    if ":" in path:
        raise ConfigurationError(f"a directory inside is `{path}`; it must not contain `:`")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlan:
    """Every detail of one pod.

    `has_own_user`: no other pod has its uid. `lifetime_s`: the cluster ends it after this time, or
    at its maximum age.
    """

    settings: KubernetesSettings
    name: str
    owner: str
    uid: int
    has_own_user: bool = True
    lifetime_s: float | None = None

    @property
    def ends_after_s(self) -> int:
        """The whole seconds after which the cluster ends it."""
        longest = int(self.settings.max_age_s)
        return longest if self.lifetime_s is None else min(longest, math.ceil(self.lifetime_s))


def manifest(plan: PodPlan) -> dict[str, Any]:
    """Return the manifest of the pod."""
    settings = plan.settings
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": plan.ends_after_s,
        "terminationGracePeriodSeconds": _GRACE_S,
        # Nothing in the pod needs access to the cluster.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {**_WHO, "runAsUser": plan.uid, "runAsGroup": plan.uid},
        "containers": [_container(plan)],
        "volumes": [
            {"name": name, "emptyDir": _size(settings.limits)}
            for name in _volumes(settings.inside).values()
        ],
    }
    if settings.runtime_class:
        spec["runtimeClassName"] = settings.runtime_class
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": plan.name, "labels": {MANAGED: "kakoi", OWNER: label(plan.owner)}},
        "spec": spec,
    }


_WHO: Final[Mapping[str, Any]] = {
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def _container(plan: PodPlan) -> dict[str, Any]:
    settings = plan.settings
    env = {"HOME": HOME, "USER": "agent", "LOGNAME": "agent", **settings.env}
    return {
        "name": CONTAINER,
        "image": settings.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-I", "-S", "-c", _FIRST],
        "workingDir": settings.inside,
        "env": [{"name": name, "value": _literal(value)} for name, value in env.items()],
        "resources": _resources(settings.limits),
        "securityContext": {
            **_WHO,
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": name, "mountPath": path} for path, name in _volumes(settings.inside).items()
        ],
    }


def _literal(value: str) -> str:
    """Escape `$(NAME)`, which the cluster would replace with another variable's value."""
    return value.replace("$(", "$$(")


def _volumes(inside: str) -> dict[str, str]:
    """Every writable directory, with the name of its volume."""
    # In an image, only root can enter /root.
    of_root = ["/root"] if inside.startswith("/root/") else []
    paths = sorted({inside, HOME, *_TEMPORARY, *of_root})
    return {path: f"v{number}" for number, path in enumerate(paths)}


def _size(limits: Limits) -> dict[str, str]:
    return {} if limits.disk_bytes is None else {"sizeLimit": str(limits.disk_bytes)}


def _resources(limits: Limits) -> dict[str, dict[str, str]]:
    wanted = {
        "cpu": limits.cpus,
        "memory": limits.memory_bytes,
        "ephemeral-storage": limits.disk_bytes,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    requests = {name: min(least, given.get(name, least)) for name, least in _REQUESTS.items()}
    return {
        "limits": {name: _quantity(name, value) for name, value in given.items()},
        "requests": {name: _quantity(name, value) for name, value in requests.items()},
    }


def _quantity(name: str, value: float) -> str:
    # A cluster counts CPUs in thousandths, and accepts no less than one of these.
    return f"{max(round(value * 1000), 1)}m" if name == "cpu" else str(int(value))


def label(text: str) -> str:
    """Turn a text into a valid label value."""
    return re.sub(r"[^A-Za-z0-9._-]", ".", text)[:63].strip("._-")


def cluster_args(settings: KubernetesSettings) -> list[str]:
    """Options for context and namespace. `--name=value`: a value is never taken for an option."""
    given = {"--context": settings.context, "--namespace": settings.namespace}
    return [f"{option}={value}" for option, value in given.items() if value]


def exec_args(settings: KubernetesSettings, name: str, argv: Sequence[str]) -> list[str]:
    """`exec`: `argv` in a running pod."""
    chosen = cluster_args(settings)
    return ["kubectl", *chosen, "exec", "-i", name, "-c", CONTAINER, "--", *argv]


@dataclass(frozen=True, slots=True)
class ListedPod:
    """One of kakoi's pods, as the cluster lists it."""

    name: str
    phase: str
    created_s: float
    max_age_s: float


def parse_pods(answer: Mapping[str, Any]) -> list[ListedPod]:
    """Parse the output of `kubectl get pods -o json`; unreadable pods are left out."""
    found = []
    for item in answer.get("items") or ():
        try:
            created = datetime.fromisoformat(item["metadata"]["creationTimestamp"])
            found.append(
                ListedPod(
                    name=str(item["metadata"]["name"]),
                    phase=str(item["status"].get("phase", "")),
                    created_s=created.timestamp(),
                    max_age_s=float(item["spec"].get("activeDeadlineSeconds", _LONGEST_S)),
                )
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return found


def expired_pods(pods: Sequence[ListedPod], *, now_s: float) -> list[ListedPod]:
    """The pods past their maximum age: the cluster ends them, but never deletes them.

    A pod that ended earlier stays until then, so that its creator can find out why.
    """
    return [pod for pod in pods if now_s > pod.created_s + pod.max_age_s]
