"""A project's file can only take away from what the user allows: over all pairs of files.

The reach of a pair is found out by asking, for many targets, whether the list that holds would let
them through; it must be a part of the reach of the user's settings alone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from kakoi.errors import ConfigurationError
from kakoi.network.domains import EVERYTHING_PUBLIC, Domains, parse_domains, parse_target
from kakoi.policy.decide import decide
from kakoi.policy.rules import Verdict
from kakoi.sandbox.from_settings import sandbox_from
from kakoi.settings.loader import load_settings, with_project
from kakoi.settings.model import Settings, settings_table, value_at
from kakoi.settings.policy import policy_from
from kakoi.tasks.from_settings import environment_options

PRIVATE = ["10.1.0.0/16", "172.16.0.0/12:*", "192.168.7.0/24:8080", "[fc00::/7]:*", "100.64.0.0/10"]
PUBLIC = ["8.8.8.0/24", "1.1.1.1/32:853", "0.0.0.0/0", "0.0.0.0/1:*", "[2000::/3]:443"]
NAMES = ["a.example", "*.a.example", "b.a.example:8443", "a.example:*", "*.example", "b.test"]
LINES = st.lists(st.sampled_from([*PRIVATE, *PUBLIC, *NAMES]), max_size=5)
NETWORKS = st.sampled_from(["none", "allowlist", "open", "bridge", "host"])
HOSTS = ["a.example", "b.a.example", "x.b.a.example", "b.test", "c.test", "8.8.8.8", "1.1.1.1", "9.9.9.9",
         "10.1.2.3", "10.2.0.1", "172.17.0.1", "192.168.7.7", "100.64.1.1", "[fc00::1]", "[2600::1]"]  # fmt: skip
TARGETS = [parse_target(host, port) for host in HOSTS for port in (80, 443, 853, 8080, 8443, 9)]
# Where a listed name may lead, once it is resolved.
ADDRESSES = [each.host for each in TARGETS if not isinstance(each.host, str)]


def network_section(draw: st.DrawFn) -> dict[str, Any]:
    section: dict[str, Any] = {}
    if draw(st.booleans()):
        section["network"] = draw(NETWORKS)
    if draw(st.booleans()):
        section["allowed_domains"] = draw(LINES)
    return section


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of a user, or of a project."""
    tasks: dict[str, Any] = {
        name: draw(st.booleans())
        for name in ("external_access", "whitelist_mode")
        if draw(st.booleans())
    }
    if draw(st.booleans()):
        tasks["allowed_domains"] = draw(LINES)
    return {"sandbox": network_section(draw), "tasks": {"network": tasks}}


@st.composite
def environments(draw: st.DrawFn) -> dict[str, str]:
    """What the user says besides, in a way that wins over files."""
    named: dict[str, str] = {}
    for path in ("sandbox.network", "sandbox.allowed_domains", "tasks.network.whitelist_mode"):
        setting = settings_table()[path]
        if not setting.env or draw(st.integers(0, 2)):
            continue
        if path.endswith("allowed_domains"):
            named[setting.env[0]] = ",".join(draw(LINES))
        elif path == "sandbox.network":
            named[setting.env[0]] = draw(NETWORKS)
        else:
            named[setting.env[0]] = draw(st.sampled_from(["true", "false"]))
    return {name: text for name, text in named.items() if text}


def reached(network: str, domains: Domains) -> set[str]:
    """Everything of TARGETS that a command could come to, and every address behind a name."""
    if network in ("bridge", "host"):
        return {"everything", *(str(each) for each in TARGETS), *map(behind, ADDRESSES)}
    if network not in ("open", "allowlist"):
        return set()
    targets = {
        str(each)
        for each in TARGETS
        if not domains.objection(each)
        and (isinstance(each.host, str) or not domains.address_objection(each.host))
    }
    return targets | {behind(each) for each in ADDRESSES if not domains.address_objection(each)}


def behind(address: object) -> str:
    return f"a name that leads to {address}"


def reach_of(found: Settings) -> tuple[set[str], set[str]]:
    """Of commands, and of tasks."""
    commands = sandbox_from(found)
    tasks = environment_options(found).access
    return (
        reached(
            commands.network or "none",
            EVERYTHING_PUBLIC
            if commands.network == "open"
            else parse_domains(commands.allowed_domains),
        ),
        reached(tasks.network, tasks.allowed),
    )


