"""What the tests of the suite share: the sandbox under test."""

import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import FrameType

import pytest

from kakoi.conformance.asking import new_mark, reset, seen
from kakoi.conformance.plugin import LEFT_OUT, PROPERTY, is_required, sandbox_names
from kakoi.conformance.subjects import Subject, Traits, subject_named
from kakoi.runner.commands import Channel
from kakoi.sandbox.adapter import Availability, SandboxAdapter

Opener = Callable[[], AbstractAsyncContextManager[SandboxAdapter]]

# Far beyond what any test needs: it is for a sandbox that hangs.
_TEST_LIMIT_S = 300


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sandbox_name" in metafunc.fixturenames:
        metafunc.parametrize("sandbox_name", sandbox_names(metafunc.config), scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the sandbox does not claim, and count it for the report."""
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


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def every_test_ends() -> Iterator[None]:
    """However the sandbox hangs."""

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
    """What was found out so far: trying takes a moment."""
    return {}


@pytest.fixture(scope="session")
async def available(
    subject: Subject,
    availabilities: dict[str, Availability],
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> None:
    """The sandbox works here; otherwise the tests are skipped, or fail if it is required."""
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
    """For all tests of a run that do not ruin it: starting a container for each would be slow."""
    async with _opened(subject, tmp_path_factory.mktemp("shared")) as adapter:
        yield adapter


@pytest.fixture
async def sandbox(shared_sandbox: SandboxAdapter, traits: Traits) -> AsyncIterator[SandboxAdapter]:
    """The shared one; what the test leaves in it is not met by the next one."""
    yield shared_sandbox
    if traits.resident:
        await reset(shared_sandbox, has_jobs=traits.jobs)


@pytest.fixture
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace of `fresh`, on this machine."""
    return tmp_path_factory.mktemp("workspace")


@pytest.fixture
def fresh(subject: Subject, available: None, workspace: Path) -> Opener:
    """For a test that may ruin its sandbox, or looks at its beginning or end."""
    return lambda: _opened(subject, workspace)


@pytest.fixture
async def channel(sandbox: SandboxAdapter) -> Channel:
    return await sandbox.channel()


@pytest.fixture
def mark() -> str:
    return new_mark()


@pytest.fixture
async def place(sandbox: SandboxAdapter, mark: str) -> str:
    """An empty directory in the workspace, as the sandbox names it."""
    return (await seen(sandbox, f"mkdir {mark}.d && cd {mark}.d && pwd -P")).rstrip("\n")
