"""What a pod is like, what is refused, and what a cluster's complaints mean. Nothing is run here."""

import json
from typing import Any

import pytest

from kakoi.backends.adapter import Limits
from kakoi.backends.docker.container import default_owner
from kakoi.backends.kubernetes.adapter import pod_limit_report, pod_restrictions, runner_settings
from kakoi.backends.kubernetes.errors import (
    PodState,
    explain,
    pod_state,
    start_error,
    start_timeout_error,
)
from kakoi.backends.kubernetes.pod import (
    KubernetesSettings,
    ListedPod,
    PodPlan,
    exec_args,
    expired_pods,
    label,
    manifest,
    parse_pods,
)
from kakoi.backends.settings import NAMES, SandboxConfig
from kakoi.channel.api import MIB
from kakoi.errors import (
    ConfigurationError,
    EnvironmentUnavailableError,
    ImagePullError,
    SandboxError,
)


def made(settings: KubernetesSettings | None = None) -> dict[str, Any]:
    plan = PodPlan(
        settings=settings or KubernetesSettings(), name="kakoi-1", owner="uid-7@me", uid=4242
    )
    return manifest(plan)


def container(settings: KubernetesSettings | None = None) -> dict[str, Any]:
    (found,) = made(settings)["spec"]["containers"]
    assert isinstance(found, dict)
    return found


# --- The manifest ----------------------------------------------------------------------------


