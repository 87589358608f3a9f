"""SandboxFactory: which sandbox one gets, with adapters that really exist on a machine without."""

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kakoi.backends.adapter import Availability, LimitReport, Limits
from kakoi.backends.select import BackendFactory
from kakoi.backends.settings import NAMES
from kakoi.channel.api import Channel, Command
from kakoi.errors import ConfigurationError, EnvironmentUnavailableError
from kakoi.results import ExecutionResult
from kakoi.sandbox import (
    BubblewrapAdapter,
    ContainerAdapter,
    DockerAdapter,
    DockerSettings,
    ExecuteOptions,
    HostAdapter,
    KubernetesAdapter,
    SandboxAdapter,
    SandboxConfig,
    SandboxFactory,
)
from tests.backends.container_use_server import install
from tests.fakes import RecordingExecutor, ScriptedChannel, ScriptedExecutor, ScriptedStreams

pytestmark = pytest.mark.anyio

# A scripted engine makes no disk.
NO_DISK = Limits(disk_bytes=None)


class Claimed:
    """A sandbox that says of itself whether it is there."""

    def __init__(self, name: str, found: Availability) -> None:
        self._name = name
        self._found = found
        self.asked = 0
        self.cleaned = 0

    @property
    def name(self) -> str:
        return self._name

    async def availability(self) -> Availability:
        self.asked += 1
        return self._found

    async def is_available(self) -> bool:
        return bool(self._found)

    async def run(self, command: Command) -> ExecutionResult:
        raise NotImplementedError

    async def execute(
        self, command: str | Sequence[str], options: ExecuteOptions | None = None
    ) -> ExecutionResult:
        raise NotImplementedError

    async def channel(self) -> Channel:
        raise NotImplementedError

    async def shell(self) -> str:
        raise NotImplementedError

    @property
    def limit_report(self) -> LimitReport:
        return LimitReport()

    async def cleanup(self) -> None:
        self.cleaned += 1


def given(sandbox: SandboxAdapter) -> BackendFactory:
    return lambda _config: sandbox


@pytest.fixture
def bare(tmp_path: Path) -> SandboxFactory:
    """A machine on whose PATH there is nothing."""
    (tmp_path / "nothing").mkdir()
    (tmp_path / "project").mkdir()
    return SandboxFactory(tmp_path / "project", environ={"PATH": str(tmp_path / "nothing")})


# --- Preferred, fallback, none ---------------------------------------------------------------


@pytest.mark.requirement("B-038", "B-039")
async def test_the_sandbox_that_is_named_is_asked_and_given_if_it_is_there(tmp_path: Path) -> None:
    first = Claimed("docker", Availability(True))
    second = Claimed("bubblewrap", Availability(True))
    factory = SandboxFactory(tmp_path, makers={"docker": given(first), "bubblewrap": given(second)})
    chosen = await factory.create(SandboxConfig(type="docker", fallback="bubblewrap"))
    assert chosen is first
    assert (first.asked, first.cleaned, second.asked) == (1, 0, 0)


