"""What images are made of: one description, read by both ways to build them."""

import asyncio
import io
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from kakoi.backends.docker.engine import Engine
from kakoi.errors import SandboxError
from kakoi.images.build import Builder, BuildSpec, find_sources, mmdebstrap_args
from kakoi.images.description import FOLDER, archive, content_key, contents, files, image_settings
from kakoi.process import ProcessExecutor
from tests.fakes import ScriptedExecutor, answer
from tests.tasks.hosting import wait_until

DOCKERFILE = (FOLDER / "Dockerfile").read_text()
BASE = BuildSpec(variant="base", name="x:base")


def listed_by_setup(variant: str, kind: str, folder: Path) -> list[str]:
    """What setup.sh itself reads from the description."""
    text = (FOLDER / "setup.sh").read_text()
    function = re.search(r"^listed\(\) \{.*?^\}", text, re.MULTILINE | re.DOTALL)
    assert function
    script = f"variant={variant}\n{function[0]}\nlisted {kind}\n"
    (folder / "contents.txt").write_bytes(files()["contents.txt"])
    done = subprocess.run(["dash", "-c", script], cwd=folder, capture_output=True, text=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("variant", ["base", "full"])
def test_both_ways_read_the_same_packages(variant: str, tmp_path: Path) -> None:
    ours = contents("base" if variant == "base" else "full")
    assert listed_by_setup(variant, "apt", tmp_path) == list(ours.apt)
    assert "python3-venv" in ours.apt
    assert ("golang-go" in ours.apt) == (variant == "full")


@pytest.mark.requirement("E-006")
def test_the_dockerfile_starts_from_node_20_slim() -> None:
    assert "ARG BASE=node:20-slim\n" in DOCKERFILE
    assert re.search(r"^FROM \$\{BASE\} AS base$", DOCKERFILE, re.MULTILINE)
    assert {"python3", "python3-pip", "python3-venv", "curl", "git"} <= set(contents("base").apt)


def test_the_default_image_is_to_have_the_runtimes_and_tools_of_the_spec() -> None:
    wanted = contents("full")
    tried = [*wanted.checks, *wanted.wishes]
    for words in "node --version,python3 --version,go version,java -version,git --version,curl --version,wget --version,mamba --version".split(","):  # fmt: skip
        assert words in tried


def test_the_settings_of_the_dockerfile_hold_without_it() -> None:
    settings = list(image_settings(DOCKERFILE, {"a": "b"}))
    assert settings[-1] == "LABEL a=b"
    assert [line for line in settings if line.startswith("USER")][-1] == "USER agent"
    assert {"WORKDIR /workspace", 'CMD ["bash"]', "ENTRYPOINT []"} <= set(settings)
    assert not [line for line in settings if line.startswith(("RUN", "COPY", "ARG"))]


def test_another_description_is_another_key() -> None:
    assert content_key(files(), "base") == content_key(files(), "base")
    keys = {
        content_key(files(), "base"),
        content_key(files(), "full"),
        content_key(files(apt=["jq"]), "base"),
    }
    assert len(keys) == 3
    assert BASE.all_labels["kakoi.key"] != BuildSpec(variant="base", name="x", uid=7).all_labels["kakoi.key"]  # fmt: skip


def test_a_build_is_fed_everything_once(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive(files()))) as tar:
        names = tar.getnames()
        assert tar.getmember("install.sh").mode == 0o755
    assert len(names) == len(set(names))
    assert {"Dockerfile", "setup.sh", "install.sh", "allowlist/pip.txt"} <= set(names)


async def build(executor: ScriptedExecutor, spec: BuildSpec) -> None:
    builder = Builder(Engine(executor, program="docker"), ProcessExecutor(), {})
    await builder.build(spec)


