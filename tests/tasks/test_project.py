"""A project names its own image or Dockerfile: strangers wrote it, and it is built apart."""

import asyncio
import os
import subprocess
import tarfile
import uuid
from pathlib import Path

import pytest

from kakoi.backends.docker.engine import Engine
from kakoi.errors import ConfigurationError, SandboxError, SecurityError
from kakoi.images.project_image import BuildLimits, ProjectBuilder, check_dockerfile, repacked
from kakoi.process.executor import ProcessExecutor
from kakoi.settings.loader import with_project
from kakoi.settings.model import (
    AuditSection,
    ResourceSection,
    Settings,
)
from kakoi.settings.tasks import CloneSection, NetworkSection, TaskSection
from kakoi.tasks.environment import build_engine
from kakoi.tasks.environments import ExecutionEnvironmentManager
from kakoi.tasks.from_settings import environment_manager
from tests.engine import containers
from tests.fakes import ScriptedExecutor, answer
from tests.tasks.hosting import PYTHON, a_repository, a_task, docker, wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
def manager(owner: str, tmp_path: Path) -> ExecutionEnvironmentManager:
    """As the settings of a user describe it, with no network."""
    return environment_manager(
        Settings(
            audit=AuditSection(file=str(tmp_path / "audit.jsonl")),
            resources=ResourceSection(cpu_limit=1.0),
            tasks=TaskSection(
                enabled=True,
                base_image=PYTHON,
                owner=owner,
                network=NetworkSection(external_access=False),
                clone=CloneSection(auto_install_deps=False),
            ),
        )
    )


def another_name() -> str:
    name = f"kakoi-test-{uuid.uuid4()}:latest"
    docker("tag", PYTHON, name)
    return name


def identity_of(image: str) -> str:
    return docker("image", "ls", "-q", image)


async def test_a_manager_from_settings_removes_what_it_prepared(
    manager: ExecutionEnvironmentManager, owner: str, tmp_path: Path
) -> None:
    task = a_task(a_repository(tmp_path / "project", {"hello.txt": "hello\n"}))
    async with manager:
        info = await manager.prepare(task)
        assert (await manager.execute(info.container_id, "cat hello.txt")).stdout == "hello\n"
    assert containers(owner) == []


@pytest.mark.requirement("A-098")
async def test_a_manager_from_settings_creates_nothing_while_tasks_are_off(owner: str) -> None:
    off = environment_manager(Settings(tasks=TaskSection(owner=owner, pool_size=1)))
    async with off:
        for attempt in (off.prepare(a_task()), off.warm()):
            with pytest.raises(ConfigurationError, match=r"`tasks\.enabled` is false") as caught:
                await attempt
            assert "COMMAND_EXECUTOR_ENABLED=true" in caught.value.hint
    assert containers(owner) == []


@pytest.mark.requirement("A-017", "A-021")
async def test_a_file_at_the_top_of_a_project_overrides_the_image_and_tightens_the_rest(
    manager: ExecutionEnvironmentManager, tmp_path: Path, owner: str
) -> None:
    name = another_name()
    settings = f"tasks: {{base_image: '{name}'}}\nresources: {{cpu_limit: 0.5}}\npolicy: {{blocked: [wc]}}\n"
    task = a_task(a_repository(tmp_path / "p", {".kakoi.yaml": settings, "x": "1"}))
    try:
        async with manager.open(task) as info:
            form = "{{.Config.Image}} {{.HostConfig.NanoCpus}}"
            assert docker("inspect", "--format", form, info.name) == f"{name} 500000000"
            assert (await manager.execute(info.container_id, "cat x")).stdout == "1"
            with pytest.raises(SecurityError, match="wc"):
                await manager.execute(info.container_id, "wc x")
            assert containers(owner) == [info.name]
        plain = a_task(a_repository(tmp_path / "q", {"x": "1"}))
        async with manager.open(plain) as info:
            assert docker("inspect", "--format", form, info.name) == f"{PYTHON} 1000000000"
            assert (await manager.execute(info.container_id, "wc x")).ok
    finally:
        docker("image", "rm", name)


