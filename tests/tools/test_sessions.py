"""Sessions: what is kept between calls, and how little of it a hostile caller can fill."""

import pytest

from kakoi.errors import ConfigurationError
from kakoi.tools.sessions import Caller, Sessions, ToolSession

PIPES = Caller()


def test_a_session_belongs_to_its_connection() -> None:
    sessions = Sessions("/w", door="mcp")
    sessions.get(Caller("t", "one")).cwd = "/w/sub"
    assert sessions.get(Caller("t", "one")).cwd == "/w/sub"
    others = (Caller("t", "two"), Caller("u", "one"), Caller("t one"), PIPES)
    for other in (*others, Caller("t", is_connected=False)):
        assert sessions.get(other).cwd == "/w", other


def test_without_a_connection_a_session_is_the_one_that_was_handed_out() -> None:
    sessions = Sessions("/w", door="mcp")
    caller = Caller("t", is_connected=False)
    first, second = sessions.get(caller), sessions.get(caller)
    assert first.name != second.name
    sessions.keep(first)
    assert sessions.get(caller, first.name) is first
    refused = (
        (caller, second.name),
        (caller, "chosen"),
        (Caller("u", is_connected=False), first.name),
    )
    for who, name in refused:
        with pytest.raises(ConfigurationError, match="there is no session"):
            sessions.get(who, name)
    assert sessions.get(Caller("t"), first.name) is not first
    labels = {first.label, second.label, sessions.get(Caller("t", "c")).label}
    assert len(labels) == 3
    assert not [label for label in labels if first.name in label]


def test_sessions_that_nobody_goes_on_with_do_not_displace_those_in_use() -> None:
    sessions = Sessions("/w", door="mcp")
    caller = Caller("t", is_connected=False)
    used, flooded = sessions.get(caller), sessions.get(caller)
    for each in (used, flooded):
        sessions.keep(each)
    sessions.get(caller, used.name)
    for _ in range(3000):
        sessions.keep(sessions.get(caller))
    assert sessions.get(caller, used.name) is used
    assert len(sessions._new) <= 1024
    with pytest.raises(ConfigurationError):
        sessions.get(caller, flooded.name)


def test_what_was_not_used_for_longest_is_forgotten() -> None:
    sessions = Sessions("/w", door="mcp")
    kept = sessions.get(PIPES, "kept")
    for number in range(3000):
        sessions.has_started(f"job{number}", sessions.get(PIPES, f"s{number}"))
        assert sessions.get(PIPES, "kept") is kept
    assert len(sessions._sessions) <= 1024
    assert len(sessions._jobs) <= 1024
    assert sessions.of_job("job0") is None
    assert sessions.of_job("job2999") is not None


def test_a_directory_that_the_sandbox_makes_up_is_not_believed() -> None:
    session = ToolSession(PIPES, "s", "/w", "mcp")
    for cwd in (None, "", "relative", "/a\0b", "/" + "x" * 5000):
        session.went_to(cwd)
        assert session.cwd == "/w"
    session.went_to("/w/a/../b")
    assert session.cwd == "/w/b"


def test_agreement_is_about_one_command_in_one_directory_and_has_an_end() -> None:
    session = ToolSession(PIPES, "s", "/w", "mcp")
    session.agree("git push", "/w")
    assert session.has_agreed("git push", "/w")
    assert not session.has_agreed("git push -f", "/w")
    assert not session.has_agreed("git push", "/w/sub")
    assert not session.has_agreed("git push", "/w", "other input")
    for number in range(1000):
        session.agree(f"git push {number}", "/w")
    assert len(session._agreed) <= 256
