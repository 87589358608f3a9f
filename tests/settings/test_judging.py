"""Judging without the model of all settings: only where nothing is set, and then the same."""

import dataclasses
from pathlib import Path

import pytest

from kakoi.errors import ConfigurationError
from kakoi.policy.profiles import PROFILES
from kakoi.settings import judging
from kakoi.settings.files import is_anything_set
from kakoi.settings.judging import JudgingSettings, judging_settings
from kakoi.settings.model import settings_table

VARIABLES = {name for setting in settings_table().values() for name in setting.env}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and working directory, without variables that set something."""
    for name in (*VARIABLES, "KAKOI_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def as_values(settings: JudgingSettings) -> dict[str, object]:
    policy = settings.policy
    parts = {each.name: getattr(policy, each.name) for each in dataclasses.fields(policy)}
    rest = {each.name: getattr(settings, each.name) for each in dataclasses.fields(settings)}
    return {**parts, **rest, "policy": policy.name}


@pytest.mark.parametrize("profile", ["", *PROFILES])
def test_where_nothing_is_set_the_settings_are_those_that_the_model_gives(
    profile: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = judging_settings(".", roots=["/w"], profile=profile)
    monkeypatch.setattr(judging, "is_anything_set", lambda *_: True)
    assert as_values(early) == as_values(judging_settings(".", roots=["/w"], profile=profile))


@pytest.mark.parametrize("name", sorted((VARIABLES | {"KAKOI_CONFIG"}) - {"KAKOI_AUDIT_FILE"}))
def test_each_variable_that_sets_something_is_noticed(home: Path, name: str) -> None:
    assert not is_anything_set(".", {"HOME": str(home), name: ""})
    assert is_anything_set(".", {"HOME": str(home), name: "x"})


@pytest.mark.parametrize(("file", "expected"), [("/x/audit.jsonl", False), ("~/a.jsonl", True)])
def test_the_log_reads_its_own_variable_unless_it_names_a_home(
    home: Path, file: str, expected: bool
) -> None:
    assert is_anything_set(".", {"HOME": str(home), "KAKOI_AUDIT_FILE": file}) is expected


@pytest.mark.parametrize("kind", ["file", "link to nothing", "folder"])
@pytest.mark.parametrize(
    "name",
    [
        *("kakoi.yaml", ".kakoi.yaml", "orch.yml", ".config/kakoi/config.yaml"),
        *("kakoi.yml", ".kakoi.yml", ".config/kakoi/config.yml"),
    ],
)
def test_each_file_that_can_set_something_is_noticed(home: Path, name: str, kind: str) -> None:
    environ = {"HOME": str(home)}
    assert not is_anything_set(".", environ)
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "file":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("nothing")
    assert is_anything_set(".", environ)


def test_what_is_set_is_obeyed(home: Path) -> None:
    (home / ".config" / "kakoi").mkdir(parents=True)
    settings = "policy: {exclude: [ls]}\nsandbox: {type: host}\naudit: {file: /x}\n"
    (home / ".config" / "kakoi" / "config.yaml").write_text(settings)
    found = judging_settings(".")
    assert "ls" not in found.policy.entries
    assert (found.confined, found.perhaps_unconfined, found.audit_file) == (False, True, "/x")


def test_a_broken_file_is_an_error(home: Path) -> None:
    (home / "kakoi.yaml").write_text("sandbox: {type: host}\n")
    with pytest.raises(ConfigurationError, match="cannot set"):
        judging_settings(".")
