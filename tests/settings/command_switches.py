"""Switches for commands: policy, sandbox, limits, log and packages."""

import json
import os
import subprocess
import sys
import time

from kakoi.approvals import Approvals, ApprovalStore, approvals_file
from kakoi.approvals.forms import AskedCommand
from tests.backends.container_use_server import install as install_container_use
from tests.backends.kubectl_standin import asked
from tests.backends.kubectl_standin import install as install_kubectl
from tests.cli.terminals import PATIENCE_S
from tests.settings.world import See, Switch, World

ALLOWED, DENIED, ASKED = 0, 126, 3
PYTHON, BUSYBOX = "kakoi-test:python", "kakoi-test:busybox"
NOWHERE = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
HOST = {"sandbox.type": "host"}
BUBBLEWRAP = {"sandbox.type": "bubblewrap"}
DOCKER = {"sandbox.type": "docker", "sandbox.docker.image": PYTHON}
LISTED = {**BUBBLEWRAP, "sandbox.network": "allowlist"}
OWN_RULE = {
    "id": "no-greetings",
    "verdict": "deny",
    "commands": ["echo"],
    "operands": ["hello"],
    "reason": "nobody greets here",
    "match": ["echo hello"],
    "not_match": ["echo bye"],
}


def check(command: str) -> See:
    return lambda world: world.kakoi("check", command)[0]


def status(*words: str) -> See:
    return lambda world: world.kakoi(*words)[0]


def output(command: str) -> See:
    return lambda world: world.run(command)


def after(see: See, *, write: str, text: str = "") -> See:
    """See something after a file was written in the project."""

    def seen(world: World) -> object:
        world.home.write(world.home.project / write, text)
        return see(world)

    return seen


def ended_after(world: World) -> str:
    """The time after which a command is ended that would never end."""
    _, _, err = world.kakoi("run", "sleep 600")
    words = err.partition("timed out after ")[2].split()
    return " ".join(words[:2]).rstrip(";")


BESIDE = """
import asyncio, os, sys
from kakoi import Sandbox

async def main():
    async with Sandbox.from_settings(".") as box:
        first = asyncio.create_task(box.run("touch begun; sleep 600"))
        while not os.path.exists("begun"):
            await asyncio.sleep(0.01)
        try:
            async with asyncio.timeout(float(sys.argv[1])):
                await box.run("true")
                print("runs")
        except TimeoutError:
            print("waits")
        first.cancel()

asyncio.run(main())
"""