def test_a_pod_has_no_rights_on_the_cluster_or_its_node() -> None:
    spec = made()["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 4242,
        "runAsGroup": 4242,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container()["securityContext"] == {
        "runAsNonRoot": True,
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & spec.keys()
    assert all("emptyDir" in volume for volume in spec["volumes"])


def test_the_cluster_ends_a_pod_whatever_becomes_of_us() -> None:
    spec = made(KubernetesSettings(max_age_s=90.5))["spec"]
    assert spec["activeDeadlineSeconds"] == 90
    assert spec["restartPolicy"] == "Never"
    # Zero would forget the pod, whether or not it has ended.
    assert spec["terminationGracePeriodSeconds"] == 1


def test_limits_are_the_clusters_and_little_is_reserved() -> None:
    limits = Limits(memory_bytes=256 * MIB, cpus=0.5, disk_bytes=100 * MIB)
    resources = container(KubernetesSettings(limits=limits))["resources"]
    assert resources["limits"] == {
        "cpu": "500m",
        "memory": str(256 * MIB),
        "ephemeral-storage": str(100 * MIB),
    }
    assert resources["requests"] == {
        "cpu": "50m",
        "memory": str(64 * MIB),
        "ephemeral-storage": str(64 * MIB),
    }


def test_a_request_is_never_above_its_limit_and_no_limit_is_none() -> None:
    small = Limits(memory_bytes=32 * MIB, cpus=0.0001, disk_bytes=None)
    resources = container(KubernetesSettings(limits=small))["resources"]
    assert resources["limits"] == {"cpu": "1m", "memory": str(32 * MIB)}
    assert resources["requests"]["memory"] == str(32 * MIB)
    assert resources["requests"]["cpu"] == "1m"


def test_pods_are_found_again_by_their_labels() -> None:
    labels = made()["metadata"]["labels"]
    assert labels == {"app.kubernetes.io/managed-by": "kakoi", "kakoi.owner": "uid-7.me"}


@pytest.mark.parametrize("owner", ["a@b", "-x-", "ö" * 100, "a" * 100, "..", "a\nb", "$(x)"])
def test_any_owner_makes_a_label(owner: str) -> None:
    found = label(owner)
    assert len(found) <= 63
    assert found.strip("._-") == found
    assert all(letter.isascii() and (letter.isalnum() or letter in "._-") for letter in found)


def test_two_users_of_this_machine_have_different_labels() -> None:
    assert label(default_owner()) != label(default_owner().replace("uid-", "uid-1"))


def test_the_workspace_is_at_its_own_path_and_all_that_can_be_written_is_a_volume() -> None:
    found = container(KubernetesSettings(inside="/srv/work"))
    assert found["workingDir"] == "/srv/work"
    mounts = {mount["mountPath"]: mount["name"] for mount in found["volumeMounts"]}
    assert set(mounts) == {"/srv/work", "/home/agent", "/tmp", "/var/tmp"}
    names = [volume["name"] for volume in made(KubernetesSettings(inside="/x"))["spec"]["volumes"]]
    assert sorted(mounts.values()) == sorted(names)


@pytest.mark.parametrize("inside", ["/tmp", "/home/agent"])
def test_a_workspace_where_a_volume_is_anyway_is_mounted_once(inside: str) -> None:
    paths = [m["mountPath"] for m in container(KubernetesSettings(inside=inside))["volumeMounts"]]
    assert len(paths) == len(set(paths))


def test_in_roots_home_there_is_a_way_to_the_workspace() -> None:
    mounts = container(KubernetesSettings(inside="/root/work"))["volumeMounts"]
    assert "/root" in [mount["mountPath"] for mount in mounts]


def test_a_variable_is_not_put_together_by_the_cluster() -> None:
    given = KubernetesSettings(env={"A": "$(HOME) $HOME $$"})
    env = {each["name"]: each["value"] for each in container(given)["env"]}
    assert env["A"] == "$$(HOME) $HOME $$"
    assert env["HOME"] == "/home/agent"


def test_a_runtime_class_is_passed_on() -> None:
    assert made(KubernetesSettings(runtime_class="gvisor"))["spec"]["runtimeClassName"] == "gvisor"
    assert "runtimeClassName" not in made()["spec"]


def test_a_manifest_is_json() -> None:
    assert json.loads(json.dumps(made()))["kind"] == "Pod"


# --- Settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"namespace": "--all-namespaces"}, "namespace"),
        ({"namespace": "Upper"}, "namespace"),
        ({"namespace": "a b"}, "namespace"),
        ({"namespace": "a" * 64}, "namespace"),
        ({"context": "a\nb"}, "control character"),
        ({"image": "--privileged"}, "the name of an image"),
        ({"image": ""}, "the name of an image"),
        ({"runtime_class": "../x"}, "RuntimeClass"),
        ({"network": "host"}, "a pod can have `none`, or `bridge`"),
        ({"network": "open"}, "a pod can have `none`, or `bridge`"),
        ({"network": "allowlist"}, "a pod can have `none`, or `bridge`"),
        ({"network": "nowhere"}, "must be one of none, bridge"),
        ({"user": 0}, "it must be a uid"),
        ({"user": -1}, "it must be a uid"),
        ({"user": True}, "must be int"),
        ({"max_age_s": 10}, "from a minute to 30 days"),
        ({"max_age_s": float("nan")}, "above zero"),
        ({"start_timeout_s": 0}, "above zero"),
        ({"timeout_s": float("inf")}, "above zero"),
        ({"inside": "relative"}, "full path"),
        ({"inside": "/a/../b"}, "full path"),
        ({"inside": "/proc/x"}, "belongs to the container"),
        ({"inside": "/a:b"}, "must not contain `:`"),
        ({"inside": "/a\udcff"}, "UTF-8"),
        ({"env": {"BASH_ENV": "x"}}, "change what the shell does"),
        ({"env": {"MY_TOKEN": "x"}}, "show its value"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_made(given: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        KubernetesSettings(**given)
    assert said in str(caught.value)


def test_a_context_is_one_word_and_never_an_option() -> None:
    argv = exec_args(KubernetesSettings(context="--token=x", namespace="ns"), "pod", ["sh", "-c"])
    assert argv == [
        *("kubectl", "--context=--token=x", "--namespace=ns", "exec", "-i", "pod"),
        *("-c", "sandbox", "--", "sh", "-c"),
    ]


@pytest.mark.requirement("B-043")
@pytest.mark.parametrize("key", ["type", "fallback"])
def test_type_and_fallback_take_every_sandbox_there_is_and_nothing_else(key: str) -> None:
    for name in ("docker", "container-use", "host", "auto", "bubblewrap", "kubernetes", "podman"):
        config = SandboxConfig.parse({key: name})
        assert (config.type, config.fallback)[key == "fallback"] == name
    assert "kubernetes" in NAMES
    for name in ("k8s", "Kubernetes", "kubernetes ", "none", " ", "sh"):
        with pytest.raises(ConfigurationError, match="unknown sandbox"):
            SandboxConfig.parse({key: name})


def test_the_section_is_read_in_both_spellings() -> None:
    section = {
        "context": "prod",
        "namespace": "agents",
        "image": "python:3.12",
        "runtimeClass": "gvisor",
        "startTimeout": 30,
        "max_age": 3600,
        "timeout": 5,
        "network": "bridge",
        "user": 1000650000,
    }
    found = SandboxConfig.parse({"kubernetes": section}).kubernetes
    assert found == KubernetesSettings(
        context="prod",
        namespace="agents",
        image="python:3.12",
        runtime_class="gvisor",
        start_timeout_s=30,
        max_age_s=3600,
        timeout_s=5,
        network="bridge",
        user=1000650000,
    )


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"namespce": "x"}, "did you mean `namespace`?"),
        ({"namespace": "-x"}, "sandbox.kubernetes.namespace is '-x'"),
        ({"user": "root"}, "sandbox.kubernetes.user"),
        ({"max_age": "1d"}, "a number of seconds"),
    ],
)
def test_what_is_wrong_in_the_section_is_named(section: object, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SandboxConfig.parse({"kubernetes": section})
    assert said in str(caught.value)


# --- What holds ------------------------------------------------------------------------------


def plan(user: int | None = None, limits: Limits | None = None) -> PodPlan:
    settings = KubernetesSettings(user=user, limits=limits or Limits())
    return PodPlan(settings=settings, name="p", owner="o", uid=user or 5, has_own_user=not user)


def test_processes_are_counted_only_for_a_user_of_the_pods_own() -> None:
    assert runner_settings(plan()).max_processes == Limits().processes
    assert "processes" in pod_limit_report(plan()).enforced
    assert runner_settings(plan(user=1000)).max_processes is None
    assert "processes" in pod_limit_report(plan(user=1000)).unenforced


def test_what_has_no_limit_is_neither_enforced_nor_unenforced() -> None:
    holding = pod_limit_report(plan(limits=Limits(disk_bytes=None, memory_bytes=None)))
    assert not {"disk_bytes", "memory_bytes"} & (
        holding.enforced.keys() | holding.unenforced.keys()
    )


def test_no_network_is_promised_only_where_the_kernel_can_keep_it() -> None:
    none, bridge = (
        pod_restrictions(KubernetesSettings(network=each)) for each in ("none", "bridge")
    )
    assert none["needs_abi"] == 2
    assert bridge["needs_abi"] == 0
    assert none["runner"] != bridge["runner"]
    assert pod_restrictions(KubernetesSettings(network=None)) == none


# --- Complaints ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stderr", "fact", "hint"),
    [
        ('error: context "x" does not exist', "no such context", "config get-contexts"),
        (
            "The connection to the server 127.0.0.1:1 was refused - did you specify the right "
            "host or port?",
            "no cluster answers",
            "kubectl cluster-info",
        ),
        (
            "Unable to connect to the server: dial tcp: lookup nowhere: no such host",
            "no cluster answers",
            "KUBECONFIG",
        ),
        (
            "error: You must be logged in to the server (Unauthorized)",
            "did not accept the login",
            "log in",
        ),
        (
            'Error from server (Forbidden): pods is forbidden: User "u" cannot create resource',
            'this user may not do that: pods is forbidden: User "u" cannot create resource',
            "pods/exec",
        ),
        (
            'Error from server (Forbidden): pods "x" is forbidden: violates PodSecurity '
            '"restricted:latest"',
            "own rules refuse the pod",
            "OpenShift",
        ),
        (
            'Error from server (Forbidden): pods "x" is forbidden: exceeded quota: q, requested',
            "no room for such a pod",
            "memory_limit",
        ),
        ('Error from server (NotFound): namespaces "x" not found', "namespace", "kubectl create"),
        ("Unable to connect to the server: x509: certificate signed by unknown", "answers", "info"),
    ],
)
def test_a_complaint_says_the_fact_and_the_next_step(stderr: str, fact: str, hint: str) -> None:
    error = explain(stderr, doing="creating a pod", about="x")
    assert isinstance(error, EnvironmentUnavailableError)
    assert fact in str(error)
    assert hint in error.hint
    assert error.details["environmentType"] == "kubernetes"


