"""`kakoi install`: the answers of install.sh, from the same lists; and orders to `kakoi image`."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kakoi.audit import read
from tests.cli.calling import Home
from tests.cli.conftest import has_bubblewrap, has_engine, need

# Takes the place of Python, which would be sent a program that calls pip.
PYTHON = """#!/bin/sh
cd "{project}" && printf '%s\\n' "$@" >asked && grep -q 'only-binary' || exit 9
if [ -e broken ]; then echo "no such thing" >&2; exit 1; fi
printf '%s\\n' 'requests 2.32' 'brought-along 1.0' "\033[2Jodd"
"""


@pytest.fixture
def kakoi(home: Home) -> Home:
    """With a Python that only says what it was asked; on the host, since nothing is confined."""
    program = home.root / "bin" / "python3"
    home.write(program, PYTHON.format(project=home.project)).chmod(0o755)
    env = {"KAKOI_SANDBOX": "host", "INSTALL_LOG_DIR": str(home.root / "logs")}
    return Home(home.root, {**env, "PATH": f"{program.parent}:{os.environ['PATH']}"})


def logged(home: Home) -> list[dict[str, Any]]:
    files = sorted((home.root / "logs").glob("install-*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


@pytest.mark.requirement("E-013", "E-014", "E-026")
def test_a_listed_package_is_installed_and_another_refused(kakoi: Home) -> None:
    status, output, said = kakoi("install", "pip", "requests[socks]")
    said_so = "installed requests[socks], with brought-along 1.0, ?[2Jodd\n"
    assert (status, output) == (0, said_so), said
    asked = (kakoi.project / "asked").read_text().splitlines()
    assert (asked[0], asked[-1]) == ("-I", "requests[socks]")
    status, _, said = kakoi("install", "pip", "evil")
    assert status == 1
    assert "`evil` is refused: it is not on the list" in said
    assert [(entry["package"], entry["status"]) for entry in logged(kakoi)] == [
        ("requests[socks]", "success"),
        ("evil", "rejected"),
    ]
    assert [entry.get("also") for entry in logged(kakoi)] == [
        ["brought-along 1.0", "?[2Jodd"],
        None,
    ]
    *_, record = read(kakoi.root / "audit.jsonl")
    assert (record.event, record.verdict) == ("refused", "deny")
    assert record.rules == ("unlisted-packages",)
    assert record.cwd == str(kakoi.project)


@pytest.mark.requirement("E-020")
@pytest.mark.parametrize("package", ["requests==0", "requests>=2", "Requests==2.32", "black==24.1"])
def test_a_version_that_the_list_does_not_give_is_refused(kakoi: Home, package: str) -> None:
    status, output, said = kakoi("install", "pip", package)
    assert (status, output) == (1, "")
    assert f"`{package}` is refused: the list has only" in said
    assert [entry["status"] for entry in logged(kakoi)] == ["rejected"]
    assert not (kakoi.project / "asked").exists()


def test_a_list_can_allow_every_version(kakoi: Home, tmp_path: Path) -> None:
    kakoi.write(tmp_path / "lists" / "pip.txt", "requests==*\n")
    own = ("install", "--allowlist", str(tmp_path / "lists"), "pip")
    assert kakoi(*own, "requests>=2,<3")[0] == 0
    assert (kakoi.project / "asked").read_text().splitlines()[-1] == "requests>=2,<3"


@pytest.mark.requirement("E-020")
@pytest.mark.parametrize("package", ["--index-url=x", "-r", "--json", "../x", "a\nb", "\x1b[2J"])
def test_what_looks_like_an_option_is_a_name_that_is_not_listed(kakoi: Home, package: str) -> None:
    status, output, said = kakoi("install", "pip", package)
    assert (status, output) == (1, "")
    assert "\x1b" not in said
    assert not (kakoi.project / "asked").exists()


def test_options_that_would_mean_nothing_are_wrong_usage(kakoi: Home) -> None:
    for options in (["--cwd", "sub"], ["--container", "x", "--env", "A=1"]):
        status, _, said = kakoi("install", *options, "pip", "requests")
        assert (status, options[-2] in said) == (2, True)
    assert not (kakoi.project / "asked").exists()


@pytest.mark.requirement("E-015")
def test_a_failure_has_its_reason(kakoi: Home) -> None:
    (kakoi.project / "broken").touch()
    status, output, _ = kakoi("install", "--json", "pip", "requests")
    assert status == 2
    assert json.loads(output)["error"] == "no such thing"
    assert logged(kakoi) == [json.loads(output)]


def test_a_failure_where_there_is_no_network_says_how_to_give_it_one(home: Home) -> None:
    need("bubblewrap", is_there=has_bubblewrap())
    home.write(home.project / ".venv", "in the way of the virtual environment")
    for network, is_told in (("none", True), ("open", False)):
        words = ("install", "--sandbox", "bubblewrap", "--network", network, "pip", "requests")
        status, _, err = home(*words, INSTALL_LOG_DIR=str(home.root / "logs"))
        assert (status, "`requests` was not installed" in err) == (2, True)
        assert ("hint: the sandbox has no network: --network open" in err) is is_told


@pytest.mark.requirement("E-016", "E-017", "X-37")
def test_no_list_and_no_type_have_their_own_statuses(kakoi: Home) -> None:
    empty = kakoi.root / "empty"
    empty.mkdir()
    assert kakoi("install", "--allowlist", str(empty), "pip", "requests")[0] == 3
    assert [entry["error"] for entry in logged(kakoi)] == ["there is no list"]
    for words in (["gem", "x"], ["pip"], []):
        status, _, said = kakoi("install", *words)
        assert (status, "hint: " in said) == (4, True)
    assert len(logged(kakoi)) == 1


def test_of_several_packages_the_worst_counts(kakoi: Home) -> None:
    assert kakoi("install", "pip", "evil", "requests")[0] == 1
    assert [entry["status"] for entry in logged(kakoi)] == ["rejected", "success"]


@pytest.mark.requirement("X-34")
def test_the_installer_works_where_direct_installation_is_refused(kakoi: Home) -> None:
    kakoi.write(kakoi.config, "packages:\n  policy: allowlist\n")
    status, _, said = kakoi("run", "pip install requests")
    assert status == 126
    assert "kakoi install TYPE PACKAGE" in said
    assert kakoi("install", "pip", "requests")[0] == 0


def test_a_hint_fits_what_failed(home: Home) -> None:
    need("docker", is_there=has_engine())
    words = ("install", "--sandbox", "bubblewrap")
    logs = str(home.root / "logs")
    status, _, err = home(*words, "--allowlist", "nowhere", "pip", "requests", INSTALL_LOG_DIR=logs)
    assert (status, "hint: write it to nowhere/pip.txt, or name another" in err) == (3, True)
    for given in (("--container", "no-such-container"), ()):
        status, _, err = home(*words, *given, "apt", "curl", INSTALL_LOG_DIR=logs)
        assert (status, "`curl` was not installed" in err, "no network" in err) == (2, True, False)


@pytest.mark.requirement("X-35")
def test_apt_is_refused_without_a_container(kakoi: Home) -> None:
    status, _, said = kakoi("install", "apt", "jq")
    assert status == 2
    assert "--container" in said


def test_lists_of_ones_own_are_read_and_nonsense_in_them_is_reported(
    kakoi: Home, tmp_path: Path
) -> None:
    kakoi.write(tmp_path / "lists" / "pip.txt", "mine==1.0\r\ntwo names\n")
    status, _, said = kakoi("install", "--allowlist", str(tmp_path / "lists"), "pip", "mine")
    assert status == 0
    assert "not a package: two names" in said
    assert (kakoi.project / "asked").read_text().splitlines()[-1] == "mine==1.0"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tag", "-x"], "not a valid image name"),
        (["--apt", "--force"], "not a valid Debian package name"),
        (["--apt", "jq=1.6"], "not a valid Debian package name"),
        (["--apt", "a\nfull pip evil"], "not a valid Debian package name"),
        (["--label", "no"], "is not a label"),
        (["--label", "a=b\nUSER root"], "is not a label"),
        (["--base", "$(id)"], "not a valid image name"),
    ],
)
def test_an_order_for_an_image_that_makes_no_sense_is_refused(
    home: Home, words: list[str], said: str
) -> None:
    status, _, error = home("image", "build", "base", *words)
    assert (status, said in error) == (2, True), error
