# tests/core/test_shell.py
# Changed: the mark is anyio's, the plug-in for coroutines that this project has.
import pytest
from kakoi.shell import ShellExecutor, SecurityError

@pytest.mark.anyio
async def test_shell_executor_basic():
    executor = ShellExecutor()
    result = await executor.exec("echo 'hello'")

    assert result.success
    assert "hello" in result.stdout

@pytest.mark.anyio
async def test_shell_executor_blocked_command():
    executor = ShellExecutor()

    with pytest.raises(SecurityError):
        await executor.exec("sudo rm -rf /")

@pytest.mark.anyio
async def test_shell_executor_timeout():
    executor = ShellExecutor(timeout=1)

    with pytest.raises(TimeoutError):
        await executor.exec("sleep 10")
