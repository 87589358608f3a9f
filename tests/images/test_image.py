"""The workspace image, built without a registry: what it holds, and what its user cannot change."""

import io
import json
import os
import zipfile
from pathlib import Path

import pytest

from tests.images.boxes import LABEL, Box, docker, kakoi
from tests.images.conftest import IMAGE


@pytest.mark.requirement("E-006", "E-007", "E-008", "E-009", "Y-17")
def test_the_image_is_what_its_description_says(image: str) -> None:
    said = kakoi("image", "check", image, "--json")
    checks = {check["name"]: check["outcome"] for check in json.loads(said.stdout)}
    assert said.returncode == 0, said.stdout
    assert set(checks.values()) == {"ok"}
    tools = {f"{tool} --version" for tool in ("node", "python3", "pip", "curl", "git")}
    assert tools | {"/etc/allowlist cannot be changed"} <= set(checks)


@pytest.mark.extended("big image: it is built for minutes")
@pytest.mark.slow("two compilers run in it")
@pytest.mark.requirement("A-018")
def test_the_default_image_has_the_runtimes_of_four_languages(full_image: str) -> None:
    """Each runs something: a version alone would be had from a stub."""
    script = """
        node -e 'console.log("node", process.version.split(".")[0])'
        python3 -c 'print("python", 6 * 7)'
        mkdir /tmp/x && cd /tmp/x
        printf 'package main\nfunc main() { println("go") }\n' >x.go && go run x.go 2>&1
        printf 'class X { public static void main(String[] a) { System.out.println("java"); } }' >X.java
        javac X.java && java X
    """
    argv = ["run", "--rm", "--network", "none", "--label", LABEL, full_image, "sh", "-ec", script]
    assert docker(*argv).stdout.splitlines() == ["node v20", "python 42", "go", "java"]
    said = kakoi("image", "check", full_image, "--as", "full", "--json")
    checks = {check["name"]: check["outcome"] for check in json.loads(said.stdout)}
    assert said.returncode == 0, said.stdout
    # Only an image of a registry has it: see the Dockerfile.
    assert [name for name, outcome in checks.items() if outcome != "ok"] == ["mamba --version"]


def test_an_image_that_is_not_is_told_apart(image: str) -> None:
    said = kakoi("image", "check", "kakoi-test:python", "--as", "base")
    assert said.returncode == 1
    assert "failed   commands run as a user that is not root" in said.stdout
    assert "ok       python3 --version" in said.stdout
    gone = kakoi("image", "check", "kakoi-test:no-such-image")
    assert gone.returncode == 2
    assert "not found" in gone.stderr


def test_it_is_not_built_twice_and_is_listed(image: str) -> None:
    said = kakoi("image", "build", "base", "--without-registry", "--tag", image, "--label", LABEL)
    assert said.stdout == f"{image} is up to date\n"
    listed = json.loads(kakoi("image", "list", "--json").stdout)
    assert "base" in [each["variant"] for each in listed if each["name"] == IMAGE]


@pytest.mark.requirement("E-007", "E-008", "E-009", "Y-17", "X-35")
def test_the_agent_cannot_change_what_may_be_installed(box: Box) -> None:
    assert box("id -un").stdout == "agent\n"
    assert box("getent passwd agent").stdout.strip().endswith("/home/agent:/bin/bash")
    for attempt in (
        "echo x >>/etc/allowlist/pip.txt",
        "rm -f /etc/allowlist/pip.txt",
        "mv /etc/allowlist /etc/other",
        "touch /etc/allowlist/gem.txt",
        "chmod 777 /etc/allowlist",
        "echo x >>/usr/local/bin/install.sh",
        "rm -f /usr/local/bin/install.sh",
        "ln -sf /tmp/x /usr/local/bin/pip",
        "su -c id",
    ):
        assert box(attempt).returncode != 0, attempt
    assert box("test -x /usr/local/bin/install.sh && ls /etc/allowlist").stdout.split() == [
        *("apt.txt", "npm.txt", "pip.txt")
    ]
    assert box("stat -c %U:%a /etc/allowlist /etc/allowlist/pip.txt").stdout.split() == [
        *("root:755", "root:644")
    ]


def wheel(name: str, version: str) -> bytes:
    """The smallest package there is."""
    data, info = io.BytesIO(), f"{name}-{version}.dist-info"
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(f"{name}.py", "answer = 42\n")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return data.getvalue()


