"""What environments of tasks reach, with a server of git that stands for the internet."""

import dataclasses
import ipaddress
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kakoi.channel.api import Command
from kakoi.errors import ConfigurationError, SandboxError
from kakoi.network.addresses import Address
from kakoi.network.domains import Domains
from kakoi.network.proxy import Proxy, Recorder
from kakoi.settings.loader import with_project
from kakoi.settings.model import Settings
from kakoi.settings.tasks import NetworkSection, TaskSection
from kakoi.tasks.checkout import CloneError
from kakoi.tasks.environments import EnvironmentOptions, ExecutionEnvironmentManager
from kakoi.tasks.from_settings import environment_options
from kakoi.tasks.network import NetworkAccess
from tests.tasks.hosting import PYTHON, GitServer, a_repository, a_task, docker, now

pytestmark = pytest.mark.anyio
GET = """python3 -c '
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20).status)
except Exception as error:
    print("failed", error)
' """
NAMES = ("git.test", "other.test")


@pytest.fixture
def internet(git: GitServer) -> Callable[..., Proxy]:
    """How proxies are made for which the server of git is all there is, by two names."""
    there = ipaddress.ip_address(git.host.partition(":")[0])

    async def resolve(name: str) -> Sequence[Address]:
        if name not in NAMES:
            raise OSError("no such name")
        return [there]

    def check(domains: Domains, address: Address) -> str:
        return "" if address == there else domains.address_objection(address)

    def make(domains: Domains, /, *, record: Recorder) -> Proxy:
        return Proxy(domains, record=record, resolve=resolve, check_address=check)

    return make


TaskContainer = Callable[..., ExecutionEnvironmentManager]


@pytest.fixture
def reaching(make: TaskContainer, internet: Callable[..., Proxy]) -> TaskContainer:
    """Managers whose environments reach git.test and nothing else."""

    def made(**options: Any) -> ExecutionEnvironmentManager:
        wanted = {"network": "allowlist", "allowed_domains": ("git.test:8080",), **options}
        return make(make_proxy=internet, **wanted)

    return made


def settings(**network: Any) -> Settings:
    return Settings(tasks=TaskSection(base_image=PYTHON, network=NetworkSection(**network)))


@pytest.mark.requirement("A-028", "A-029", "A-031")
@pytest.mark.parametrize(
    ("access", "whitelist", "network", "domains"),
    [
        (True, True, "allowlist", ("example.org",)),
        (True, False, "open", ()),
        (False, True, "none", ()),
        (False, False, "none", ()),
    ],
)
def test_a_list_has_effect_only_where_there_is_access(
    access: bool, whitelist: bool, network: str, domains: tuple[str, ...]
) -> None:
    given = settings(
        external_access=access, whitelist_mode=whitelist, allowed_domains=("example.org",)
    )
    options = environment_options(given)
    assert (options.network, options.allowed_domains) == (network, domains)


def test_a_list_that_means_nothing_is_told_before_anything_is_made() -> None:
    with pytest.raises(ConfigurationError, match=r"tasks\.network\.allowed_domains: `https://"):
        environment_options(settings(whitelist_mode=True, allowed_domains=("https://x.org",)))


@pytest.mark.requirement("A-028", "A-030", "A-033")
async def test_by_itself_an_environment_reaches_what_is_public(
    make: TaskContainer, internet: Callable[..., Proxy], git: GitServer
) -> None:
    options = environment_options(Settings())
    assert EnvironmentOptions().network == options.network == "open"
    manager = make(make_proxy=internet, network=options.network)
    async with manager.open(a_task("http://git.test:8080/open/project.git")) as info:
        for name in NAMES:  # None of them is listed anywhere.
            found = await manager.execute(info.container_id, f"{GET} http://{name}:8080/seen")
            assert (found.stdout, found.blocked_connections) == ("200\n", ())
        # That was the one way out: there is no other, not even to a neighbour.
        assert docker("inspect", "-f", "{{.HostConfig.NetworkMode}}", info.name) == "none"
        for there in (git.host, "172.17.0.1:8080", "127.0.0.1:8080"):
            direct = f"no_proxy='*' {GET} http://{there}/seen"
            found = await manager.execute(info.container_id, direct)
            assert found.stdout.startswith("failed"), there