@pytest.mark.requirement("A-021")
@pytest.mark.slow("an environment for each of many projects")
async def test_what_a_project_may_not_say_ends_its_preparation_in_words(
    manager: ExecutionEnvironmentManager, tmp_path: Path, owner: str
) -> None:
    cases = {
        "tasks: {owner: me}": "a project cannot set `tasks.owner`",
        "resources: {cpu_limit: 64}": "can only lower",
        "tasks: {base_image: '-v/:/host'}": "image",
        "tasks: {dockerfile: ../Dockerfile}": "not a path in the project",
        "tasks: {dockerfile: nowhere}": "was not found",
        "[": "is not valid YAML",
        "tasks: &a [*a]": "alias",
        "\xff": "unknown key|expected keys|is not valid YAML",
        "#" * 300_000: "cannot read the project's .kakoi.yaml: ",
    }
    for number, (text, words) in enumerate(cases.items()):
        task = a_task(a_repository(tmp_path / str(number), {".kakoi.yaml": text}))
        with pytest.raises(ConfigurationError, match=words):
            await manager.prepare(task)
    task = a_task(a_repository(tmp_path / "two", {".kakoi.yaml": "", "kakoi.yaml": ""}))
    with pytest.raises(ConfigurationError, match="the project has kakoi"):
        await manager.prepare(task)
    task = a_task(a_repository(tmp_path / "folder", {".kakoi.yaml/x": ""}))
    with pytest.raises(ConfigurationError, match=r"cannot read the project's \.kakoi\.yaml"):
        await manager.prepare(task)
    assert containers(owner) == []


def test_the_environment_wins_over_a_project() -> None:
    files = {".kakoi.yaml": b"tasks: {base_image: theirs}"}
    assert with_project(Settings(), files, environ={}).tasks.base_image == "theirs"
    environ = {"EXECUTOR_BASE_IMAGE": "mine"}
    assert with_project(Settings(), files, environ=environ).tasks.base_image == "mine"


# --- A Dockerfile ----------------------------------------------------------------------------

DOCKERFILE = f"""\
ARG BASE={PYTHON.split(":")[0]}
FROM ${{BASE}}:python AS first
USER root
COPY tools /opt/tools
RUN sh /opt/tools/hello >/opt/said && env >/opt/env && ls /proc/net/dev /dev >/opt/dev
RUN ip link >/opt/links 2>&1 || cat /proc/net/dev >/opt/links
FROM first
USER 1234:1234
"""


@pytest.mark.slow("an image is built")
async def test_a_project_s_dockerfile_is_built_once_from_its_files_alone(
    manager: ExecutionEnvironmentManager, tmp_path: Path, images: None, owner: str
) -> None:
    (tmp_path / "p" / "tools").mkdir(parents=True)
    hello = "#!/bin/sh\necho hello from the image\n"
    files = {".kakoi.yaml": "tasks: {dockerfile: docker.d}", "docker.d": DOCKERFILE}
    repository = a_repository(tmp_path / "p", {**files, "tools/hello": hello})
    (tmp_path / "p" / "untracked").write_text("secret")
    names = []
    for _ in range(2):
        async with manager.open(a_task(repository)) as info:
            result = await manager.execute(
                info.container_id, "cat /opt/said; id -u; cat /opt/env /opt/links"
            )
            assert result.stdout.startswith("hello from the image\n1234\n"), result
            for secret in ("TOKEN", "SECRET", "PROXY", "DOCKER", "eth0"):
                assert secret not in result.stdout
            names.append(docker("inspect", "--format", "{{.Config.Image}} {{.Image}}", info.name))
    assert names[0] == names[1]
    assert names[0].startswith("kakoi-project:")
    label = docker(
        "image",
        "inspect",
        "--format",
        '{{index .Config.Labels "kakoi.image"}}',
        names[0].split()[0],
    )
    assert label == "project"
    assert containers(owner) == []


async def test_a_build_that_fails_says_its_last_words_and_leaves_nothing(
    manager: ExecutionEnvironmentManager, tmp_path: Path, images: None, owner: str
) -> None:
    other = f"kakoi-test-{uuid.uuid4()}:latest"
    docker("build", "-q", "-t", other, "-", stdin=f"FROM {PYTHON}\nLABEL other={other}\n")
    word = f"kakoi-{uuid.uuid4()}"
    lines = [f"FROM {PYTHON} AS first", f"LABEL word={word}", "WORKDIR /x"]
    lines += [f"FROM {PYTHON}", f"LABEL word={word}", "ENV X=1"]
    # It would have us remove an image of somebody else's.
    lines += [f"RUN echo ' ---> {identity_of(other)}' && echo about to fail && exit 3", ""]
    files = {".kakoi.yaml": "tasks: {dockerfile: Dockerfile}", "Dockerfile": "\n".join(lines)}
    with pytest.raises(SandboxError, match="returned a non-zero code: 3"):
        await manager.prepare(a_task(a_repository(tmp_path / "p", files)))
    assert containers(owner) == []
    # In one call: containers of other tests come and go.
    shown = ["--no-trunc", "--filter", f"ancestor={PYTHON}", "--format", "{{.Command}}"]
    assert "about to fail" not in docker("ps", "-a", *shown)
    assert identity_of(other)
    docker("image", "rm", other)
    assert docker("image", "ls", "-a", "-q", "--filter", f"label=word={word}") == ""