@pytest.mark.requirement("B-038", "B-039")
async def test_the_host_is_given_if_it_is_named(
    bare: SandboxFactory, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = await bare.create(SandboxConfig(type="host"))
    assert isinstance(adapter, HostAdapter)
    assert (await adapter.execute("echo here")).stdout == "here\n"
    await adapter.cleanup()
    assert "falling back" not in caplog.text


@pytest.mark.requirement("B-040")
@pytest.mark.parametrize("type", ["docker", "podman", "container-use", "kubernetes"])
async def test_without_the_preferred_one_the_fallback_is_given_with_one_warning(
    bare: SandboxFactory, type: str, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = await bare.create(SandboxConfig(type=type, fallback="host"))
    assert isinstance(adapter, HostAdapter)
    warnings = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].getMessage().startswith(f"falling back to `host` ({type}: ")
    assert "PATH" in warnings[0].getMessage()
    assert (await adapter.execute("echo fallen back")).stdout == "fallen back\n"
    await adapter.cleanup()


@pytest.mark.requirement("B-041", "B-049")
async def test_if_the_fallback_is_not_there_either_nothing_is_given(bare: SandboxFactory) -> None:
    with pytest.raises(EnvironmentUnavailableError) as caught:
        await bare.create(SandboxConfig(type="docker", fallback="container-use"))
    error = caught.value
    assert error.code == "ENVIRONMENT_UNAVAILABLE"
    assert error.details["environmentType"] == "docker"
    assert {"docker", "container-use"} <= error.details.keys()
    assert "container-use: `container-use` was not found on PATH" in error.message
    assert error.hint


@pytest.mark.requirement("B-042")
async def test_without_a_fallback_there_is_no_other_choice(bare: SandboxFactory) -> None:
    with pytest.raises(EnvironmentUnavailableError, match="docker"):
        await bare.create(SandboxConfig(type="docker"))


async def test_what_was_tried_in_vain_is_cleaned_up(tmp_path: Path) -> None:
    absent = Claimed("docker", Availability(False, "no engine", "start it"))
    factory = SandboxFactory(tmp_path, makers={"docker": given(absent)})
    with pytest.raises(EnvironmentUnavailableError) as caught:
        await factory.create(SandboxConfig(type="docker"))
    assert absent.cleaned == 1
    assert caught.value.hint == "start it; `kakoi doctor` shows why"


@pytest.mark.requirement("B-044", "X-25")
@pytest.mark.parametrize(
    ("there", "chosen"),
    [
        (["bubblewrap", "docker", "host"], "bubblewrap"),
        (["docker", "host"], "docker"),
        (["confined-host", "host"], "confined-host"),
        (["host", "container-use", "podman", "kubernetes"], None),
    ],
)
async def test_unset_means_the_best_that_is_there_and_never_the_host_as_it_is(
    tmp_path: Path, there: list[str], chosen: str | None
) -> None:
    names = (*NAMES, "confined-host")
    makers = {
        name: given(Claimed(name, Availability(name in there, "not there"))) for name in names
    }
    factory = SandboxFactory(tmp_path, makers=makers)
    if chosen is None:
        with pytest.raises(EnvironmentUnavailableError):
            await factory.create()
    else:
        assert (await factory.create(SandboxConfig.parse({}))).name == chosen


async def test_a_warning_says_that_auto_confines_the_host(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    absent = {
        name: given(Claimed(name, Availability(False, f"no {name}")))
        for name in ("bubblewrap", "docker")
    }
    there = Claimed("confined-host", Availability(True))
    factory = SandboxFactory(tmp_path, makers={**absent, "confined-host": given(there)})
    assert await factory.create() is there
    (warning,) = [each.getMessage() for each in caplog.records]
    assert "confined-host" in warning
    assert "bubblewrap: no bubblewrap; docker: no docker" in warning


async def test_a_list_of_programs_is_refused_where_nothing_keeps_it(tmp_path: Path) -> None:
    wanted = SandboxConfig.parse({"kernelAllowlist": True})
    with pytest.raises(ConfigurationError, match="has no list of programs"):
        SandboxFactory(tmp_path).make("bubblewrap", wanted)
    factory = SandboxFactory(tmp_path, programs=["ls"])
    for name in ("host", "container-use"):
        with pytest.raises(ConfigurationError):
            factory.make(name, wanted)
    assert factory.make("confined-host", wanted).name == "confined-host"


async def test_auto_leaves_out_what_will_not_do(tmp_path: Path) -> None:
    makers = {name: given(Claimed(name, Availability(True))) for name in ("bubblewrap", "docker")}
    factory = SandboxFactory(tmp_path, makers=makers)
    assert (await factory.create(unfit=["bubblewrap"])).name == "docker"


async def test_every_name_has_its_adapter(bare: SandboxFactory) -> None:
    made = {name: bare.make(name, SandboxConfig()) for name in ("docker", "podman", "host")}
    assert {name: adapter.name for name, adapter in made.items()} == {name: name for name in made}
    assert isinstance(bare.make("container-use", SandboxConfig()), ContainerAdapter)
    assert isinstance(bare.make("bubblewrap", SandboxConfig()), BubblewrapAdapter)


async def test_container_use_is_made_and_works_through_the_factory(tmp_path: Path) -> None:
    (tmp_path / "project" / ".git").mkdir(parents=True)
    (tmp_path / "environments").mkdir()
    install(tmp_path / "bin")
    lines = ["MODE=", f"ENVIRONMENTS={tmp_path / 'environments'}", f"CALLS={tmp_path / 'calls'}"]
    (tmp_path / "bin" / "settings").write_text("\n".join(lines), encoding="utf-8")
    factory = SandboxFactory(
        tmp_path / "project", environ={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    )
    adapter = await factory.create(SandboxConfig(type="container-use"))
    assert adapter.name == "container-use"
    assert (await adapter.execute("echo inside")).stdout == "inside\n"
    await adapter.cleanup()


# --- One executor for all --------------------------------------------------------------------


@pytest.mark.requirement("B-010")
async def test_every_adapter_starts_its_programs_with_the_executor_it_was_given(
    tmp_path: Path,
) -> None:
    recording = RecordingExecutor()
    host = HostAdapter(tmp_path, executor=recording)
    await host.execute("true")
    await host.cleanup()
    assert len(recording.streamed) == 1

    scripted = ScriptedExecutor({"node:20-alpine": ""})
    settings = DockerSettings(limits=NO_DISK)
    docker = DockerAdapter(settings, scripted, streams=ScriptedStreams(ScriptedChannel()))
    await docker.execute("true")
    await docker.cleanup()
    assert scripted.called("image inspect")

    (tmp_path / ".git").mkdir()
    install(tmp_path / "bin")
    (tmp_path / "environments").mkdir()
    lines = ["MODE=", f"ENVIRONMENTS={tmp_path / 'environments'}", f"CALLS={tmp_path / 'calls'}"]
    (tmp_path / "bin" / "settings").write_text("\n".join(lines), encoding="utf-8")
    container = ContainerAdapter(
        executor=recording,
        workspace=tmp_path,
        engine_env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
    )
    await container.execute("true")
    name = container.environment
    await container.cleanup()
    assert list(recording.streamed[1].argv) == ["container-use", "stdio"]
    assert recording.spawned == [["container-use", "delete", name]]


@pytest.mark.requirement("B-014", "B-032")
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (DockerAdapter, "docker"),
        (ContainerAdapter, "container-use"),
        (HostAdapter, "host"),
        (BubblewrapAdapter, "bubblewrap"),
        (KubernetesAdapter, "kubernetes"),
    ],
)
async def test_each_sandbox_has_what_spec_b_asks_of_one(
    tmp_path: Path, kind: Callable[..., SandboxAdapter], name: str
) -> None:
    needs_a_folder = kind in (HostAdapter, BubblewrapAdapter)
    adapter = kind(tmp_path) if needs_a_folder else kind()
    assert adapter.name == name
    with pytest.raises(AttributeError):
        adapter.name = "other"  # type: ignore[misc]
    for method in ("execute", "cleanup", "is_available"):
        assert inspect.iscoroutinefunction(getattr(adapter, method))
    words = list(inspect.signature(adapter.execute).parameters.values())
    assert [each.name for each in words] == ["command", "options"]
    assert words[1].default is None
    await adapter.cleanup()


@pytest.mark.requirement("B-010")
async def test_without_an_executor_there_is_a_real_one(tmp_path: Path) -> None:
    adapter = HostAdapter(tmp_path)
    assert (await adapter.execute("echo real")).stdout == "real\n"
    await adapter.cleanup()


@pytest.mark.requirement("B-047")
async def test_configured_seconds_become_the_limit_of_a_command(tmp_path: Path) -> None:
    config = SandboxConfig.parse({"docker": {"timeout": 5}, "containerUse": {"timeout": 7}})
    channel = ScriptedChannel()
    settings = replace(config.docker, limits=NO_DISK)
    docker = DockerAdapter(
        settings, ScriptedExecutor({"node:20-alpine": ""}), streams=ScriptedStreams(channel)
    )
    await docker.execute("true")
    await docker.execute("true", ExecuteOptions(timeout=250))
    await docker.cleanup()
    ours = [command.timeout_s for command in channel.commands if command.command == "true"]
    assert ours == [5.0, 0.25]
    assert config.container_use.timeout_s == 7


# --- Bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize("workspace", [5, b"/tmp", ["/tmp"]])
def test_a_workspace_that_is_not_a_path_is_refused(workspace: object) -> None:
    with pytest.raises(ConfigurationError, match="workspace"):
        SandboxFactory(workspace)  # type: ignore[arg-type]


@pytest.mark.parametrize("workspace", ["a\0b", "/no/such/place", "x" * 5000, "\udcff"])
@pytest.mark.parametrize("name", ["bubblewrap", "container-use", "host"])
def test_a_workspace_that_is_not_there_is_refused_when_it_is_needed(
    workspace: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    factory = SandboxFactory(workspace)
    with pytest.raises(ConfigurationError, match="workspace"):
        factory.make(name, SandboxConfig())


@pytest.mark.parametrize("name", ["", "auto", "dokcer", 5, None, "x" * 10_000])
def test_a_sandbox_that_is_none_is_not_made(bare: SandboxFactory, name: object) -> None:
    with pytest.raises(ConfigurationError, match=r"no sandbox|unknown sandbox") as caught:
        bare.make(name, SandboxConfig())  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("config", ["docker", ["host"], 5, DockerSettings()])
async def test_a_configuration_of_another_type_is_refused(
    bare: SandboxFactory, config: object
) -> None:
    with pytest.raises(ConfigurationError, match="SandboxConfig"):
        await bare.create(config)  # type: ignore[arg-type]


async def test_a_sandbox_that_fails_while_it_is_tried_is_cleaned_up_all_the_same() -> None:
    class Broken(Claimed):
        async def availability(self) -> Availability:
            raise ConfigurationError("no such directory")

    broken = Broken("bubblewrap", Availability(False))
    factory = SandboxFactory(makers={"bubblewrap": lambda _config: broken})
    with pytest.raises(ConfigurationError):
        await factory.create(SandboxConfig(type="bubblewrap"))
    assert broken.cleaned == 1
