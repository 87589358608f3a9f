"""Tasks, states, addresses, tokens and names: what is decided before anything is started."""

import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.audit import AuditRecord, Event
from kakoi.backends.docker.inventory import ListedContainer
from kakoi.errors import ConfigurationError, SandboxError
from kakoi.network.git_credentials import credential_for
from kakoi.network.git_remotes import GitCredential, git_variables, parse_remote
from kakoi.tasks.checkout import clone_error
from kakoi.tasks.containers import find_stale, is_orphan, is_pooled, pool_name
from kakoi.tasks.environment import TRANSITIONS, EnvironmentStatus, Lifecycle
from kakoi.tasks.stats import SESSION, EnvironmentStats, as_prometheus, count_records
from kakoi.tasks.task import Task, container_name

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


# --- Tasks -----------------------------------------------------------------------------------


@pytest.mark.requirement("A-010")
def test_a_container_is_named_after_its_task() -> None:
    assert container_name("4f-1") == "coding-agent-exec-4f-1"


@pytest.mark.parametrize("uuid", ["", "-x", "_pool-1", "a b", "a/b", "a" * 65, "ä", "a\n", "a:b"])
def test_a_uuid_that_would_not_do_for_a_name_is_refused(uuid: str) -> None:
    with pytest.raises(ConfigurationError, match="uuid"):
        Task(uuid=uuid, repository="x")


BAD_BRANCHES = ["-x", "a..b", "a b", "a~1", "a^", "a:b", "a?", "a*", "a[", "a\\", "a/", "a.", "a.lock", "a@{1}", "", "a//b", "a\nb"]  # fmt: skip


@pytest.mark.parametrize("branch", BAD_BRANCHES)
def test_what_is_no_name_of_a_branch_is_refused(branch: str) -> None:
    with pytest.raises(ConfigurationError, match="source_branch"):
        Task(uuid="a", repository="x", source_branch=branch)
    with pytest.raises(ConfigurationError, match="target_branch"):
        Task(uuid="a", repository="x", target_branch=branch)


@pytest.mark.parametrize("branch", ["main", "feature/x-1", "v1.2", "日本", "@", "a@b", "+x"])
def test_names_of_branches_that_git_takes_are_taken(branch: str) -> None:
    assert Task(uuid="a", repository="x", source_branch=branch).source_branch == branch


def test_a_pull_request_needs_its_branch_and_a_kind_is_known() -> None:
    with pytest.raises(ConfigurationError, match="source_branch"):
        Task(uuid="a", repository="x", kind="pull_request")
    with pytest.raises(ConfigurationError, match="kind"):
        Task(uuid="a", repository="x", kind="merge")  # type: ignore[arg-type]


# --- States ----------------------------------------------------------------------------------


@pytest.mark.requirement("A-007")
def test_the_states_of_a_life_follow_each_other() -> None:
    life = Lifecycle()
    seen = [life.status]
    for step in (EnvironmentStatus.INITIALIZING, EnvironmentStatus.READY):
        life.move(step)
        seen.append(life.status)
    life.begin_command()
    seen.append(life.status)
    life.end_command()
    for step in (EnvironmentStatus.STOPPED, EnvironmentStatus.DELETED):
        seen.append(life.status)
        life.move(step)
    assert [*seen, life.status] == [
        "created",
        "initializing",
        "ready",
        "running",
        "ready",
        "stopped",
        "deleted",
    ]


# Spec A, 3.1; and an environment that could not be made is stopped, too.
ALLOWED_MOVES = {
    "created": {"initializing", "stopped"},
    "initializing": {"ready", "stopped"},
    "ready": {"running", "stopped"},
    "running": {"ready", "stopped"},
    "stopped": {"deleted"},
    "deleted": set(),
}


