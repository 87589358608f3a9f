"""What people expect of every command: JSON, exit statuses, environment variables, a next step."""

import json
import re
import shlex
from collections.abc import Iterator

import click
import pytest

from kakoi import errors
from kakoi.cli.app import SECTIONS, app
from kakoi.cli.io.messages import print_error
from kakoi.cli.options import SettingOption
from kakoi.errors import KakoiError
from kakoi.settings.model import settings_table
from tests.cli.calling import Home
from tests.cli.terminals import Door

# Why a command has no --json.
WITHOUT_JSON = {
    "shell": "it is a terminal",
    "mcp": "it speaks a protocol of its own, in JSON",
    "hook claude-code": "it answers in JSON, in the words of Claude Code",
    "config schema": "a schema is JSON",
    "completion": "it prints a program for a shell",
    "env cp": "it prints nothing",
    "cache clear": "it prints nothing",
    "copy rollback": "it prints nothing",
    "copy diff": "programs read it as it is; `copy changes --json` lists the files",
    "agent replay": "a transcript is JSON already, one line after the other",
}


def commands(group: click.Group = app, before: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, f"{before}{name} ")
        else:
            yield f"{before}{name}", found


ALL = dict(commands())
every_command = pytest.mark.parametrize("name", ALL)


def help_of(name: str) -> str:
    command = ALL[name]
    text = command.get_help(click.Context(command, info_name=name, max_content_width=200))
    return " ".join(text.split())


def test_there_is_a_command_for_each_line_of_the_help() -> None:
    assert {name.split()[0] for name in ALL} == {
        name for section in SECTIONS.values() for name in section
    }


@every_command
def test_it_has_json_or_there_is_a_reason(name: str) -> None:
    options = {option for parameter in ALL[name].params for option in parameter.opts}
    assert ("--json" in options) != (name in WITHOUT_JSON)


@every_command
def test_its_help_lists_the_exit_status_and_each_option(name: str) -> None:
    told = help_of(name)
    assert "Exit codes: " in told
    for parameter in ALL[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.opts


@every_command
def test_an_option_shows_its_environment_variable(name: str) -> None:
    told = help_of(name)
    for parameter in ALL[name].params:
        if isinstance(parameter, SettingOption):
            assert set(settings_table()[parameter.path].env) <= set(parameter.envvar or ())
        if parameter.envvar:
            named = [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar
            assert f"[env var: {', '.join(named)}" in told, parameter.opts


def groups(group: click.Group = app, before: str = "kakoi") -> Iterator[tuple[str, click.Command]]:
    yield before, group
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from groups(found, f"{before} {name}")


@pytest.mark.parametrize("name", dict(groups()))
def test_no_line_in_the_list_of_a_group_is_cut_off(name: str) -> None:
    group = dict(groups())[name]
    _usage, *lines = group.get_help(click.Context(group, info_name=name)).splitlines()
    assert [line for line in lines if line.endswith("...")] == []


WITH_EXAMPLES = dict(groups()) | {f"kakoi {name}": command for name, command in ALL.items()}


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_its_help_ends_with_two_examples_that_can_be_parsed(name: str) -> None:
    command = WITH_EXAMPLES[name]
    _, _, end = command.get_help(click.Context(command, info_name=name)).partition("Examples:\n")
    examples = [line.strip() for line in end.splitlines()]
    assert len(examples) == 2
    for example in examples:
        (part,) = (each for each in re.split(r" \| (?=\w)(?![^']*'$)", example) if "kakoi " in each)
        words = shlex.split(part.partition(" <")[0])
        assert words.pop(0) == "kakoi"
        found: click.Command = app
        while isinstance(found, click.Group):
            found = found.get_command(click.Context(found), words.pop(0)) or app
        # Raises UsageError for an option or an argument that does not exist.
        found.make_context(example, words)


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        (["ps"], "kakoi env ls"),
        (["exec"], "kakoi env exec"),
        (["diff"], "kakoi copy diff"),
        (["rollback"], "kakoi copy rollback"),
        (["install-client"], "kakoi client install"),
        (["docter"], "kakoi doctor"),
        (["env", "ps"], "kakoi env ls"),
        (["copy", "dif"], "kakoi copy diff"),
    ],
)
def test_a_command_that_does_not_exist_is_answered_with_one_that_does(
    home: Home, typed: list[str], suggested: str
) -> None:
    status, out, err = home(*typed)
    assert (status, out) == (2, "")
    assert f"No such command {typed[-1]!r}. Did you mean `{suggested}`?" in err


