"""install.sh: what it answers, what it asks of package managers, what it writes down."""

import os
import re
import shutil
import signal
import subprocess
import time
from datetime import UTC, datetime

import pytest

from kakoi.images.description import FOLDER
from kakoi.packages.allowlist import Ecosystem
from tests.packages.names import ALLOWED, REFUSED
from tests.packages.script import IS_ROOT, SHELLS, Script

ASKED = {
    "apt": ["apt-get", "install", "-y"],
    "pip": ["pip", "install", "--isolated", "--no-input", "--disable-pip-version-check"],
    "npm": [
        *("npm", "install", "--no-workspaces", "--userconfig", "/dev/null", "--cache", "…"),
        *("--git", "false", "--ignore-scripts", "--legacy-peer-deps"),
        *("--no-audit", "--no-fund", "--no-update-notifier"),
    ],
}


@pytest.mark.requirement("E-010", "E-012", "E-013", "E-021")
@pytest.mark.parametrize("kind", ["apt", "pip", "npm"])
def test_what_is_listed_is_asked_of_its_package_manager(script: Script, kind: Ecosystem) -> None:
    cases = [(package, wanted) for type_, package, wanted in ALLOWED if type_ == kind]
    ran = script(kind, *(package for package, _ in cases))
    assert ran.status == 0, ran.stderr
    # Its folder is another one each time.
    asked = [["…" if word.startswith("/tmp") else word for word in each] for each in script.calls()]
    assert asked == [[*ASKED[kind], wanted] for _, wanted in cases]
    assert [(entry["package"], entry["status"]) for entry in script.logged()] == [
        (package, "success") for package, _ in cases
    ]


@pytest.mark.requirement("E-011", "E-014", "E-020", "E-022", "X-35", "Y-21")
@pytest.mark.parametrize("kind", ["apt", "pip", "npm"])
def test_nothing_is_asked_of_a_package_manager_for_what_is_not_listed(
    script: Script, kind: Ecosystem
) -> None:
    packages = [name for type_, name in REFUSED if type_ == kind and "\0" not in name]
    ran = script(kind, *packages)
    assert ran.status == 1
    assert script.calls() == []
    assert [entry["status"] for entry in script.logged()] == ["rejected"] * len(packages)


@pytest.mark.requirement("E-015")
def test_a_failed_installation_is_reported_with_its_reason(script: Script) -> None:
    script.break_managers('no "such" \\ thing\x1b[2J\n\tat https://me:pw@host/x\n')
    assert script("pip", "requests").status == 2
    (entry,) = script.logged()
    assert entry["status"] == "failed"
    assert entry["error"] == 'exit status 1: no "such" \\ thing?[2J  at https://host/x'
    assert isinstance(entry["duration_ms"], int)


def test_who_may_not_use_apt_is_told_who_can(script: Script) -> None:
    script.break_managers("E: are you root?\n")
    ran = script("apt", "curl")
    assert ran.status == 2
    way = f"kakoi install --container {os.uname().nodename} apt curl"
    assert f"apt needs root; from outside: {way} (or in the image:" in ran.stderr
    assert way in script.logged()[0]["error"]
    script.write_list("pip", "requests\n")
    assert "kakoi install" not in script("pip", "requests").stderr


@pytest.mark.requirement("E-020")
@pytest.mark.parametrize("package", ["requests==0", "requests>=2"])
def test_a_version_that_the_list_does_not_give_is_refused(script: Script, package: str) -> None:
    ran = script("pip", package)
    assert ran.status == 1
    assert f"not on the list: {package} (a version only as listed)" in ran.stderr
    assert script.calls() == []


@pytest.mark.requirement("E-016", "X-37", "Y-19")
def test_without_a_list_nothing_is_installed(script: Script) -> None:
    script.remove_list("npm")
    ran = script("npm", "typescript")
    assert ran.status == 3
    assert "there is no list" in ran.stderr
    assert script.calls() == []
    (entry,) = script.logged()
    assert (entry["status"], entry["error"]) == ("failed", "there is no list")


@pytest.mark.requirement("E-017", "X-37")
@pytest.mark.parametrize("words", [["gem", "x"], ["", "x"], ["../pip", "x"], ["PIP", "requests"], [], ["pip"], ["\x1b[2J", "x"]])  # fmt: skip
def test_a_type_that_does_not_exist_is_reported_and_not_logged(
    script: Script, words: list[str]
) -> None:
    ran = script(*words)
    assert ran.status == 4
    assert ran.stderr.startswith("install.sh: ")
    assert "\x1b" not in ran.stderr
    assert script.calls() == []
    assert script.logged() == []


@pytest.mark.requirement("E-018", "Y-20")
@pytest.mark.parametrize("folder", ["closed", "gone", "file"])
def test_a_log_that_cannot_be_written_is_a_warning(script: Script, folder: str) -> None:
    path = script.folder / folder
    if folder == "closed":
        path.mkdir(mode=0o555, exist_ok=True)
    if folder == "file":
        path.touch()
    ran = script("pip", "requests", INSTALL_LOG_DIR=str(path))
    assert ran.status == 0
    assert "warning: this is not in the log" in ran.stderr
    assert len(script.calls()) == 1


