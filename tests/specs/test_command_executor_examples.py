"""The files and the flow of spec A, literally, by the commands that a user types."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calling import Home
from tests.cli.conftest import has_image, need
from tests.tasks.hosting import PYTHON, a_repository

EXAMPLES = Path(__file__).with_name("examples") / "command_executor"
TEMPLATE = (EXAMPLES / "system_prompt_command_executor.txt").read_text("utf-8")
COMMANDS = (EXAMPLES / "allowed_commands_list.txt").read_text("utf-8")
WAIT_S = 300.0


@pytest.fixture
def kakoi(tmp_path: Path) -> Home:
    home = Home(tmp_path.resolve())
    home.project.mkdir()
    return home


def use(home: Home, name: str) -> None:
    home.write(home.config, (EXAMPLES / name).read_text("utf-8"))


@pytest.mark.requirement("A-083", "A-098", "A-099")
def test_the_configuration_is_read_where_the_user_has_it_and_the_feature_is_off(
    kakoi: Home,
) -> None:
    use(kakoi, "config.yaml")
    status, out, err = kakoi("config", "show", "--origin")
    assert status == 0, err
    ours = [line for line in out.splitlines() if f"# {kakoi.config}:" in line]
    assert {
        line.split(": ")[0]: line.split(": ", 1)[1].split("  # ")[0].strip() for line in ours
    } == {
        "resources.cpu_limit": "2",
        "resources.memory_limit": "4g",
        "resources.disk_limit": "10g",
        "execution.timeout_seconds": "1800",
        "execution.max_output_size": "1m",
        "tasks.enabled": "false",
        "tasks.base_image": '"coding-agent-executor:latest"',
        "tasks.mcp_server.name": "command-executor",
        "tasks.mcp_server.command": '["npx", "@sunwood-ai-labs/command-executor-mcp-server"]',
        "tasks.network.external_access": "true",
        "tasks.network.whitelist_mode": "false",
        "tasks.network.allowed_domains": "[]",
        "tasks.clone.shallow": "true",
        "tasks.clone.depth": "1",
        "tasks.clone.auto_install_deps": "true",
        "tasks.cleanup.interval_hours": "24",
        "tasks.cleanup.stale_threshold_hours": "24",
    }
    assert "npx is not started" in err
    status, out, err = kakoi("prompt")
    assert "Command Execution Feature" not in out
    assert "COMMAND_EXECUTOR_ENABLED" in out + err


@pytest.mark.requirement("A-079", "A-080", "A-081", "A-083", "A-100")
def test_the_prompt_is_the_text_of_the_spec_with_the_list_of_its_example(kakoi: Home) -> None:
    use(kakoi, "config.yaml")
    status, out, err = kakoi("prompt", COMMAND_EXECUTOR_ENABLED="true")
    assert status == 0, err
    assert out.strip() == TEMPLATE.replace("{allowed_commands_list}", COMMANDS.strip()).strip()


@pytest.mark.requirement("A-076", "A-066")
def test_the_list_of_commands_is_changed_by_the_file(kakoi: Home) -> None:
    use(kakoi, "allowed_commands.yaml")
    status, out, err = kakoi("prompt", COMMAND_EXECUTOR_ENABLED="true")
    assert status == 0, err
    assert "custom-build-tool" in out
    assert "project-specific-script" in out
    assert "curl" not in out.partition("### Key Features")[0]
    for command, allowed in {
        "custom-build-tool --fast": True,
        "npm test": True,
        "curl -s https://example.org": False,
        "wget https://example.org/x": False,
    }.items():
        status, out, err = kakoi("check", command)
        assert (status == 0) is allowed, (command, out, err)


@pytest.mark.requirement("A-001", "A-003", "A-004", "A-010", "A-014")
@pytest.mark.slow("prepares an environment in a container")
def test_an_environment_is_prepared_used_and_removed(kakoi: Home) -> None:
    need("docker", is_there=has_image(PYTHON))
    repository = a_repository(kakoi.root / "origin", {"hello.txt": "hello"})
    use(kakoi, "config.yaml")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "lifecycle.py"), repository],
        cwd=kakoi.project,
        env={
            **kakoi.environ,
            "COMMAND_EXECUTOR_ENABLED": "true",
            "EXECUTOR_BASE_IMAGE": PYTHON,
            **{name: os.environ[name] for name in ("DOCKER_HOST",) if name in os.environ},
        },
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "0190a1b2-example /workspace/project ready",
        "0 /workspace/project str",
        "0 .git",
        "hello.txt str",
        "1  str",
    ]
    listed = ["docker", "ps", "-aq", "--filter", "name=coding-agent-exec-0190a1b2-example"]
    assert subprocess.run(listed, capture_output=True, text=True).stdout == ""