def archive_of(folder: Path, text: str) -> bytes:
    a_repository(folder, {"Dockerfile": text})
    argv = ["git", "archive", "--format=tar", "HEAD"]
    return subprocess.run(argv, cwd=folder, check=True, capture_output=True).stdout


async def test_builds_that_share_a_layer_leave_each_other_alone(tmp_path: Path) -> None:
    found = "Step 2/3 : RUN a\n ---> Using cache\n ---> 0123456789ab\n"
    made = "Step 3/3 : RUN b\n ---> Running in 00112233aabb\n ---> abcdefabcdef\n"
    lost = answer(found, exit_code=1, stderr="No such image: sha256:0123456789ab\n")
    executor = ScriptedExecutor(
        scripted={
            # The base, what it has for later, and the image itself, which is not there.
            "image inspect": [
                answer("sha256:a \n"),
                answer("null"),
                answer(exit_code=1, stderr="No such image"),
            ],
            "image ls": answer(""),
            "image rm": answer(),
            "context": answer("unix:///x"),
            # Another one took away what this one had found; then it fails for a reason of its own.
            "--config": [lost, answer(found + made, exit_code=1, stderr="b is broken")],
        },
    )
    builder = ProjectBuilder(Engine(executor, program="docker"), BuildLimits())
    with pytest.raises(SandboxError, match="b is broken"):
        await builder.build(archive_of(tmp_path / "p", "FROM a:1\nRUN a\nRUN b\n"), "Dockerfile")
    assert len(executor.called("--config")) == 2
    # Not what it has found: somebody else has made that, and may need it.
    assert [call[-1] for call in executor.called("image rm")] == ["abcdefabcdef"]


@pytest.mark.slow("an image is built")
async def test_a_build_is_ended_in_time_and_an_image_that_is_too_big_is_not_kept(
    tmp_path: Path, images: None
) -> None:
    engine = build_engine(ProcessExecutor(), "docker", dict(os.environ))
    assert engine is not None
    word = f"kakoi-{uuid.uuid4()}"
    slow = archive_of(
        tmp_path / "slow",
        f"FROM {PYTHON}\nUSER root\nLABEL word={word}\nRUN sleep 600 && echo {word}\n",
    )
    with pytest.raises(SandboxError, match="did not finish building Dockerfile after 5 s"):
        await ProjectBuilder(engine, BuildLimits(timeout_s=5)).build(slow, "Dockerfile")

    def is_over() -> bool:
        return word not in docker("ps", "-a", "--no-trunc", "--format", "{{.Command}}")

    await asyncio.to_thread(wait_until, is_over)
    assert docker("image", "ls", "-a", "-q", "--filter", f"label=word={word}") == ""
    big = archive_of(tmp_path / "big", f"FROM {PYTHON}\nUSER root\nRUN echo {word} >/x\n")
    with pytest.raises(SandboxError, match="bytes; the limit is 1000"):
        await ProjectBuilder(engine, BuildLimits(image_bytes=1000)).build(big, "Dockerfile")
    name = await ProjectBuilder(engine, BuildLimits(memory_bytes=64 << 20, cpus=0.5)).build(
        big, "Dockerfile"
    )
    assert docker("run", "--rm", "--network", "none", "--entrypoint", "cat", name, "/x") == word


async def test_a_base_image_may_not_fetch_addresses_later(tmp_path: Path, images: None) -> None:
    base = f"kakoi-test-{uuid.uuid4()}:latest"
    name = docker("create", "--network", "none", PYTHON, "true")
    docker("commit", "--change", "ONBUILD ADD http://127.0.0.1:1/x /x", name, base)
    docker("rm", name)
    engine = build_engine(ProcessExecutor(), "docker", dict(os.environ))
    assert engine is not None
    archive = archive_of(tmp_path / "p", f"FROM {base}\n")
    try:
        with pytest.raises(ConfigurationError, match="ONBUILD of"):
            await ProjectBuilder(engine, BuildLimits()).build(archive, "Dockerfile")
    finally:
        docker("image", "rm", base)