def test_a_complaint_that_nobody_knows_is_passed_on_without_secrets() -> None:
    error = explain("error: odd\nAuthorization: Bearer abcdefghijklmnop123456", doing="it")
    assert type(error) is SandboxError
    assert "abcdefghijklmnop123456" not in str(error) + str(error.details)
    assert "no reason given" in str(explain("", doing="it"))


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"state": {"waiting": {"reason": reason, "message": message}}}
    return {"metadata": {}, "status": {"phase": "Pending", "containerStatuses": [state]}}


def test_an_image_that_cannot_be_pulled_is_reported_at_once() -> None:
    state = pod_state(waiting("ImagePullBackOff", 'Back-off pulling image "x"'))
    error = start_error(state, name="p", image="x")
    assert isinstance(error, ImagePullError)
    assert error.details["image"] == "x"
    # The first attempt may still be followed by one that succeeds.
    assert start_error(pod_state(waiting("ErrImagePull")), name="p", image="x") is None


def test_an_image_without_python_is_reported() -> None:
    state = pod_state(waiting("RunContainerError", 'exec: "python3": executable file not found'))
    error = start_error(state, name="p", image="x")
    assert error is not None
    assert "python3" in str(error)


def test_a_pod_without_a_node_says_what_is_missing() -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 Insufficient memory.",
    }
    state = pod_state({"metadata": {}, "status": {"phase": "Pending", "conditions": [condition]}})
    assert start_error(state, name="p", image="x") is None
    error = start_timeout_error(state, name="p", waited_s=1)
    assert "1 Insufficient memory" in str(error)
    assert "memory_limit" in error.hint


