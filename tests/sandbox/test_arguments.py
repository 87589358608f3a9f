"""What `Sandbox` says about arguments that cannot be right, before anything is opened."""

import inspect
import math
from pathlib import Path
from typing import Any

import pytest

from kakoi import ConfigurationError, LimitError, Sandbox
from kakoi._support.parsing import as_size
from kakoi.backends.adapter import DEFAULT_TIMEOUT_S, Limits
from kakoi.sandbox.options import seconds
from kakoi.sync import Sandbox as BlockingSandbox

BAD: list[tuple[dict[str, Any], str]] = [
    ({"backend": "bubblewarp"}, r"backend is 'bubblewarp'.*bubblewrap"),
    ({"backend": 7}, "backend is int"),
    ({"workspace": "/does/not/exist"}, "workspace is '/does/not/exist', which is not a directory"),
    ({"workspace": "a\0b"}, "workspace is"),
    ({"workspace": 3}, "workspace is int"),
    ({"memory": "1 GB"}, r"memory is '1 GB'; it must be a size such as `1GiB`"),
    ({"memory": "1GB"}, "memory is '1GB'"),
    ({"memory": -1}, "memory is -1"),
    ({"memory": True}, "memory is True"),
    ({"disk": "lots"}, "disk is 'lots'"),
    ({"disk": 1}, "disk is 1; it must be at least"),
    ({"cpus": 0}, "cpus is 0; it must be above zero"),
    ({"cpus": math.nan}, "cpus is nan"),
    ({"processes": 1.5}, "processes is float"),
    ({"processes": -3}, "processes is -3"),
    ({"timeout": -1}, "timeout is -1; it must be a number of seconds above zero"),
    ({"timeout": 1e18}, "timeout is 1e.18; it must be below"),
    ({"timeout": 10**400}, "timeout is 1000.*; it must be below"),
    ({"timeout": "5"}, "timeout is '5'"),
    ({"timeout": math.nan}, "timeout is nan"),
    ({"lifetime": 0}, "lifetime is 0"),
    ({"network": "noen"}, r"network is 'noen'.*none"),
    ({"network": ["not a domain!"]}, "not a domain!"),
    ({"network": [1]}, "network is"),
    ({"env": {"A": 1}}, "env contains 'A'"),
    ({"env": {"BASH_ENV": "x"}}, "env sets BASH_ENV"),
    ({"env": ["A=1"]}, "env is list"),
    ({"labels": {"a": 1}}, "labels contains 'a'"),
    ({"policy": "no-such"}, "no-such"),
    ({"policy": 5}, "policy is int"),
    ({"approve": "yes"}, "approve is str; it must be a function"),
    ({"copy_on_write": 1}, "copy_on_write is int"),
    ({"audit": 1}, "audit is int"),
    ({"backend": "bubblewrap", "image": "x"}, "image is 'x'; bubblewrap has no images"),
    ({"backend": "host", "user": "me"}, "user is 'me'; host chooses"),
    ({"backend": "docker", "image": "-x"}, "image is '-x'"),
    ({"backend": "confined-host", "network": "open"}, "network is 'open', which confined-host"),
    ({"backend": "kubernetes", "workspace": "/usr"}, "a pod cannot see directories"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[repr(each[0])[:60] for each in BAD])
def test_a_wrong_argument_is_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Sandbox(**arguments)


@pytest.mark.parametrize("kind", [Sandbox, BlockingSandbox])
def test_an_unknown_argument_is_a_type_error_that_names_the_nearest(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"Sandbox\(\) has no argument 'memroy'.*`memory`"):
        kind(memroy="1GiB")
    with pytest.raises(TypeError, match="positional"):
        kind("docker", "podman")


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("1GiB", 2**30),
        ("512MiB", 2**29),
        ("1.5g", 3 * 2**29),
        ("64k", 2**16),
        ("100b", 100),
        (5, 5),
    ],
)
def test_sizes_are_numbers_or_words(word: str | int, number: int) -> None:
    assert as_size(word, "memory") == number


def test_times_are_seconds_and_infinity_is_no_limit() -> None:
    assert seconds("timeout", 1.5) == 1.5
    assert seconds("timeout", math.inf) is None


def test_what_auto_would_choose_is_not_known_before_it_is_open() -> None:
    with pytest.raises(ConfigurationError, match="known once the sandbox is open"):
        Sandbox().supports("fork")
    assert Sandbox("bubblewrap").supports("fork")
    assert not Sandbox("kubernetes").supports("fork")
    with pytest.raises(ConfigurationError, match=r"ability is 'frok'.*fork"):
        Sandbox("bubblewrap").supports("frok")  # type: ignore[arg-type]


def test_forks_of_a_given_workspace_need_copies(tmp_path: Path) -> None:
    assert not Sandbox("bubblewrap", workspace=tmp_path).supports("fork")
    assert Sandbox("bubblewrap", workspace=tmp_path, copy_on_write=True).supports("fork")
    assert Sandbox("bubblewrap", workspace=tmp_path, copy_on_write=True).supports("copy_on_write")
    assert not Sandbox("bubblewrap", workspace=tmp_path).supports("copy_on_write")
    assert Sandbox("docker", workspace=tmp_path, copy_on_write=True).supports("checkpoint")
    assert not Sandbox("docker", workspace=tmp_path).supports("checkpoint")
    assert Sandbox("docker", lifetime=60).supports("attach")
    copied = Sandbox("docker", workspace=tmp_path, copy_on_write=True, lifetime=60)
    assert not copied.supports("attach")
    assert not Sandbox("docker").supports("attach")


@pytest.mark.parametrize("backend", ["bubblewrap", "confined-host", "host"])
def test_a_disk_limit_that_a_private_workspace_would_evade_is_refused(
    backend: str, tmp_path: Path
) -> None:
    with pytest.raises(LimitError, match="private workspace"):
        Sandbox(backend, disk="100MiB")
    Sandbox(backend, disk="100MiB", workspace=tmp_path)
    assert backend in Sandbox(disk="100MiB")._options.unfit


def test_its_defaults_are_those_of_the_backends() -> None:
    options = Sandbox("docker")._options
    assert options.config.docker.limits == Limits()
    assert options.timeout_s == DEFAULT_TIMEOUT_S
    for name, parameter in inspect.signature(Sandbox).parameters.items():
        assert inspect.signature(BlockingSandbox).parameters[name].default == parameter.default


def test_info_needs_an_open_sandbox() -> None:
    with pytest.raises(ConfigurationError, match="not open yet"):
        _ = Sandbox("bubblewrap").info