@pytest.mark.requirement("E-006", "E-020", "E-031", "Y-18")
@pytest.mark.slow("pip and npm install in an image")
def test_a_listed_package_is_installed_and_another_is_not(box: Box) -> None:
    box.put(
        {
            "/etc/pip.conf": b"[global]\nno-index = true\nfind-links = /srv\n",
            "/srv/flake8-99.0-py3-none-any.whl": wheel("flake8", "99.0"),
            "/srv/evil-1.0-py3-none-any.whl": wheel("evil", "1.0"),
        }
    )
    said = box("install.sh pip flake8")
    assert said.returncode == 0, said.stderr
    # In an environment of the agent's own, which its python is from.
    assert box(
        "python -c 'import flake8; print(flake8.answer, flake8.__file__)'"
    ).stdout.startswith("42 /home/agent/.venv/")
    assert box("install.sh pip evil").returncode == 1
    assert box("python -c 'import evil'").returncode != 0
    assert box("install.sh pip flake8==99.0").returncode == 1
    assert box("install.sh pip black").returncode == 2
    assert box("install.sh apt curl").returncode == 2
    entries = [json.loads(line) for line in box("cat /logs/*").stdout.splitlines()]
    assert [(entry["package"], entry["status"]) for entry in entries] == [
        ("flake8", "success"),
        ("evil", "rejected"),
        ("flake8==99.0", "rejected"),
        ("black", "failed"),
        ("curl", "failed"),
    ]


@pytest.mark.requirement("X-35")
@pytest.mark.slow("apt tries again before it gives up")
def test_root_from_outside_runs_nothing_of_the_agents(box: Box) -> None:
    """The agent's own folder comes first on PATH, but not on root's."""
    box("mkdir -p ~/.venv/bin; printf '#!/bin/sh\\nid -u >/tmp/was\\n' >~/.venv/bin/apt-get; chmod +x ~/.venv/bin/apt-get")  # fmt: skip
    said = box("install.sh apt vim", user="0")
    assert said.returncode == 2  # Without a network there is nothing to be had.
    assert box("cat /tmp/was").returncode != 0


def test_apt_is_refused_where_there_is_no_network(box: Box, tmp_path: Path) -> None:
    said = kakoi("install", "--container", box.name, "--log-dir", str(tmp_path), "apt", "jq")
    assert said.returncode == 2
    assert "it has no network" in said.stderr
    (log,) = tmp_path.iterdir()
    assert json.loads(log.read_text())["status"] == "failed"


def test_a_dockerfile_build_runs_the_same_setup(image: str, tmp_path: Path) -> None:
    """From an image that has everything already, since there is no registry to pull from."""
    name = f"kakoi-test:from-dockerfile-{os.getpid()}"
    try:
        said = kakoi("image", "build", "base", "--base", image, "--tag", name, "--label", LABEL)  # fmt: skip
        assert said.returncode == 0, said.stderr
        assert docker("run", "--rm", name, "id", "-un").stdout == "agent\n"
    finally:
        docker("image", "rm", name, check=False)


@pytest.mark.extended("big image: it is built for minutes")
@pytest.mark.slow("two images are built from it")
def test_the_dockerfile_takes_mamba_from_an_image_of_its_own(full_image: str) -> None:
    """One that answers to its name stands in for it: the real one is in a registry only."""
    name, given = f"kakoi-test:with-mamba-{os.getpid()}", f"kakoi-test:mamba-{os.getpid()}"
    text = f"FROM {full_image}\nUSER root\nRUN printf '#!/bin/sh\\necho it was $0 $1' >/bin/micromamba; chmod 755 /bin/micromamba\n"  # fmt: skip
    try:
        docker("build", "--quiet", "--label", LABEL, "--tag", given, "-", stdin=text.encode())
        said = kakoi(
            *("image", "build", "full", "--base", full_image, "--mamba", given),
            *("--tag", name, "--label", LABEL),
            timeout_s=600,
        )
        assert said.returncode == 0, said.stderr
        argv = ["run", "--rm", "--label", LABEL, name, "mamba", "--version"]
        assert docker(*argv).stdout == "it was /usr/local/bin/mamba --version\n"
        said = kakoi("image", "check", name, "--json")
        assert {check["outcome"] for check in json.loads(said.stdout)} == {"ok"}
    finally:
        docker("image", "rm", name, given, check=False)
