"""SandboxConfig: what may be in a `sandbox:` section, in both spellings, and nothing else."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.backends.adapter import Limits
from kakoi.errors import ConfigurationError, KakoiError
from kakoi.sandbox import (
    BubblewrapAdapter,
    ContainerAdapter,
    ContainerUseSettings,
    DockerAdapter,
    DockerSettings,
    ExecuteOptions,
    HostAdapter,
    HostSettings,
    ProcessExecutor,
    SandboxConfig,
    SandboxFactory,
    SpawnOptions,
)

SPEC_5_1: dict[str, Any] = {
    "type": "docker",
    "fallback": "host",
    "docker": {"image": "node:20-alpine", "network": "none", "timeout": 300},
    "containerUse": {"image": "node:20", "envId": ""},
    "host": {"timeout": 300, "warnOnStart": True},
}


# --- What is meant ---------------------------------------------------------------------------


@pytest.mark.requirement("X-24", "B-037")
def test_the_section_of_the_spec_is_read_as_it_stands() -> None:
    config = SandboxConfig.parse(SPEC_5_1)
    assert (config.type, config.fallback) == ("docker", "host")
    assert (config.docker.image, config.docker.network) == ("node:20-alpine", "none")
    assert (config.container_use.image, config.container_use.env_id) == ("node:20", "")
    assert (config.host.timeout_s, config.host.warn_on_start) == (300, True)


@pytest.mark.requirement("X-24")
def test_both_spellings_mean_the_same() -> None:
    camel = {"containerUse": {"envId": "calm-owl"}, "host": {"warnOnStart": False}}
    snake = {"container_use": {"env_id": "calm-owl"}, "host": {"warn_on_start": False}}
    kebab = {"container-use": {"env-id": "calm-owl"}, "host": {"warn-on-start": False}}
    assert SandboxConfig.parse(camel) == SandboxConfig.parse(snake) == SandboxConfig.parse(kebab)


@pytest.mark.requirement("X-24")
def test_a_key_in_two_spellings_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="twice"):
        SandboxConfig.parse({"host": {"warnOnStart": True, "warn_on_start": False}})


@pytest.mark.requirement("B-044", "B-046")
@pytest.mark.parametrize("section", [None, {}, {"docker": {}}, {"docker": None, "type": None}])
def test_everything_can_be_left_out(section: object) -> None:
    config = SandboxConfig.parse(section)
    assert config == SandboxConfig()
    assert (config.type, config.fallback, config.network) == ("auto", None, None)
    assert config.docker.timeout_s == config.container_use.timeout_s == config.host.timeout_s == 300


@pytest.mark.requirement("B-045")
@pytest.mark.parametrize("network", ["none", "open", "allowlist", "bridge", "host"])
def test_docker_takes_each_of_its_networks(network: str) -> None:
    assert SandboxConfig.parse({"docker": {"network": network}}).docker.network == network
    assert SandboxConfig.parse({"network": network}).docker.network == network


@pytest.mark.requirement("B-045")
@pytest.mark.parametrize("network", ["opened", "None", 5, True, ["none"], {"none": 1}])
def test_docker_takes_no_other_network(network: object) -> None:
    for section in ({"docker": {"network": network}}, {"network": network}):
        with pytest.raises(ConfigurationError, match="network"):
            SandboxConfig.parse(section)


@pytest.mark.requirement("B-044")
def test_an_empty_network_or_fallback_is_none() -> None:
    assert SandboxConfig.parse({"network": "", "fallback": ""}) == SandboxConfig()
    with pytest.raises(ConfigurationError, match="network"):
        SandboxConfig.parse({"docker": {"network": ""}})


@pytest.mark.requirement("B-045")
def test_a_network_that_is_left_out_is_the_least() -> None:
    assert SandboxConfig.parse({"docker": {"network": None}}).docker.network == "none"


@pytest.mark.requirement("B-047")
def test_times_in_a_file_are_seconds() -> None:
    section = {name: {"timeout": 5} for name in ("docker", "container_use", "host")}
    config = SandboxConfig.parse(section)
    times = (config.docker.timeout_s, config.container_use.timeout_s, config.host.timeout_s)
    assert times == (5.0, 5.0, 5.0)


@pytest.mark.requirement("A-103", "B-056")
def test_what_is_out_of_scope_is_stated_and_not_to_be_configured() -> None:
    page = Path(__file__).parents[2] / "docs" / "explanation" / "scope-of-the-sandboxes.md"
    text = page.read_text(encoding="utf-8")
    assert all(word in text for word in ("Windows", "macOS", "GUI", "GPU", "Podman"))
    with pytest.raises(ConfigurationError, match="unknown key `gpus`"):
        SandboxConfig.parse({"docker": {"gpus": "all"}})


# --- What is not -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"typ": "docker"}, "unknown key `typ`; did you mean `type`?"),
        ({"docker": {"imgae": "x"}}, "sandbox.docker: unknown key `imgae`; did you mean `image`?"),
        ({"containerUse": {"envID2": "x"}}, "did you mean `env_id`?"),
        ({"host": {"warnAtStart": True}}, "did you mean `warn_on_start`?"),
        ({"type": "dokcer"}, "sandbox.type: unknown sandbox `dokcer`; did you mean `docker`?"),
        ({"fallback": "container"}, "did you mean `container-use`?"),
        ({"fallback": "hots"}, "fallback: unknown sandbox `hots`; did you mean `host`?"),
        ({1: 2}, "unknown key `1`"),
        ({"docker": []}, "a section of keys and values"),
        ([], "a section of keys and values"),
        ("docker", "a section of keys and values"),
        ({"type": ["docker"]}, "sandbox.type is ['docker']; it must be text"),
        ({"host": {"warnOnStart": "yes"}}, "true or false"),
        ({"docker": {"image": "--privileged"}}, "the name of an image"),
        ({"docker": {"image": ""}}, "the name of an image"),
        ({"containerUse": {"image": "-x"}}, "sandbox.container_use.image is '-x'"),
        ({"containerUse": {"envId": "--all"}}, "sandbox.container_use.env_id is '--all'"),
        ({"containerUse": {"envId": "a b"}}, "the id of an environment"),
    ],
)
def test_what_is_wrong_is_named_with_the_nearest_that_is_right(section: object, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SandboxConfig.parse(section)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "timeout", [0, -1, "5", True, [], float("nan"), float("inf"), 10**400, 2**40]
)
@pytest.mark.parametrize("name", ["docker", "container_use", "host"])
def test_a_time_that_is_none_is_refused(name: str, timeout: object) -> None:
    with pytest.raises(ConfigurationError, match="a number of seconds"):
        SandboxConfig.parse({name: {"timeout": timeout}})


def test_a_huge_value_makes_no_huge_message() -> None:
    for section in ({"type": "x" * 10**6}, {"x" * 10**6: 1}, {"type": ["x"] * 10**6}):
        with pytest.raises(ConfigurationError) as caught:
            SandboxConfig.parse(section)
        assert len(str(caught.value)) < 300


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=4)
    ),
    max_leaves=10,
)
KEYS = st.sampled_from(
    ["type", "fallback", "network", "docker", "containerUse", "host", "image", "timeout", "envId"]
)


@given(JSON | st.dictionaries(KEYS, JSON | st.dictionaries(KEYS, JSON)))
def test_whatever_a_file_holds_is_a_configuration_or_an_error_of_ours(section: object) -> None:
    with contextlib.suppress(ConfigurationError):
        assert isinstance(SandboxConfig.parse(section), SandboxConfig)


# --- Nonsense to every constructor -----------------------------------------------------------

NONSENSE: list[object] = [
    *(None, 5, -1, 0, float("nan"), float("inf"), True, "", "a\0b", "\udcff", "\ud800", b"x"),
    *([], {}, [None], {1: 2}, {"A": 1}, {"": "x"}, {"A=B": "x"}, {"A": "\ud800"}, object()),
    *("x" * 100_000, 10**400, "-x", {"BASH_ENV": "x"}, ("a", 5)),
]
CONSTRUCTORS: list[tuple[Any, list[str]]] = [
    (SpawnOptions, ["cwd", "env", "stdin", "timeout", "stdout", "stderr", "max_output_bytes"]),
    (ExecuteOptions, ["cwd", "env", "timeout"]),
    (Limits, ["memory_bytes", "cpus", "processes"]),
    (DockerSettings, ["image", "network", "timeout_s", "limits", "inside", "env", "user"]),
    (DockerSettings, ["directories", "workspace"]),
    (ContainerUseSettings, ["image", "env_id", "timeout_s"]),
    (HostSettings, ["timeout_s", "warn_on_start"]),
    (SandboxConfig, ["type", "fallback", "network", "docker", "container_use", "host"]),
    (SandboxFactory, ["workspace", "environ", "makers", "executor", "clock"]),
    (ProcessExecutor, ["base_env"]),
    (HostAdapter, ["workspace", "env", "timeout_s", "executor"]),
    (ContainerAdapter, ["config", "workspace", "engine_env", "timeouts", "executor"]),
    (DockerAdapter, ["config", "engine_env", "executor"]),
]


@pytest.mark.parametrize(
    ("constructor", "name"),
    [(each, name) for each, names in CONSTRUCTORS for name in names],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_nonsense_is_taken_or_refused_with_an_error_of_ours(constructor: Any, name: str) -> None:
    for nonsense in NONSENSE:
        with contextlib.suppress(KakoiError):
            constructor(**{name: nonsense})


@pytest.mark.parametrize(
    "name", ["workspace", "read_only", "network", "env", "timeout_s", "limits"]
)
def test_nonsense_for_bubblewrap_is_taken_or_refused(name: str, tmp_path: object) -> None:
    for nonsense in NONSENSE:
        with contextlib.suppress(KakoiError):
            BubblewrapAdapter(**{"workspace": tmp_path, name: nonsense})  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_nonsense_for_execute_is_refused_with_an_error_of_ours(tmp_path: Any) -> None:
    adapter = HostAdapter(tmp_path, warn_on_start=False)
    for nonsense in NONSENSE:
        for arguments in ((nonsense,), ("true", nonsense)):
            with contextlib.suppress(KakoiError):
                await adapter.execute(*arguments)
    assert (await adapter.execute("echo fine")).stdout == "fine\n"
    await adapter.cleanup()