@pytest.mark.requirement("A-007")
@given(st.lists(st.sampled_from(EnvironmentStatus), max_size=12))
def test_whatever_is_tried_only_moves_of_the_table_are_made(moves: list[EnvironmentStatus]) -> None:
    life = Lifecycle()
    for to in moves:
        before = life.status
        try:
            life.move(to)
        except SandboxError:
            assert to not in ALLOWED_MOVES[before]
            assert life.status is before
        else:
            assert to in ALLOWED_MOVES[before]
            assert life.status is to


@pytest.mark.requirement("A-007")
def test_there_are_no_other_moves_than_those_of_the_spec() -> None:
    assert {before: set(after) for before, after in TRANSITIONS.items()} == ALLOWED_MOVES


@pytest.mark.requirement("A-007")
@given(st.lists(st.booleans(), max_size=20))
def test_it_is_ready_again_when_the_last_of_several_commands_has_ended(begins: list[bool]) -> None:
    life = Lifecycle()
    life.move(EnvironmentStatus.INITIALIZING)
    life.move(EnvironmentStatus.READY)
    running = 0
    for begin in begins:
        if begin:
            life.begin_command()
            running += 1
        elif running:
            life.end_command()
            running -= 1
        assert life.status is (EnvironmentStatus.RUNNING if running else EnvironmentStatus.READY)


@pytest.mark.requirement("A-009")
def test_a_command_may_end_after_its_environment_was_stopped() -> None:
    life = Lifecycle()
    life.move(EnvironmentStatus.INITIALIZING)
    life.move(EnvironmentStatus.READY)
    life.begin_command()
    life.move(EnvironmentStatus.STOPPED)
    life.end_command()
    assert life.status is EnvironmentStatus.STOPPED
    with pytest.raises(SandboxError, match="stopped"):
        life.begin_command()


# --- Addresses -------------------------------------------------------------------------------

ADDRESSES = [
    ("https://github.com/a/b", "https", "github.com", "https://github.com/a/b"),
    ("https://GitHub.com:443/a/b.git", "https", "github.com", "https://github.com/a/b.git"),
    ("https://git.example:8443/a/b", "https", "git.example:8443", "https://git.example:8443/a/b"),
    ("http://[::1]:8080/a", "http", "[::1]:8080", "http://[::1]:8080/a"),
    ("https://u:p@h.example/a", "https", "h.example", "https://h.example/a"),
    ("https://h.example/a?x=secret#y", "https", "h.example", "https://h.example/a"),
    ("git@github.com:a/b.git", "ssh", "github.com", "git@github.com:a/b.git"),
    ("ssh://git@h.example:2222/a", "ssh", "h.example", "ssh://git@h.example:2222/a"),
    ("/srv/a.git", "file", "", "file:///srv/a.git"),
    ("file:///srv/a.git", "file", "", "file:///srv/a.git"),
]


@pytest.mark.parametrize(("address", "scheme", "host", "url"), ADDRESSES)
def test_an_address_is_read_and_made_harmless(
    address: str, scheme: str, host: str, url: str
) -> None:
    remote = parse_remote(address)
    assert (remote.scheme, remote.host, remote.url) == (scheme, host, url)


BAD_ADDRESSES = [
    *("", "a b", "ext::sh -c id", "ext::sh", "-u", "--upload-pack=x", "git://h/a", "ftp://h/a"),
    *("ssh://-oProxyCommand=id@h/a", "u@-oProxyCommand:a", "-o@h:a", "h:-a", "ssh://-h/a"),
    *("https:///a", "https://h:99999/a", "file://host/a", "relative/path", "http://-x/a", "h\n:a"),
]


@pytest.mark.parametrize("address", BAD_ADDRESSES)
def test_an_address_that_git_could_take_for_something_else_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_remote(address)


@pytest.mark.requirement("A-041")
def test_no_error_about_an_address_shows_the_secret_in_it() -> None:
    for address in ("ftp://u:5ecret@h/a", "https://u:5ecret@h:0x/a", "https://5ecret@:/a"):
        with pytest.raises(ConfigurationError) as caught:
            parse_remote(address)
        assert "5ecret" not in f"{caught.value} {caught.value.details} {caught.value.hint}"


# --- Tokens ----------------------------------------------------------------------------------

