"""What a model is told about commands: spec A's text, with the list of the policy that holds."""

import json
import os
from pathlib import Path

import pytest

from kakoi.agents.command_prompt import (
    PLACEHOLDER,
    TEMPLATE_NAME,
    command_executor_prompt,
    default_template,
    read_project_template,
    with_command_executor,
)
from kakoi.errors import ConfigurationError
from kakoi.policy.profiles import AllowedCommands, load_policy
from tests.cli.calling import Home

# The example of 6.5.2.
DEFAULT_LIST = """\
Build/Package Management: npm, yarn, pnpm, pip, pip3, conda, mamba, python, python3, go, cargo, maven, gradle, make, cmake, bundle, gem, composer, dotnet
Test Execution: pytest, jest, mocha, rspec, phpunit, go test, cargo test, dotnet test
Linter/Formatter: eslint, prettier, black, flake8, pylint, mypy, rubocop, gofmt, golint, rustfmt, clippy, tsc
File Operations: ls, cat, head, tail, grep, find, wc, diff, tree, file, stat
Version Control: git status, git diff, git log, git branch, git show, git blame
Utilities: echo, pwd, cd, mkdir, rm, cp, mv, touch, chmod, env, which, curl, wget, tar, unzip, jq, sed, awk, sort, uniq, xargs
"""
SYSTEM_PROMPT = """\
# You are an agent

## Available MCP Tools

### files

```sh
# no heading
```

## Behavior Rules

- Be kind.
"""


@pytest.mark.requirement("A-079")
def test_the_template_holds_the_text_of_the_specification() -> None:
    assert TEMPLATE_NAME == "system_prompt_command_executor.txt"
    text = default_template()
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == [
        "## Command Execution Feature",
        "### Available Commands",
        "### Key Features",
        "### Usage Notes",
        "### Recommended Usage",
    ]
    assert "through the `command-executor` MCP server." in text
    assert "- Working directory: `/workspace/project/` (where project files are cloned)" in text
    assert '- Example: `grep -rn "function_name" src/` to find function usage locations' in text
    assert "- Long-running commands may timeout" in text
    assert text.endswith("Run linters to verify code quality\n")
    assert text.count(PLACEHOLDER) == 1


@pytest.mark.requirement("A-080", "A-081", "Y-02")
def test_the_list_is_that_of_the_example_for_the_default_policy() -> None:
    prompt = command_executor_prompt(load_policy())
    assert f"\n\n{DEFAULT_LIST}\n### Key Features" in prompt
    assert PLACEHOLDER not in prompt


@pytest.mark.requirement("A-080")
def test_what_a_user_adds_removes_or_lists_shows() -> None:
    changed = AllowedCommands(additional=("frob",), exclude=("curl", "wget"))
    prompt = command_executor_prompt(load_policy(allowed=changed))
    utilities = next(line for line in prompt.splitlines() if line.startswith("Utilities: "))
    assert utilities.endswith(", frob")
    assert "curl" not in utilities
    own = AllowedCommands(use_default=False, custom_list=("npm", "grep"))
    lines = command_executor_prompt(load_policy(allowed=own)).splitlines()
    assert lines[lines.index("The following commands are available for execution:") + 2 :][:3] == [
        "Build/Package Management: npm",
        "File Operations: grep",
        "",
    ]


@pytest.mark.requirement("A-082")
def test_it_stands_between_the_tools_and_the_rules() -> None:
    prompt = with_command_executor(SYSTEM_PROMPT, load_policy(), enabled=True)
    section = command_executor_prompt(load_policy())
    before, after = prompt.split(section)
    assert before == SYSTEM_PROMPT[: SYSTEM_PROMPT.index("## Behavior")]
    assert after == "\n" + SYSTEM_PROMPT[SYSTEM_PROMPT.index("## Behavior") :]


@pytest.mark.parametrize(
    ("system_prompt", "before", "after"),
    [
        ("**Available MCP Tools:**\n- a\n\n**Behavior Rules:**\n- b\n", "- a", "**Behavior"),
        ("# Available MCP Tools\n\na\n\n# More\n\n# Behavior Rules\n", "a", "# More"),
        ("# Available MCP Tools\na", "a", ""),
        ("x\n## Behavior Rules\ny\n", "x", "## Behavior"),
        ("x\n", "x", ""),
        ("## Available MCP Tools (3)\na\nBehavior Rules\nb\n", "a", "Behavior Rules"),
        ("", "", ""),
    ],
)
def test_other_shapes_of_a_prompt_have_a_place_too(
    system_prompt: str, before: str, after: str
) -> None:
    prompt = with_command_executor(system_prompt, load_policy(), enabled=True, template="HERE")
    assert (f"{before}\n\nHERE" if before else "HERE") in prompt
    assert (f"HERE\n\n{after}" if after else "HERE\n") in prompt
    assert prompt.replace("HERE", "").split() == system_prompt.split()


@pytest.mark.requirement("A-083")
def test_a_feature_that_is_off_adds_nothing() -> None:
    assert with_command_executor(SYSTEM_PROMPT, load_policy(), enabled=False) == SYSTEM_PROMPT


# --- A template of a project -----------------------------------------------------------------