def test_a_pod_that_has_ended_says_why() -> None:
    ended = {"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
    pod = {"metadata": {}, "status": {"phase": "Failed", "containerStatuses": [ended]}}
    state = pod_state(pod)
    assert (state.ended, state.out_of_memory, str(state)) == (True, True, "failed (OOMKilled)")
    late = {"phase": "Failed", "reason": "DeadlineExceeded", "message": "was active too long"}
    assert "DeadlineExceeded: was active too long" in str(pod_state({"status": late}))


def test_a_pod_that_is_being_deleted_is_not_running() -> None:
    up = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
    assert pod_state({"metadata": {}, "status": up}).running
    assert not pod_state({"metadata": {"deletionTimestamp": "now"}, "status": up}).running
    assert PodState("Running").running is False


@pytest.mark.parametrize(
    "pod", [{}, {"status": None}, {"status": []}, {"status": {}, "metadata": 3}]
)
def test_what_is_not_a_pod_is_an_error_of_ours(pod: Any) -> None:
    with pytest.raises(SandboxError, match="cannot be read"):
        pod_state(pod)


# --- Sweeping --------------------------------------------------------------------------------


def item(name: str, created: str, deadline: int = 60) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "creationTimestamp": created},
        "spec": {"activeDeadlineSeconds": deadline},
        "status": {"phase": "Running"},
    }


def test_only_pods_whose_time_is_up_are_stale() -> None:
    answer = {
        "items": [
            item("old", "2026-01-01T00:00:00Z"),
            item("young", "2026-01-01T00:00:59Z"),
            item("long", "2026-01-01T00:00:00Z", deadline=3600),
        ]
    }
    pods = parse_pods(answer)
    assert pods[0] == ListedPod("old", "Running", 1767225600.0, 60.0)
    assert [pod.name for pod in expired_pods(pods, now_s=1767225600.0 + 61)] == ["old"]


@pytest.mark.parametrize("answer", [{}, {"items": None}, {"items": [{}, None, 3, item("x", "?")]}])
def test_what_cannot_be_read_is_not_swept(answer: Any) -> None:
    assert parse_pods(answer) == []
