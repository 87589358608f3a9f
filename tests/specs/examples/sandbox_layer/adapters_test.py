# The interfaces of section 3 and the test cases of section 7.1, in the order of its tables.
# Changed: TypeScript is Python, so an object literal is a dict or a SpawnOptions, and the
# names of the tests are the Japanese ones of the tables as comments. `docker run` and `docker pull`
# need an image that is not on every machine; tests/backends has those rows.
import logging
import os

import pytest

from kakoi.errors import ExecutionError
from kakoi.sandbox import (
    ContainerAdapter,
    DockerAdapter,
    EnvironmentUnavailableError,
    ExecutionTimeoutError,
    HostAdapter,
    ProcessExecutor,
    SandboxFactory,
    SpawnOptions,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


# ProcessExecutor


async def test_command_success():  # 正常系: コマンド実行成功
    result = await ProcessExecutor().spawn("sh", ["-c", "echo out; echo err >&2; exit 3"])
    assert (result.stdout, result.stderr, result.exitCode) == ("out\n", "err\n", 3)


async def test_environment_variables():  # 正常系: 環境変数の設定
    result = await ProcessExecutor().spawn("sh", ["-c", "echo $A"], {"env": {"A": "b"}})
    assert result.stdout == "b\n"


async def test_working_directory():  # 正常系: 作業ディレクトリの設定
    result = await ProcessExecutor().spawn("pwd", [], SpawnOptions(cwd="/usr"))
    assert result.stdout == "/usr\n"


async def test_timeout():  # 異常系: タイムアウト
    with pytest.raises(ExecutionTimeoutError):
        await ProcessExecutor().spawn("sleep", ["600"], {"timeout": 200})


async def test_unknown_command():  # 異常系: 存在しないコマンド
    with pytest.raises(ExecutionError):
        await ProcessExecutor().spawn("no-such-command", [])


# DockerAdapter


async def test_docker_is_not_installed(tmp_path):  # 異常系: Dockerが未インストール
    adapter = DockerAdapter({}, ProcessExecutor(), engine_env={"PATH": str(tmp_path)})
    assert await adapter.isAvailable() is False


# HostAdapter


async def test_host_command():  # 正常系: コマンド実行
    adapter = HostAdapter({"timeout": 300, "warnOnStart": True}, ProcessExecutor())
    result = await adapter.execute("echo $X; pwd", {"env": {"X": "x"}, "timeout": 60000})
    assert (result.stdout, result.exitCode) == (f"x\n{os.path.realpath('.')}\n", 0)
    await adapter.cleanup()


async def test_host_warns_at_the_first_run_only(caplog):  # 正常系: 初回実行時の警告, 2回目以降の実行
    adapter = HostAdapter({"warnOnStart": True})
    for _ in range(3):
        await adapter.execute("true")
    warnings = [record.getMessage() for record in caplog.records]
    assert len([text for text in warnings if "ホスト環境で実行中" in text]) == 1
    await adapter.cleanup()


async def test_host_is_always_available():  # 正常系: isAvailable()
    assert await HostAdapter({}).isAvailable() is True


# ContainerAdapter, section 8.2


async def test_container_adapter():
    adapter = ContainerAdapter({}, ProcessExecutor())
    assert adapter.name == "container-use"
    for method in ("execute", "cleanup", "isAvailable"):
        assert callable(getattr(adapter, method))
    await adapter.cleanup()


# SandboxFactory. Changed: Docker is taken away by an address at which no engine answers.


async def test_primary():  # 正常系: プライマリ環境が利用可能
    adapter = await SandboxFactory().create({"sandbox": {"type": "host"}})
    assert adapter.name == "host"
    await adapter.cleanup()


async def test_fallback(caplog, tmp_path):  # 正常系: フォールバック, 警告ログ
    factory = SandboxFactory(environ={"DOCKER_HOST": f"unix://{tmp_path}/none"})
    adapter = await factory.create({"sandbox": {"type": "docker", "fallback": "host"}})
    assert adapter.name == "host"
    assert logging.WARNING in [record.levelno for record in caplog.records]
    await adapter.cleanup()


async def test_nothing_is_available(tmp_path):  # 異常系: 全環境が利用不可
    factory = SandboxFactory(environ={"DOCKER_HOST": f"unix://{tmp_path}/none"})
    with pytest.raises(EnvironmentUnavailableError):
        await factory.create({"sandbox": {"type": "docker"}})
