"""The way out as part of the one road: settings, the gate's results, the record, the doors."""

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kakoi.audit import AuditLog, Event, verify
from kakoi.backends.settings import SandboxConfig
from kakoi.channel.api import Command
from kakoi.errors import ConfigurationError
from kakoi.gate import RecordLabels
from kakoi.gate.connections import connection_recorder
from kakoi.network.header_credentials import parse_credentials
from kakoi.network.proxy import ConnectionDecision
from kakoi.policy.profiles import load_policy
from kakoi.results import BlockedConnection, ExecutionResult
from kakoi.sandbox.doors import sandbox_for
from kakoi.sandbox.from_settings import sandbox_from
from kakoi.sandbox.options import SandboxOptions
from kakoi.settings.loader import load_settings
from kakoi.tools.replies import ReplyOutput, result_reply
from tests.backends.boxes import require_bubblewrap
from tests.cli import forked
from tests.network.world import Names, opened

WAIT_S = 60.0
REFUSED = "python3 ask.py"
ASK = """
import urllib.request
try:
    urllib.request.urlopen("http://pypi.example/", timeout=20)
except Exception as error:
    print(error)
"""


@pytest.fixture
def bubblewrap() -> None:
    require_bubblewrap()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory in which something wants to reach something."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "ask.py").write_text(ASK)
    return folder


def kakoi(project: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(project.parent),
        "KAKOI_AUDIT_FILE": str(project.parent / "audit.jsonl"),
    }
    return forked.kakoi(*arguments, cwd=project, env=env, text=True, timeout=WAIT_S)


# --- Settings --------------------------------------------------------------------------------


def test_domains_without_a_network_are_an_allowlist() -> None:
    assert SandboxConfig().proxied is None
    assert SandboxConfig(allowed_domains=("example.org",)).network == "allowlist"
    assert SandboxConfig(allowed_domains=("example.org",), network="none").proxied is None
    assert SandboxConfig.parse({"allowedDomains": ["a.org"]}).allowed_domains == ("a.org",)


def with_both(tmp_path: Path, ours: str, theirs: str) -> SandboxConfig:
    (tmp_path / "mine.yaml").write_text(f"sandbox: {{{ours}}}\n")
    (tmp_path / "kakoi.yaml").write_text(f"sandbox: {{{theirs}}}\n")
    environ = {"HOME": str(tmp_path), "KAKOI_CONFIG": str(tmp_path / "mine.yaml")}
    return sandbox_from(load_settings(tmp_path, environ=environ).settings)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("", "network: open"),
        ("", "network: allowlist"),
        ("allowed_domains: [a.org]", "network: open"),
        ("network: none", "network: allowlist"),
        ("network: open", "network: bridge"),
        ("network: open", "network: ''"),
        ("network: bridge", "network: host"),
    ],
)
def test_a_project_cannot_open_a_way_out(tmp_path: Path, ours: str, theirs: str) -> None:
    with pytest.raises(ConfigurationError, match=r"a project can only narrow `sandbox\.network`"):
        with_both(tmp_path, ours, theirs)


@pytest.mark.parametrize(
    ("ours", "theirs", "network", "domains"),
    [
        ("", "allowed_domains: [evil.test]", None, ()),
        ("network: none", "allowed_domains: [evil.test]", "none", ()),
        ("allowed_domains: [a.org, b.org]", "network: none", "none", ("a.org", "b.org")),
        ("allowed_domains: [a.org, b.org]", "allowed_domains: [b.org, c.org]", "allowlist", ("b.org",)),
        ("network: open", "{network: allowlist, allowed_domains: [c.org]}", "allowlist", ("c.org",)),
        ("network: open", "{allowed_domains: [c.org], network: allowlist}", "allowlist", ("c.org",)),
        ("network: open", "network: allowlist", "allowlist", ()),
        ("network: host", "network: open", "open", ()),
    ],
)  # fmt: skip
def test_a_project_can_reach_less(
    tmp_path: Path, ours: str, theirs: str, network: str | None, domains: tuple[str, ...]
) -> None:
    config = with_both(tmp_path, ours, theirs.strip("{}"))
    assert (config.network, config.allowed_domains) == (network, domains)


