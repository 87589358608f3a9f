"""The installer of the library: exit statuses, the log, and the places it installs in."""

import asyncio
import dataclasses
import json
import logging
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import get_type_hints

import pytest

from kakoi.backends.docker.engine import Engine
from kakoi.backends.host.adapter import HostAdapter
from kakoi.errors import ConfigurationError, SandboxError
from kakoi.gate import Gate
from kakoi.packages.allowlist import (
    AllowlistConfig,
    Ecosystem,
    InstallRequest,
    InstallResult,
    parse,
)
from kakoi.packages.installer import (
    Installer,
    InstallLog,
    InstallReport,
    ManagerResult,
    plain,
    read_lists,
    requests_from,
)
from kakoi.packages.targets import ContainerTarget, SandboxTarget
from kakoi.policy.profiles import load_policy
from kakoi.process import ProcessResult
from tests.fakes import ScriptedExecutor, answer
from tests.packages.names import LISTS

NOON = datetime(2026, 1, 28, 12, 30, tzinfo=timezone(timedelta(hours=9)))
CONFIG = AllowlistConfig(apt=parse("apt", LISTS["apt"]), pip=parse("pip", LISTS["pip"]))


class FakeTarget:
    """Returns or raises a fixed result, and remembers the requests."""

    def __init__(self, result: ManagerResult | SandboxError) -> None:
        self.result = result
        self.requests: list[tuple[str, str]] = []

    async def install(self, ecosystem: Ecosystem, wanted: str) -> ManagerResult:
        self.requests.append((ecosystem, wanted))
        if isinstance(self.result, SandboxError):
            raise self.result
        return self.result


def install(
    kind: str,
    package: str,
    *,
    result: ManagerResult | SandboxError | None = None,
    logs: Path | None = None,
) -> InstallReport:
    target = FakeTarget(result or ManagerResult(0))
    log = InstallLog(logs) if logs else None
    installer = Installer(CONFIG, target, log=log, clock=lambda: NOON)
    (request,) = requests_from(kind, [package])
    done = asyncio.run(installer.install(request))
    assert bool(target.requests) == (done.exit_code in (0, 2))
    return done


def lines(folder: Path) -> list[dict[str, object]]:
    (path,) = folder.iterdir()
    assert path.name == "install-20260128.jsonl"
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


@pytest.mark.requirement("E-028")
def test_the_data_models_are_those_of_the_spec() -> None:
    assert [field.name for field in dataclasses.fields(InstallRequest)] == ["type", "package"]
    assert [field.name for field in dataclasses.fields(AllowlistConfig)] == ["apt", "pip", "npm"]
    hints = get_type_hints(InstallResult)
    assert list(hints) == ["timestamp", "type", "package", "status", "duration_ms", "error"]
    assert (hints["duration_ms"], hints["error"]) == (int | None, str | None)


@pytest.mark.requirement("E-013", "E-026", "E-027")
def test_success_is_logged_with_its_time(tmp_path: Path) -> None:
    assert install("pip", "requests", logs=tmp_path / "logs").exit_code == 0
    (entry,) = lines(tmp_path / "logs")
    assert isinstance(entry.pop("duration_ms"), int)
    assert entry == {
        "timestamp": "2026-01-28T03:30:00Z",
        "type": "pip",
        "package": "requests",
        "status": "success",
    }


@pytest.mark.requirement("E-014", "E-015", "E-016", "E-023", "E-029", "X-37")
def test_every_outcome_has_its_status_and_its_line(tmp_path: Path) -> None:
    outcomes = [
        install("pip", "evil\x1b[2J", logs=tmp_path),
        install("pip", "requests", result=ManagerResult(1, "", "no\nsuch thing"), logs=tmp_path),
        install(
            "pip", "requests", result=SandboxError("no target", hint="make one"), logs=tmp_path
        ),
        install("npm", "typescript", logs=tmp_path),
    ]
    assert [done.exit_code for done in outcomes] == [1, 2, 2, 3]
    assert [(entry["package"], entry["status"], entry["error"]) for entry in lines(tmp_path)] == [
        ("evil?[2J", "rejected", "it is not a plain package name with an optional version"),
        ("requests", "failed", "no such thing"),
        ("requests", "failed", "no target; make one"),
        ("typescript", "failed", "there is no list"),
    ]


@pytest.mark.requirement("E-017", "X-37")
def test_a_type_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="unknown package type `ge\\?m`") as caught:
        requests_from("ge\x1bm", ["x"])
    assert caught.value.hint == "use one of apt, pip, npm"


@pytest.mark.requirement("E-018")
@pytest.mark.parametrize("kind", ["a file", "a link", "a pipe that nobody reads"])
def test_a_log_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    logs = tmp_path / "logs"
    if kind == "a file":
        logs.touch()
    elif kind == "a pipe that nobody reads":
        logs.mkdir()
        os.mkfifo(logs / "install-20260128.jsonl")
    else:  # Somebody wants the line to be written elsewhere.
        logs.mkdir()
        (logs / "install-20260128.jsonl").symlink_to(tmp_path / "elsewhere")
    with caplog.at_level(logging.WARNING):
        assert install("pip", "requests", logs=logs).exit_code == 0
    assert "was not logged" in caplog.text
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.requirement("E-023")
def test_a_request_that_is_interrupted_is_logged(tmp_path: Path) -> None:
    class Slow:
        async def install(self, ecosystem: Ecosystem, wanted: str) -> ManagerResult:
            await asyncio.sleep(600)
            return ManagerResult(0)

    async def run() -> None:
        installer = Installer(CONFIG, Slow(), log=InstallLog(tmp_path), clock=lambda: NOON)
        work = asyncio.ensure_future(installer.install(InstallRequest("pip", "requests")))
        await asyncio.sleep(0)
        work.cancel()
        await asyncio.wait([work])
        assert work.cancelled()

    asyncio.run(run())
    assert [entry["error"] for entry in lines(tmp_path)] == ["interrupted"]


