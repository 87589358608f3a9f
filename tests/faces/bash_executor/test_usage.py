"""The usage examples of spec C, as written; and what its package is made of."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import kakoi.bash_executor
from kakoi.audit import Event, read
from kakoi.bash_executor import CommandExecutor, create_executor, exceptions
from tests.faces.bash_executor.conftest import Configure, Create

BASIC = """
from kakoi.bash_executor import create_executor

executor = create_executor()
result = executor.execute("ls -la")
print(result['stdout'])
"""

AGENT = """
from kakoi.bash_executor import SecurityError, create_executor

class AIAgent:
    def __init__(self):
        self.executor = create_executor()

    def run_command(self, command: str):
        try:
            return self.executor.execute(command)
        except SecurityError as e:
            return {"error": str(e)}

agent = AIAgent()
assert agent.run_command("echo hello")["stdout"] == "hello\\n"
for command in ("sudo id", "echo `id`", "", "./x.sh", "echo 'x", "echo \\0", "x" * 200_000):
    assert list(agent.run_command(command)) == ["error"], command
print("fine")
"""


def run_as_written(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_basic_example_lists_the_current_directory(root: Path) -> None:
    (root / "a file").touch()
    assert "a file" in run_as_written(BASIC, root)


@pytest.mark.requirement("C-031")
def test_the_agent_example_turns_refusals_into_words(root: Path) -> None:
    assert run_as_written(AGENT, root) == "fine\n"


@pytest.mark.requirement("C-001")
def test_the_package_has_the_modules_of_the_spec() -> None:
    for name, holds in (
        ("exceptions", "BashExecutorError"),
        ("config_loader", "ConfigLoader"),
        ("validator", "CommandValidator"),
        ("executor", "CommandExecutor"),
    ):
        module = importlib.import_module(f"kakoi.bash_executor.{name}")
        assert getattr(module, holds) is getattr(kakoi.bash_executor, holds)
    assert {"create_executor", "ConfigLoader", "CommandValidator", "CommandExecutor"} <= set(
        kakoi.bash_executor.__all__
    )
    assert [n for n in kakoi.bash_executor.__all__ if not hasattr(kakoi.bash_executor, n)] == []


@pytest.mark.requirement("C-002", "C-012", "C-026")
def test_create_executor_goes_by_the_configuration(
    configure: Configure, root: Path, tmp_path: Path, audit_file: Path
) -> None:
    (tmp_path / "list.txt").write_text("echo", "utf-8")
    (root / "here").mkdir()
    file = configure(
        executor={"root_dir": "root/here", "timeout": 5, "sandbox": {"type": "bubblewrap"}},
        security={"whitelist_file": "list.txt", "block_patterns": ["X"]},
    )
    with create_executor(file) as executor:
        assert isinstance(executor, CommandExecutor)
        assert executor.get_cwd() == executor.root_dir == f"{root}/here"
        assert executor.execute("echo $(echo a)")["stdout"] == "a\n"
        with pytest.raises(exceptions.CommandNotAllowedError):
            executor.execute("ls")
        with pytest.raises(exceptions.BlockedPatternError):
            executor.execute("echo X")
    told = [record.event for record in read(audit_file)]
    assert told == [Event.STARTED, Event.ENDED, Event.REFUSED, Event.REFUSED]


@pytest.mark.requirement("C-027")
def test_without_the_list_no_list_is_needed(create: Create) -> None:
    settings = {"enable_whitelist": False, "whitelist_file": "/nonexistent"}
    executor = create(security=settings)
    assert executor.execute("base64 /dev/null")["exit_code"] == "0"
    for command in ("echo `id`", "sudo id"):
        with pytest.raises(exceptions.SecurityError):
            executor.execute(command)


def test_what_the_call_says_goes_before_what_the_file_says(
    configure: Configure, root: Path
) -> None:
    file = configure(executor={"root_dir": "/nonexistent", "timeout": 30})
    with (
        create_executor(file, root_dir=root, timeout=0.2) as executor,
        pytest.raises(exceptions.TimeoutError, match=r"0\.2s"),
    ):
        executor.execute("sleep 30")
    with create_executor(root_dir=root) as executor:
        assert executor.execute("ls")["cwd"] == str(root)


@pytest.mark.requirement("C-003")
def test_the_package_speaks_to_nobody(root: Path) -> None:
    """No model, no dialogue, no question: it imports nothing that could, and never reads input."""
    code = "import sys; from kakoi.bash_executor import create_executor; create_executor()"
    shown = run_as_written(f"{code}; print(*sys.modules)", root).split()
    assert "kakoi.bash_executor.executor" in shown
    speakers = ("kakoi.agents", "kakoi.mcp", "mcp", "pydantic_ai", "openai", "anthropic")
    assert [name for name in shown if name.startswith(speakers)] == []
    folder = Path(kakoi.bash_executor.__file__).parent
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
                assert not any(
                    name.startswith(("kakoi.agents", "http", "socket")) for name in names
                )
            if isinstance(node, ast.Name):
                assert node.id not in ("input", "print")


@pytest.mark.requirement("C-025")
def test_the_exceptions_are_the_tree_of_the_spec() -> None:
    base = exceptions.BashExecutorError
    assert issubclass(exceptions.SecurityError, base)
    assert issubclass(exceptions.CommandNotAllowedError, exceptions.SecurityError)
    assert issubclass(exceptions.BlockedPatternError, exceptions.SecurityError)
    assert issubclass(exceptions.ExecutionError, base)
    assert issubclass(exceptions.TimeoutError, exceptions.ExecutionError)
    assert issubclass(exceptions.ConfigurationError, base)
    assert not issubclass(exceptions.ConfigurationError, exceptions.SecurityError)


def test_output_beyond_the_limit_is_marked(create: Create) -> None:
    result = create().execute("seq 300000")
    assert len(result["stdout"]) < 1_100_000
    assert "output cut" in result["stdout"].splitlines()[-1]
