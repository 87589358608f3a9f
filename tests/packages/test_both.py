"""Spec E's four properties of the library and of the script, and that both always say the same."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kakoi.packages.allowlist import AllowlistConfig, Ecosystem, InstallRequest, parse
from kakoi.packages.installer import Installer, InstallReport, ManagerResult, plain
from tests.packages.names import ECOSYSTEM, HOSTILE, LISTS, NAMES
from tests.packages.script import Script

# The script takes some hundredths of a second for each name: many names in one run.
BATCH = 12
batched = settings(
    max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@dataclass
class Asked:
    """A place that remembers what it was asked for."""

    wanted: list[str] = field(default_factory=list)

    async def install(self, ecosystem: Ecosystem, wanted: str) -> ManagerResult:
        self.wanted.append(wanted)
        return ManagerResult(0)


def by_library(
    kind: Ecosystem, text: str, packages: list[str]
) -> tuple[list[InstallReport], list[str]]:
    asked = Asked()
    lists = AllowlistConfig(**{kind: parse(kind, text)})
    installer = Installer(lists, asked, log=None, clock=lambda: datetime.now(UTC))

    async def install() -> list[InstallReport]:
        return [await installer.install(InstallRequest(kind, each)) for each in packages]

    return asyncio.run(install()), asked.wanted


def both(script: Script, kind: Ecosystem, text: str, packages: list[str]) -> list[InstallReport]:
    """The answers of the library, after it was seen that the script has the same."""
    script.write_list(kind, text)
    ran = script(kind, *packages)
    done, wanted = by_library(kind, text, packages)
    assert ran.status == max(each.exit_code for each in done)
    assert [call[-1] for call in script.calls()] == wanted
    logged = [(entry["type"], entry["package"], entry["status"]) for entry in script.logged()]
    assert logged == [(kind, each.result.package, each.result.status) for each in done]
    return done


@pytest.mark.requirement("E-019", "E-020", "E-023", "Y-21")
@given(ECOSYSTEM, st.lists(HOSTILE, min_size=2 * BATCH, max_size=2 * BATCH))
@batched
def test_both_say_the_same_of_whatever_is_asked(
    script: Script, kind: Ecosystem, packages: list[str]
) -> None:
    both(script, kind, LISTS[kind], packages)


@pytest.mark.requirement("E-019", "E-023")
@given(st.data(), ECOSYSTEM)
@batched
def test_what_is_not_listed_is_rejected(
    script: Script, data: st.DataObject, kind: Ecosystem
) -> None:
    # Those of the list are longer than any other that is drawn.
    listed = [f"listed-{number}-and-longer" for number in range(3)]
    packages = data.draw(st.lists(NAMES[kind], min_size=BATCH, max_size=BATCH))
    done = both(script, kind, "\n".join(listed), packages)
    assert {each.exit_code for each in done} == {1}
    assert [each.result.package for each in done] == [plain(package) for package in packages]


@pytest.mark.requirement("E-021", "E-023", "E-024")
@given(st.data(), ECOSYSTEM)
@batched
@pytest.mark.slow("a container, and many programs in it")
def test_what_is_listed_is_attempted(script: Script, data: st.DataObject, kind: Ecosystem) -> None:
    names = data.draw(st.lists(NAMES[kind], min_size=BATCH, max_size=BATCH))
    ends = st.sampled_from(["\n", "\r\n", " \n", "\t\n", "\n\n", "\n# more\n", "\n   #\r\n"])
    text = "".join(
        data.draw(st.sampled_from(["", " ", "\t"])) + name + data.draw(ends) for name in names
    )
    done = both(script, kind, text, names)
    readable = {entry for name in names for entry in parse(kind, name).entries}
    attempted = [each for each in done if each.exit_code == 0]
    assert len(attempted) == sum(bool(parse(kind, name).entries) for name in names)
    assert readable == set(parse(kind, text).entries)


@pytest.mark.requirement("E-024")
@given(ECOSYSTEM, st.lists(HOSTILE, max_size=12))
@batched
def test_both_read_the_same_from_any_list(
    script: Script, kind: Ecosystem, lines: list[str]
) -> None:
    asked = [line for line in lines if line] + ["requests", "curl", "typescript"]
    both(script, kind, "\n".join(lines), asked)