@pytest.mark.requirement("A-029")
async def test_without_access_an_environment_reaches_nothing(
    make: TaskContainer, tmp_path: Path
) -> None:
    options = environment_options(settings(external_access=False))
    manager = make(network=options.network)
    async with manager.open(a_task(a_repository(tmp_path / "p", {"x": "1"}))) as info:
        shown = docker("inspect", "-f", "{{.HostConfig.NetworkMode}}", info.name)
        assert shown == "none"
        found = await manager.execute(info.container_id, f"{GET} http://git.test:8080/seen")
        assert found.stdout.startswith("failed")


@pytest.mark.requirement("A-031")
async def test_a_task_reaches_what_is_listed_and_is_told_what_is_not(
    reaching: TaskContainer,
) -> None:
    manager = reaching()
    async with manager.open(a_task("http://git.test:8080/open/project.git")) as info:
        listed = await manager.execute(info.container_id, f"{GET} http://git.test:8080/seen")
        other = await manager.execute(info.container_id, f"{GET} http://other.test:8080/seen")
        direct = await manager.execute(
            info.container_id, f"no_proxy='*' {GET} http://172.17.0.1:8080/"
        )
    assert (listed.stdout, listed.blocked_connections) == ("200\n", ())
    assert "403" in other.stdout
    assert [str(each) for each in other.blocked_connections] == [
        "other.test:8080 was refused by `allowed_domains`: it is not listed"
    ]
    assert direct.stdout.startswith("failed")


@pytest.mark.requirement("A-032")
async def test_a_task_resolves_what_is_listed_and_nothing_else(
    reaching: TaskContainer, git: GitServer
) -> None:
    manager = reaching()
    async with manager.open(a_task("http://git.test:8080/open/project.git")) as info:
        listed = await manager.execute(info.container_id, "getent hosts git.test")
        other = await manager.execute(info.container_id, "getent hosts other.test")
    assert listed.stdout.split() == [git.host.partition(":")[0], "git.test"]
    assert (other.exit_code, other.stdout) == (2, "")
    assert [each.line for each in other.blocked_connections] == ["other.test"]


async def test_what_tasks_reach_is_recorded_as_theirs(
    reaching: TaskContainer, tmp_path: Path
) -> None:
    manager = reaching()
    task = a_task("http://git.test:8080/open/project.git")
    async with manager.open(task):
        pass
    lines = [
        line
        for line in (tmp_path / "audit.jsonl").read_text().splitlines()
        if '"connection"' in line
    ]
    assert lines
    assert all(task.uuid in line for line in lines)


async def test_a_clone_that_is_refused_says_by_what_and_the_way_out(
    reaching: TaskContainer,
) -> None:
    manager = reaching()
    for address in ("http://other.test:8080/open/project.git", "https://github.test/a/b.git"):
        with pytest.raises(CloneError, match="was refused by `allowed_domains`") as caught:
            await manager.prepare(a_task(address))
        assert "to tasks.network.allowed_domains" in caught.value.hint
    assert "add `github.test`" in caught.value.hint


@pytest.mark.requirement("A-030", "A-033")
async def test_open_is_no_way_to_a_neighbour(make: TaskContainer, git: GitServer) -> None:
    manager = make(network="open")
    with pytest.raises(CloneError, match="which is not public: private") as caught:
        await manager.prepare(a_task(git.url("open/project")))
    assert "whitelist_mode" in caught.value.hint


@pytest.mark.slow("package managers try again before they give up")
async def test_dependencies_that_are_refused_say_by_what(
    reaching: TaskContainer, image: str, tmp_path: Path
) -> None:
    wanted = "--index-url https://index.test/simple\nsome-package\n"
    repository = a_repository(tmp_path / "project", {"requirements.txt": wanted})
    manager = reaching(image=image)
    async with manager.open(a_task(repository)) as info:
        (step,) = info.installed
    assert not step.ok
    assert step.output.startswith(
        "index.test:443 was refused by `allowed_domains`: it is not listed; "
        "add `index.test` to tasks.network.allowed_domains"
    )


# --- Attaching -------------------------------------------------------------------------------