@pytest.mark.anyio
async def test_with_a_registry_the_dockerfile_is_built() -> None:
    executor = ScriptedExecutor(scripted={"build": answer()})
    await build(executor, BuildSpec(variant="full", name="x:1", uid=7, base="other:1"))
    (call,) = executor.called("build")
    assert call[:6] == ["docker", "build", "--tag", "x:1", "--target", "full"]
    assert call[-5:] == ["--build-arg", "AGENT_UID=7", "--build-arg", "BASE=other:1", "-"]
    assert "kakoi.image=full" in call


@pytest.mark.anyio
async def test_a_build_that_fails_says_why_and_names_the_other_way() -> None:
    executor = ScriptedExecutor(scripted={"build": answer(exit_code=1, stderr="no route to host")})
    with pytest.raises(Exception, match="no route to host") as caught:
        await build(executor, BASE)
    assert "--without-registry" in str(getattr(caught.value, "hint", ""))


@pytest.mark.anyio
async def test_a_build_that_is_interrupted_leaves_no_half_of_a_tree(tmp_path: Path) -> None:
    program, begun, cache = tmp_path / "bin" / "mmdebstrap", tmp_path / "begun", tmp_path / "cache"
    program.parent.mkdir()
    os.mkfifo(begun)
    # Its last argument is what it makes.
    program.write_text(
        f'#!/bin/sh\nfor last; do :; done\necho half > "$last"\necho > {begun}\nsleep 600\n'
    )
    program.chmod(0o755)
    env = {"PATH": f"{program.parent}:/usr/bin:/bin"}
    builder = Builder(Engine(ScriptedExecutor(), program="docker"), ProcessExecutor(), env)
    work = asyncio.ensure_future(builder.build_without_registry(BASE, cache=cache))
    await asyncio.to_thread(begun.read_text)
    assert [each.suffix for each in cache.iterdir()] == [".part"]
    work.cancel()
    await asyncio.wait([work])
    assert work.cancelled()
    assert list(cache.iterdir()) == []


@pytest.mark.anyio
async def test_a_build_that_fails_does_not_disturb_another_of_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program, first, cache = tmp_path / "bin" / "mmdebstrap", tmp_path / "first", tmp_path / "cache"
    program.parent.mkdir()
    os.mkfifo(tmp_path / "go")
    program.write_text(
        "#!/bin/sh\nfor last; do :; done\n"
        f'if mkdir {first}; then echo half > "$last"; read x < {tmp_path}/go; exit 1; fi\n'
        f'echo second > {tmp_path}/second; echo whole > "$last"\n'
    )
    program.chmod(0o755)
    env = {"PATH": f"{program.parent}:/usr/bin:/bin"}
    engine = Engine(ScriptedExecutor(scripted={"import": answer()}), program="docker")
    builder = Builder(engine, ProcessExecutor(), env)
    failing = asyncio.ensure_future(builder.build_without_registry(BASE, cache=cache))
    await asyncio.to_thread(wait_until, first.exists)
    other = asyncio.ensure_future(builder.build_without_registry(BASE, cache=cache))
    await asyncio.to_thread(
        wait_until, lambda: "waiting for another" in caplog.text or (tmp_path / "second").exists()
    )
    await asyncio.to_thread((tmp_path / "go").write_text, "\n")
    with pytest.raises(SandboxError, match="mmdebstrap failed"):
        await failing
    await other
    (tree,) = cache.iterdir()
    assert (tree.suffix, tree.read_text()) == (".tar", "whole\n")


def test_without_a_registry_the_same_setup_runs(tmp_path: Path) -> None:
    spec = BuildSpec(variant="base", name="x", apt=["jq"], uid=7, sources=Path("/s"))
    words = mmdebstrap_args(spec, Path("/f.tar"), Path("/t.tar"))
    assert f"--include={','.join([*contents('base').apt, 'jq'])}" in words
    assert any("AGENT_UID=7 sh /opt/kakoi-image/setup.sh base" in word for word in words)
    assert words[-3:] == ["bookworm", "/t.tar", "/s"]


def test_sources_that_are_named_are_taken() -> None:
    assert find_sources("/x") == Path("/x")