def test_the_output_of_a_package_manager_is_logged_without_secrets(tmp_path: Path) -> None:
    result = "x" * 5000 + "\nERROR: https://me:hunter22@example.org/simple: 401\n"
    install("pip", "requests", result=ManagerResult(1, "", result), logs=tmp_path)
    (entry,) = lines(tmp_path)
    assert "hunter22" not in str(entry)
    assert len(str(entry["error"])) <= 400


def test_bytes_that_are_not_text_are_shown(tmp_path: Path) -> None:
    assert plain("a\udcff\ud800b") == "a??b"
    assert install("pip", "\ud800").exit_code == 1


def test_a_list_that_is_not_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "pip.txt").write_bytes(b"requests\n\xff\n")
    (tmp_path / "npm.txt").mkdir()
    os.mkfifo(tmp_path / "apt.txt")
    lists = read_lists(tmp_path)
    assert (lists.apt, lists.npm) == (None, None)
    assert lists.pip is not None
    assert len(lists.pip.invalid) == 1


# --- Places ----------------------------------------------------------------------------------


@pytest.mark.requirement("Y-18")
def test_pip_installs_into_an_environment_in_the_workspace_through_the_gate(tmp_path: Path) -> None:
    project, own = tmp_path / "project", tmp_path / "bin" / "python3"
    for folder, word in ((own.parent, "ours"), (project / "bin", "the project's")):
        folder.mkdir(parents=True)
        text = f'#!/bin/sh\necho "{word}" >{project}/asked\npwd >>{project}/asked\n'
        (folder / "python3").write_text(text + f'printf "%s\\n" "$@" >>{project}/asked\n')
        (folder / "python3").chmod(0o755)
    path = f"{project}/bin:bin:{own.parent}:{os.environ['PATH']}"

    async def run() -> ManagerResult:
        sandbox = HostAdapter(str(project), env={"PATH": path}, warn_on_start=False)
        gate = Gate(load_policy(roots=[str(project)]), sandbox, cwd=str(project))
        try:
            return await SandboxTarget(gate, str(project)).install("pip", "requests[socks]>=2,<3")
        finally:
            await sandbox.cleanup()

    assert asyncio.run(run()) == ManagerResult(0, "", "")
    who, where, *words = (project / "asked").read_text().splitlines()
    assert (who, where, words[:3]) == ("ours", "/", ["-I", "-", f"{project}/.venv"])
    assert words[-1] == "requests[socks]>=2,<3"
    assert not Path(words[3]).exists()


@pytest.mark.requirement("X-35")
def test_apt_is_refused_in_a_sandbox_with_the_way_out(tmp_path: Path) -> None:
    sandbox = HostAdapter(str(tmp_path), warn_on_start=False)

    async def run() -> None:
        gate = Gate(load_policy(), sandbox, cwd=str(tmp_path))
        with pytest.raises(SandboxError, match="never run as root") as caught:
            await SandboxTarget(gate, str(tmp_path)).install("apt", "curl")
        assert "--container" in caught.value.hint

    asyncio.run(run())


def as_root(
    config: str, *, result: list[ProcessResult] | None = None
) -> tuple[ManagerResult, ScriptedExecutor]:
    inspected = [answer('{"Status": "running"} {}'), answer(config)]
    executor = ScriptedExecutor(
        scripted={"exec": result or answer(), "container inspect": inspected}
    )
    target = ContainerTarget(Engine(executor, program="docker"), "box")
    return asyncio.run(target.install("apt", "jq=1.6-2.1")), executor


@pytest.mark.requirement("E-012", "X-35")
def test_apt_runs_as_root_from_outside() -> None:
    ran, executor = as_root('{"CapDrop": null, "NetworkMode": "bridge"}')
    assert ran.exit_code == 0
    update, install_ = executor.called("exec")
    assert update[-2:] == ["update", "-qq"]
    assert install_[-5:] == ["box", "/usr/bin/apt-get", "install", "-y", "jq=1.6-2.1"]
    assert install_[2:4] == ["--user", "0:0"]
    assert "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" in install_


def test_apt_stops_at_the_first_failure() -> None:
    ran, executor = as_root("{}", result=[answer(exit_code=100, stderr="E: no")])
    assert ran == ManagerResult(100, "", "E: no")
    assert len(executor.called("exec")) == 1


@pytest.mark.requirement("X-35")
@pytest.mark.parametrize(
    ("config", "why"),
    [
        ('{"CapDrop": ["ALL"]}', "capabilities"),
        ('{"CapDrop": ["CAP_SETUID"]}', "capabilities"),
        ('{"NetworkMode": "none"}', "no network"),
        ('{"ReadonlyRootfs": true}', "read-only"),
        ('{"SecurityOpt": ["no-new-privileges:true"]}', "no-new-privileges"),
    ],
)
def test_where_apt_cannot_work_it_is_refused_with_the_reason(config: str, why: str) -> None:
    with pytest.raises(SandboxError, match=why) as caught:
        as_root(config)
    assert "kakoi image build --apt" in caught.value.hint


def test_only_apt_is_run_as_root() -> None:
    target = ContainerTarget(Engine(ScriptedExecutor(), program="docker"), "box")
    with pytest.raises(SandboxError, match="belong to the user"):
        asyncio.run(target.install("pip", "requests"))
    with pytest.raises(SandboxError, match="gone"):
        asyncio.run(target.install("apt", "curl"))
