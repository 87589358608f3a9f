"""From settings and the environment to sources and a queue: tokens for their own servers only."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kakoi.errors import ConfigurationError, KakoiError
from kakoi.network.git_credentials import server_and_token
from kakoi.settings.model import Settings, build
from kakoi.tasks.from_settings import proxy_for, task_getter, task_queue
from kakoi.tasks.sources.files import file_key
from tests.tasks.trackers import TOKEN, FakeGitHub, FakeGitLab

pytestmark = pytest.mark.anyio


@pytest.fixture
def hub() -> Iterator[FakeGitHub]:
    tracker = FakeGitHub()
    with tracker.serving():
        yield tracker


@pytest.fixture
def lab() -> Iterator[FakeGitLab]:
    tracker = FakeGitLab()
    with tracker.serving():
        yield tracker


@pytest.mark.requirement("A-038")
async def test_what_waits_anywhere_is_found(
    hub: FakeGitHub, lab: FakeGitLab, tmp_path: Path
) -> None:
    hub.add_issue(1, "one", "todo")
    lab.add("issues", 2, "two", "todo")
    (tmp_path / "three.md").write_text("---\nrepository: .\n---\n")
    settings = build(
        {
            "tasks.sources.github": ("team/project",),
            "tasks.sources.gitlab": ("group/sub/project",),
            "tasks.sources.folder": str(tmp_path),
            "tasks.sources.labels.waiting": "todo",
        }
    )
    environ = {
        "GITHUB_HOST": hub.web,
        "GITHUB_PERSONAL_ACCESS_TOKEN": TOKEN,
        "GITLAB_HOST": lab.web,
        "GITLAB_PERSONAL_ACCESS_TOKEN": TOKEN,
    }
    async with task_getter(settings, environ) as getter:
        found = await getter.waiting()
        assert found.failures == ()
        assert found.keys == (
            f"{hub.web}/team/project/issues/1",
            f"{lab.web}/group/sub/project/-/issues/2",
            file_key(tmp_path / "three.md"),
        )
        assert [(await getter.fetch(key)).title for key in found.keys] == ["one", "two", "three"]
    # Each server got its own token in its own way, and nothing of the other.
    assert all("private-token" not in seen.headers for seen in hub.seen)
    assert all("authorization" not in seen.headers for seen in lab.seen)


async def test_without_a_word_about_sources_nothing_waits_and_nobody_is_asked() -> None:
    async with task_getter(Settings(), {}) as getter:
        assert await getter.waiting() == type(await getter.waiting())(())


def test_labels_that_cannot_be_told_apart_are_refused() -> None:
    settings = build({"tasks.sources.labels.done": "coding agent"})
    with pytest.raises(ConfigurationError, match="the same label"):
        task_getter(settings, {})


SERVERS: list[tuple[Mapping[str, str], str, str]] = [
    ({}, "https://github.com", ""),
    ({"GITHUB_PERSONAL_ACCESS_TOKEN": "x"}, "https://github.com", "x"),
    ({"GITLAB_PERSONAL_ACCESS_TOKEN": "x"}, "https://github.com", ""),
    ({"GITHUB_HOST": "git.example:8443"}, "https://git.example:8443", ""),
    ({"GITHUB_HOST": "http://Git.Example/"}, "http://git.example", ""),
    ({"GITHUB_HOST": "[::1]:80"}, "https://[::1]:80", ""),
]


@pytest.mark.parametrize(("environ", "web", "token"), SERVERS)
def test_a_server_is_named_by_the_environment(
    environ: Mapping[str, str], web: str, token: str
) -> None:
    assert server_and_token("github", environ) == (web, token)


@pytest.mark.parametrize(
    "host", ["a/b", "a@b", "ftp://a", "a b", "a?x", "a#x", "http://", "a:b", "x" * 300]
)
def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match="GITLAB_HOST is "):
        server_and_token("gitlab", {"GITLAB_HOST": host})


PROXIES: list[tuple[str, Mapping[str, str], str | None]] = [
    ("https://a.example", {}, None),
    ("https://a.example", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
    ("https://a.example", {"http_proxy": "http://p:1"}, None),
    ("https://a.example", {"ALL_PROXY": "http://p:1"}, "http://p:1"),
    ("https://a.example", {"https_proxy": "http://p:1", "no_proxy": "x, a.example"}, None),
    ("https://a.example", {"https_proxy": "http://p:1", "NO_PROXY": ".example"}, None),
    ("https://a.example", {"https_proxy": "http://p:1", "no_proxy": "*"}, None),
    ("https://a.example", {"https_proxy": "http://p:1", "no_proxy": "le,,b.example"}, "http://p:1"),
    ("http://a.example:80", {"https_proxy": "http://p:1"}, None),
]


@pytest.mark.parametrize(("address", "environ", "proxy"), PROXIES)
def test_a_proxy_is_used_as_everybody_else_would(
    address: str, environ: Mapping[str, str], proxy: str | None
) -> None:
    assert proxy_for(address, environ) == proxy


async def test_the_queue_is_a_file_beside_the_audit_log(tmp_path: Path) -> None:
    settings = build({"audit.file": str(tmp_path / "state" / "audit.jsonl")})
    assert await task_queue(settings).put("a")
    assert not await task_queue(settings).put("a")
    assert (tmp_path / "state" / "queue.db").is_file()


async def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = build({"audit.file": str(tmp_path / "file" / "x" / "audit.jsonl")})
    with pytest.raises(KakoiError, match="cannot create"):
        task_queue(settings)


async def test_a_queue_on_redis_is_named_by_its_address() -> None:
    queue = task_queue(
        build({"tasks.queue.url": "redis://x:secret@127.0.0.1:1/0", "tasks.queue.lease_seconds": 5})
    )
    assert queue.lease_s == 5
    await queue.aclose()
    with pytest.raises(ConfigurationError, match="address of the queue"):
        task_queue(build({"tasks.queue.url": "amqp://x"}))


@pytest.mark.parametrize(
    ("package", "call", "extra"),
    [
        ("httpx2", "task_getter(build({}), {})", "agent"),
        ("redis", "task_queue(build({'tasks.queue.url': 'redis://x'}))", "redis"),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_extra(
    package: str, call: str, extra: str
) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from kakoi.settings.model import build\n"
        "from kakoi.tasks.from_settings import task_getter, task_queue\n"
        "from kakoi.errors import ConfigurationError\n"
        f"try: {call}\n"
        "except ConfigurationError as error: print(error, error.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert f"the package {package}" in done.stdout
    assert done.stdout.strip().endswith(f"pip install 'kakoi[{extra}]'")