async def test_who_attaches_serves_the_same_list_whatever_its_settings_say(
    reaching: TaskContainer, make: TaskContainer, internet: Callable[..., Proxy]
) -> None:
    first = reaching()
    task = a_task("http://git.test:8080/open/project.git")
    await first.prepare(task)
    await first.close()
    for network in ("none", "open", "allowlist"):
        other = make(make_proxy=internet, network=network)
        async with other.attached(task.uuid) as environment:
            for host, answer in (("git", "200"), ("other", "failed HTTP Error 403")):
                url = f"http://{host}.test:8080/seen"
                result = await environment.gate.run(Command(command=f"{GET} {url}"))
                assert result.stdout.startswith(answer)
    await first.cleanup(task.uuid)


@pytest.mark.slow("an environment, served by several")
async def test_several_serve_one_environment_and_one_may_leave(reaching: TaskContainer) -> None:
    first, second = reaching(), reaching()
    task = a_task("http://git.test:8080/open/project.git")
    info = await first.prepare(task)
    ask = f"for i in $(seq 20); do {GET} http://git.test:8080/seen; done"
    async with second.attached(task.uuid) as environment:
        both = await environment.gate.run(Command(command=ask))
    alone = await first.execute(info.container_id, ask)
    assert both.stdout.split() == alone.stdout.split() == ["200"] * 20
    await first.cleanup(task.uuid)


async def test_what_a_job_wants_to_reach_waits_until_somebody_attaches(
    reaching: TaskContainer,
) -> None:
    first, second = reaching(), reaching()
    task = a_task("http://git.test:8080/open/project.git")
    await first.prepare(task)
    async with first.attached(task.uuid) as environment:
        # It asks when nobody is there any more: the file says so.
        waiting = "until test -e /tmp/alone; do sleep 0.05; done"
        job = await environment.gate.start(
            Command(command=f"{waiting}; {GET} http://git.test:8080/seen")
        )
    await first.close()
    docker("exec", "--user", "0", f"coding-agent-exec-{task.uuid}", "touch", "/tmp/alone")
    async with second.attached(task.uuid) as environment:
        channel = await environment.adapter.channel()
        assert await channel.wait_job(job, wait_s=60) is not None
        assert (await channel.read_output(job, "stdout")).data == b"200\n"
    await second.cleanup(task.uuid)


async def test_a_way_out_that_is_lost_is_refused_and_not_guessed(reaching: TaskContainer) -> None:
    manager = reaching()
    task = a_task("http://git.test:8080/open/project.git")
    info = await manager.prepare(task)
    folder = Path(docker("inspect", "-f", '{{index .Config.Labels "kakoi.way"}}', info.name))
    (folder.parent / "note").write_text("{}")
    with pytest.raises(SandboxError, match="network access of this environment is unknown"):
        async with manager.attached(task.uuid):
            pass
    os.rename(folder.parent, f"{folder.parent}-away")
    try:
        with pytest.raises(SandboxError, match="this container has lost its network"):
            async with manager.attached(task.uuid):
                pass
    finally:
        os.rename(f"{folder.parent}-away", folder.parent)
        await manager.cleanup(task.uuid)


async def test_nothing_of_the_way_out_is_left_with_or_without_who_made_it(
    reaching: TaskContainer, own_temporary: Path
) -> None:
    def ways() -> int:
        return len(list(own_temporary.glob("kakoi-way-*")))

    first, second = reaching(), reaching(pool_size=1)
    task = a_task("http://git.test:8080/open/project.git")
    await first.prepare(task)
    assert ways() == 1
    await first.close()
    assert ways() == 1
    await second.warm()
    assert ways() == 2
    await second.close()
    assert ways() == 1
    await second.cleanup(task.uuid)
    assert ways() == 0


# --- A pool, projects, images ----------------------------------------------------------------


async def test_a_container_that_waited_has_the_list_of_its_task(reaching: TaskContainer) -> None:
    manager = reaching(pool_size=1)
    await manager.warm()
    (waiting,) = manager._pool.names
    number = docker("inspect", "-f", "{{.Id}}", waiting)
    async with manager.open(a_task("http://git.test:8080/open/project.git")) as info:
        assert info.container_id == number
        for host, answer in (("git", "200"), ("other", "failed HTTP Error 403")):
            url = f"http://{host}.test:8080/seen"
            result = await manager.execute(info.container_id, f"{GET} {url}")
            assert result.stdout.startswith(answer)


