"""`kakoi config`: what holds, where from, files to begin with, and a schema for editors."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from kakoi.settings.loader import load_settings
from kakoi.settings.model import Settings, settings_table
from kakoi.settings.schema import json_schema
from tests.cli.calling import Home
from tests.cli.forked import kakoi

WAIT_S = 60
jsonschema: Any = pytest.importorskip("jsonschema")


def uncommented(text: str) -> str:
    """With every default in force: `#name: value` is one, `# Sentence.` is a remark."""
    return re.sub(r"^( *)#(\w)", r"\1\2", text, flags=re.MULTILINE)


def errors(given: object, *, project: bool = False) -> list[str]:
    validator = jsonschema.Draft202012Validator(json_schema(project=project))
    return [error.message for error in validator.iter_errors(given)]


# --- show ------------------------------------------------------------------------------------


def test_show_prints_every_setting_with_its_value(home: Home) -> None:
    status, out, err = home("config", "show")
    assert (status, err) == (0, "")
    assert [line.split(": ")[0] for line in out.splitlines()] == list(settings_table())
    assert "resources.memory_limit: 4g\n" in out
    assert "execution.timeout_seconds: 1800\n" in out
    assert "#" not in out


def test_every_value_says_where_it_comes_from(home: Home) -> None:
    home.write(home.config, "execution:\n  timeout_seconds: 60\nsandbox: {type: host}\n")
    home.write(home.project / ".kakoi.yaml", "\nexecution: {timeout_seconds: 30}\n")
    arguments = ["config", "show", "--origin"]
    _, out, _ = home(*arguments, "--profile", "shell", KAKOI_SANDBOX="bubblewrap")
    lines = {line.split(": ")[0]: line.split("  # ")[1] for line in out.splitlines()}
    assert lines["execution.timeout_seconds"].endswith(".kakoi.yaml:2")
    assert lines["sandbox.type"] == "environment variable KAKOI_SANDBOX"
    assert lines["policy.profile"] == "call"
    assert lines["audit.file"] == "environment variable KAKOI_AUDIT_FILE"
    assert lines["resources.processes"] == "default"


def test_the_object_for_programs_holds_values_and_origins(home: Home) -> None:
    home.write(home.config, "resources: {memory_limit: 512m}\n")
    answer = json.loads(home("config", "show", "--json")[1])
    assert list(answer) == list(settings_table())
    assert answer["resources.memory_limit"] == {
        "value": 512 * 1024**2,
        "origin": f"{home.config}:1",
        "description": "Memory.",
        "variables": ["EXECUTOR_MEMORY_LIMIT"],
        "project": "lower",
    }


def test_a_wrong_file_is_status_two_and_its_words_do_not_reach_the_terminal(home: Home) -> None:
    home.write(home.project / ".kakoi.yaml", '"\\e[31mexecuton": {timeout_seconds: 30}\n')
    status, out, err = home("config", "show")
    assert (status, out) == (2, "")
    assert ".kakoi.yaml:1: unknown key `\\x1b[31mexecuton.timeout_seconds`" in err
    assert "did you mean `execution.timeout_seconds`?" in err
    assert err.endswith("hint: `kakoi config show` lists every key\n")


# --- init ------------------------------------------------------------------------------------


def test_init_writes_a_file_that_changes_nothing_and_shows_every_default(home: Home) -> None:
    status, out, _ = home("config", "init")
    assert (status, out) == (0, f"wrote {home.config}\n")
    environ = {"HOME": str(home.root)}
    assert load_settings(environ=environ).origins == {}
    home.config.write_text(uncommented(home.config.read_text()))
    loaded = load_settings(environ=environ)
    assert loaded.settings == Settings()
    assert list(loaded.origins) == list(settings_table())
    assert errors(yaml.safe_load(home.config.read_text())) == []


def test_init_for_a_project_offers_what_a_project_may_set(home: Home) -> None:
    status, out, _ = home("config", "init", "--project", "--json")
    path = home.project / ".kakoi.yaml"
    assert (status, json.loads(out)) == (0, {"file": ".kakoi.yaml"})
    path.write_text(uncommented(path.read_text()))
    loaded = load_settings(home.project, environ={"HOME": str(home.root)})
    assert loaded.settings == Settings()
    may = [name for name, setting in settings_table().items() if setting.project != "nothing"]
    assert list(loaded.origins) == may
    assert errors(yaml.safe_load(path.read_text()), project=True) == []


@pytest.mark.parametrize("name", ["kakoi.yaml", ".kakoi.yaml"])
def test_init_overwrites_nothing(home: Home, name: str) -> None:
    home.write(home.project / name, "mine")
    home.write(home.config, "mine, too")
    for arguments, path in ((["--project"], home.project / name), ([], home.config)):
        text = path.read_text()
        status, _, err = home("config", "init", *arguments)
        assert status == 2
        assert "already exists" in err
        assert "hint: kakoi config show --origin" in err
        assert path.read_text() == text


def test_init_follows_no_link_to_a_file_that_is_not_there(home: Home) -> None:
    (home.project / ".kakoi.yaml").symlink_to(home.root / "elsewhere")
    status, _, err = home("config", "init", "--project")
    assert status == 2
    assert "cannot write" in err
    assert not (home.root / "elsewhere").exists()


def test_init_goes_where_the_variable_says(home: Home) -> None:
    path = home.root / "a" / "b.yaml"
    assert home("config", "init", KAKOI_CONFIG=str(path))[0] == 0
    assert path.is_file()


# --- path and schema -------------------------------------------------------------------------


def test_path_names_the_files_that_are_read_and_whether_they_exist(home: Home) -> None:
    home.write(home.project / ".kakoi.yaml", "")
    _, out, _ = home("config", "path")
    assert f"missing  {home.config}  (your own settings)\n" in out
    assert f"exists   {home.project}/.kakoi.yaml  (the project's" in out
    answer = json.loads(home("config", "path", "--json", XDG_CONFIG_HOME="/x")[1])
    assert [Path(each["file"]).name for each in answer] == [
        "config.yaml",
        "security.toml",
        "kakoi.yaml",
        ".kakoi.yaml",
    ]
    assert answer[0]["file"] == "/x/kakoi/config.yaml"
    assert [each["exists"] for each in answer] == [False, False, False, True]


def test_path_names_the_security_file_that_is_read_and_those_that_are_not(home: Home) -> None:
    used = home.write(home.root / ".kakoi" / "security.toml", "[shell]\n")
    other = home.write(home.root / ".kagura" / "security.toml", "[shell]\n")
    _, out, _ = home("config", "path")
    assert f"exists   {used}  (your own rules for the profile `shell`)\n" in out
    assert f"exists   {other}  (NOT READ: move its content to the file above" in out
    best = home.write(home.config.with_name("security.toml"), "[shell]\n")
    assert f"exists   {best}  (your own rules" in home("config", "path")[1]


@pytest.mark.parametrize("project", [True, False])
def test_the_schema_is_one_and_knows_every_setting(home: Home, project: bool) -> None:
    _, out, _ = home("config", "schema", *(["--project"] if project else []))
    schema = json.loads(out)
    assert schema == json_schema(project=project)
    jsonschema.Draft202012Validator.check_schema(schema)
    for path, setting in settings_table().items():
        place = schema
        for name in path.split("."):
            place = place.get("properties", {}).get(name, {})
        is_there = not project or setting.project != "nothing"
        assert (place.get("description") == setting.doc) is is_there
        if is_there:
            assert list(jsonschema.Draft202012Validator(place).iter_errors(place["default"])) == []


def test_the_schema_accepts_what_is_right_and_finds_what_is_wrong() -> None:
    assert errors({"sandbox": {"type": "docker", "docker": None}, "policy": None}) == []
    assert errors({"resources": {"memory_limit": "4g", "cpu_limit": 0.5}}) == []
    assert len(errors({"sandbox": {"type": "dokcer"}, "polcy": {}})) == 2
    assert len(errors({"execution": {"timeout_seconds": 0, "concurrency": 1.5}})) == 2
    assert len(errors({"policy": {"blocked": "rm", "rules": [1]}})) == 2
    assert errors({"sandbox": {"type": "host"}}, project=True) != []


def test_no_colour_and_no_terminal_are_needed(home: Home) -> None:
    assert "\x1b" not in home("config", "show", "--origin", NO_COLOR="1")[1]
    assert home("config", "--help")[1].rstrip().endswith("kakoi config init --project")


def test_show_hides_the_password_of_an_address(home: Home) -> None:
    url = "redis://me:5up3r53cr3t@queue.example/0"
    for more in ([], ["--json"]):
        _, out, _ = home("config", "show", *more, KAKOI_QUEUE_URL=url)
        assert "queue.example" in out
        assert "53cr3t" not in out


@pytest.mark.parametrize("name", ["kakoi.yml", ".kakoi.yml", "home/.config/kakoi/config.yml"])
def test_a_settings_file_with_another_ending_is_an_error_that_names_the_right_one(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("policy: {exclude: [ls]}\n")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home")}

    def typed(*words: str) -> "subprocess.CompletedProcess[str]":
        return kakoi(*words, cwd=tmp_path, env=environ, text=True, timeout=WAIT_S)

    for words, status in (
        (("check", "ls"), 2),
        (("run", "ls"), 125),
        (("prompt",), 2),
        (("config", "show"), 2),
    ):
        done = typed(*words)
        assert (done.returncode, done.stdout) == (status, ""), words
        assert f"{path.name} is not read under this name\n  hint: rename it to " in done.stderr
        assert f"{path.stem}.yaml\n" in done.stderr
    listed = typed("config", "path").stdout
    assert f"{path.name}  (NOT READ: rename it to {path.stem}.yaml)\n" in listed
    path.rename(path.with_suffix(".yaml"))
    assert typed("check", "ls").returncode == 126


@pytest.mark.parametrize(
    ("text", "idle", "because"),
    [
        ("policy: {custom_list: [ls]}", "policy.custom_list", "policy.use_default` is true"),
        (
            "tasks: {network: {external_access: false, whitelist_mode: true}}",
            "tasks.network.whitelist_mode",
            "tasks.network.external_access` is false",
        ),
        (
            "tasks: {network: {allowed_domains: [example.org]}}",
            "tasks.network.allowed_domains",
            "tasks.network.whitelist_mode` is false",
        ),
        ("tasks: {clone: {shallow: false, depth: 5}}", "tasks.clone.depth", "shallow` is false"),
    ],
)
def test_a_setting_that_another_one_makes_idle_is_named(
    home: Home, text: str, idle: str, because: str
) -> None:
    home.write(home.config, text + "\n")
    status, _, err = home("config", "show")
    assert (status, f"warning: `{idle}` has no effect, because `" in err) == (0, True)
    assert because in err
    home.write(home.config, "policy: {use_default: false, custom_list: [ls]}\n")
    assert "has no effect" not in home("config", "show")[2]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", "agent: {}\ncommand_executor:\n  enabled: true\n"),
        ("orch.yaml", "sandbox: {type: docker}\n"),
        ("home/.kakoi/config.yaml", "tasks: {enabled: true}\n"),
        ("home/.kakoi.yaml", "tasks: {enabled: true}\n"),
        ("home/.config/kakoi.yaml", "tasks: {enabled: true}\n"),
    ],
)
@pytest.mark.requirement("A-099")
def test_settings_in_a_place_where_they_are_not_read_are_reported(
    tmp_path: Path, name: str, text: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home")}
    right = tmp_path / "home" / ".config" / "kakoi" / "config.yaml"

    def typed(*words: str) -> "subprocess.CompletedProcess[str]":
        return kakoi(*words, cwd=tmp_path, env=environ, text=True, timeout=WAIT_S)

    fix = "rename it to orch.yml" if name == "orch.yaml" else f"move its content to {right}"
    assert f"{path}  (NOT READ: {fix})" in typed("config", "path").stdout
    assert f"{path.name} is not read: {fix}" in typed("config", "show").stderr
    right.parent.mkdir(parents=True, exist_ok=True)
    path.rename(right)
    right.write_text(text.replace("agent: {}\n", ""))
    assert "NOT READ" not in typed("config", "path").stdout
    (tmp_path / "config.yaml").write_text("other: {command_executor: 1}\n")
    assert "NOT READ" not in typed("config", "path").stdout
