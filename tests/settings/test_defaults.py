"""Each default is stated once: settings, backends and `Sandbox` cannot disagree."""

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kakoi import Sandbox
from kakoi._support.fields import SIZE, Setting
from kakoi._support.parsing import as_size
from kakoi.agents.from_settings import limits_from as loop_limits_from
from kakoi.agents.loop import LoopLimits
from kakoi.backends.adapter import DEFAULT_TIMEOUT_S, Limits
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.backends.host.adapter import HostAdapter
from kakoi.backends.kubernetes.pod import KubernetesSettings
from kakoi.backends.settings import ContainerUseSettings, HostSettings, SandboxConfig
from kakoi.errors import ConfigurationError
from kakoi.policy.profiles import DEFAULT_PROFILE, AllowedCommands
from kakoi.sandbox.from_settings import limits_from, sandbox_from
from kakoi.settings.model import Settings, build, defaults, settings_table
from kakoi.tasks.environment import EnvironmentOptions
from kakoi.tasks.from_settings import environment_options

# The dataclasses below the settings model that state fields of it, and their fields that no file
# sets: a caller does, or the program finds them out.
MODELS: dict[type[Any], set[str]] = {
    AllowedCommands: set(),
    ContainerUseSettings: set(),
    DockerSettings: set(
        "limits workspace inside env user directories programs git_settings is_shared".split()
    ),
    HostSettings: set(),
    KubernetesSettings: {"limits", "inside", "env"},
    Limits: {"asked"},
    SandboxConfig: {"lifetime_s"},
}
# What an argument of `Sandbox` is when it is left out, by the dataclasses.
ARGUMENTS: dict[str, object] = {
    "backend": SandboxConfig().type,
    "network": DockerSettings().network,
    "memory": Limits().memory_bytes,
    "cpus": Limits().cpus,
    "processes": Limits().processes,
    "disk": Limits().disk_bytes,
    "user": DockerSettings().user,
    "policy": DEFAULT_PROFILE,
    "copy_on_write": SandboxConfig().copy_on_write,
    "timeout": DEFAULT_TIMEOUT_S,
    "lifetime": SandboxConfig().lifetime_s,
}
# None leaves these to the backend and the user's own folders.
LEFT_OUT = {"workspace", "image", "env", "approve", "audit", "labels"}


