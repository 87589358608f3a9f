"""Fixtures of the suite: the sandbox under test."""

import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType

import pytest

from kakoi.backends.adapter import Availability, SandboxAdapter
from kakoi.backends.probes import new_mark
from kakoi.channel.api import Channel
from kakoi.conformance.plugin import LEFT_OUT, PROPERTY, is_required, sandbox_names
from kakoi.conformance.sandbox_commands import channel_output, reset
from kakoi.conformance.subjects import Subject, Traits, subject_named
from kakoi.errors import UnsupportedError

Opener = Callable[[], AbstractAsyncContextManager[SandboxAdapter]]

# Far more than any test needs: only a sandbox that hangs reaches it.
_TEST_LIMIT_S = 300


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sandbox_name" in metafunc.fixturenames:
        metafunc.parametrize("sandbox_name", sandbox_names(metafunc.config), scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of traits that the sandbox does not claim, and count them for the report."""
    counts: Counter[tuple[str, str]] = Counter()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        unclaimed = _unclaimed(item)
        counts.update(unclaimed)
        (left_out if unclaimed else kept).append(item)
    config.stash[LEFT_OUT] = counts
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def _unclaimed(item: pytest.Item) -> list[tuple[str, str]]:
    needed = [trait for mark in item.iter_markers("needs") for trait in mark.args]
    if not needed or not isinstance(item, pytest.Function):
        return []
    name = str(item.callspec.params["sandbox_name"])
    traits = subject_named(name).traits
    return [(name, trait) for trait in needed if not getattr(traits, trait)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    with _left_out_without_channel(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with _left_out_without_channel(item):
        yield


@contextmanager
def _left_out_without_channel(item: pytest.Item) -> Iterator[None]:
    """Skip a test that a sandbox without a channel refuses."""
    try:
        yield
    except UnsupportedError as error:
        if not isinstance(item, pytest.Function) or "sandbox_name" not in item.callspec.params:
            raise
        name = str(item.callspec.params["sandbox_name"])
        if subject_named(name).traits.channel:
            raise
        pytest.skip(f"{name} does not claim `channel`: {error}")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def every_test_ends() -> Iterator[None]:
    """Fail a test that takes too long, however the sandbox hangs."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test took more than {_TEST_LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(_TEST_LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def sandbox_in_report(sandbox_name: str, record_property: Callable[[str, object], None]) -> None:
    record_property(PROPERTY, sandbox_name)


@pytest.fixture(scope="session")
def subject(sandbox_name: str) -> Subject:
    return subject_named(sandbox_name)


@pytest.fixture(scope="session")
def traits(subject: Subject) -> Traits:
    return subject.traits


@pytest.fixture(scope="session")
def availabilities() -> dict[str, Availability]:
    """The availabilities found so far, stored because each check takes a moment."""
    return {}


@pytest.fixture(scope="session")
async def available(
    subject: Subject,
    availabilities: dict[str, Availability],
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> None:
    """Skip the tests if the sandbox does not work here, or fail them if it is required."""
    if subject.name not in availabilities:
        async with _opened(subject, tmp_path_factory.mktemp("probe")) as adapter:
            availabilities[subject.name] = await adapter.availability()
    answer = availabilities[subject.name]
    if not answer:
        report = pytest.fail if is_required(pytestconfig, subject.name) else pytest.skip
        report(f"{subject.name} is not available: {answer.reason}. {answer.fix}")


@asynccontextmanager
async def _opened(subject: Subject, workspace: Path) -> AsyncIterator[SandboxAdapter]:
    adapter = subject.make(workspace)
    try:
        yield adapter
    finally:
        await adapter.cleanup()


@pytest.fixture(scope="session")
async def shared_sandbox(
    subject: Subject, available: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SandboxAdapter]:
    """One sandbox for all tests that leave it intact: a container for each test would be slow."""
    async with _opened(subject, tmp_path_factory.mktemp("shared")) as adapter:
        yield adapter


@pytest.fixture
async def sandbox(shared_sandbox: SandboxAdapter, traits: Traits) -> AsyncIterator[SandboxAdapter]:
    """The shared sandbox, reset after each test."""
    yield shared_sandbox
    if traits.resident:
        await reset(shared_sandbox, has_jobs=traits.jobs)


@pytest.fixture
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace of `fresh`, on this machine."""
    return tmp_path_factory.mktemp("workspace")


@pytest.fixture
def fresh(subject: Subject, available: None, workspace: Path) -> Opener:
    """Opens a new sandbox, for a test that may break it or checks how it starts or ends."""
    return lambda: _opened(subject, workspace)


@pytest.fixture
async def channel(sandbox: SandboxAdapter) -> Channel:
    return await sandbox.channel()


@pytest.fixture
def mark() -> str:
    return new_mark()


@pytest.fixture
async def folder(sandbox: SandboxAdapter, mark: str) -> str:
    """An empty directory in the workspace, by its path inside the sandbox."""
    return (await channel_output(sandbox, f"mkdir {mark}.d && cd {mark}.d && pwd -P")).rstrip("\n")