async def test_a_container_of_another_network_is_not_taken_from_the_pool(
    reaching: TaskContainer,
) -> None:
    manager = reaching(pool_size=1)
    other = dataclasses.replace(manager.options.container, network="none")
    await manager.warm()
    assert await manager._pool.claim(other, "coding-agent-exec-x") is None
    assert len(manager._pool.names) == 1


def test_a_note_says_what_may_be_reached_and_nothing_else_is_believed() -> None:
    for access in (
        NetworkAccess("open"),
        NetworkAccess("allowlist", ("a.org",)),
        NetworkAccess("none"),
    ):
        assert NetworkAccess.from_json(access.to_json()) == access
    assert NetworkAccess("bridge", ("a.org",)).allowed == Domains()
    for note in ("", "[]", "{}", '{"network": "open"}', "x"):
        with pytest.raises(SandboxError):
            NetworkAccess.from_json(note)


def tightened(text: str, **network: Any) -> EnvironmentOptions:
    return environment_options(
        with_project(settings(**network), {"kakoi.yaml": text.encode()}, environ={})
    )


async def test_a_project_reaches_less_if_it_says_so(
    make: TaskContainer, internet: Callable[..., Proxy], tmp_path: Path, owner: str
) -> None:
    """It is cloned by our list, and from then on has its own, also for who attaches."""
    ours = settings(whitelist_mode=True, allowed_domains=("git.test:8080", "other.test:8080"))
    for text, answers in (
        ("tasks: {network: {allowed_domains: [git.test:8080, x.org]}}", ["200", "failed"]),
        ("tasks: {network: {external_access: false}}", ["failed", "failed"]),
    ):
        manager = ExecutionEnvironmentManager(
            environment_options(ours),
            clock=now,
            owner=owner,
            make_proxy=internet,
            project_files=("kakoi.yaml",),
            read_project=lambda files: environment_options(with_project(ours, files, environ={})),
        )
        folder = tmp_path / str(len(text))
        task = a_task(a_repository(folder, {"kakoi.yaml": text}))
        info = await manager.prepare(task)
        asks = [f"{GET} http://{name}:8080/seen" for name in NAMES]
        first = [await manager.execute(info.container_id, ask) for ask in asks]
        async with manager.attached(task.uuid) as environment:
            second = [await environment.gate.run(Command(command=ask)) for ask in asks]
        await manager.cleanup(task.uuid)
        for results in (first, second):
            assert [each.stdout.split()[0] for each in results] == answers


def test_a_project_cannot_reach_more() -> None:
    listed = {"whitelist_mode": True, "allowed_domains": ("*.a.org",)}
    text = "tasks: {network: {allowed_domains: [x.a.org, evil.test]}}"
    assert tightened(text, **listed).allowed_domains == ("x.a.org",)
    for key, given in (
        ("external_access: true", {"external_access": False}),
        ("whitelist_mode: false", listed),
    ):
        with pytest.raises(ConfigurationError, match="a project can only narrow"):
            tightened(f"tasks: {{network: {{{key}}}}}", **given)
    # Where everything public may be reached, a list is less.
    text = "tasks: {network: {whitelist_mode: true, allowed_domains: [x.org]}}"
    assert tightened(text).access == NetworkAccess("allowlist", ("x.org",))


DOCKERFILE = """
FROM kakoi-test:python
RUN python3 -c "import urllib.request as u; u.urlopen('http://NAME:8080/seen', timeout=20)"
"""


@pytest.mark.slow("an image is built")
async def test_an_image_is_built_with_the_way_out_of_its_task(
    reaching: TaskContainer, images: None, tmp_path: Path
) -> None:
    for name in NAMES:
        text = DOCKERFILE.replace("NAME", name)
        task = a_task(a_repository(tmp_path / name, {"Dockerfile": text, "x": os.urandom(8).hex()}))
        manager = reaching(dockerfile="Dockerfile")
        if name == "git.test":
            async with manager.open(task) as info:
                image = docker("inspect", "-f", "{{.Config.Image}}", info.name)
                assert image.startswith("kakoi-project:")
                variables = docker("image", "inspect", "-f", "{{json .Config.Env}}", image)
                assert "13128" not in variables
        else:
            with pytest.raises(SandboxError, match="HTTP Error 403"):
                await manager.prepare(task)