def loaded(
    folder: Path, user: Mapping[str, Any], project: Mapping[str, Any] | None, env: Mapping[str, str]
) -> Settings:
    (folder / "config.yaml").write_text(yaml.safe_dump(user))
    own = folder / ".kakoi.yaml"
    own.unlink(missing_ok=True)
    if project is not None:
        own.write_text(yaml.safe_dump(project))
    environ = {"KAKOI_CONFIG": str(folder / "config.yaml"), **env}
    return load_settings(folder, environ=environ).settings


@pytest.mark.slow("each of many pairs of files is read three times")
@pytest.mark.parametrize(
    ("pairs", "number"),
    [
        (200, 0),
        # In parts, which workers share: each has other pairs than the first.
        *(
            pytest.param(1000, part, marks=pytest.mark.extended("long fuzz: more pairs"))
            for part in range(1, 7)
        ),
    ],
)
def test_no_project_reaches_more_than_its_user_allows(
    tmp_path: Path, pairs: int, number: int
) -> None:
    seen = {"narrowed": 0, "refused": 0}

    @seed(number)
    @settings(max_examples=pairs, suppress_health_check=list(HealthCheck))
    @given(user=files(), project=files(), env=environments())
    def whatever_they_say(
        user: dict[str, Any], project: dict[str, Any], env: dict[str, str]
    ) -> None:
        try:
            alone = loaded(tmp_path, user, None, env)
        except ConfigurationError:
            return  # Of the user's own: there is nothing to go beyond.
        allowed = reach_of(alone)
        try:
            both = loaded(tmp_path, user, project, env)
            carried = with_project(alone, {".kakoi.yaml": yaml.safe_dump(project).encode()}, environ=env)  # fmt: skip
        except ConfigurationError:
            seen["refused"] += 1
            return
        for found in (both, carried):
            for more, limit in zip(reach_of(found), allowed, strict=True):
                assert more <= limit, sorted(more - limit)
        seen["narrowed"] += reach_of(both) != allowed

    whatever_they_say()
    # It was about something.
    assert seen["narrowed"] > pairs / 10
    assert seen["refused"] > pairs / 50


# --- Everything else that a project may say -----------------------------------------------------

NUMBERS = {
    path: setting
    for path, setting in settings_table().items()
    if setting.project == "lower" and isinstance(value_at(Settings(), path), int | float)
}
COMMANDS = ["ls", "git push", "curl https://a.example", "rm -rf /", "python3 x.py", "frob", "make"]


@given(data=st.data())
@settings(max_examples=400, suppress_health_check=list(HealthCheck))
def test_no_number_of_a_project_is_higher_than_the_users(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "numbers"
    folder.mkdir(exist_ok=True)
    path = data.draw(st.sampled_from(sorted(NUMBERS)))
    ours, theirs = data.draw(st.integers(1, 10**6)), data.draw(st.integers(1, 10**6))

    def file(number: int) -> dict[str, Any]:
        section: Any = number
        for key in reversed(path.split(".")):
            section = {key: section}
        return dict(section)

    try:
        alone = value_at(loaded(folder, file(ours), None, {}), path)
        found = value_at(loaded(folder, file(ours), file(theirs), {}), path)
    except ConfigurationError:
        return
    assert found <= alone


@given(
    ours=st.lists(st.sampled_from(["frob", "curl", "make"]), unique=True),
    blocked=st.lists(st.sampled_from(["git", "ls", "make", "python3"]), unique=True),
    excluded=st.lists(st.sampled_from(["git", "curl"]), unique=True),
)
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_no_project_has_more_allowed(
    ours: list[str],
    blocked: list[str],
    excluded: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.getbasetemp() / "policies"
    folder.mkdir(exist_ok=True)
    user = {"policy": {"additional": ours}}
    project = {"policy": {"blocked": blocked, "exclude": excluded}}

    def severity(found: Settings, command: str) -> int:
        policy = policy_from(found.policy, roots=[str(folder)], origin="settings")
        order = [Verdict.ALLOW, Verdict.ASK, Verdict.DENY]
        return order.index(decide(policy, command, cwd=str(folder)).verdict)

    alone, both = loaded(folder, user, None, {}), loaded(folder, user, project, {})
    for command in COMMANDS:
        assert severity(both, command) >= severity(alone, command), command