FETCHING = [
    "ADD http://127.0.0.1:1/x /x",
    "add\thttp://127.0.0.1:1/x /x",
    "ADD\vhttp://127.0.0.1:1/x /x",
    "ADD \\\n# a comment\n\nhttp://127.0.0.1:1/x /x",
    'ADD ["http://127.0.0.1:1/x", "/x"]',
    'ADD ["http\\u003a//127.0.0.1:1/x", "/x"]',
    'ADD "http:"//127.0.0.1/x /x',
    "ADD \u2028http://127.0.0.1/x /x",
    "ARG A=http\nADD $A /x",
    "ONBUILD ADD http://127.0.0.1/x /x",
    "ADD git@host:x /x",
    "ADD --chown=1 http://127.0.0.1/x /x",
]


@pytest.mark.parametrize("line", FETCHING)
def test_nothing_is_added_from_an_address_however_it_is_written(line: str) -> None:
    with pytest.raises(ConfigurationError, match="own network"):
        check_dockerfile(f"FROM a\n{line}\n", "Dockerfile")


@pytest.mark.parametrize(
    "text",
    [
        "", "RUN x", "# nothing", "FROM", "FROM $X", "FROM ${X:-y}", "FROM -v", "FROM a b c\n x",
        # What one builder takes for the end of a line, a comment or a blank line, and another does not.
        *(f"FROM a\nRUN x {end}\nADD http://127.0.0.1:1/x /x" for end in (
            "\\\v", "\\\f", "\\\x1f", "\\\xa0", "\\\r ", "\\\u3000", "\\\\", "\\\\ ", "\\\n\x1c", "\\\n\x1c# c",
            "\\\n\u3000# c")),
        "# escape=`\nFROM a", "\ufeff# escape=`\nFROM a\nRUN x \\\nADD http://127.0.0.1:1/x /x", "FROM a\nRUN <<EOF\nADD http://x\nEOF", "\u200bFROM a", "FROM a\nINCLUDE b",
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_not_built(text: str) -> None:
    with pytest.raises(ConfigurationError):
        check_dockerfile(text, "Dockerfile")


def test_the_images_that_a_dockerfile_starts_from_are_known() -> None:
    text = "\ufeff# syntax=docker/dockerfile:1\nARG V=3.11 W=x\nFROM --platform=linux/amd64 python:${V}-slim AS One\nRUN a \\\n  && b\nADD file.tar /x\nfrom One\nFROM scratch\nCOPY --from=One /x /x\r\nFROM a.example:5000/b@sha256:00"
    assert check_dockerfile(text, "x") == ["python:3.11-slim", "a.example:5000/b@sha256:00"]
    copied = "FROM a AS b\n# \u3000\nFROM a\r\nCOPY --from=B /x /x\nCOPY --from=0 x y\nCOPY --chown=1 --from=c:1 x y"
    assert check_dockerfile(copied, "x") == ["a", "a", "c:1"]


@pytest.mark.parametrize(
    "line",
    [
        "FROM 127.0.0.1:1/x", "FROM localhost/x", "FROM 10.1.2.3:5000/a/b", "FROM 2130706433/x",
        "FROM a.localhost:1/x", "FROM 169.254.169.254/x", f"FROM {PYTHON}\nCOPY --from=127.0.0.1:1/x /x /x",
    ],
)  # fmt: skip
async def test_no_image_of_a_project_is_pulled_from_this_machine_or_its_neighbours(
    line: str, tmp_path: Path, images: None
) -> None:
    engine = build_engine(ProcessExecutor(), "docker", dict(os.environ))
    assert engine is not None
    archive = archive_of(tmp_path / "p", f"{line}\n")
    with pytest.raises(ConfigurationError, match="a registry with a private address"):
        await ProjectBuilder(engine, BuildLimits()).build(archive, "Dockerfile")


def test_a_dockerfile_of_empty_lines_keeps_nobody_busy() -> None:
    assert check_dockerfile("\n" * 200_000 + "FROM a", "x") == ["a"]


def test_the_same_files_are_the_same_archive_and_odd_ones_are_none(tmp_path: Path) -> None:
    one, two = (archive_of(tmp_path / name, "FROM a\n") for name in ("a", "b"))
    assert repacked(one)[0] == repacked(two)[0]
    assert repacked(one)[1] == {"Dockerfile": b"FROM a\n"}
    for data in (b"", b"x" * 2000, one[:700], with_a_hole(size=2**33 - 1)):
        with pytest.raises(SandboxError):
            repacked(data)


def with_a_hole(size: int) -> bytes:
    """An archive of a file that is nothing but a hole, as GNU tar writes it."""
    entry = tarfile.TarInfo("Dockerfile")
    entry.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"00000000000\0" * 2  # One piece of data: none, at the beginning.
    header[483:495] = b"%011o\0" % size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)
