"""The seed tests of spec D, under their names. Module paths are ours."""

import pytest

from kakoi.shell import SecurityError, ShellExecutor

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("workspace")]


@pytest.mark.requirement("D-050")
async def test_shell_executor_basic() -> None:
    executor = ShellExecutor()
    result = await executor.exec("echo 'hello'")

    assert result.success
    assert "hello" in result.stdout


@pytest.mark.requirement("D-050")
async def test_shell_executor_blocked_command() -> None:
    executor = ShellExecutor()

    with pytest.raises(SecurityError):
        await executor.exec("sudo rm -rf /")


@pytest.mark.requirement("D-050", "Y-14")
async def test_shell_executor_timeout() -> None:
    executor = ShellExecutor(timeout=1)

    with pytest.raises(TimeoutError):
        await executor.exec("sleep 10")