def fields(model: Any = Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of the settings model, by path."""
    for field in dataclasses.fields(model):
        if "section" in field.metadata:
            yield from fields(field.metadata["section"], f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", field


REFERRING = {
    path: field.metadata["same_as"] for path, field in fields() if "same_as" in field.metadata
}


@pytest.mark.parametrize("model", MODELS)
def test_every_field_of_a_backend_is_a_setting_or_is_known_not_to_be_one(model: type[Any]) -> None:
    own = {each.name for each in dataclasses.fields(model) if "section" not in each.metadata}
    offered = [name for owner, name in REFERRING.values() if owner is model]
    assert len(offered) == len(set(offered))
    assert set(offered) | MODELS[model] == own
    assert not set(offered) & MODELS[model]


def test_the_settings_of_sandboxes_and_limits_state_nothing_themselves() -> None:
    stating = set(settings_table()) - set(REFERRING)
    assert [path for path in stating if path.startswith(("sandbox.", "resources."))] == []


@pytest.mark.parametrize("path", REFERRING)
def test_a_setting_has_the_default_kind_and_sentence_of_the_field_it_refers_to(path: str) -> None:
    model, name = REFERRING[path]
    own = model.__dataclass_fields__[name]
    stated: Setting = own.metadata["setting"]
    assert defaults()[path] == own.default == getattr(model(), name)
    assert settings_table()[path].kind is stated.kind
    assert settings_table()[path].doc is stated.doc


def test_default_settings_describe_the_default_sandbox() -> None:
    assert sandbox_from(Settings()) == SandboxConfig()
    assert limits_from(Settings()) == Limits()


def other(path: str) -> Any:
    """A value of the setting that is not its default."""
    value, schema = defaults()[path], settings_table()[path].kind.schema
    if "enum" in schema:
        return next(each for each in reversed(schema["enum"]) if each not in (value, ""))
    if path.endswith("image"):
        return "other:1"
    if value is None or isinstance(value, int | float):
        return not value if isinstance(value, bool) else (value or 1000) * 2
    return ("example.org",) if isinstance(value, tuple) else "other"


@pytest.mark.parametrize("path", [path for path, (owner, _) in REFERRING.items() if owner is not AllowedCommands])  # fmt: skip
def test_every_setting_of_a_sandbox_reaches_its_configuration(path: str) -> None:
    model, name = REFERRING[path]
    config = sandbox_from(build({path: other(path)}))
    places = (config, config.docker, config.docker.limits, config.container_use, config.kubernetes)
    place = next(each for each in (*places, config.host) if type(each) is model)
    assert getattr(place, name) == other(path) != defaults()[path]


def test_a_setting_that_only_the_backend_can_refuse_is_named_by_its_path() -> None:
    for path, value in {
        "sandbox.docker.image": "-x",
        "sandbox.kubernetes.max_age": 5,
        "resources.disk_limit": 1,
    }.items():
        with pytest.raises(ConfigurationError, match=rf"^{path} is '?{value}"):
            sandbox_from(build({path: value}))


def test_what_sandbox_takes_if_an_argument_is_left_out_is_what_the_backends_take() -> None:
    parameters = inspect.signature(Sandbox).parameters
    assert set(parameters) == set(ARGUMENTS) | LEFT_OUT
    for name, parameter in parameters.items():
        stated = parameter.default
        if name in ("memory", "disk"):
            stated = as_size(stated, name)
        assert stated == ARGUMENTS.get(name), name


@pytest.mark.parametrize(("adapter", "model"), [(HostAdapter, HostSettings), (BubblewrapAdapter, DockerSettings)])  # fmt: skip
def test_adapters_take_the_same_if_an_argument_is_left_out(adapter: Any, model: Any) -> None:
    stated = {each.name: each.default for each in dataclasses.fields(model)}
    parameters = inspect.signature(adapter).parameters
    shared = {name for name in parameters if "setting" in getattr(model.__dataclass_fields__.get(name), "metadata", {})}  # fmt: skip
    assert "timeout_s" in shared
    assert {name: parameters[name].default for name in shared} == {
        name: stated[name] for name in shared
    }


def test_tasks_and_agents_begin_with_the_defaults_of_the_settings() -> None:
    assert loop_limits_from(Settings().agent) == LoopLimits()
    made, stated = environment_options(Settings()), EnvironmentOptions()
    for field in dataclasses.fields(EnvironmentOptions):
        if field.name not in ("cache", "policy", "install_policy", "clone"):
            assert getattr(made, field.name) == getattr(stated, field.name), field.name
    assert made.clone.depth == stated.clone.depth


@pytest.mark.parametrize("text", ["512MiB", "512 MiB", "512m", "0.5g", "536870912b"])
def test_a_size_is_the_same_in_a_file_and_in_python(text: str, tmp_path: Path) -> None:
    box = Sandbox("docker", memory=text, workspace=tmp_path)
    assert box._options.config.docker.limits.memory_bytes == SIZE.read(text, "here") == 2**29


@pytest.mark.parametrize("text", ["1 GB", "1gb", "5KB"])
def test_an_ambiguous_size_is_refused_with_the_way_to_write_it(text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^memory is '{text}'; it must be a size") as one:
        Sandbox(memory=text)
    with pytest.raises(ConfigurationError, match=f"^here is '{text}'; it must be a size") as other:
        SIZE.read(text, "here")
    assert one.value.hint == other.value.hint
    assert f"{text.strip('15 ')[0].upper()}iB" in one.value.hint
