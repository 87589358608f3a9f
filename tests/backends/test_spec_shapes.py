"""Adapters, errors and the factory, called as the design of the sandbox layer calls them."""

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from kakoi.errors import ConfigurationError, TimeoutError
from kakoi.sandbox import (
    ContainerAdapter,
    DockerAdapter,
    EnvironmentUnavailableError,
    ExecutionTimeoutError,
    HostAdapter,
    ImagePullError,
    ProcessExecutor,
    SandboxError,
    SandboxFactory,
)
from tests.backends.container_use_server import install
from tests.cli.conftest import has_image, need

pytestmark = pytest.mark.anyio
IMAGE = "kakoi-test:python"
# The file of the design, but for the image: tests pull nothing.
ORCH = f"""
sandbox:
  type: docker
  fallback: host
  docker:
    image: {IMAGE}
    network: none
    timeout: 300
  containerUse:
    image: node:20
    envId: ""
  host:
    timeout: 300
    warnOnStart: true
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KAKOI_LANG", "en")
    monkeypatch.chdir(tmp_path)
    return tmp_path.resolve()


@pytest.mark.requirement("B-014", "B-026", "B-030")
async def test_the_host_from_a_mapping_and_with_an_executor(
    own_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = HostAdapter({"timeout": 300, "warnOnStart": False}, ProcessExecutor())
    try:
        assert (adapter.name, await adapter.isAvailable()) == ("host", True)
        result = await adapter.execute("pwd; echo $X", {"env": {"X": "y"}, "timeout": 60_000})
        assert (result.stdout, result.exitCode) == (f"{own_folder}\ny\n", 0)
        assert "ホスト" not in caplog.text
        with pytest.raises(TimeoutError):
            await adapter.execute("sleep 600", {"timeout": 200})
        with pytest.raises(ConfigurationError, match="did you mean `timeout`"):
            await adapter.execute("true", {"timeuot": 200})
    finally:
        await adapter.cleanup()
    with pytest.raises(ConfigurationError, match="did you mean `warn_on_start`"):
        HostAdapter({"warnOnStrat": False})


@pytest.mark.requirement("B-021", "B-022")
async def test_containers_from_a_mapping_show_the_working_directory(own_folder: Path) -> None:
    need("docker", is_there=has_image(IMAGE))
    adapter = DockerAdapter({"image": IMAGE, "network": "none", "timeout": 300}, ProcessExecutor())
    try:
        assert await adapter.isAvailable()
        result = await adapter.execute("pwd; echo made > inside", {"cwd": str(own_folder)})
        assert result.stdout == f"{own_folder}\n"
        assert (own_folder / "inside").read_text() == "made\n"
    finally:
        await adapter.cleanup()
    with pytest.raises(ConfigurationError, match=r"docker\.network is 'none of it'"):
        DockerAdapter({"network": "none of it"})


@pytest.mark.requirement("B-024", "B-035")
async def test_what_is_not_installed_is_not_available(own_folder: Path) -> None:
    nothing = {"PATH": str(own_folder)}
    docker = DockerAdapter({}, ProcessExecutor(), engine_env=nothing)
    container_use = ContainerAdapter({}, ProcessExecutor(), engine_env=nothing)
    for adapter in (docker, container_use):
        assert await adapter.isAvailable() is False
        await adapter.cleanup()


@pytest.mark.requirement("B-033", "B-037")
async def test_an_environment_of_container_use_from_a_mapping(own_folder: Path) -> None:
    folder = install(own_folder / "bin").parent
    adapter = ContainerAdapter(
        {"image": "", "envId": "mine"},
        ProcessExecutor(),
        workspace=own_folder,
        engine_env={"PATH": str(folder)},
    )
    assert (adapter.name, adapter.environment) == ("container-use", "mine")
    await adapter.cleanup()


@pytest.mark.requirement("B-038", "B-039")
async def test_the_factory_takes_the_whole_file_or_its_section() -> None:
    need("docker", is_there=has_image(IMAGE))
    whole: dict[str, Any] = yaml.safe_load(ORCH)
    for config in (whole, whole["sandbox"]):
        adapter = await SandboxFactory().create(config)
        assert adapter.name == "docker"
        await adapter.cleanup()


@pytest.mark.requirement("B-038")
async def test_the_factory_creates_without_being_made_first(own_folder: Path) -> None:
    for config in ({"type": "host"}, {"sandbox": {"type": "host"}}):
        adapter = await SandboxFactory.create(config)
        assert (await adapter.execute("pwd")).stdout == f"{own_folder}\n"
        await adapter.cleanup()
    with pytest.raises(ConfigurationError, match=r"sandbox\.type"):
        await SandboxFactory.create({"type": "dokcer"})


@pytest.mark.requirement("B-040", "B-041", "B-042")
async def test_the_factory_falls_back_with_a_warning_or_says_that_nothing_works(
    own_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    factory = SandboxFactory(environ={"DOCKER_HOST": f"unix://{own_folder}/no.sock"})
    adapter = await factory.create({"type": "docker", "fallback": "host"})
    assert adapter.name == "host"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    await adapter.cleanup()
    with pytest.raises(EnvironmentUnavailableError) as raised:
        await factory.create({"type": "docker"})
    assert (raised.value.code, raised.value.details["environmentType"]) == (
        "ENVIRONMENT_UNAVAILABLE",
        "docker",
    )


@pytest.mark.requirement("B-048", "B-049", "B-050", "B-051", "Y-03")
def test_errors_are_made_as_the_design_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        EnvironmentUnavailableError("docker"): (
            "ENVIRONMENT_UNAVAILABLE",
            {"environmentType": "docker"},
            "サンドボックス環境が利用できません: docker",
        ),
        ExecutionTimeoutError(5000): (
            "EXECUTION_TIMEOUT",
            {"timeout": 5000},
            "実行がタイムアウトしました: 5000ms",
        ),
        ImagePullError("node:20", "no such image"): (
            "IMAGE_PULL_FAILED",
            {"image": "node:20", "stderr": "no such image"},
            "Dockerイメージの取得に失敗しました: node:20",
        ),
        SandboxError("自前", "MINE", {"a": 1}): ("MINE", {"a": 1}, "自前"),
    }
    monkeypatch.setenv("KAKOI_LANG", "ja")
    assert {error: (error.code, error.details, str(error)) for error in made} == made
    monkeypatch.setenv("KAKOI_LANG", "en")
    english = [str(error) for error in made][:3]
    assert english == [
        "the sandbox environment is not available: docker",
        "the command ran longer than 5000 ms",
        "the image node:20 cannot be pulled",
    ]
    assert str(EnvironmentUnavailableError("no engine answers")) == "no engine answers"
