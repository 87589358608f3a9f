"""security.toml holds for the profile `shell` at every door: `kakoi run`, `kakoi mcp`, Python."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kakoi._support.asyncio import background
from kakoi.builtin import shell
from kakoi.errors import KakoiError
from kakoi.settings.loader import load_settings
from tests.cli.calling import Home
from tests.mcp.connections import MODES, McpDoor, run, stdout_of, text_of

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("D-039", "D-047")]
REFUSED, TIMED_OUT = 126, 124
# What the file says, a command, and what every door answers.
REFUSALS = {
    "off": ("enabled = false", "echo hi", "shell execution is turned off"),
    "off by feature": ("[features]\nshell = false", "echo hi", "shell execution is turned off"),
    "not listed": ('allowed_commands = ["ls"]', "echo hi", "not on the list of commands"),
    "blocked": ('blocked_commands = ["git status"]', "git status", "blocked"),
    "elsewhere": ('allowed_directories = ["~/other"]', "echo hi", "not in an allowed directory"),
    "nowhere": ("allowed_directories = []", "echo hi", "not in an allowed directory"),
}
any_refusal = pytest.mark.parametrize(
    ("text", "command", "answer"), REFUSALS.values(), ids=REFUSALS
)


@pytest.fixture
def user(mcp_door: McpDoor, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A user with the spec's file, whose project is the server's workspace."""
    folder = mcp_door.folder
    (folder / "project").symlink_to(mcp_door.workspace)
    for name in ("XDG_CONFIG_HOME", "KAKOI_SECURITY_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("KAKOI_AUDIT_FILE", str(mcp_door.log))
    monkeypatch.chdir(mcp_door.workspace)
    yield Home(folder, {"KAKOI_SANDBOX": "host"})
    background().release()


def write(user: Home, text: str) -> Path:
    whole = text if text.startswith("[") else f"[shell]\n{text}\n"
    return user.write(user.root / ".kagura" / "security.toml", whole)


@any_refusal
@pytest.mark.requirement("D-040", "D-041")
def test_the_command_line_refuses_by_the_file(
    user: Home, text: str, command: str, answer: str
) -> None:
    before = user("run", "--profile", "shell", "echo hi > made")
    assert before[0] == 0
    write(user, text)
    status, out, err = user("run", "--profile", "shell", command)
    assert (status, out) == (REFUSED, "")
    assert answer in err
    assert user("check", "--profile", "shell", command)[0] == REFUSED
    # The file is for the shell only.
    assert user("run", "echo hi")[:2] == (0, "hi\n")


@any_refusal
async def test_a_client_of_the_server_is_refused_by_the_file(
    user: Home, mcp_door: McpDoor, text: str, command: str, answer: str
) -> None:
    write(user, text)
    async with mcp_door.stdio(MODES[0], arguments=["--profile", "shell"]) as client:
        result = await run(client, command)
        assert result.is_error
        assert answer in text_of(result)


@any_refusal
def test_the_built_ins_refuse_by_the_file(user: Home, text: str, command: str, answer: str) -> None:
    write(user, text + '\n[shell.sandbox]\ntype = "host"\n' * (not text.startswith("[")))
    with pytest.raises(KakoiError, match=answer):
        asyncio.run(shell(command, user.project))


def test_the_timeout_of_the_file_holds_for_the_command_line(user: Home) -> None:
    write(user, "timeout = 0.4")
    begun = user("run", "--profile", "shell", "--allow", "sleep", "sleep 600")
    assert begun[0] == TIMED_OUT
    # What the user types goes first, as an argument of ShellExecutor does.
    assert user("run", "--profile", "shell", "--timeout", "60", "echo hi")[1] == "hi\n"


async def test_the_timeout_of_the_file_holds_for_a_client(user: Home, mcp_door: McpDoor) -> None:
    write(user, 'timeout = 0.4\nallowed_commands = ["sleep", "echo"]')
    async with mcp_door.stdio(MODES[0], arguments=["--profile", "shell"]) as client:
        result = await run(client, "sleep 600")
        assert "0.4 s" in text_of(result)
        longer = await run(client, "sleep 600", timeout_ms=5000)
        assert longer.is_error
        assert "the settings allow 400 at most" in text_of(longer)
        assert stdout_of(await run(client, "echo hi")) == "hi\n"


def test_confirmation_is_asked_for_and_given_in_advance(user: Home) -> None:
    write(user, "require_confirmation = true")
    status, out, err = user("run", "--profile", "shell", "echo hi")
    assert (status, out) == (REFUSED, "")
    assert "every command needs the user's approval" in err
    assert user("run", "--profile", "shell", "--yes", "echo hi")[1] == "hi\n"


def test_the_settings_name_the_file_and_its_sandbox_is_chosen(user: Home) -> None:
    file = write(user, 'timeout = 7\nsandbox = {type = "docker", docker = {image = "busybox"}}')
    user.write(user.config, "policy: {additional: [frob], blocked: [git push]}\n")
    own = {"HOME": str(user.root)}
    loaded = load_settings(environ=own, call={"policy.profile": "shell"})
    assert loaded.settings.sandbox.type == "docker"
    assert loaded.settings.sandbox.docker.image == "busybox"
    assert loaded.origin("sandbox.docker.image") == str(file)
    assert loaded.origin("execution.timeout_seconds") == str(file)
    assert loaded.settings.policy.additional == ("frob",)
    write(user, 'allowed_commands = ["ls"]\nblocked_commands = ["git pull"]')
    policy = load_settings(environ=own, call={"policy.profile": "shell"}).settings.policy
    assert (policy.use_default, policy.custom_list, policy.additional) == (False, ("ls",), ())
    assert policy.blocked == ("git push", "git pull")
    assert load_settings(environ=own).settings.policy.custom_list == ()
    stated = user("config", "show", "--origin", "--profile", "shell")[1]
    assert str(user.root / ".kagura" / "security.toml") in stated
    other = user.write(user.root / ".kakoi" / "security.toml", "[shell]\n")
    told = user("config", "show")[2]
    assert f"{other} holds for the profile `shell`" in told
    assert f"warning: {file} is not read" in told


def test_a_feature_that_is_off_turns_the_shell_off_at_every_door(user: Home) -> None:
    file = user.write(user.root / ".kagura" / "config.toml", "[features]\nshell = false\n")
    status, _, err = user("run", "--profile", "shell", "echo hi")
    assert (status, "shell execution is turned off" in err) == (REFUSED, True)
    assert user("run", "echo hi")[1] == "hi\n"
    shown = user("config", "show", "--origin", "--profile", "shell")[1]
    assert f"policy.enabled: false  # {file}" in " ".join(shown.split()).replace(" #", "  #")
    assert f"exists   {file}" in user("config", "path")[1]
    with pytest.raises(KakoiError, match="turned off"):
        asyncio.run(shell("echo hi", user.project))


def test_the_switches_hold_for_any_profile_in_the_settings(user: Home) -> None:
    user.write(user.config, "policy: {enabled: false}\n")
    assert "turned off" in user("run", "echo hi")[2]
    user.write(user.config, "policy: {allowed_directories: [/]}\n")
    assert user("run", "echo hi")[1] == "hi\n"
    user.write(user.config, "policy: {profile: open, allowed_directories: [/opt]}\n")
    status, _, err = user("run", "echo hi")
    assert (status, "not in an allowed directory" in err) == (REFUSED, True)
