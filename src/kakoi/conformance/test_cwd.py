"""A command's working directory, the last directory of its shell, and its exports."""

from collections.abc import Mapping

import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.channel.api import Command
from kakoi.conformance.sandbox_commands import channel_output, output_of
from kakoi.results import Reason

pytestmark = pytest.mark.anyio


async def test_a_command_starts_in_the_workspace(sandbox: SandboxAdapter, folder: str) -> None:
    assert await output_of(sandbox, "pwd -P") == folder.rpartition("/")[0] + "\n"


async def test_a_change_of_directory_does_not_last(sandbox: SandboxAdapter) -> None:
    before = await output_of(sandbox, "pwd")
    await output_of(sandbox, "cd /")
    assert await output_of(sandbox, "pwd") == before


@pytest.mark.parametrize("name", ["sub", "two words", "a\nb", "'\"$x`", "-n", "日本"])
async def test_a_command_runs_in_the_requested_directory(
    sandbox: SandboxAdapter, folder: str, name: str
) -> None:
    channel = await sandbox.channel()
    await channel.run(Command(command=["mkdir", "-p", "--", f"{folder}/{name}"]))
    result = await sandbox.run(Command(command="pwd -P", cwd=f"{folder}/{name}"))
    assert result.stdout == f"{folder}/{name}\n"


async def test_a_program_without_a_shell_runs_in_the_requested_directory(
    sandbox: SandboxAdapter, folder: str
) -> None:
    result = await sandbox.run(Command(command=["pwd", "-P"], cwd=folder))
    assert result.stdout == f"{folder}\n"


@pytest.mark.parametrize(
    ("text", "where", "code"),
    [
        ("true", "", 0),
        ("cd sub && cd ..", "", 0),
        ("cd sub", "/sub", 0),
        ("cd sub; exit 3", "/sub", 3),
        ("cd sub; false", "/sub", 1),
        ("(cd sub)", "", 0),
        ("cd sub | cat", "", 0),
        ("cd link", "/sub", 0),
        ("cd sub; set -eu; false; cd ..", "/sub", 1),
        ("cd /", None, 0),
    ],
)
async def test_where_the_shell_ended_is_reported(
    sandbox: SandboxAdapter, folder: str, text: str, where: str | None, code: int
) -> None:
    await channel_output(sandbox, f"mkdir {folder}/sub; ln -s sub {folder}/link")
    result = await sandbox.run(Command(command=text, cwd=folder, report_shell=True))
    assert (result.cwd, result.exit_code) == ("/" if where is None else folder + where, code)
    assert (result.stdout, result.stderr, result.reason) == ("", "", Reason.EXITED)


async def test_the_directory_is_reported_only_on_request(sandbox: SandboxAdapter) -> None:
    assert (await sandbox.run(Command(command="cd /"))).cwd is None


async def test_to_be_asked_changes_nothing_for_the_command(
    sandbox: SandboxAdapter, folder: str
) -> None:
    """The report leaves its output, stdin, exit trap, exit code and variables unchanged."""
    text = """
trap 'echo "trap: $?"' EXIT
read -r line; echo "line: $line"
echo "bash_env: ${BASH_ENV-none}"
cd /
exit 4"""
    result = await sandbox.run(
        Command(command=text, cwd=folder, stdin=b"hello\n", report_shell=True)
    )
    assert result.stdout == "line: hello\nbash_env: none\ntrap: 4\n"
    assert (result.stderr, result.exit_code) == ("", 4)


async def test_the_text_of_the_command_may_be_long_then_too(
    sandbox: SandboxAdapter, folder: str
) -> None:
    text = f"word='{'x' * 130_000}'; echo ${{#word}}; cd /; exit 5"
    result = await sandbox.run(Command(command=text, cwd=folder, report_shell=True))
    assert (result.stdout, result.exit_code, result.cwd) == ("130000\n", 5, "/")


@pytest.mark.parametrize(
    "text", ["cd gone; rmdir ../gone", "exec true", "kill -9 $$", "cd gone; exec 3>&1 >&- 2>&-"]
)
async def test_a_shell_that_cannot_say_where_it_is_does_no_harm(
    sandbox: SandboxAdapter, folder: str, text: str
) -> None:
    await channel_output(sandbox, f"mkdir {folder}/gone")
    result = await sandbox.run(Command(command=text, cwd=folder, report_shell=True))
    assert result.reason in (Reason.EXITED, Reason.SIGNALLED)
    assert result.cwd is None or result.cwd.startswith("/")