def test_a_project_without_anything_in_common_reaches_nothing(tmp_path: Path) -> None:
    config = with_both(
        tmp_path,
        "{network: allowlist, allowed_domains: [a.org]}".strip("{}"),
        "allowed_domains: [b.org]",
    )
    assert (config.network, config.allowed_domains) == ("allowlist", ())


def test_a_projects_list_is_not_endless(tmp_path: Path) -> None:
    many = ", ".join(f"n{number}.org" for number in range(1001))
    with pytest.raises(ConfigurationError, match="more than 1000 lines"):
        with_both(tmp_path, "network: open", f"allowed_domains: [{many}]")


def test_the_users_own_settings_can(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("sandbox: {network: allowlist, allowed_domains: [example.org]}\n")
    environ = {"KAKOI_CONFIG": str(file)}
    config = sandbox_from(load_settings(environ=environ).settings)
    assert (config.network, config.allowed_domains) == ("allowlist", ("example.org",))
    environ["KAKOI_ALLOWED_DOMAINS"] = "a.org, *.b.org"
    config = sandbox_from(load_settings(environ=environ).settings)
    assert config.allowed_domains == ("a.org", "*.b.org")


@pytest.mark.anyio
async def test_a_meaningless_list_is_reported_before_anything_runs(tmp_path: Path) -> None:
    config = SandboxConfig(allowed_domains=("https://example.org",))
    options = SandboxOptions(config=config, policy=load_policy(), workspace=str(tmp_path))
    with pytest.raises(ConfigurationError, match="allowed_domains"):
        async with sandbox_for(options):
            pass


def test_credentials_come_from_variables_and_are_not_shown() -> None:
    lines = ["api.Example.org Authorization=TOKEN", "b.org X-Key=KEY"]
    found = parse_credentials(lines, {"TOKEN": "Bearer s3cret", "KEY": "k"})
    assert {host: (each.header, each.value) for host, each in found.items()} == {
        "api.example.org": ("Authorization", "Bearer s3cret"),
        "b.org": ("X-Key", "k"),
    }
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize(
    "lines",
    [
        ["a.org"],
        ["a.org Authorization"],
        ["a.org Authorization=MISSING"],
        ["a.org Authorization=BROKEN"],
        ["a.org Host=TOKEN"],
        ["0x7f.1 Authorization=TOKEN"],
        ["a.org A=TOKEN", "A.org. B=TOKEN"],
    ],
)
def test_a_credential_that_cannot_be_added_is_an_error_without_its_value(lines: list[str]) -> None:
    environ = {"TOKEN": "s3cret", "BROKEN": "s3cret\r\nX: y"}
    with pytest.raises(ConfigurationError, match="credentials: `") as caught:
        parse_credentials(lines, environ)
    assert "s3cret" not in str(caught.value)


# --- The gate --------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.usefixtures("bubblewrap")
async def test_every_way_to_run_reports_what_was_refused(project: Path, tmp_path: Path) -> None:
    config = SandboxConfig(type="bubblewrap", allowed_domains=("example.org",))
    wanted = Command(command=REFUSED, timeout_s=WAIT_S)
    log = tmp_path / "audit.jsonl"
    policy = load_policy(roots=[str(project)])
    options = SandboxOptions(config=config, policy=policy, workspace=str(project), audit_file=log)
    async with sandbox_for(options) as box:
        gate = box.gate
        results: list[ExecutionResult | None] = [await gate.run(wanted)]
        async with gate.open(Command(command=REFUSED)) as running:
            results.append(await running.result())
        job = await gate.start(Command(command=REFUSED))
        results += [await gate.wait(job, wait_s=WAIT_S), await gate.wait(job, wait_s=0)]
        results.append(await gate.stop(job))
        quiet = await gate.run(Command(command="echo quiet"))

    blocked = BlockedConnection("pypi.example", 80, "it is not listed", by_list=True)
    assert [each and each.blocked_connections for each in results] == [(blocked,)] * 5
    assert quiet.blocked_connections == ()
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events.count("connection") == 3
    assert events.index("started") < events.index("connection") < events.index("ended")


@pytest.mark.anyio
async def test_decisions_are_in_the_record_and_the_record_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    record = connection_recorder(
        AuditLog(log, clock=lambda: datetime.now(UTC)), RecordLabels(task="t-1", user="me")
    )
    names = Names(example_org="127.0.0.1", loop_test="::1")
    decisions: list[ConnectionDecision] = []
    async with opened("example.org", "loop.test", names=names) as world:
        for authority in ("evil.test:443", "loop.test:443", "example.org:1", "0x7f.1:443"):
            await world.connect(authority)
        decisions += world.decisions
    for decision in decisions:
        await record(decision)

    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(each["target"], each["verdict"]) for each in records] == [
        ("CONNECT evil.test:443", "deny"),
        ("CONNECT loop.test:443", "deny"),
        ("CONNECT example.org:1", "deny"),
        ("?", "deny"),
    ]
    assert {(each["event"], each["task"], each["user"]) for each in records} == {
        (Event.CONNECTION, "t-1", "me")
    }
    assert len({each["id"] for each in records}) == 1
    assert verify(log).ok