def all_errors(kind: type[KakoiError] = KakoiError) -> Iterator[type[KakoiError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from all_errors(below)


OURS = sorted(
    {kind for kind in all_errors() if kind.__module__ == errors.__name__}, key=lambda k: k.__name__
)


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize("hint", ["", "turn it off", "`kakoi doctor` shows why"])
def test_an_error_ends_with_the_next_command_to_type(
    kind: type[KakoiError], hint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    print_error(kind("it is \x1b[31mbroken", hint=hint))
    first, *_, last = capfd.readouterr().err.splitlines()
    assert first.startswith("kakoi: it is ")
    assert "\x1b" not in first
    found = re.search(r"next: kakoi ([\w -]+)$|`kakoi ([\w -]+)`", last)
    assert found is not None
    name, *arguments = (found[1] or found[2]).split()
    assert app.get_command(click.Context(app), name)
    assert arguments == ([] if "doctor" in hint else [kind.code])


def test_the_next_command_works(home: Home) -> None:
    status, _, said = home("run", "--sandbox", "nope", "ls")
    assert status == 125
    words = said.splitlines()[-1].removeprefix("  next: kakoi ").split()
    status, told, _ = home(*words)
    assert (status, "CONFIGURATION_ERROR" in told) == (0, True)


# --- -v --------------------------------------------------------------------------------------


def test_verbose_reports_each_step_on_standard_error_only(any_door: Door) -> None:
    status, out, err = any_door("run", "-v", "--timeout", "60", "echo hi")
    assert (status, out) == (0, "hi\n")
    said = [line for line in err.splitlines() if re.search(r"\(\d+ ms\)$", line)]
    told = "\n".join(said)
    sandbox = any_door.env["KAKOI_SANDBOX"]
    for words in (
        "the policy `coding-agent` says allow",
        f"using the sandbox `{sandbox}`, as requested",
        "limits: time 60 s",
        "the command ended: exited, exit code 0",
        "everything is closed",
    ):
        assert words in told
    assert ("; not enforced: memory 4096 MiB, " in told) == (sandbox == "host")
    assert (", disk 10240 MiB (the host confines nothing)" in told) == (sandbox == "host")
    assert ("file size 10240 MiB (rlimit: of each file" in told) == (sandbox != "host")


def test_verbose_shows_how_an_engine_enforces_each_limit(docker_door: Door) -> None:
    status, out, err = docker_door("run", "-v", "echo hi")
    assert (status, out) == (0, "hi\n")
    groups = "memory 4096 MiB, processors 2, processes 512 (docker: a control group)"
    assert groups in err
    assert "open files 8192 (rlimit: of each process)" in err


def test_verbose_shows_why_another_sandbox_was_not_taken(door: Door) -> None:
    env = {"KAKOI_SANDBOX": "auto", "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    status, _, err = Door(door.workspace, door.log, env)("run", "-v", "--image", "x", "true")
    assert status == 125
    assert "not suitable for this request: `bubblewrap`" in err
    assert "the sandbox `docker` cannot be used: " in err


def test_verbose_changes_no_json_and_excludes_quiet(door: Door) -> None:
    _, out, err = door("run", "-v", "--json", "sudo id")
    assert json.loads(out)["reason"] == "refused"
    assert "says deny (privilege)" in err
    assert door("run", "-v", "-q", "true")[0] == 125
