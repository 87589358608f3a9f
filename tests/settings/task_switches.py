"""Switches for tasks and for the agent that works on them."""

import asyncio
import contextlib
import json
import os
import socket
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from kakoi.settings.loader import load_settings
from kakoi.tasks import Task, environment_manager
from tests.agents.openai_server import Call, Raw, call, last_tool_text
from tests.cli.terminals import PATIENCE_S
from tests.settings.world import See, Switch, World
from tests.tasks.hosting import docker
from tests.tasks.hub import a_hub, a_lab, git, make_project

PYTHON, BASE = "kakoi-test:python", "kakoi-test:base"
FOREIGN = Path(__file__).parent.parent / "agents" / "foreign_server.py"
MEND = call("edit_file", path="adder.py", old_text="a - b", new_text="a + b")
DONE = call("done", summary="it adds")
HOST = {"sandbox.type": "host"}
FOLDER = {
    **HOST, "tasks.enabled": True, "tasks.place": "folder", "tasks.sources.check_seconds": 0.001,
}  # fmt: skip
CONTAINER = {
    "tasks.enabled": True, "tasks.base_image": PYTHON, "tasks.network.external_access": False,
    "tasks.clone.auto_install_deps": False, "resources.cpu_limit": 1,
}  # fmt: skip
OPEN = {**CONTAINER, "tasks.network.external_access": True}
REQUEST = "curl -s -m 20 http://b.invalid/ 2>&1 || :"


def run_task(*said: Any, head: str = "") -> Callable[[World], Any]:
    return lambda world: world.do(*said, head=head)


def told(command: str) -> See:
    """What the model is told by a command in a task."""

    def seen(world: World) -> str:
        work = world.do(call("execute_command", command=command), DONE)
        assert work.status == 0, work.err
        return last_tool_text(work.requests[1]).split("[exit")[0].strip().splitlines()[0]

    return seen


def pushed(form: str) -> See:
    def seen(world: World) -> str:
        work = world.do(MEND, DONE)
        assert work.status == 0, work.err
        return world.pushed(form)

    return seen


def stage(*said: Any) -> See:
    return lambda world: world.do(*said).answer["stage"]


def history(count: int) -> See:
    """How many commits a task sees."""

    def seen(world: World) -> int:
        make_project(world.bare)
        tree = world.root / "tree"
        git(world.root, "clone", "-q", str(world.bare), str(tree))
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        for number in range(count):
            git(tree, *who, "commit", "-q", "--allow-empty", "-m", str(number))
        git(tree, "push", "-q", "origin", "HEAD:main")
        work = world.do(call("execute_command", command="git rev-list --count HEAD"), DONE)
        return min(int(last_tool_text(work.requests[1]).split()[0]), count)

    return seen


def ssh_options(world: World) -> bool:
    """Whether the ssh that git starts is to use our file of host keys."""
    found: list[str] = []

    def listen(server: socket.socket) -> None:
        with server.accept()[0]:
            # It is connected now, so it exists.
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    found.append(file.read_text(errors="replace"))

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        thread = threading.Thread(target=listen, args=(server,))
        thread.start()
        where = f"ssh://git@127.0.0.1:{server.getsockname()[1]}/x.git"
        text = f"---\ntitle: x\nrepository: {where}\n---\nDo.\n"
        task = world.home.write(world.root / "far.md", text)
        world.settle({"agent.model": "openai:x", "agent.base_url": "http://127.0.0.1:1/v1"})
        world.kakoi("agent", "run", str(task))
        thread.join()
    return any(f"{world.root}/keys" in each for each in found)


# --- Environments -------------------------------------------------------------------------------


