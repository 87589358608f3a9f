"""@agent: what has a body runs it; what has none is done by a model, scripted behind a real wire."""

# A body of `...` is what these tests are about.
# ruff: noqa: PIE790
# mypy: disable-error-code="empty-body"

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kakoi import agent
from kakoi.builtin import shell
from kakoi.errors import ConfigurationError, ModelError
from tests.agents.openai_server import OpenAIServer, Said, call, last_tool_text

pytestmark = pytest.mark.anyio
Serve = Callable[..., OpenAIServer]


@pytest.fixture
def serve(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start a model server with a script; the settings lead to it."""
    opened = []

    def start(*said: Said | Callable[[dict[str, Any]], Said]) -> OpenAIServer:
        opened.append(OpenAIServer(*said).listening())
        server = opened[-1].__enter__()
        monkeypatch.setenv("KAKOI_MODEL_URL", server.url)
        return server

    (workspace.parent / "config.yaml").write_text("agent:\n  max_steps: 6\n")
    monkeypatch.setenv("KAKOI_CONFIG", str(workspace.parent / "config.yaml"))
    monkeypatch.setenv("KAKOI_MODEL_API_KEY", "a-made-up-key")
    yield start
    for each in opened:
        each.__exit__(None, None, None)


@agent(model="gpt-4o-mini")
async def greet(name: str, times: int = 1) -> str:
    """Greet {{ name }} {{times}} times, with the shell. Unknown braces { stay }."""
    ...


@pytest.mark.requirement("D-035", "D-036")
@pytest.mark.usefixtures("workspace")
async def test_an_agent_with_a_body_runs_it_and_asks_no_model() -> None:
    @agent(model="gpt-4o-mini", builtin=True)
    async def twice(word: str) -> str:
        """Say {{ word }} twice."""
        return await shell(f"echo {word} {word}")

    @agent
    async def outer(word: str) -> str:
        return (await twice(word)).upper()

    assert await outer("hey") == "HEY HEY\n"


async def test_an_agent_without_a_body_is_done_by_the_model_with_the_built_ins(
    serve: Serve, workspace: Path
) -> None:
    heard: list[str] = []

    def then(said: Said) -> Callable[[dict[str, Any]], Said]:
        def react(body: dict[str, Any]) -> Said:
            heard.append(last_tool_text(body))
            return said

        return react

    server = serve(
        call("shell", command="echo hello Ann > greeting; pwd", working_dir=None),
        then(call("grep_content", pattern="hello", files=["greeting"])),
        then(call("done", summary="greeted")),
    )
    assert await greet("{{ times }} Ann", times=2) == "greeted"
    assert (workspace / "greeting").read_text() == "hello Ann\n"
    assert heard == [f"{workspace}\n", '{"greeting": ["1:hello Ann"]}']
    sent = server.requests[0]
    assert sent["model"] == "gpt-4o-mini"
    assert (
        "Greet {{ times }} Ann 2 times, with the shell. Unknown braces { stay }."
        in (sent["messages"][1]["content"])
    )
    tools = {each["function"]["name"]: each["function"] for each in sent["tools"]}
    assert sorted(tools) == [
        *("done", "file_search", "git_commit", "git_create_pr", "git_push", "git_status"),
        *("grep_content", "shell"),
    ]
    assert tools["git_commit"]["parameters"] == {
        "type": "object",
        "properties": {
            "message": {"type": "string"},
            "files": {"type": "array", "items": {"type": "string"}},
            "all": {"type": "boolean"},
        },
        "required": ["message"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (call("shell", command="reboot"), "Blocked command: reboot"),
        (call("shell", command="false"), "Command failed: exit code 1"),
        (call("shell"), "missing a required argument: 'command'"),
        (call("shell", command="ls", cwd="."), "unexpected keyword argument 'cwd'"),
        (call("shell", command=["ls"]), "`command` must be of type string"),
        (call("git_commit", message="x", all="yes"), "`all` must be of type boolean"),
        (call("git_commit", message="x", files=[1]), "`files` must be a list of texts"),
        (call("shell", command="ls", working_dir="/"), "`working_dir` is outside the workspace"),
        (call("shell", command="ls", working_dir="out"), "`working_dir` is outside the workspace"),
        (call("shell", command="ls", working_dir="a\0"), "`working_dir` contains a NUL"),
        (call("file_search", pattern="x", directory=".."), "`directory` is outside the workspace"),
        (call("eval", code="1"), "there is no tool 'eval'"),
    ],
    ids=str,
)
async def test_a_wrong_call_of_the_model_is_answered_with_the_reason(
    serve: Serve, workspace: Path, wrong: Said, complaint: str
) -> None:
    (workspace / "out").symlink_to(workspace.parent)
    server = serve(wrong, call("done", summary="tried"))
    assert await greet("Ann") == "tried"
    assert complaint in last_tool_text(server.requests[-1])


async def test_an_agent_gives_the_type_that_it_promises(serve: Serve) -> None:
    @agent(model="openai:any")
    async def count(what: str) -> dict[str, int]:
        """Count {{ what }}."""
        ...

    @agent(model="openai:any")
    async def measure() -> float:
        """Measure."""
        ...

    @agent(model="openai:any")
    async def do() -> None:
        """Do it."""

    server = serve(call("done", summary='{"lines": 3}'))
    assert await count("lines") == {"lines": 3}
    assert "an object, as JSON" in server.requests[0]["messages"][0]["content"]
    serve(call("done", summary="2"))
    assert await measure() == 2.0
    with pytest.raises(ModelError, match="count returns an object; the model gave '2'"):
        await count("lines")
    await do()


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (call("done", summary="no pen", gave_up=True), r"not done \(gave_up\): no pen"),
        (call("git_status"), r"not done \(step_limit\): the limit of 6 steps"),
        ("I would rather talk", r"not done \(nonsense\): 5 answers"),
    ],
)
async def test_an_agent_that_is_not_done_raises(serve: Serve, said: Said, complaint: str) -> None:
    serve(said)
    with pytest.raises(ModelError, match=f"greet is {complaint}"):
        await greet("Ann")


async def test_a_name_alone_finds_its_provider_and_an_empty_one_the_settings(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "KAKOI_MODEL", "KAKOI_MODEL_URL"):
        monkeypatch.delenv(name, raising=False)
    (workspace.parent / "config.yaml").write_text("{}\n")
    monkeypatch.setenv("KAKOI_CONFIG", str(workspace.parent / "config.yaml"))

    async def task() -> str:
        """Do it."""
        ...

    for model, complaint in {
        "gpt-4o-mini": "no API key for openai",
        "claude-sonnet": "no API key for anthropic",
        "": "no model is named",
    }.items():
        with pytest.raises(ConfigurationError, match=complaint):
            await agent(model=model)(task)()


def test_a_function_that_cannot_be_an_agent_is_refused_where_it_is_written() -> None:
    async def unknown(name: str) -> str:
        """Greet {{ nmae }}."""
        return name

    async def silent() -> str: ...

    async def odd() -> Path:
        """Find it."""
        ...

    async def filtered(name: str) -> str:
        """Greet {{ name | upper }}."""
        ...

    async def looped(name: str) -> str:
        """{% for each in name %}Greet.{% endfor %}"""
        ...

    def plain() -> str:
        """Do it."""
        return ""

    for function, complaint in {
        unknown: r"has \{\{ nmae \}\}, which is not a parameter",
        silent: "without a body and without a docstring",
        odd: "returns .*Path.*, which a model cannot give",
        filtered: r"has '\{\{ name \| upper \}\}', which is not filled in",
        looped: r"has '\{% for each in name %\}', which is not filled in",
        plain: "decorates coroutine functions",
    }.items():
        with pytest.raises(ConfigurationError, match=complaint):
            agent(function)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="a built-in without a body"):
        agent(builtin=True)(odd)


def test_an_agent_keeps_its_name_and_parameters() -> None:
    assert greet.__name__ == "greet"
    assert list(inspect.signature(greet).parameters) == ["name", "times"]
    assert inspect.iscoroutinefunction(greet)