HUB, LAB = {"GITHUB_PERSONAL_ACCESS_TOKEN": "hub"}, {"GITLAB_PERSONAL_ACCESS_TOKEN": "lab"}
BOTH = {**HUB, **LAB}
TOKENS = [
    ("https://github.com/a/b", BOTH, ("x-access-token", "hub")),
    ("https://gitlab.com/a/b", BOTH, ("oauth2", "lab")),
    ("https://github.com/a/b", LAB, None),
    ("https://gitlab.com/a/b", HUB, None),
    ("https://github.com/a/b", {}, None),
    ("https://github.com/a/b", {"GITHUB_PERSONAL_ACCESS_TOKEN": ""}, None),
    ("https://GITHUB.com:443/a/b", BOTH, ("x-access-token", "hub")),
    # Not in the clear, not to a neighbour, not to another port.
    ("http://github.com/a/b", BOTH, None),
    ("https://github.com.evil.example/a", BOTH, None),
    ("https://evilgithub.com/a", BOTH, None),
    ("https://github.com:8443/a", BOTH, None),
    ("https://github.com@evil.example/a", BOTH, None),
    ("git@github.com:a/b", BOTH, None),
    # A server of one's own.
    ("https://git.example:8443/a", {**LAB, "GITLAB_HOST": "git.example:8443"}, ("oauth2", "lab")),
    ("https://git.example/a", {**LAB, "GITLAB_HOST": "git.example:8443"}, None),
    ("http://git.example/a", {**LAB, "GITLAB_HOST": "git.example"}, None),
    ("http://git.example/a", {**LAB, "GITLAB_HOST": "http://git.example/"}, ("oauth2", "lab")),
    ("https://gitlab.com/a", {**LAB, "GITLAB_HOST": "git.example"}, None),
    ("nonsense", BOTH, None),
]


@pytest.mark.requirement("A-038", "A-039")
@pytest.mark.parametrize(("address", "environ", "wanted"), TOKENS)
def test_a_token_is_for_its_own_host_only(
    address: str, environ: dict[str, str], wanted: tuple[str, str] | None
) -> None:
    found = credential_for(address, environ)
    assert (found and (found.username, found.secret)) == wanted


@pytest.mark.requirement("A-039", "A-041")
def test_git_is_told_by_its_environment_and_no_text_shows_the_secret() -> None:
    credential = GitCredential("oauth2", "5e/cret")
    variables = git_variables(parse_remote("https://h.example:8443/a"), credential)
    assert variables["KAKOI_GIT_SECRET"] == "5e/cret"
    keys = [value for name, value in variables.items() if name.startswith("GIT_CONFIG_KEY_")]
    assert "credential.https://h.example:8443.helper" in keys
    assert "5e/cret" not in f"{credential!r} {credential}"
    said = "a 5e/cret b 5e%2Fcret c b2F1dGgyOjVlL2NyZXQ="
    assert credential.hide(said) == "a *** b *** c ***"
    assert GitCredential("ghp_x", "").hide("a ghp_x b") == "a *** b"
    assert GitCredential("", "").hide("ab") == "ab"


@pytest.mark.parametrize("word", ["No ", "Remote branch "])
def test_a_server_that_says_much_in_one_line_keeps_nobody_busy(word: str) -> None:
    said = f"{word * 100_000}\nfatal: early EOF"
    error = clone_error(said, parse_remote("https://example.org/x.git"))
    assert error.details["cause"] == "could not be reached"
    assert len(str(error)) < 500


def test_without_a_secret_git_is_told_of_none() -> None:
    assert not any("KAKOI" in name for name in git_variables(parse_remote("https://h/a"), None))


