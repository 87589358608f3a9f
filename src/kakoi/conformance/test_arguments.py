"""Arguments and variables reach a command unchanged, and nothing else does."""

from pathlib import Path

import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.channel.api import MAX_WORD_BYTES, Command
from kakoi.conformance.conftest import Opener
from kakoi.conformance.sandbox_commands import TIMEOUT_S, channel_output, output_of
from kakoi.errors import ConfigurationError

pytestmark = pytest.mark.anyio

WORDS = [
    *("", " ", "a b", "a\nb", "\t", "'", '"', "'\"'", "$HOME", "${x}", "`id`", "$(id)", "\\"),
    *("\\n", "*", "?", "~", "-n", "--", "-", ";", "&", "|", "<", ">", "#", "!", "%s", "{a,b}"),
    *("あ", "é", "\x01\x7f", "a" * 10_000),
]


async def test_arguments_arrive_unchanged(sandbox: SandboxAdapter) -> None:
    result = await sandbox.run(Command(command=["printf", "[%s]", *WORDS]))
    assert result.stdout == "".join(f"[{word}]" for word in WORDS)


@pytest.mark.needs("channel")
async def test_arguments_that_are_not_text_arrive_unchanged(sandbox: SandboxAdapter) -> None:
    word = b"\xff\xfe".decode("utf-8", "surrogateescape")
    text = 'printf %s "$1" | od -An -tx1'
    result = await sandbox.run(Command(command=["sh", "-c", text, "x", word]))
    assert result.stdout.split() == ["ff", "fe"]


async def test_quotes_and_lines_of_a_shell_text_mean_what_they_say(
    sandbox: SandboxAdapter,
) -> None:
    text = """
name='a  "b"'
printf '%s|' "$name" 'it'"'"'s' $((1 + 2)) "$(echo nested "$(echo deeper)")"
cat <<'END'
$not `expanded`
END
# the end"""
    assert await output_of(sandbox, text) == 'a  "b"|it\'s|3|nested deeper|$not `expanded`\n'


@pytest.mark.parametrize("text", ["-c 'echo hi'", "-x", "--version", "-", "--"])
async def test_a_text_that_begins_with_a_dash_is_not_an_option_of_the_shell(
    sandbox: SandboxAdapter, text: str
) -> None:
    for report_shell in (False, True):
        result = await sandbox.run(Command(command=text, report_shell=report_shell))
        assert (result.exit_code, result.stdout) == (127, "")


@pytest.mark.needs("channel")
async def test_the_longest_text_is_run_and_a_longer_one_refused(sandbox: SandboxAdapter) -> None:
    """The kernel accepts no longer argument, so the text is refused before it is sent."""
    text = "echo ${#word}; exit 5"
    size = MAX_WORD_BYTES - len(f"word='';{text}")
    result = await sandbox.run(Command(command=f"word='{'x' * size}';{text}", timeout_s=TIMEOUT_S))
    assert (result.stdout, result.exit_code) == (f"{size}\n", 5)
    with pytest.raises(ConfigurationError, match="bytes long"):
        Command(command=f"word='{'x' * (size + 1)}';{text}")


@pytest.mark.needs("channel")
async def test_half_a_megabyte_of_arguments_arrives(sandbox: SandboxAdapter) -> None:
    words = ["x" * 1000] * 500
    command = Command(command=["sh", "-c", 'echo $# ${#500}; echo "$*" | wc -c', "x", *words])
    assert (await sandbox.run(command)).stdout.split() == ["500", "1000", "500500"]


async def test_variables_arrive_unchanged(sandbox: SandboxAdapter) -> None:
    env = {f"WORD_{number}": word for number, word in enumerate(WORDS)}
    text = "".join(f'printf "[%s]" "${name}"\n' for name in env)
    result = await sandbox.run(Command(command=text, env=env))
    assert result.stdout == "".join(f"[{word}]" for word in WORDS)


@pytest.mark.needs("channel")
async def test_a_hundred_kilobytes_of_variables_arrive(sandbox: SandboxAdapter) -> None:
    env = {"LONG": "x" * 100 * 1024, **{f"MANY_{number}": "y" * 1024 for number in range(100)}}
    text = 'echo ${#LONG}; env | grep -c "^MANY_.*=y*$"'
    result = await sandbox.run(Command(command=text, env=env))
    assert result.stdout.split() == [str(100 * 1024), "100"]


async def test_variables_do_not_last_beyond_their_command(sandbox: SandboxAdapter) -> None:
    await sandbox.run(Command(command="export OTHER=1; cd /", env={"ONE": "1"}))
    assert await output_of(sandbox, 'echo "${ONE-none} ${OTHER-none}"') == "none none\n"


async def test_a_command_has_a_path_and_a_home(sandbox: SandboxAdapter) -> None:
    assert await output_of(sandbox, 'test -n "$PATH" && test -d "$HOME" && echo yes') == "yes\n"


async def test_a_command_has_three_descriptors_and_no_more(sandbox: SandboxAdapter) -> None:
    result = await sandbox.run(Command(command=["sh", "-c", "echo /proc/$$/fd/*; :"]))
    names = [path.rpartition("/")[2] for path in result.stdout.split()]
    # A fourth is the descriptor that the shell uses to list the folder.
    assert names[:3] == ["0", "1", "2"]
    assert len(names) <= 4


async def test_start_up_files_are_not_read(sandbox: SandboxAdapter, folder: str) -> None:
    files = ".bashrc .profile .bash_profile .bash_login .shrc .kshrc"
    await channel_output(
        sandbox, f"cd {folder} && for f in {files}; do echo echo hijacked >$f; done"
    )
    result = await sandbox.run(Command(command="echo hi", env={"HOME": folder}))
    assert (result.stdout, result.stderr) == ("hi\n", "")


async def test_what_our_environment_says_to_shells_is_not_heard(
    fresh: Opener, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = workspace / "hijack.sh"
    script.write_text("echo hijacked\n", encoding="ascii")
    for name in ("BASH_ENV", "ENV", "PROMPT_COMMAND"):
        monkeypatch.setenv(name, str(script))
    monkeypatch.setenv("BASH_FUNC_hijack%%", "() { echo hijacked; }")
    monkeypatch.setenv("SHELLOPTS", "noexec")
    async with fresh() as sandbox:
        # An interactive shell may print a greeting, and complains that it has no terminal.
        for command in ("echo hi", ["sh", "-c", "echo hi"], ["sh", "-ic", "echo hi"]):
            output_of = (await sandbox.run(Command(command=command))).stdout.split()
            assert ("hi" in output_of, "hijacked" in output_of) == (True, False)
        assert (await sandbox.run(Command(command="hijack"))).exit_code == 127


async def test_our_secrets_do_not_come_along(
    fresh: Opener, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAKOI_CONFORMANCE_TOKEN", mark)
    async with fresh() as sandbox:
        assert mark not in await output_of(sandbox, "env; cat /proc/self/environ")
