"""Settings of a pod → its manifest, and the arguments of `kubectl`. Pure: nothing is run here."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, get_args

from kakoi.errors import ConfigurationError
from kakoi.runner.commands import MIB, check_type
from kakoi.sandbox.adapter import DEFAULT_TIMEOUT_S, Limits, Network
from kakoi.sandbox.docker_cli import HOME, IMAGE, check_env, check_inside

CONTAINER: Final = "sandbox"
MANAGED: Final = "app.kubernetes.io/managed-by"
OWNER: Final = "kakoi.owner"
# `none` is kept by a filter of system calls around the runner, `bridge` is the cluster's network.
POD_NETWORKS: Final[tuple[Network, ...]] = ("none", "bridge")

_NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_CLASS: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_LONGEST_S: Final = 30 * 24 * 3600.0
_LAST_ID: Final = 2**31 - 1
# Enough for a pod that waits. What it may use is in the limits; to ask for all of it beforehand
# would keep a node's room for what is seldom needed.
_REQUESTS: Final = {"cpu": 0.05, "memory": 64 * MIB, "ephemeral-storage": 64 * MIB}
# A pod is asked to end, and does not listen: the first process of a PID namespace has no default
# reaction to signals. Zero would mean to forget the pod, whether or not it has ended.
_GRACE_S: Final = 1
_TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108 - as images have them

# The first process. The kernel delivers it no signal from inside, reaps what is left to it, and
# does not let commands, which have the same user, look into its memory or drive it: it is outside
# of the filter that keeps them from the network.
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
    """What pods are like. Wrong values raise ConfigurationError here, not later.

    `context`: of the kubeconfig; empty is its current one. `namespace`: empty is the context's.
    `image`: it must have python3, 3.8 or newer.
    `network`: `none`, which the kernel of the node has to be able to keep, or `bridge`, the
        cluster's own network, with all that it reaches.
    `timeout_s`: how long a command may take that names no time itself.
    `start_timeout_s`: how long a pod may take until it runs, its image pulled.
    `max_age_s`: after that the cluster ends the pod, whatever became of us.
    `runtime_class`: a RuntimeClass of the cluster, such as one with a kernel of its own.
    `inside`: the directory where commands start. It begins empty.
    `env`: variables of every command. Whoever may look at pods sees them: what is secret goes with
        a command (`Command.env`).
    `user`: the uid of commands, never 0. None: one of its own for each pod.
    """

    context: str = ""
    namespace: str = ""
    image: str = "python:3.12-slim"
    network: Network | None = "none"
    timeout_s: float = DEFAULT_TIMEOUT_S
    start_timeout_s: float = 120.0
    max_age_s: float = 24 * 3600.0
    runtime_class: str = ""
    limits: Limits = field(default_factory=Limits)
    inside: str = "/workspace"
    env: Mapping[str, str] = field(default_factory=dict)
    user: int | None = None

    def __post_init__(self) -> None:
        self._check_types()
        if _CONTROL.search(self.context):
            raise ConfigurationError(f"context is {self.context!r}; it holds a control character")
        if self.namespace and not _NAMESPACE.fullmatch(self.namespace):
            raise ConfigurationError(
                f"namespace is {self.namespace!r}; it must be small letters, digits and dashes"
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
            raise ConfigurationError(f"user is {self.user}; it must be the number of a user")
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
            f"a directory inside is {path!r}; a cluster takes names in UTF-8 only"
        ) from None
    if ":" in path:
        raise ConfigurationError(f"a directory inside is `{path}`; it can't hold `:`")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlan:
    """One pod, decided in every detail. `has_own_user`: no other pod has its uid."""

    settings: KubernetesSettings
    name: str
    owner: str
    uid: int
    has_own_user: bool = True


def manifest(plan: PodPlan) -> dict[str, Any]:
    """The pod as the cluster takes it."""
    settings = plan.settings
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": int(settings.max_age_s),
        "terminationGracePeriodSeconds": _GRACE_S,
        # Nothing in there has any business with the cluster.
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
    """A cluster would put other variables in the place of `$(NAME)`."""
    return value.replace("$(", "$$(")


def _volumes(inside: str) -> dict[str, str]:
    """All that can be written, each with the name of its volume."""
    # In an image nobody but root gets past its home.
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
    # A cluster counts processors in thousandths, and takes no fewer than one of these.
    return f"{max(round(value * 1000), 1)}m" if name == "cpu" else str(int(value))


def label(text: str) -> str:
    """A text as labels can have it."""
    return re.sub(r"[^A-Za-z0-9._-]", ".", text)[:63].strip("._-")


def chosen_args(settings: KubernetesSettings) -> list[str]:
    """Which cluster, and where in it. In one word each: a value is never an option."""
    given = {"--context": settings.context, "--namespace": settings.namespace}
    return [f"{option}={value}" for option, value in given.items() if value]


def exec_args(settings: KubernetesSettings, name: str, argv: Sequence[str]) -> list[str]:
    """`exec`: `argv` in a pod that runs."""
    chosen = chosen_args(settings)
    return ["kubectl", *chosen, "exec", "-i", name, "-c", CONTAINER, "--", *argv]


@dataclass(frozen=True, slots=True)
class ListedPod:
    """A pod of ours, as the cluster lists it."""

    name: str
    phase: str
    created_s: float
    max_age_s: float


def listed(answer: Mapping[str, Any]) -> list[ListedPod]:
    """The pods in the answer of `kubectl get pods -o json`; what cannot be read is left out."""
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


def stale(pods: Sequence[ListedPod], *, now_s: float) -> list[ListedPod]:
    """Those whose time is up: the cluster ends them, and forgets none by itself.

    One that has ended before is left to whoever made it, to see why.
    """
    return [pod for pod in pods if now_s > pod.created_s + pod.max_age_s]