@pytest.mark.requirement("E-023", "E-026", "E-027", "E-029", "Y-16")
def test_every_request_is_one_line_of_json(script: Script) -> None:
    names = [
        "requests",
        'a"b\\c',
        "x\ny",
        "\x1b]0;t\x07",
        "é",
        "{}",
        "%s",
        "\\u0000",
        "'",
        "y" * 300,
    ]
    before = datetime.now(UTC).replace(microsecond=0)
    assert script("pip", *names, b"\xff\xfe").status == 1
    (path,) = script.logs.iterdir()
    assert re.fullmatch(r"install-\d{8}\.jsonl", path.name)
    entries = script.logged()
    assert [entry["package"] for entry in entries] == [
        *("requests", 'a"b\\c', "x?y", "?]0;t?", "??", "{}", "%s", "\\u0000", "'", "y" * 256),
        "??",
    ]
    for entry in entries:
        moment = datetime.strptime(entry["timestamp"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        assert before <= moment <= datetime.now(UTC)
        assert entry["type"] == "pip"
        assert entry["status"] in ("success", "rejected", "failed")


@pytest.mark.requirement("E-023")
def test_a_request_that_is_interrupted_is_logged(script: Script) -> None:
    slow, calls = (script.folder / "home" / name for name in ("slow", "calls"))
    slow.touch()
    with script.start("pip", "requests") as running:
        deadline = time.monotonic() + 60
        while not calls.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        running.send_signal(signal.SIGTERM)
        slow.unlink()
        running.communicate(timeout=60)
    assert running.returncode == 2
    assert [(entry["status"], entry["error"]) for entry in script.logged()] == [
        ("failed", "interrupted")
    ]


def test_variables_that_name_another_source_are_not_passed_on(script: Script) -> None:
    script("pip", "requests", PIP_INDEX_URL="x", PYTHONPATH="x", http_proxy="http://p:1", LD_X="x")
    script("npm", "typescript", npm_config_registry="x", NODE_OPTIONS="x")
    environment = (script.folder / "home" / "environment").read_text()
    assert "http_proxy" not in environment  # That was the other one.
    names = {line.partition("=")[0] for line in environment.splitlines()}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "HOME", "LANG", "DEBIAN_FRONTEND"}


def test_a_line_that_is_not_a_package_is_reported(script: Script) -> None:
    script.write_list("pip", "two names\r\nrequests\nx.zip\n")
    ran = script("pip", "requests")
    assert ran.status == 0
    assert [line.rpartition(": ")[2] for line in ran.stderr.splitlines()] == ["two names", "x.zip"]


@pytest.mark.requirement("E-022")
def test_a_name_of_one_type_is_not_one_of_another(script: Script) -> None:
    assert script("npm", "requests").status == 1
    assert script("pip", "typescript").status == 1
    assert script.calls() == []


@pytest.mark.requirement("Y-18")
def test_pip_gets_a_virtual_environment_if_there_is_none(script: Script) -> None:
    if not shutil.which("python3"):
        pytest.skip("there is no python3")
    made = script.folder / "home" / "made"
    shutil.rmtree(made, ignore_errors=True)
    fake = script.folder / "bin" / "python3"
    fake.write_text('#!/bin/sh\necho "$*" >>"$HOME/made-by"\nmkdir -p "$4"\n')
    fake.chmod(0o755)
    assert script("pip", "requests", INSTALL_VENV=str(made)).status == 0
    fake.unlink()
    assert (script.folder / "home" / "made-by").read_text() == f"-I -m venv {made}\n"


@pytest.mark.skipif(not IS_ROOT, reason="only root can be led astray")
def test_root_is_not_led_to_another_file_by_the_log(script: Script) -> None:
    """Root writes with the rights of whoever owns the folder."""
    target = script.folder / "roots-own"
    target.write_text("kept")
    day = f"{datetime.now(UTC):%Y%m%d}"
    (script.logs / f"install-{day}.jsonl").symlink_to(target)
    environ = {"PATH": os.environ["PATH"], "INSTALL_LOG_DIR": str(script.logs)}
    done = subprocess.run(
        [*SHELLS[script.shell], str(script.folder / "install.sh"), "apt", "no-such"],
        env=environ,
        capture_output=True,
        text=True,
    )
    (script.logs / f"install-{day}.jsonl").unlink()
    assert done.returncode == 1
    assert "warning: this is not in the log" in done.stderr
    assert target.read_text() == "kept"


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="there is no shellcheck")
@pytest.mark.parametrize("name", ["install.sh", "npm.sh", "setup.sh"])
def test_shellcheck_has_nothing_to_say(name: str) -> None:
    done = subprocess.run(["shellcheck", str(FOLDER / name)], capture_output=True, text=True)
    assert done.stdout == ""