# --- The doors -------------------------------------------------------------------------------


@pytest.mark.usefixtures("bubblewrap")
def test_kakoi_run_says_what_was_refused_and_how_it_could_be_reached(project: Path) -> None:
    done = kakoi(project, "run", "--sandbox", "bubblewrap", "--network", "allowlist", REFUSED)
    assert done.returncode == 0
    assert "403" in done.stdout
    assert (
        "kakoi: pypi.example:80 was refused by `allowed_domains`: it is not listed" in done.stderr
    )
    assert "hint: --allow-domain pypi.example" in done.stderr
    told = kakoi(project, "run", "--json", "--allow-domain", "example.org", "--", *REFUSED.split())
    assert json.loads(told.stdout)["blocked_connections"] == [
        {"host": "pypi.example", "port": 80, "reason": "it is not listed", "by_list": True}
    ]


@pytest.mark.usefixtures("bubblewrap")
def test_open_is_not_a_way_to_this_machine(project: Path) -> None:
    (project / "ask.py").write_text(ASK.replace("http://pypi.example/", "http://10.0.0.1/"))
    done = kakoi(project, "run", "--sandbox", "bubblewrap", "--network", "open", REFUSED)
    assert "10.0.0.1:80 was refused: it resolves to 10.0.0.1, which is not public" in done.stderr
    assert "hint" not in done.stderr


def test_a_sandbox_that_cannot_keep_to_a_list_is_refused(project: Path) -> None:
    for name in ("host", "container-use"):
        done = kakoi(project, "run", "--sandbox", name, "--allow-domain", "a.org", "ls")
        assert done.returncode == 125
        assert f"the sandbox `{name}` does not support the network `allowlist`" in done.stderr


def test_an_agent_learns_whom_to_ask() -> None:
    blocked = tuple(
        BlockedConnection(f"n{n}.test", 443, "it is not listed", True) for n in range(7)
    )
    private = BlockedConnection(
        "in.test", 80, "it resolves to 10.0.0.1, which is not public: private"
    )
    result = ExecutionResult(1, "out", "", 5, blocked_connections=(private, *blocked))
    reply = result_reply("j", result, ReplyOutput(b"out"), ReplyOutput())
    lines = reply.text.splitlines()
    assert lines[:3] == [
        "out",
        "[in.test:80 was refused: it resolves to 10.0.0.1, which is not public: private]",
        "[n0.test:443 was refused by `allowed_domains`: it is not listed; "
        "ask your user to add n0.test]",
    ]
    assert lines[-2] == "[3 more connections were refused]"
    assert lines[-1].startswith("[exit code 1 | ")
    assert len(reply.meta["blocked_connections"]) == 8
