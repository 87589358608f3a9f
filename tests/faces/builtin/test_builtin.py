"""The built-ins as a whole: their names, `shell`, command files."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kakoi.builtin
from kakoi.builtin import find, load_command_file, shell
from kakoi.errors import CommandFailedError, ConfigurationError, SecurityError

pytestmark = pytest.mark.anyio
NAMES = "shell git_commit git_push git_status git_create_pr file_search grep_content".split()


@pytest.mark.requirement("D-034", "D-035", "Y-13")
def test_the_names_of_the_spec_are_plain_coroutine_functions() -> None:
    assert set(NAMES) <= set(kakoi.builtin.__all__)
    assert all(inspect.iscoroutinefunction(getattr(kakoi.builtin, name)) for name in NAMES)
    assert sorted(NAMES) == [
        *("file_search", "git_commit", "git_create_pr", "git_push", "git_status"),
        *("grep_content", "shell"),
    ]


@pytest.mark.requirement("D-035", "Y-13")
def test_they_run_their_own_body_without_a_model_a_key_or_a_network(workspace: Path) -> None:
    code = """
import asyncio, sys
from kakoi.builtin import file_search, grep_content, shell
(open("a file", "w")).write("needle")
print(asyncio.run(shell("echo said")), asyncio.run(file_search("file")))
print(asyncio.run(grep_content("needle", ["a file"])))
speakers = ("kakoi.agents", "pydantic_ai", "openai", "anthropic", "httpx", "mcp")
print([name for name in sys.modules if name.startswith(speakers)])
"""
    keys = ("API_KEY", "TOKEN", "PROXY", "proxy")
    environ = {name: value for name, value in os.environ.items() if not name.endswith(keys)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, cwd=workspace, capture_output=True, text=True
    )
    assert done.stdout == "said\n ['./a file']\n{'a file': ['1:needle']}\n[]\n", done.stderr


@pytest.mark.requirement("D-042")
def test_nothing_of_the_shell_is_there_unless_it_is_imported() -> None:
    code = (
        "import sys, kakoi; kakoi.decide; "
        "print([name for name in sys.modules if name.startswith(('kakoi.shell', 'kakoi.builtin'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.requirement("D-022", "D-036")
async def test_shell_returns_what_was_said(workspace: Path) -> None:
    (workspace / "sub").mkdir()
    assert await shell("pwd; echo err >&2") == f"{workspace}\n"
    assert await shell("pwd", working_dir="sub") == f"{workspace}/sub\n"

    async def agent() -> str:
        """Another coroutine awaits it, as an agent would."""
        return (await shell("echo nested")).strip()

    assert await agent() == "nested"


@pytest.mark.requirement("D-023", "X-28")
@pytest.mark.usefixtures("workspace")
async def test_shell_raises_what_failed() -> None:
    with pytest.raises(RuntimeError, match=r"^Command failed: .*no-such") as raised:
        await shell("ls no-such")
    assert isinstance(raised.value, CommandFailedError)
    assert raised.value.details["return_code"] == 2


@pytest.mark.requirement("D-037")
def test_groups_are_found_by_name() -> None:
    assert set(find("@builtin.git")) == {name for name in NAMES if name.startswith("git")}
    assert list(find("@builtin.shell").values()) == [shell]
    assert set(find("file")) == {"file_search", "grep_content"}
    with pytest.raises(ConfigurationError, match=r"did you mean `@builtin\.shell`"):
        find("@builtin.shel")
    for nonsense in ("", None, 3, "@builtin.", 10**5000):
        with pytest.raises(ConfigurationError):
            find(nonsense)  # type: ignore[arg-type]


DEPLOY = """---
name: auto-deploy
allowed_tools: [shell, git]
---

## Task
Automatically deploy the latest version.

Use @builtin.shell and @builtin.git agents.
"""


@pytest.mark.requirement("D-038")
async def test_a_command_file_limits_its_tools(workspace: Path) -> None:
    path = workspace / "deploy.md"
    path.write_text(DEPLOY)
    command = load_command_file(path)
    assert (command.name, command.allowed_tools) == ("auto-deploy", ("shell", "git"))
    assert command.task.startswith("## Task")
    assert await command.tool("shell")("echo used") == "used\n"
    with pytest.raises(SecurityError, match="`grep_content` is not allowed here"):
        command.tool("grep_content")
    with pytest.raises(SecurityError, match="`eval` is not a tool"):
        command.tool("eval")


def test_a_command_file_without_tools_has_none(workspace: Path) -> None:
    path = workspace / "talk.md"
    path.write_text("---\nname: talk\ndescription: only words\n---\nSay hello.\n")
    command = load_command_file(path)
    assert (dict(command.tools), command.description) == ({}, "only words")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no front matter"),
        ("# Title", "no front matter"),
        ("---\nname: x\n", "front matter has no end"),
        ("---\nallowed_tools: [git]\n---\n", "name"),
        ("---\nname: x\nallowed_tools: [gti]\n---\n", "did you mean `@builtin.git`"),
        ("---\nname: x\nallowed_tool: [git]\n---\n", "did you mean `allowed_tools`"),
        ("---\nname: x\nallowed_tools: git\n---\n", "a list of texts"),
        ("---\nname: ../../x\n---\n", "a short name"),
        ("---\n[1\n---\n", "is not valid YAML"),
        ("---\n- 1\n---\n", r"command\.md:2: expected keys and values"),
        ("---\nname: !!python/object/apply:os.system [ls]\n---\n", "is not valid YAML"),
        ("---\nname: x\n---\n" + "x" * 300_000, "bytes"),
        ("---\nname: " + "[" * 200_000 + "\n---\n", "deep|YAML"),
        ("---\nname: " + "1:" * 100_000 + "1\n---\n", "number|name"),
        ("---\na: &a [x]\nname: *a\n---\n", "alias"),
        ("---\nname: \xff\n", "UTF-8"),
    ],
)
def test_a_wrong_command_file_is_told_what_is_wrong(
    workspace: Path, text: str, complaint: str
) -> None:
    path = workspace / "command.md"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigurationError, match=complaint):
        load_command_file(path)


@pytest.mark.parametrize("path", ["no/such", ".", "a\0b", 10**9])
def test_a_command_file_that_is_not_there_is_told(workspace: Path, path: object) -> None:
    with pytest.raises(ConfigurationError, match="cannot read"):
        load_command_file(path)  # type: ignore[arg-type]
