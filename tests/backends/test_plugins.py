"""Backends of other packages: found by their entry points, used by name, and blamed by name."""

import asyncio
import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kakoi.backends.host.adapter import HostAdapter
from kakoi.backends.plugins import load_plugin, plugin_names
from kakoi.backends.select import SandboxFactory
from kakoi.backends.settings import SandboxConfig
from kakoi.channel.api import Command
from kakoi.errors import ConfigurationError, KakoiError, LimitError
from kakoi.settings.model import SandboxSection

WORKING = """
from kakoi.errors import LimitError
from kakoi.sandbox import BackendContext, HostAdapter


class Mine(HostAdapter):
    name = "mine"


def make_backend(context: BackendContext) -> HostAdapter:
    assert context.environ == {"NEEDED": "1"}, context.environ
    return Mine(context.workspace, warn_on_start=False)


def refusing(context: BackendContext) -> HostAdapter:
    raise LimitError("no limit holds here")


def failing(context: BackendContext) -> HostAdapter:
    raise ZeroDivisionError("oh no")


def wrong(context: BackendContext) -> object:
    return 3


number = 3
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a package into a directory on sys.path, as pip does: modules and a dist-info."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "mine_backend", raising=False)
    (folder / "mine_backend.py").write_text(WORKING, encoding="ascii")
    (folder / "broken_backend.py").write_text("import no_such_module_anywhere\n", encoding="ascii")

    def add(package: str, **entries: str) -> None:
        info = folder / f"{package}-1.0.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        (info / "METADATA").write_text(text, encoding="ascii")
        lines = [f"{name.replace('_', '-')} = {value}" for name, value in entries.items()]
        text = "\n".join(["[kakoi.backends]", *lines, ""])
        (info / "entry_points.txt").write_text(text, encoding="ascii")

    return add


@pytest.fixture
def factory(tmp_path: Path) -> SandboxFactory:
    (tmp_path / "workspace").mkdir()
    return SandboxFactory(tmp_path / "workspace", environ={"NEEDED": "1"})


def error_of(factory: SandboxFactory, name: str) -> KakoiError:
    with pytest.raises(ConfigurationError) as caught:
        factory.make(name, SandboxConfig())
    return caught.value


def test_an_installed_backend_is_found_and_used(install: Install, factory: SandboxFactory) -> None:
    install("mine", mine="mine_backend:make_backend")
    config = SandboxConfig(type="mine")

    async def use() -> str:
        sandbox = await factory.create(config)
        try:
            assert sandbox.name == "mine"
            return (await sandbox.run(Command(command="echo hi"))).stdout
        finally:
            await sandbox.cleanup()

    assert asyncio.run(use()) == "hi\n"
    assert SandboxConfig.parse({"type": "docker", "fallback": "mine"}).fallback == "mine"


def test_settings_take_the_name_of_an_installed_backend(install: Install) -> None:
    install("mine", mine="mine_backend:make_backend")
    kinds = {field.name: field.metadata for field in dataclasses.fields(SandboxSection)}
    read = next(value for value in kinds["type"].values() if hasattr(value, "kind")).kind.read
    assert read("mine", "sandbox.type") == "mine"
    with pytest.raises(ConfigurationError, match=r"unknown sandbox `mime`; did you mean `mine`"):
        read("mime", "sandbox.type")


def test_an_unknown_name_is_an_error_that_lists_what_is_installed(
    install: Install, factory: SandboxFactory
) -> None:
    install("mine", mine="mine_backend:make_backend")
    error = error_of(factory, "mime")
    assert "unknown sandbox `mime`" in str(error)
    assert "mine" in error.hint
    assert "docker" in error.hint
    with pytest.raises(ConfigurationError) as caught:
        load_plugin("other")
    assert "mine" in caught.value.hint


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("broken_backend:make_backend", "no_such_module_anywhere"),
        ("mine_backend:no_such_function", "no_such_function"),
        ("mine_backend:number", "`mine_backend:number` is not a function"),
        ("mine_backend:failing", "ZeroDivisionError: oh no"),
        ("mine_backend:wrong", "its int has no name, availability"),
    ],
)
def test_a_broken_backend_is_a_clear_error_and_costs_the_others_nothing(
    install: Install, factory: SandboxFactory, target: str, why: str
) -> None:
    install("broken-package", broken=target, mine="mine_backend:make_backend")
    error = error_of(factory, "broken")
    assert "the sandbox `broken` of the package `broken-package` is broken" in str(error)
    assert why in str(error)
    assert "broken-package" in error.hint
    assert factory.make("mine", SandboxConfig()).name == "mine"
    assert isinstance(factory.make("host", SandboxConfig()), HostAdapter)


def test_what_a_backend_refuses_is_its_own_error(install: Install, factory: SandboxFactory) -> None:
    install("mine", refusing="mine_backend:refusing")
    with pytest.raises(LimitError, match="no limit holds here"):
        factory.make("refusing", SandboxConfig())


def test_a_backend_of_others_cannot_take_a_built_in_name(
    install: Install, factory: SandboxFactory
) -> None:
    target = "mine_backend:make_backend"
    install("greedy", host=target, auto=target, container_use=target, confined_host=target)
    assert type(factory.make("host", SandboxConfig())) is HostAdapter
    assert type(factory.make("confined-host", SandboxConfig())) is HostAdapter
    assert load_plugin("container-use").package == "kakoi"
    assert "there is no sandbox `auto`" in str(error_of(factory, "auto"))


def test_two_backends_of_one_name_are_ambiguous(install: Install, factory: SandboxFactory) -> None:
    install("one", mine="mine_backend:make_backend")
    install("two", mine="mine_backend:make_backend")
    assert "the packages one and two provide it" in str(error_of(factory, "mine"))


def test_kernel_allowlist_and_copy_on_write_are_refused(
    install: Install, factory: SandboxFactory
) -> None:
    install("mine", mine="mine_backend:make_backend")
    with pytest.raises(ConfigurationError, match="kernel_allowlist"):
        factory.make("mine", SandboxConfig(kernel_allowlist=True))
    with pytest.raises(ConfigurationError, match="copy-on-write"):
        factory.make("mine", SandboxConfig(copy_on_write=True))


def test_container_use_is_kakois_own_plugin() -> None:
    assert "container-use" in plugin_names()


def test_a_built_in_sandbox_does_not_look_for_plugins(tmp_path: Path) -> None:
    text = """
import sys
from kakoi.backends.select import SandboxFactory
from kakoi.backends.settings import SandboxConfig
SandboxFactory(sys.argv[1]).make("bubblewrap", SandboxConfig(type="docker"))
assert "importlib.metadata" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", text, str(tmp_path)], check=True, timeout=60)
