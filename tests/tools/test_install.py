"""`install_package`: the answers of `kakoi install`, from the same lists."""

from dataclasses import replace
from typing import Any

import pytest

from kakoi.audit import Event, read, verify
from kakoi.tools.replies import ToolResult
from kakoi.tools.toolset import Toolset
from tests.tools.installs import logged, with_scripted_python
from tests.tools.places import ToolPlace, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def place(place: ToolPlace, monkeypatch: pytest.MonkeyPatch) -> ToolPlace:
    return with_scripted_python(place, monkeypatch)


async def install(tools: Toolset, package: str, kind: str = "pip", **more: Any) -> ToolResult:
    return await tools.call("install_package", {"type": kind, "package": package, **more})


async def test_a_listed_package_is_installed_and_recorded(tools: Toolset, place: ToolPlace) -> None:
    assert (await tools.call("execute_command", {"command": "pip install six"})).is_error
    done = await install(tools, "requests[socks]")
    assert not done.is_error
    came = "also installed: brought-along 1.0\n[installed requests[socks] | "
    assert done.text.startswith(came)
    assert done.meta["also"] == ["brought-along 1.0"]
    assert done.meta["status"] == "success"
    asked = (place.workspace / "asked").read_text().splitlines()
    assert (asked[0], asked[-1]) == ("-I", "requests[socks]")
    records = [(record.event, record.command) for record in read(place.log)]
    assert any(event == "started" and "pip install" in text for event, text in records)
    assert all(record.session for record in read(place.log))
    assert logged(place) == [("requests[socks]", "success")]


@pytest.mark.parametrize(
    "package",
    ["evil", "--index-url=x", "-r", "../x", "a\nb", "\x1b[2J", "", "requests; id", "x.whl", "a\0b"],
)
async def test_what_is_not_listed_is_refused_recorded_and_has_a_way_out(
    tools: Toolset, place: ToolPlace, package: str
) -> None:
    refused = await install(tools, package)
    assert refused.is_error
    assert "is refused: " in refused.text
    assert "hint: use a package that is on the list, " in refused.text
    assert "\x1b" not in refused.text
    (record,) = read(place.log)
    assert (record.event, record.verdict) == ("refused", "deny")
    assert record.rules == ("unlisted-packages",)
    assert verify(place.log).ok
    assert [status for _, status in logged(place)] == ["rejected"]
    assert not (place.workspace / "asked").exists()


async def test_a_failure_has_its_reason(tools: Toolset, place: ToolPlace) -> None:
    (place.workspace / "broken").touch()
    failed = await install(tools, "requests")
    assert failed.is_error
    assert "was not installed: no such thing" in failed.text
    apt = await install(tools, "jq", "apt")
    assert apt.is_error
    assert "--container" in apt.text
    other = await install(tools, "x", "gem")
    assert other.is_error
    assert "apt, pip, npm" in other.text


async def test_without_a_list_nothing_is_installed(place: ToolPlace) -> None:
    empty = place.folder / "empty"
    empty.mkdir()
    changed = replace(place, settings={**place.settings, "packages.allowlist": str(empty)})
    async with changed.open() as tools:
        refused = await install(tools, "requests")
    assert refused.is_error
    assert "there is no list" in refused.text


async def test_one_that_takes_long_goes_on_and_the_same_call_waits_for_it(
    tools: Toolset, place: ToolPlace
) -> None:
    slow = place.workspace / "slow"
    slow.touch()
    first = await install(tools, "requests", yield_ms=0)
    assert first.meta == {"running": True}
    await until((place.workspace / "waits").exists, "pip runs")
    slow.unlink()
    assert (await install(tools, "requests")).meta["status"] == "success"
    assert logged(place) == [("requests", "success")]


async def test_who_wants_to_know_hears_that_it_goes_on(tools: Toolset, place: ToolPlace) -> None:
    slow = place.workspace / "slow"
    slow.touch()
    heard: list[str] = []

    async def hear(_spent_s: float, sentence: str) -> None:
        heard.append(sentence)
        slow.unlink(missing_ok=True)

    asked = {"type": "pip", "package": "requests"}
    done = await tools.call("install_package", asked, report=hear)
    assert done.meta["status"] == "success"
    assert heard[0].startswith("installing for ")


async def test_what_is_being_installed_ends_with_the_tools(place: ToolPlace) -> None:
    (place.workspace / "slow").touch()
    async with place.open() as tools:
        await install(tools, "requests", yield_ms=0)
        await until((place.workspace / "waits").exists, "pip runs")
    assert logged(place) == [("requests", "failed")]
    events = [record.event for record in read(place.log)]
    assert events.count(Event.STARTED) == events.count(Event.ENDED)


async def test_there_is_an_end_to_what_can_be_waiting(tools: Toolset, place: ToolPlace) -> None:
    (place.workspace / "slow").touch()
    answers = [await install(tools, f"requests[x{n}]", yield_ms=0) for n in range(17)]
    assert [answer.is_error for answer in answers] == [False] * 16 + [True]
    (place.workspace / "slow").unlink()
