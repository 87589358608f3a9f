"""A client's user answers "always", by either protocol; the next client is not asked."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp_types import ElicitRequestFormParams, ElicitRequestParams, ElicitResult

from kakoi.mcp.server import make_server
from kakoi.tools.toolset import Toolset
from tests.mcp.connections import McpDoor, any_mode, run

pytestmark = pytest.mark.anyio
FORM = "git init inner"
Connect = Callable[[str, Any], contextlib.AbstractAsyncContextManager[Client]]


@dataclass(frozen=True)
class OwnDoor(McpDoor):
    """A door of a user with a home of its own."""

    @property
    def environ(self) -> dict[str, str]:
        return {**super().environ, "XDG_STATE_HOME": str(self.folder / "state")}


@pytest.fixture
def own(tmp_path: Path) -> OwnDoor:
    folder = tmp_path.resolve()
    folder.chmod(0o700)
    door = OwnDoor(folder)
    door.workspace.mkdir()
    (folder / "config.yaml").write_text("")
    return door


class Person:
    """Gives the answers in order, and keeps what was shown."""

    def __init__(self, *contents: dict[str, Any]) -> None:
        self._contents = list(contents)
        self.offers: list[str] = []

    async def __call__(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        shown = dict(params.requested_schema["properties"])
        self.offers.append(shown.get("always_here", {}).get("description", ""))
        return ElicitResult(action="accept", content=self._contents.pop(0))


def reasons(door: McpDoor) -> list[str]:
    records = map(json.loads, door.log.read_text().splitlines())
    return [each.get("reason", "") for each in records if each["event"] == "approved"]


@pytest.fixture
def connect(own: OwnDoor, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Connects to a new server in this process."""
    monkeypatch.setenv("XDG_STATE_HOME", own.environ["XDG_STATE_HOME"])

    @contextlib.asynccontextmanager
    async def client(mode: str, person: Person | None) -> AsyncIterator[Client]:
        async with own.server_state() as state:
            server = make_server(state)
            async with Client(server, mode=mode, elicitation_callback=person) as one:
                yield one

    return client


@any_mode
async def test_always_here_holds_for_the_next_server(
    own: OwnDoor, connect: Connect, mode: str
) -> None:
    person = Person({"always_here": True})
    async with connect(mode, person) as client:
        assert not (await run(client, FORM)).is_error
        assert not (await run(client, FORM)).is_error
        # A session of its own, where the exact command was never approved.
        assert not (await run(client, f"ls && {FORM}", session="other")).is_error
    assert person.offers == [f"Always: `{FORM}` in {own.workspace}, for 30 days."]
    async with connect(mode, None) as client:
        assert not (await run(client, FORM)).is_error
        assert (await run(client, "git init other")).is_error
        assert (await run(client, FORM, workdir="inner")).is_error
        assert (await run(client, FORM, env={"FOO": "1"})).is_error
    first, *later = reasons(own)
    assert first.startswith("approved, and remembered as ")
    assert len(later) == 3
    assert all(each.startswith("approved by the remembered approval ") for each in later)


@any_mode
async def test_only_true_and_only_what_was_offered_is_remembered(
    own: OwnDoor, connect: Connect, mode: str
) -> None:
    contents: list[dict[str, Any]] = [
        {"always_here": "true"},
        {"always_here": 1},
        {"remember": True},
    ]
    person = Person(*contents, {"always_here": True}, {"always_here": True})
    async with connect(mode, person) as client:
        for name in ("a", "b", "c"):
            await run(client, f"git init {name}")
        for _ in range(2):  # Nothing is offered here, so nothing is remembered.
            await run(client, "git init --bare x")
    assert [bool(offer) for offer in person.offers] == [True, True, True, False, False]
    assert not list((own.folder / "state").rglob("approvals.json"))


@pytest.mark.parametrize(("tokens", "remembers"), [(1, True), (2, False)])
async def test_clients_with_different_tokens_share_no_approvals(
    own: OwnDoor, monkeypatch: pytest.MonkeyPatch, tokens: int, remembers: bool
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", own.environ["XDG_STATE_HOME"])
    files = [own.folder / f"token{number}" for number in range(tokens)]
    async with own.server_state(address="127.0.0.1:0", token_files=files) as state:
        assert isinstance(state.tools, Toolset)
        assert (state.tools.gate.approvals is not None) is remembers


async def test_it_is_asked_over_pipes(own: OwnDoor) -> None:
    async with own.stdio("legacy", Person({"always_here": True})) as client:
        assert not (await run(client, FORM)).is_error
        assert not (await run(client, FORM, session="other")).is_error
    assert len(list((own.folder / "state").rglob("approvals.json"))) == 1