def test_the_gap_of_a_strangers_template_is_filled_and_nothing_else_is_read_from_it() -> None:
    template = "{0.__class__} {policy} %s $HOME {{x}} {allowed_commands_list}"
    prompt = command_executor_prompt(load_policy(), template)
    assert prompt.startswith("{0.__class__} {policy} %s $HOME {{x}} Build/Package Management: npm")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff", "is not UTF-8 text (byte 0)"),
        (b"a\n\x1b[31mred", "control character in line 2"),
        (b"a\0b", "control character in line 1"),
        ("a\u202eb".encode(), "control character in line 1"),
        (b"x" * (64 * 1024 + 1), "has more than 65536 bytes"),
    ],
)
def test_a_template_that_is_not_plain_text_is_refused(
    tmp_path: Path, data: bytes, why: str
) -> None:
    (tmp_path / TEMPLATE_NAME).write_bytes(data)
    with pytest.raises(ConfigurationError) as caught:
        read_project_template(tmp_path)
    assert why in str(caught.value)
    assert caught.value.hint


def test_a_template_is_not_a_way_to_other_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret")
    (tmp_path / TEMPLATE_NAME).symlink_to("secret")
    with pytest.raises(ConfigurationError, match="it is a symbolic link"):
        read_project_template(tmp_path)
    (tmp_path / TEMPLATE_NAME).unlink()
    os.mkfifo(tmp_path / TEMPLATE_NAME)
    with pytest.raises(ConfigurationError, match="not a regular file"):
        read_project_template(tmp_path)


def test_no_template_is_none_and_line_ends_are_ours(tmp_path: Path) -> None:
    assert read_project_template(tmp_path) is None
    (tmp_path / TEMPLATE_NAME).write_bytes(b"a\r\nb\r\n")
    assert read_project_template(tmp_path) == "a\nb\n"


# --- The command -----------------------------------------------------------------------------


def test_kakoi_prompt_prints_the_section_of_the_policy_that_holds(home: Home) -> None:
    home.write(home.config, "policy: {additional: [frob]}\ncommand_executor: {enabled: true}\n")
    status, out, err = home("prompt")
    assert (status, err) == (0, "")
    assert out.startswith("## Command Execution Feature\n")
    assert ", xargs, frob\n" in out


@pytest.mark.requirement("A-083", "A-098")
@pytest.mark.parametrize("text", ["", "command_executor: {enabled: false}\n"])
def test_kakoi_prompt_prints_no_section_if_the_executor_is_off(home: Home, text: str) -> None:
    home.write(home.config, text)
    status, out, err = home("prompt")
    assert (status, out) == (0, "")
    assert "`tasks.enabled` is false" in err
    assert "hint: set `tasks: {enabled: true}` in your settings (`kakoi config path`)" in err
    assert "COMMAND_EXECUTOR_ENABLED=true; `kakoi config show --origin` shows" in err
    assert json.loads(home("prompt", "--json")[1])["prompt"] == ""
    assert home("prompt", COMMAND_EXECUTOR_ENABLED="true")[1].startswith("## Command Execution")


@pytest.mark.requirement("X-33")
def test_kakoi_prompt_names_the_server_of_the_settings(home: Home) -> None:
    server = "{enabled: true, mcp_server: {name: ours}}"
    home.write(home.config, f"command_executor: {server}\n")
    assert "through the `ours` MCP server." in home("prompt")[1]


@pytest.mark.requirement("X-33")
def test_kakoi_config_says_that_the_designs_server_is_ours(home: Home) -> None:
    command = '["npx", "@sunwood-ai-labs/command-executor-mcp-server"]'
    home.write(home.config, f"command_executor: {{mcp_server: {{command: {command}}}}}\n")
    status, out, err = home("config", "show")
    assert status == 0
    assert f"tasks.mcp_server.command: {command}" in out
    assert "means kakoi's own server: npx is not started" in err


@pytest.mark.requirement("A-079")
def test_a_template_at_the_root_of_the_project_wins(home: Home) -> None:
    home.write(home.project / TEMPLATE_NAME, "May run:\n{allowed_commands_list}\n")
    home.write(home.config, "tasks: {enabled: true}\n")
    assert home("prompt")[1] == f"May run:\n{DEFAULT_LIST}"
    answer = json.loads(home("prompt", "--json")[1])
    assert answer["template"] == str(home.project / TEMPLATE_NAME)
    assert answer["prompt"] == f"May run:\n{DEFAULT_LIST}"
    assert answer["enabled"] is True


@pytest.mark.requirement("A-082", "A-083")
def test_a_system_prompt_is_completed_if_tasks_are_enabled(home: Home) -> None:
    path = str(home.write(home.project / "system.md", SYSTEM_PROMPT))
    assert home("prompt", "--into", path)[1] == SYSTEM_PROMPT
    _, out, _ = home(
        "prompt", "--into", "-", stdin=SYSTEM_PROMPT.encode(), COMMAND_EXECUTOR_ENABLED="1"
    )
    assert out == with_command_executor(SYSTEM_PROMPT, load_policy(), enabled=True)


def test_what_cannot_be_read_is_status_two_with_a_way_out(home: Home) -> None:
    status, out, err = home("prompt", "--into", "gone")
    assert (status, out) == (2, "")
    assert err.splitlines() == [
        "kakoi: cannot read gone: No such file or directory",
        "  hint: kakoi prompt --into FILE",
        "  next: kakoi explain CONFIGURATION_ERROR",
    ]
    home.write(home.project / TEMPLATE_NAME, "\x1b]0;x\x07")
    status, out, err = home("prompt")
    assert (status, out) == (2, "")
    assert "hint: fix it" in err
    assert "\x1b" not in err