def environment(look: Callable[[Any, Any], Any], files: dict[str, str] | None = None) -> See:
    """See something of a prepared environment: the manager of the user's settings, and its info."""

    def seen(world: World) -> object:
        make_project(world.bare)
        if files:
            tree = world.root / "tree"
            git(world.root, "clone", "-q", str(world.bare), str(tree))
            for name, text in files.items():
                (tree / name).write_text(text)
            git(tree, "add", "-A")
            git(tree, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x")
            git(tree, "push", "-q", "origin", "HEAD:main")
        loaded = load_settings(environ=world.home.environ, config_file=world.home.config)

        async def main() -> object:
            async with environment_manager(loaded.settings) as manager:
                task = Task(uuid=f"t-{uuid.uuid4()}", repository=world.bare.as_uri())
                info = await manager.prepare(task)
                return await look(manager, info)

        return asyncio.run(main())

    return seen


def inside(command: str) -> See:
    async def look(manager: Any, info: Any) -> str:
        result = await manager.execute(info.container_id, command)
        return str(result.stdout.strip())

    return environment(look)


async def count_installed(_manager: Any, info: Any) -> int:
    return len(info.installed)


async def owner_label(_manager: Any, info: Any) -> str:
    form = '{{index .Config.Labels "kakoi.owner"}}'
    return await asyncio.to_thread(docker, "inspect", "--format", form, info.container_id)


def refusal(name: str) -> See:
    """Whether a name is refused by the list of domains, rather than unknown to everyone."""
    see = inside(f"curl -s -m 20 http://{name}/ 2>&1 || :")
    return lambda world: "is not listed" in str(see(world))


# --- Sources and the queue ----------------------------------------------------------------------


def queued(world: World) -> int:
    status, out, err = world.kakoi("agent", "producer", "--json")
    assert status == 0, err
    return sum(len(json.loads(line)["queued"]) for line in out.splitlines())


def queued_from(make: Any) -> See:
    def seen(world: World) -> int:
        with make(world.root / "srv") as tracker:
            world.home = type(world.home)(world.root, {**world.home.env, **tracker.environ})
            return queued(world)

    return seen


def waiting(folder: str, head: str = "") -> See:
    """How many tasks wait in a folder."""

    def seen(world: World) -> int:
        for each in ("one", "two"):
            (world.root / each).mkdir()
        text = f"---\ntitle: x\nrepository: /x\n{head}---\nDo it.\n"
        world.home.write(world.root / folder / "task.md", text)
        return queued(world)

    return seen


def looks(*words: str) -> See:
    """How many lines it prints, as it looks often (0.01 s) or seldom."""

    def seen(world: World) -> int:
        often = 0.01 in world.values.values()
        return world.lines("agent", *words, enough=3, is_often=often)

    return seen


def lease_is_long(world: World) -> bool:
    found: list[float] = []

    def react(_body: object) -> Call:
        with closing(sqlite3.connect(world.root / "queue.db")) as connection:
            (until,) = connection.execute("SELECT until FROM tasks").fetchone()
        found.append(until - time.time())
        return DONE

    world.do(react)
    return found[0] > 1000


def after_two_attempts(world: World) -> str:
    """The stage of a task that was started twice and whose workers were killed."""
    world.do(DONE)
    key = (world.root / "adding.md").as_uri()
    with closing(sqlite3.connect(world.root / "queue.db")) as connection:
        connection.execute("DELETE FROM tasks")
        connection.execute("INSERT INTO tasks (key, position, attempts) VALUES (?, 1, 2)", (key,))
        connection.commit()
    return str(world.do(DONE).answer["stage"])


def sweeps(world: World) -> bool:
    """Whether a folder of two days ago is left."""
    left = world.root / "workspaces" / "coding-agent-exec-old"
    left.mkdir(parents=True)
    then = time.time() - 2 * 24 * 3600
    os.utime(left, (then, then))
    (world.root / "none").mkdir()
    world.settle({"tasks.sources.folder": str(world.root / "none")})
    world.kakoi("agent", "producer")
    return left.exists()


# --- Labels -------------------------------------------------------------------------------------


def label_after(*said: Any) -> See:
    def seen(world: World) -> list[str]:
        world.do(*said)
        return list(world.record["labels"])

    return seen


def label_during(world: World) -> list[str]:
    found: list[str] = []

    def react(_body: object) -> Call:
        found.extend(world.record["labels"])
        return DONE

    world.do(react)
    return found


def set_during(label: str) -> See:
    """The stage of a task to which somebody gives a label while it is in progress."""

    def react_in(world: World) -> Callable[[object], Call]:
        def react(_body: object) -> Call:
            world.set_labels(label)
            return MEND

        return react

    return lambda world: world.do(react_in(world), DONE).answer["stage"]


def label_when_closed(world: World) -> list[str]:
    def react(_body: object) -> Call:
        file = world.root / "adding.md"
        file.write_text(file.read_text().replace("title:", "state: closed\ntitle:"))
        return MEND

    world.do(react, DONE)
    return list(world.record["labels"])


# --- The agent ----------------------------------------------------------------------------------


def never(_handler: Any) -> None:
    """Answer nothing."""
    time.sleep(3)


ECHO = call("execute_command", command="echo hi")
LONG = call("execute_command", command="seq 4000")


def first_request(key: str) -> See:
    return lambda world: world.work(DONE).requests[0].get(key)


def authorization(world: World) -> str:
    return world.work(DONE).server.headers[0]["authorization"]


def outcome(*said: Any, key: str = "outcome") -> See:
    return lambda world: world.work(*said).answer[key]


def hears(text: str) -> See:
    """Whether the model hears a text with the second request."""
    return lambda world: text in json.dumps(world.work(ECHO, DONE).requests[1])


def shortens(world: World) -> bool:
    requests = world.work(LONG, LONG, LONG, ECHO, DONE).requests
    return len(json.dumps(requests[-1]["messages"])) < 20_000


def gives_up_after(world: World) -> list[str]:
    text = world.work(Raw(never)).err
    return [each for each in ("0.3 s", "0.4 s") if each in text]


def cost(world: World) -> bool:
    return float(world.work(ECHO, DONE).answer["cost"]) > 1


def transcript_in(name: str) -> See:
    def seen(world: World) -> bool:
        world.work(DONE)
        return any((world.root / name).glob("*.jsonl"))

    return seen


def tools(world: World) -> bool:
    return "notes__hello" in json.dumps(world.work(DONE).requests[0]["tools"])


NOTES = {"name": "notes", "command": [sys.executable, str(FOREIGN), "good"]}
PRICED = {**HOST, "agent.input_price": 1000.0, "agent.output_price": 1000.0}
KEYS = {"KEY_ONE": "first-key", "KEY_TWO": "second-key"}

SWITCHES = [
    Switch("tasks.enabled", (False, True), lambda world: world.do(DONE).status, (2, 0),
           {**HOST, "tasks.place": "folder"}),
    Switch("tasks.base_image", (PYTHON, BASE), inside("command -v curl || echo none"),
           ("none", "/usr/bin/curl"), CONTAINER),
    Switch("tasks.place", ("folder", "container"), lambda world: told("pwd")(world) == "/workspace/project",
           (False, True), {**HOST, **CONTAINER}),
    Switch("tasks.protected_paths", ([], ["adder.py"]), stage(MEND, DONE), ("done", "error"),
           FOLDER),
    Switch("tasks.author_name", ("Ann", "Bob"), pushed("%an"), ("Ann", "Bob"), FOLDER),
    Switch("tasks.author_email", ("a@x", "b@x"), pushed("%ae"), ("a@x", "b@x"), FOLDER),
    Switch("tasks.owner", ("test-ann", "test-bob"), environment(owner_label),
           ("test-ann", "test-bob"), CONTAINER),
    Switch("tasks.mcp_server.name", ("one", "two"),
           lambda world: "`one` MCP server" in world.kakoi("prompt")[1], (True, False),
           {"tasks.enabled": True}),
    Switch("tasks.mcp_server.command", ([], ["other-server"]),
           lambda world: world.do(DONE).status, (0, 2), FOLDER),
    Switch("tasks.network.external_access", (False, True),
           inside("echo got ${HTTP_PROXY:+a proxy}"), ("got", "got a proxy"), CONTAINER),
    Switch("tasks.network.whitelist_mode", (False, True), refusal("b.invalid"), (False, True),
           {**OPEN, "tasks.base_image": BASE, "tasks.network.allowed_domains": ["a.invalid"]}),
    Switch("tasks.network.allowed_domains", (["a.invalid"], ["b.invalid"]), refusal("b.invalid"),
           (True, False),
           {**OPEN, "tasks.base_image": BASE, "tasks.network.whitelist_mode": True}),
    Switch("tasks.clone.shallow", (True, False), history(3), (1, 3), FOLDER),
    Switch("tasks.clone.depth", (1, 2), history(3), (1, 2), FOLDER),
    Switch("tasks.clone.known_hosts", ("", "{root}/keys"), ssh_options, (False, True), FOLDER),
    Switch("tasks.clone.auto_install_deps", (False, True),
           environment(count_installed, {"requirements.txt": ""}), (0, 1), CONTAINER),
    Switch("tasks.cleanup.stale_threshold_hours", (1, 100), sweeps, (False, True), FOLDER),
    Switch("tasks.sources.github", ([], ["team/project"]), queued_from(a_hub), (0, 2), FOLDER),
    Switch("tasks.sources.gitlab", ([], ["group/sub/project"]), queued_from(a_lab), (0, 2),
           FOLDER),
    Switch("tasks.sources.folder", ("{root}/one", "{root}/two"), waiting("two"), (0, 1), FOLDER),
    Switch("tasks.sources.interval_seconds", (600, 0.01), looks("producer", "--continuous", "--json"),
           (1, 3), {**HOST, "tasks.sources.folder": "{root}/project"}),
    Switch("tasks.sources.check_seconds", (600, 0.001), set_during("coding agent paused"),
           ("done", "paused"), FOLDER),
    Switch("tasks.sources.assignee", ("", "bot"), waiting("one"), (1, 0),
           {**FOLDER, "tasks.sources.folder": "{root}/one"}),
    Switch("tasks.sources.labels.waiting", ("coding agent", "todo"),
           waiting("one", "labels: [todo]\n"), (0, 1),
           {**FOLDER, "tasks.sources.folder": "{root}/one"}),
    Switch("tasks.sources.labels.processing", ("busy", "doing"), label_during,
           (["busy"], ["doing"]), FOLDER),
    Switch("tasks.sources.labels.done", ("fine", "good"), label_after(DONE), (["fine"], ["good"]),
           FOLDER),
    Switch("tasks.sources.labels.error", ("bad", "broken"),
           label_after(call("done", summary="no", gave_up=True)), (["bad"], ["broken"]), FOLDER),
    Switch("tasks.sources.labels.paused", ("wait", "rest"), set_during("wait"),
           ("paused", "done"), FOLDER),
    Switch("tasks.sources.labels.stopped", ("off", "gone"), label_when_closed,
           (["off"], ["gone"]), FOLDER),
    Switch("tasks.queue.url", ("", "redis://127.0.0.1:1/0"),
           lambda world: "cannot use the queue" in world.do(DONE).err, (False, True), FOLDER),
    Switch("tasks.queue.lease_seconds", (60, 5000), lease_is_long, (False, True), FOLDER),
    Switch("tasks.queue.poll_seconds", (600, 0.01), looks("consumer", "--continuous"), (1, 3),
           {**FOLDER, "tasks.queue.url": "redis://127.0.0.1:1/0", "agent.model": "openai:x",
            "agent.base_url": "http://127.0.0.1:1/v1"}),
    Switch("tasks.queue.max_attempts", (2, 3), after_two_attempts, ("error", "done"), FOLDER),
    Switch("agent.model", ("openai:one", "openai:two"), first_request("model"), ("one", "two"),
           HOST),
    Switch("agent.base_url", ("{url}", "{url}/other"), lambda world: world.work(DONE).status,
           (0, 1), HOST),
    Switch("agent.api_key_env", ("KEY_ONE", "KEY_TWO"), authorization,
           ("Bearer first-key", "Bearer second-key"), HOST, KEYS),
    Switch("agent.max_steps", (1, 2), outcome(ECHO, DONE), ("step_limit", "done"), HOST),
    Switch("agent.max_seconds", (0.3, 0.4), gives_up_after, (["0.3 s"], ["0.4 s"]), HOST),
    Switch("agent.max_cost", (0, 0.0001), outcome(ECHO, DONE), ("done", "cost_limit"), PRICED),
    Switch("agent.input_price", (0.001, 1_000_000), cost, (False, True),
           {**HOST, "agent.output_price": 0.001}),
    Switch("agent.output_price", (0.001, 1_000_000), cost, (False, True),
           {**HOST, "agent.input_price": 0.001}),
    Switch("agent.context_window", (128_000, 12_000), shortens, (False, True),
           {**HOST, "agent.max_output_tokens": 1000}),
    Switch("agent.max_output_tokens", (100, 200), first_request("max_completion_tokens"),
           (100, 200), HOST),
    Switch("agent.request_timeout", (0.3, 0.4), gives_up_after, (["0.3 s"], ["0.4 s"]),
           {**HOST, "agent.max_seconds": 1.5}),
    Switch("agent.reflect_every", (0, 1), hears("steps are used"), (False, True), HOST),
    Switch("agent.transcripts", ("{root}/one", "{root}/two"), transcript_in("two"),
           (False, True), HOST),
    Switch("agent.mcp_servers", ([], [NOTES]), tools, (False, True), HOST),
]  # fmt: skip