def second_command(world: World) -> str:
    """What a second command does while another one runs."""
    patience_s = 0.3 if world.values["execution.concurrency"] == 1 else PATIENCE_S
    argv = [sys.executable, "-c", BESIDE, str(patience_s)]
    project, environ = world.home.project, world.home.environ
    done = subprocess.run(argv, cwd=project, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def allowed_for_always(world: World) -> int:
    """The exit code of a command whose approval the user wanted remembered."""
    project = os.path.realpath(world.home.project)
    store = ApprovalStore(approvals_file(world.home.environ))
    approvals = Approvals(store, project, days=30, clock=time.time)
    approvals.add((AskedCommand(("git", "init", "x"), project),))
    return world.kakoi("run", "git init x")[0]


def exists(name: str, see: See) -> See:
    """Whether something is there, below the home directory, after `see`."""

    def seen(world: World) -> bool:
        see(world)
        return any(world.root.glob(name))

    return seen


def blocked_by_list(world: World) -> bool:
    report = world.report("curl -s -m 20 http://a.invalid/")
    return any("allowed_domains" in str(each) or each.get("by_list")
               for each in report["blocked_connections"])  # fmt: skip


def answered(world: World) -> bool:
    """Whether the proxy would forward a request over TLS, which it does for a credential."""
    return ":443" in json.dumps(world.report("curl -s -m 20 http://a.invalid/"))


def limit(command: str, size: int = 1) -> See:
    return lambda world: int(world.run(command).split()[0]) // size


# --- Stand-ins for engines ---------------------------------------------------------------------


def in_pod(world: World) -> tuple[dict[str, object], list[list[str]]]:
    """The pod that is made, and all that kubectl was asked."""
    folder = world.root / "cluster"
    folder.mkdir()
    bin = install_kubectl(folder)
    kubectl = bin / "kubectl"
    real = kubectl.rename(bin / "real")
    kubectl.write_text(
        f'#!/bin/sh\ncase "$*" in *dry-run*) exec {real} "$@";;\n*create*) '
        f'tee {folder}/pod | {real} "$@";;\n*) exec {real} "$@";; esac\n'
    )
    kubectl.chmod(0o755)
    path = f"{bin}:{os.environ['PATH']}"
    world.home(*("run", "true"), PATH=path)
    pod = json.loads((folder / "pod").read_text())
    return pod, asked(folder)


def pod(*keys: str) -> See:
    def seen(world: World) -> object:
        found: object = in_pod(world)[0]
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else found[int(key)]  # type: ignore[index]
        return found

    return seen


def kubectl_option(name: str) -> See:
    def seen(world: World) -> object:
        words = {word for call in in_pod(world)[1] for word in call}
        return sorted(word.partition("=")[2] for word in words if word.startswith(f"{name}="))

    return seen


def in_cluster(see: See, *, status: str = "") -> See:
    """See something with a cluster."""

    def seen(world: World) -> object:
        folder = world.root / "cluster"
        folder.mkdir()
        if status:
            (folder / "status").write_text(status)
        return see(world.with_path(install_kubectl(folder)))

    return seen


def container_use(world: World) -> str:
    """Run something in an environment of container-use; return all that its server was asked."""
    folder = world.root / "cu"
    (folder / "environments").mkdir(parents=True)
    install_container_use(folder, sys.executable)
    settings = {"MODE": "", "ENVIRONMENTS": folder / "environments", "CALLS": folder / "calls"}
    (folder / "settings").write_text("\n".join(f"{k}={v}" for k, v in settings.items()))
    (world.home.project / ".git").mkdir()
    _, _, err = world.home("run", "sleep 600", PATH=f"{folder}:{os.environ['PATH']}")
    calls = folder / "calls"
    return (calls.read_text() if calls.exists() else "") + err


def with_container_use(*words: str) -> See:
    def seen(world: World) -> list[str]:
        text = container_use(world)
        return [word for word in words if word in text]

    return seen


# --- Packages -----------------------------------------------------------------------------------


def refused_package(world: World) -> int:
    for name, listed in (("one", "flask\n"), ("two", "django\n")):
        for ecosystem in ("pip", "npm", "apt"):
            world.home.write(world.root / name / f"{ecosystem}.txt", listed)
    return int("is not on" in world.kakoi("install", "pip", "django")[2])


def cached(world: World) -> int:
    world.home.write(world.root / "one" / "npm.tar", "x" * 5000)
    return int(json.loads(world.kakoi("cache", "list", "--json")[1]).get("npm", 0))


CONTAINER_USE = {"sandbox.type": "container-use"}
QUICK = {"execution.timeout_seconds": 0.2}
KUBERNETES = {"sandbox.type": "kubernetes", "sandbox.kubernetes.namespace": "ours"}
# Its stand-in is no cluster, and limits nothing.
UNLIMITED = {
    **KUBERNETES,
    **{f"resources.{name}": "none" for name in ("cpu_limit", "memory_limit", "disk_limit")},
}
SPEC = ("spec",)
INSIDE = (*SPEC, "containers", "0")

SWITCHES = [
    Switch("policy.profile", ("coding-agent", "open"), check("sudo id"), (DENIED, ALLOWED)),
    Switch("policy.use_default", (True, False), check("ls"), (ALLOWED, DENIED)),
    Switch("policy.additional", ([], ["frob"]), check("frob"), (DENIED, ALLOWED)),
    Switch("policy.exclude", ([], ["ls"]), check("ls"), (ALLOWED, DENIED)),
    Switch(
        "policy.custom_list",
        (["ls"], ["cat"]),
        check("ls"),
        (ALLOWED, DENIED),
        {"policy.use_default": False},
    ),
    Switch("policy.blocked", ([], ["git status"]), check("git status"), (ALLOWED, DENIED)),
    Switch("policy.block_patterns", ([], ["xyz"]), check("echo xyz"), (ALLOWED, DENIED)),
    Switch(
        "policy.packages",
        ("unrestricted", "allowlist"),
        check("pip install x"),
        (ALLOWED, DENIED),
    ),
    Switch("policy.enabled", (True, False), check("ls"), (ALLOWED, DENIED)),
    Switch("policy.require_confirmation", (False, True), check("ls"), (ALLOWED, ASKED)),
    Switch("policy.remember_days", (30, 0), allowed_for_always, (0, DENIED), base=HOST),
    Switch("policy.allowed_directories", (["/"], ["/opt"]), check("ls"), (ALLOWED, DENIED)),
    Switch("policy.rules", ([], [OWN_RULE]), check("echo hello"), (ALLOWED, DENIED)),
    Switch(
        "sandbox.type",
        ("host", "bubblewrap"),
        lambda world: world.report("true")["sandbox"],
        ("host", "bubblewrap"),
    ),
    Switch(
        "sandbox.fallback",
        (None, "host"),
        lambda world: world.kakoi("run", "true")[0] == 0,
        (False, True),
        {"sandbox.type": "docker"},
        NOWHERE,
    ),
    Switch(
        "sandbox.network",
        ("none", "open"),
        output("echo got ${HTTP_PROXY:+a proxy}"),
        ("got", "got a proxy"),
        BUBBLEWRAP,
    ),
    Switch(
        "sandbox.allowed_domains",
        (["a.invalid"], ["b.invalid"]),
        blocked_by_list,
        (False, True),
        LISTED,
    ),
    Switch(
        "sandbox.kernel_allowlist",
        (False, True),
        after(status("run", "make -s go"), write="Makefile", text="go:\n\twhoami\n"),
        (0, 2),
        {**BUBBLEWRAP, "policy.exclude": ["whoami"]},
    ),
    Switch(
        "sandbox.credentials",
        ([], ["a.invalid X-Key=A_KEY"]),
        answered,
        (False, True),
        {**LISTED, "sandbox.allowed_domains": ["a.invalid"]},
        {"A_KEY": "k"},
    ),
    Switch(
        "sandbox.copy_on_write",
        (False, True),
        exists("project/made", output("touch made")),
        (True, False),
        BUBBLEWRAP,
    ),
    Switch(
        "sandbox.overlays",
        ("{root}/one", "{root}/two"),
        exists("two/*", output("touch made")),
        (False, True),
        {**BUBBLEWRAP, "sandbox.copy_on_write": True},
    ),
    Switch(
        "sandbox.docker.image",
        (PYTHON, BUSYBOX),
        output("command -v python3 || echo none"),
        ("/usr/bin/python3", "none"),
        DOCKER,
    ),
    Switch(
        "sandbox.docker.network",
        ("none", "bridge"),
        output("grep -c eth0 /proc/net/dev || :"),
        ("0", "1"),
        DOCKER,
    ),
    Switch("sandbox.docker.timeout", (0.3, 0.4), ended_after, ("0.3 s", "0.4 s"), DOCKER),
    Switch(
        "sandbox.container_use.image",
        ("one:1", "two:2"),
        with_container_use("one:1", "two:2"),
        (["one:1"], ["two:2"]),
        {**CONTAINER_USE, **QUICK},
    ),
    Switch(
        "sandbox.container_use.env_id",
        ("first-env", "other-env"),
        with_container_use("first-env", "other-env"),
        (["first-env"], ["other-env"]),
        {**CONTAINER_USE, **QUICK},
    ),
    Switch(
        "sandbox.container_use.timeout",
        (0.3, 0.4),
        with_container_use("0.3 s", "0.4 s"),
        (["0.3 s"], ["0.4 s"]),
        CONTAINER_USE,
    ),
    Switch(
        "sandbox.kubernetes.context",
        ("one", "two"),
        kubectl_option("--context"),
        (["one"], ["two"]),
        KUBERNETES,
    ),
    Switch(
        "sandbox.kubernetes.namespace",
        ("one", "two"),
        kubectl_option("--namespace"),
        (["one"], ["two"]),
        KUBERNETES,
    ),
    Switch(
        "sandbox.kubernetes.image",
        ("one:1", "two:2"),
        pod(*INSIDE, "image"),
        ("one:1", "two:2"),
        KUBERNETES,
    ),
    Switch(
        "sandbox.kubernetes.runtime_class",
        ("one", "two"),
        pod(*SPEC, "runtimeClassName"),
        ("one", "two"),
        KUBERNETES,
    ),
    Switch(
        "sandbox.kubernetes.max_age",
        (100, 200),
        pod(*SPEC, "activeDeadlineSeconds"),
        (100, 200),
        KUBERNETES,
    ),
    Switch(
        "sandbox.kubernetes.user",
        (1234, 5678),
        pod(*SPEC, "securityContext", "runAsUser"),
        (1234, 5678),
        KUBERNETES,
    ),
    Switch(
        "sandbox.kubernetes.network",
        ("none", "bridge"),
        in_cluster(status("run", "python3 -c 'import socket; socket.socket()' 2> /dev/null")),
        (1, 0),
        UNLIMITED,
    ),
    Switch(
        "sandbox.kubernetes.timeout",
        (0.3, 0.4),
        in_cluster(ended_after),
        ("0.3 s", "0.4 s"),
        UNLIMITED,
    ),
    Switch(
        "sandbox.kubernetes.start_timeout",
        (0.3, 0.4),
        in_cluster(
            lambda world: [
                each for each in ("0.3 s", "0.4 s") if each in world.kakoi("run", "true")[2]
            ],
            status='{"phase": "Pending"}',
        ),
        (["0.3 s"], ["0.4 s"]),
        UNLIMITED,
    ),
    Switch("sandbox.host.timeout", (0.3, 0.4), ended_after, ("0.3 s", "0.4 s"), HOST),
    Switch(
        "sandbox.host.warn_on_start",
        (True, False),
        lambda world: "confined by nothing" in world.kakoi("run", "true")[2],
        (True, False),
        HOST,
    ),
    Switch(
        "sandbox.host.confine",
        (False, True),
        lambda world: world.report("true")["sandbox"],
        ("host", "confined-host"),
        HOST,
    ),
    Switch(
        "resources.cpu_limit",
        (0.5, 1),
        limit("cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max 2>&1 || :"),
        (50_000, 100_000),
        DOCKER,
    ),
    Switch(
        "resources.memory_limit",
        ("64MiB", "1GiB"),
        after(
            lambda world: world.report("python3 fill.py")["reason"],
            write="fill.py",
            text="bytearray(200_000_000)\n",
        ),
        ("out_of_memory", "exited"),
        BUBBLEWRAP,
    ),
    Switch(
        "resources.disk_limit",
        ("64MiB", "128MiB"),
        limit("df -k --output=size /tmp | tail -n 1", 1024),
        (24, 48),
        BUBBLEWRAP,
    ),
    Switch("resources.processes", (50, 60), limit("ulimit -u"), (50, 60), BUBBLEWRAP),
    Switch("resources.open_files", (300, 400), limit("ulimit -n"), (300, 400), BUBBLEWRAP),
    Switch(
        "resources.file_size_limit",
        ("1MiB", "2MiB"),
        limit("ulimit -f"),
        (1024, 2048),
        BUBBLEWRAP,
    ),
    Switch("execution.timeout_seconds", (0.3, 0.4), ended_after, ("0.3 s", "0.4 s"), HOST),
    Switch(
        "execution.max_output_size",
        (10, 20),
        lambda world: len(world.report("seq 100")["stdout"]),
        (10, 20),
        HOST,
    ),
    Switch("execution.concurrency", (1, 2), second_command, ("waits", "runs"), HOST),
    Switch(
        "audit.file",
        ("{root}/one.jsonl", "{root}/two.jsonl"),
        exists("two.jsonl", output("true")),
        (False, True),
        HOST,
    ),
    Switch(
        "packages.allowlist",
        ("{root}/one", "{root}/two"),
        refused_package,
        (1, 0),
        {**HOST, "policy.packages": "allowlist"},
    ),
    Switch("packages.cache_dir", ("{root}/one", "{root}/two"), cached, (5000, 0)),
    Switch(
        "packages.log_dir",
        ("{root}/one", "{root}/two"),
        exists("two/*", status("install", "pip", "no-such-name-here")),
        (False, True),
        HOST,
    ),
]