async def test_a_command_cannot_name_a_directory_that_is_none(
    sandbox: SandboxAdapter, folder: str
) -> None:
    """It tries to forge one by writing to every descriptor that it finds."""
    text = "for fd in 3 4 5 6 7 8 9; do echo relative >&$fd; done 2>/dev/null; exit 0"
    result = await sandbox.run(Command(command=text, cwd=folder, report_shell=True))
    assert result.reason is Reason.EXITED
    assert result.cwd is None or result.cwd.startswith("/")


# --- Exports ---------------------------------------------------------------------------------


async def exported(
    sandbox: SandboxAdapter, text: str, **env: str
) -> Mapping[str, str | None] | None:
    command = Command(command=text, env=env, report_shell=True)
    return (await sandbox.run(command)).exports


@pytest.mark.needs("channel")
@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("true", {}),
        ("A=1; B=2; C=3 true", {}),
        ("export A=1 B=", {"A": "1", "B": ""}),
        ("export HAD=new", {"HAD": "new"}),
        ("export HAD=old", {}),
        ("unset HAD; unset NEVER", {"HAD": None}),
        ("export A=1; exit 3", {"A": "1"}),
        ("set -eu; export A=1; false; export B=1", {"A": "1"}),
        ("set -a; A=1; readonly B=2", {"A": "1", "B": "2"}),
        ("export A; export B=1; unset B", {}),
        ("(export A=1); export B=2 | cat; sh -c 'export C=3'", {}),
        ("cd /; export A=1", {"A": "1"}),
        ("f() { export A=1; }; f", {"A": "1"}),
    ],
)
async def test_what_the_shell_exported_is_reported(
    sandbox: SandboxAdapter, text: str, changes: dict[str, str | None]
) -> None:
    assert await exported(sandbox, text, HAD="old") == changes


VALUES = [
    "two words",
    "a\nb\n",
    "\n",
    "'",
    "\"'\\'\"",
    "$HOME `id` $(id) \\$x \\\\ !",
    "export A='1'\nexport B=\"2\"",
    "日本 é",
    "\t\x01\x1b[31m\x7f",
    "-n",
    " leading and trailing ",
    "a\r\nb",
]


@pytest.mark.needs("channel")
@pytest.mark.parametrize("value", VALUES)
async def test_a_value_arrives_as_it_is(sandbox: SandboxAdapter, value: str) -> None:
    told = await exported(sandbox, 'export COPY="$GIVEN"', GIVEN=value)
    assert told == {"COPY": value}


@pytest.mark.needs("channel")
@pytest.mark.parametrize(
    "text",
    [
        "exec true",
        "kill -9 $$",
        "trap - EXIT",
        "for fd in 3 4 5 6 7 8 9 200 201 202; do echo nonsense >&$fd; done 2>/dev/null; true",
        "for fd in 7 9 202; do head -c 9000000 /dev/zero >&$fd; done 2>/dev/null; true",
        "export BIG=$(head -c 50000 /dev/zero | tr '\\0' x)",
    ],
)
async def test_a_shell_that_cannot_say_what_it_exported_does_no_harm(
    sandbox: SandboxAdapter, text: str
) -> None:
    result = await sandbox.run(Command(command=text, report_shell=True))
    assert result.reason in (Reason.EXITED, Reason.SIGNALLED)
    assert result.exports in (None, {})
    assert await exported(sandbox, "export A=1") == {"A": "1"}


async def test_the_report_does_not_appear_in_a_trace(sandbox: SandboxAdapter) -> None:
    result = await sandbox.run(Command(command="set -x; true", report_shell=True))
    assert result.stderr == "+ true\n"


async def test_a_directory_that_is_gone_fails_nothing_after_set_e(
    sandbox: SandboxAdapter, folder: str
) -> None:
    await channel_output(sandbox, f"mkdir {folder}/gone")
    text = "set -e; cd gone; rmdir ../gone; export A=1"
    result = await sandbox.run(Command(command=text, cwd=folder, report_shell=True))
    assert (result.exit_code, result.stderr, result.exports) == (0, "", {"A": "1"})