def test_our_git_runs_no_hook_and_no_monitor_of_a_repository(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **git_variables()}
        subprocess.run(["git", *who, *words], cwd=tmp_path, env=env, check=True, timeout=60)

    git("init", "--quiet")
    spy = tmp_path / ".git/hooks/spy"
    spy.parent.mkdir(exist_ok=True)
    spy.write_text(f"#!/bin/sh\ntouch {tmp_path}/spied\n")
    spy.chmod(0o755)
    for hook in ("pre-commit", "commit-msg", "post-commit", "reference-transaction"):
        (spy.parent / hook).symlink_to(spy)
    git("config", "core.fsmonitor", str(spy))
    git("commit", "--quiet", "--allow-empty", "-m", "nothing")
    git("status", "--short")
    assert not (tmp_path / "spied").exists()


# --- Old containers --------------------------------------------------------------------------


def listed(name: str, age: timedelta) -> ListedContainer:
    return ListedContainer(name, "running", "o", "", "i", NOON - age)


@pytest.mark.requirement("A-091")
def test_what_is_as_old_as_the_limit_is_stale_and_a_waiting_one_without_its_maker() -> None:
    day = timedelta(hours=24)
    orphan = "coding-agent-exec-_pool-1-2-ab-cd"
    found = [
        listed("coding-agent-exec-old", day),
        listed("coding-agent-exec-young", day - timedelta(seconds=1)),
        listed(orphan, timedelta(0)),
        listed(pool_name("ab"), timedelta(0)),
        listed(pool_name("ab"), 2 * day),
    ]
    names = [each.name for each in find_stale(found, now=NOON, older_than=day)]
    assert names == ["coding-agent-exec-old", orphan, found[4].name]
    everything = find_stale(found, now=NOON, older_than=timedelta(0))
    assert [each.name for each in everything] == [each.name for each in found]


def test_the_name_of_a_waiting_container_tells_whether_its_maker_lives() -> None:
    name = pool_name("0123456789abcdef")
    assert is_pooled(name)
    assert not is_orphan(name)
    assert is_orphan(name.replace(f"-{os.getpid()}-", "-99999999-"))
    assert is_orphan(name.replace(f"-{os.getpid()}-", "-1-"))  # Lives, but began at another time.
    for other in (container_name("a"), container_name("pool-1-2-ab-cd"), "x" + name):
        assert not is_pooled(other)
        assert not is_orphan(other)


# --- Figures ---------------------------------------------------------------------------------


def record(**fields: object) -> AuditRecord:
    given = {
        "event": Event.ENDED,
        "id": "a",
        "seq": 1,
        "time": "",
        "prev": "",
        "hash": "",
        **fields,
    }
    return AuditRecord(**given)  # type: ignore[arg-type]


@pytest.mark.requirement("A-102")
def test_failures_are_counted_from_the_log_and_an_agent_cannot_pretend_one() -> None:
    found = count_records(
        [
            record(session=SESSION, task="t", exit_code=0, reason="exited"),
            record(session=SESSION, task="t", exit_code=1, reason="CLONE_FAILED"),
            record(session=SESSION, task="t", exit_code=1, reason="SANDBOX_ERROR"),
            record(session="", task="t", exit_code=124, reason="timed_out"),
            record(session="", task="t", exit_code=1, reason="exited"),
            record(session="", task="", exit_code=124, reason="timed_out"),
            record(event=Event.STARTED, session=SESSION, task="t"),
        ]
    )
    assert (found.prepared, found.clone_failures, found.create_failures) == (1, 1, 1)
    assert (found.commands, found.timeouts) == (2, 1)


@pytest.mark.requirement("A-102")
def test_figures_are_written_as_prometheus_reads_them() -> None:
    stats = EnvironmentStats(
        environments=1,
        cpu_percent=1.5,
        memory_bytes=2,
        disk_bytes=3,
        leftovers=4,
        create_failures=5,
        clone_failures=6,
        timeouts=7,
    )
    lines = as_prometheus(stats).splitlines()
    assert "kakoi_cpu_percent 1.5" in lines
    assert "# TYPE kakoi_clone_failures_total counter" in lines
    assert "kakoi_clone_failures_total 6" in lines
    assert "# TYPE kakoi_disk_bytes gauge" in lines
    assert len([line for line in lines if not line.startswith("#")]) == 8
