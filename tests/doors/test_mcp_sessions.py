"""Sessions of the MCP server: what is kept, and how little of it a hostile client can fill."""

from kakoi.mcp_server.sessions import Session, Sessions


def test_a_session_belongs_to_its_connection() -> None:
    sessions = Sessions("/w")
    sessions.get("one", "default").cwd = "/w/sub"
    assert sessions.get("one", "default").cwd == "/w/sub"
    assert sessions.get("two", "default").cwd == "/w"


def test_what_was_not_used_for_longest_is_forgotten() -> None:
    sessions = Sessions("/w")
    kept = sessions.get("", "kept")
    for number in range(3000):
        sessions.has_started(f"job{number}", sessions.get("", f"s{number}"))
        assert sessions.get("", "kept") is kept
    assert len(sessions._sessions) <= 1024
    assert len(sessions._jobs) <= 1024
    assert sessions.of_job("job0") is None
    assert sessions.of_job("job2999") is not None


def test_a_directory_that_the_sandbox_makes_up_is_not_believed() -> None:
    session = Session("", "s", "/w")
    for cwd in (None, "", "relative", "/a\0b", "/" + "x" * 5000):
        session.went_to(cwd)
        assert session.cwd == "/w"
    session.went_to("/w/a/../b")
    assert session.cwd == "/w/b"


def test_agreement_is_about_one_command_in_one_directory_and_has_an_end() -> None:
    session = Session("", "s", "/w")
    session.agree("git push", "/w")
    assert session.has_agreed("git push", "/w")
    assert not session.has_agreed("git push -f", "/w")
    assert not session.has_agreed("git push", "/w/sub")
    for number in range(1000):
        session.agree(f"git push {number}", "/w")
    assert len(session._agreed) <= 256
