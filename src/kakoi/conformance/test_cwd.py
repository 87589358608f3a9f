"""Where a command runs, and where its shell ended."""

import pytest

from kakoi.conformance.asking import said, seen
from kakoi.results import Reason
from kakoi.runner.commands import Command
from kakoi.sandbox.adapter import SandboxAdapter

pytestmark = pytest.mark.anyio


async def test_a_command_starts_in_the_workspace(sandbox: SandboxAdapter, place: str) -> None:
    assert await said(sandbox, "pwd -P") == place.rpartition("/")[0] + "\n"


async def test_a_change_of_directory_does_not_last(sandbox: SandboxAdapter) -> None:
    before = await said(sandbox, "pwd")
    await said(sandbox, "cd /")
    assert await said(sandbox, "pwd") == before


@pytest.mark.parametrize("name", ["sub", "two words", "a\nb", "'\"$x`", "-n", "日本"])
async def test_a_command_runs_where_it_was_told_to(
    sandbox: SandboxAdapter, place: str, name: str
) -> None:
    channel = await sandbox.channel()
    await channel.run(Command(command=["mkdir", "-p", "--", f"{place}/{name}"]))
    result = await sandbox.run(Command(command="pwd -P", cwd=f"{place}/{name}"))
    assert result.stdout == f"{place}/{name}\n"


async def test_a_program_without_a_shell_runs_where_it_was_told_to(
    sandbox: SandboxAdapter, place: str
) -> None:
    result = await sandbox.run(Command(command=["pwd", "-P"], cwd=place))
    assert result.stdout == f"{place}\n"


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
async def test_where_the_shell_ended_is_told(
    sandbox: SandboxAdapter, place: str, text: str, where: str | None, code: int
) -> None:
    await seen(sandbox, f"mkdir {place}/sub; ln -s sub {place}/link")
    result = await sandbox.run(Command(command=text, cwd=place, report_cwd=True))
    assert (result.cwd, result.exit_code) == ("/" if where is None else place + where, code)
    assert (result.stdout, result.stderr, result.reason) == ("", "", Reason.EXITED)


async def test_nobody_is_told_who_did_not_ask(sandbox: SandboxAdapter) -> None:
    assert (await sandbox.run(Command(command="cd /"))).cwd is None


async def test_to_be_asked_changes_nothing_for_the_command(
    sandbox: SandboxAdapter, place: str
) -> None:
    """Its output, its input, its own trap at the end, its exit code, its variables."""
    text = """
trap 'echo "trap: $?"' EXIT
read -r line; echo "line: $line"
echo "bash_env: ${BASH_ENV-none}"
cd /
exit 4"""
    result = await sandbox.run(Command(command=text, cwd=place, stdin=b"hello\n", report_cwd=True))
    assert result.stdout == "line: hello\nbash_env: none\ntrap: 4\n"
    assert (result.stderr, result.exit_code) == ("", 4)


async def test_the_text_of_the_command_may_be_long_then_too(
    sandbox: SandboxAdapter, place: str
) -> None:
    text = f"word='{'x' * 130_000}'; echo ${{#word}}; cd /; exit 5"
    result = await sandbox.run(Command(command=text, cwd=place, report_cwd=True))
    assert (result.stdout, result.exit_code, result.cwd) == ("130000\n", 5, "/")


@pytest.mark.parametrize(
    "text", ["cd gone; rmdir ../gone", "exec true", "kill -9 $$", "cd gone; exec 3>&1 >&- 2>&-"]
)
async def test_a_shell_that_cannot_say_where_it_is_does_no_harm(
    sandbox: SandboxAdapter, place: str, text: str
) -> None:
    await seen(sandbox, f"mkdir {place}/gone")
    result = await sandbox.run(Command(command=text, cwd=place, report_cwd=True))
    assert result.reason in (Reason.EXITED, Reason.SIGNALLED)
    assert result.cwd is None or result.cwd.startswith("/")


async def test_a_command_cannot_name_a_directory_that_is_none(
    sandbox: SandboxAdapter, place: str
) -> None:
    """It may write into every descriptor that it finds."""
    text = "for fd in 3 4 5 6 7 8 9; do echo relative >&$fd; done 2>/dev/null; exit 0"
    result = await sandbox.run(Command(command=text, cwd=place, report_cwd=True))
    assert result.reason is Reason.EXITED
    assert result.cwd is None or result.cwd.startswith("/")
