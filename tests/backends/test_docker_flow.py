"""What the adapter asks the engine for, in which order, and what it makes of the answers."""

import json
import logging
import socket
from pathlib import Path

import pytest

from kakoi.backends.adapter import Limits, SandboxAdapter
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings, Lifetime, Program, Tag
from kakoi.backends.docker.container import default_owner
from kakoi.backends.outlet import Outlet, OutletServer
from kakoi.channel.delivery import NoPythonError
from kakoi.errors import (
    EnvironmentUnavailableError,
    ExecutionTimeoutError,
    ImagePullError,
    SandboxError,
)
from kakoi.results import ExecutionResult, Reason
from tests.fakes import (
    CONFINED,
    ScriptedChannel,
    ScriptedExecutor,
    ScriptedStreams,
    answer,
    no_program,
)

pytestmark = pytest.mark.anyio

IMAGE = "node:20-alpine"
# An engine of paper mounts nothing.
NO_DISK = Limits(disk_bytes=None)
LOST = ExecutionResult(125, "", "", 1, Reason.SANDBOX_LOST, error="the sandbox was lost: gone")


def adapter(
    executor: ScriptedExecutor,
    streams: ScriptedStreams | None = None,
    *,
    config: DockerSettings | None = None,
    program: Program = "docker",
    lifetime: Lifetime = "command",
    tag: Tag | None = None,
) -> DockerAdapter:
    return DockerAdapter(
        config or DockerSettings(limits=NO_DISK),
        executor,
        program=program,
        lifetime=lifetime,
        tag=tag or Tag(),
        streams=streams or ScriptedStreams(),
    )


def verbs(executor: ScriptedExecutor) -> list[str]:
    return [call[1] for call in executor.calls]


# --- Images ----------------------------------------------------------------------------------


@pytest.mark.requirement("B-017", "B-018")
async def test_an_image_that_is_here_is_looked_for_first_and_not_pulled() -> None:
    executor, streams = ScriptedExecutor({IMAGE: ""}), ScriptedStreams()
    await adapter(executor, streams).execute("true")
    assert executor.calls[0][:3] == ["docker", "image", "inspect"]
    assert executor.calls[0][-1] == IMAGE
    assert executor.called("pull") == []
    assert streams.held[0].argv[:4] == ["docker", "run", "--rm", "-i"]


@pytest.mark.requirement("B-018")
async def test_an_image_that_is_not_here_is_pulled_and_then_run() -> None:
    executor, streams = ScriptedExecutor(pullable=[IMAGE]), ScriptedStreams()
    await adapter(executor, streams).execute("true")
    assert verbs(executor)[:2] == ["image", "pull"]
    assert executor.called("pull")[0][-1] == IMAGE
    assert len(streams.held) == 1


@pytest.mark.requirement("B-019")
async def test_an_image_that_cannot_be_had_is_an_error_in_the_log_and_to_the_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    executor, streams = ScriptedExecutor(), ScriptedStreams()
    with pytest.raises(ImagePullError) as caught:
        await adapter(executor, streams).execute("true")
    assert caught.value.code == "IMAGE_PULL_FAILED"
    assert caught.value.details["image"] == IMAGE
    assert "manifest unknown" in str(caught.value.details["stderr"])
    assert caught.value.hint
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert streams.held == []


async def test_an_engine_that_does_not_answer_is_not_asked_to_pull() -> None:
    down = answer(exit_code=1, stderr="Cannot connect to the Docker daemon at unix:///x.")
    executor = ScriptedExecutor(scripted={"image inspect": down})
    with pytest.raises(EnvironmentUnavailableError):
        await adapter(executor).execute("true")
    assert verbs(executor) == ["image"]


# --- Availability ----------------------------------------------------------------------------


@pytest.mark.requirement("B-024")
async def test_without_docker_it_is_not_available_and_says_how_to_get_it() -> None:
    executor = ScriptedExecutor(scripted={"version": no_program("docker")})
    found = await adapter(executor).availability()
    assert not found
    assert "not found" in found.reason
    assert "docker.io" in found.fix
    assert await adapter(executor).is_available() is False


async def test_a_probe_runs_a_container_as_commands_will_have_it() -> None:
    executor = ScriptedExecutor({IMAGE: ""})
    found = await adapter(executor).availability()
    assert found
    assert "ran a container" in found.reason
    (probe,) = executor.called("run")
    assert "no-new-privileges" in probe
    assert probe[-4:] == ["sh", IMAGE, "-c", "exit 0"]


async def test_a_probe_that_fails_gives_cause_and_fix() -> None:
    said = "docker: Error response from daemon: cgroups: cannot find cgroup mount destination."
    executor = ScriptedExecutor({IMAGE: ""}, scripted={"run": answer(exit_code=125, stderr=said)})
    found = await adapter(executor).availability()
    assert not found
    assert "limits" in found.reason
    assert found.fix


async def test_an_image_that_has_to_be_pulled_does_not_make_it_unavailable() -> None:
    executor = ScriptedExecutor()
    found = await adapter(executor).availability()
    assert found
    assert "will be pulled" in found.reason
    assert executor.called("pull") == []


@pytest.mark.requirement("A-101")
async def test_an_engine_that_is_too_old_is_reported() -> None:
    for version in ("20.9.1", "19.03.15"):
        scripted = {"version": answer(f"{version}\n"), "info": answer(f"2 {version} []\n")}
        executor = ScriptedExecutor({IMAGE: ""}, scripted=scripted)
        found = await adapter(executor).availability()
        assert not found
        assert version in found.reason
        assert "20.10 or newer" in found.reason
        # Also to who did not ask whether it is available.
        with pytest.raises(EnvironmentUnavailableError, match=f"version {version}; it must be 20"):
            await adapter(executor, lifetime="sandbox").channel()
        assert not executor.called("create")


@pytest.mark.requirement("A-101")
@pytest.mark.parametrize("version", ["20.10.0", "20.10.24", "24.0.7", "28.5.2-ce"])
async def test_an_engine_is_new_enough_from_20_10_on(version: str) -> None:
    scripted = {"version": answer(f"{version}\n"), "info": answer(f"2 {version} []\n")}
    executor = ScriptedExecutor({IMAGE: ""}, scripted=scripted)
    assert await adapter(executor).availability()
    assert (await adapter(executor).execute("true")).exit_code == 0


# --- One container for each command ----------------------------------------------------------


async def test_each_command_has_a_container_of_its_own_that_is_seen_to_be_gone() -> None:
    executor, streams = ScriptedExecutor({IMAGE: ""}), ScriptedStreams()
    sandbox = adapter(executor, streams)
    await sandbox.execute("true")
    await sandbox.execute("true")
    names = [each.argv[each.argv.index("--name") + 1] for each in streams.held]
    assert len(set(names)) == 2
    assert [call[2:] for call in executor.called("rm")] == [["-f", "-v", name] for name in names]


@pytest.mark.requirement("B-015", "B-023")
async def test_a_command_that_takes_too_long_is_an_error_and_its_container_is_gone() -> None:
    result = ExecutionResult(124, "part", "", 5, Reason.TIMED_OUT)
    executor, streams = ScriptedExecutor({IMAGE: ""}), ScriptedStreams(ScriptedChannel(result))
    with pytest.raises(ExecutionTimeoutError) as caught:
        await adapter(executor, streams).execute("sleep 9")
    assert caught.value.details["stdout"] == "part"
    assert len(executor.called("rm")) == 1


async def test_a_command_that_names_no_time_has_the_time_of_the_settings() -> None:
    channel = ScriptedChannel()
    sandbox = adapter(
        ScriptedExecutor({IMAGE: ""}),
        ScriptedStreams(channel),
        config=DockerSettings(timeout_s=7, limits=NO_DISK),
    )
    await sandbox.execute("true")
    assert channel.commands[0].timeout_s == 7


async def test_a_sandbox_lost_for_want_of_memory_is_reported_as_that() -> None:
    executor = ScriptedExecutor({IMAGE: ""}, scripted={"events": answer("oom\n")})
    result = await adapter(executor, ScriptedStreams(ScriptedChannel(LOST))).execute("hog")
    assert (result.reason, result.exit_code) == (Reason.OUT_OF_MEMORY, 137)


async def test_a_failure_to_start_is_reported_in_our_words() -> None:
    said = "docker: Error response from daemon: no space left on device."
    failed = SandboxError("the sandbox could not be started", details={"stderr": said})
    for streams in (ScriptedStreams(hold_error=failed), ScriptedStreams(failed)):
        executor = ScriptedExecutor({IMAGE: ""})
        with pytest.raises(SandboxError, match="no disk space left"):
            await adapter(executor, streams).execute("true")
        assert len(executor.called("rm")) == 1
        assert all(holder.is_ended for holder in streams.holders)


async def test_an_image_without_python_is_entered_by_shells_and_that_is_remembered() -> None:
    no_python = NoPythonError("there is no python3")
    streams = ScriptedStreams(no_python, ScriptedChannel())
    sandbox = adapter(ScriptedExecutor({IMAGE: ""}), streams)
    await sandbox.execute("true")
    await sandbox.execute("true")
    assert (len(streams.held), len(streams.opened), len(streams.shells)) == (2, 1, 2)
    name = streams.held[0].argv[streams.held[0].argv.index("--name") + 1]
    words = ["docker", "exec", "-i", "-t", "--user", "65533:65533", "-e", "A", name, "sh"]
    assert streams.shells[0].argv == words
    assert streams.shells[0].env["A"] == "1"


# --- A container that is not what was asked for ----------------------------------------------


@pytest.mark.parametrize("lifetime", ["command", "sandbox", "client"])
async def test_a_limit_that_the_engine_ignored_is_refused_and_the_container_removed(
    lifetime: Lifetime,
) -> None:
    files = {**CONFINED, "/sys/fs/cgroup/memory.max": b"max\n"}
    channel = ScriptedChannel(files=files)
    executor = ScriptedExecutor({IMAGE: ""}, scripted={"container inspect": answer("{}")})
    sandbox = adapter(executor, ScriptedStreams(channel), lifetime=lifetime)
    with pytest.raises(SandboxError, match="did not set these limits: memory_bytes") as caught:
        await sandbox.execute("true")
    assert caught.value.hint
    assert channel.commands == []
    assert len(executor.called("rm")) == 1


async def test_where_the_kernel_does_not_say_the_engine_is_asked() -> None:
    files = {"/proc/self/status": CONFINED["/proc/self/status"]}
    said = answer('{"Memory": 4294967296, "PidsLimit": 512, "NanoCpus": 2000000000}')
    executor = ScriptedExecutor({IMAGE: ""}, scripted={"container inspect": said})
    await adapter(executor, ScriptedStreams(ScriptedChannel(files=files))).execute("true")
    assert "{{json .HostConfig}}" in executor.called("container inspect")[0]


async def test_a_container_that_turns_out_to_run_as_root_is_refused() -> None:
    status = CONFINED["/proc/self/status"].replace(b"65533", b"0")
    channel = ScriptedChannel(files={**CONFINED, "/proc/self/status": status})
    with pytest.raises(SandboxError, match="as root"):
        await adapter(ScriptedExecutor({IMAGE: ""}), ScriptedStreams(channel)).execute("id")
    assert channel.commands == []


# --- One container that stays ----------------------------------------------------------------


async def test_a_container_that_stays_is_made_once_and_removed_by_cleanup() -> None:
    executor, streams = ScriptedExecutor({IMAGE: ""}), ScriptedStreams()
    sandbox = adapter(executor, streams, lifetime="sandbox", tag=Tag(name="coding-agent-exec-1"))
    await sandbox.execute("true")
    await sandbox.execute("true")
    assert verbs(executor) == ["image", "info", "create", "cp", "start"]
    assert streams.opened[0].argv[:4] == ["docker", "exec", "-i", "--user"]
    assert sandbox.container == "coding-agent-exec-1"
    await sandbox.cleanup()
    await sandbox.cleanup()
    assert executor.called("rm") == [["docker", "rm", "-f", "-v", "coding-agent-exec-1"]]
    assert sandbox.container is None


@pytest.mark.parametrize("program", ["docker", "podman"])
async def test_a_container_that_goes_with_us_is_held_and_shared(program: Program) -> None:
    executor, streams = ScriptedExecutor({IMAGE: ""}), ScriptedStreams()
    config = DockerSettings(limits=NO_DISK, programs=("sh",))  # No directories to make on disk.
    sandbox = adapter(executor, streams, config=config, program=program, lifetime="client")
    await sandbox.execute("true")
    await sandbox.execute("true")
    (held,) = streams.held
    assert held.argv[:4] == [program, "run", "--rm", "-i"]
    assert held.argv[-2:] == ["-c", "while read -r line; do echo up; done"]
    assert len(streams.opened) == 1
    await sandbox.close()
    assert [each.is_ended for each in streams.holders] == [False]
    await sandbox.cleanup()
    assert [each.is_ended for each in streams.holders] == [True]
    assert len(executor.called("rm")) == 1


async def test_its_directories_are_made_on_disk() -> None:
    executor, streams = ScriptedExecutor({IMAGE: ""}), ScriptedStreams()
    sandbox = adapter(executor, streams, lifetime="client")
    await sandbox.execute("true")
    assert verbs(executor) == ["image", "info", "container", "cp"]
    (held,) = streams.held
    assert held.argv[:4] == ["docker", "run", "--rm", "-i"]
    assert "--tmpfs" not in held.argv
    await sandbox.cleanup()


async def test_podman_needs_its_directories_before_the_start() -> None:
    executor, streams = ScriptedExecutor({IMAGE: ""}), ScriptedStreams()
    sandbox = adapter(executor, streams, program="podman", lifetime="client")
    await sandbox.execute("true")
    assert verbs(executor) == ["image", "info", "create", "cp"]
    assert executor.called("create")[0][2:4] == ["--rm", "-i"]
    (held,) = streams.held
    assert held.argv == ["podman", "start", "-a", "-i", sandbox.container]
    await sandbox.cleanup()


async def test_a_container_that_cannot_be_held_does_not_stay() -> None:
    executor = ScriptedExecutor({IMAGE: ""})
    failed = SandboxError(
        "the container exited immediately", details={"stderr": "no space left on device"}
    )
    sandbox = adapter(executor, ScriptedStreams(hold_error=failed), lifetime="client")
    with pytest.raises(SandboxError, match="no disk space"):
        await sandbox.execute("true")
    assert len(executor.called("rm")) == 1


@pytest.mark.parametrize(
    ("lifetime", "words"),
    [("sandbox", ["sleep", IMAGE, "91"]), ("client", ["--entrypoint", "sh", IMAGE, "-c"])],
)
async def test_a_lifetime_is_kept_by_the_first_process(
    lifetime: Lifetime, words: list[str]
) -> None:
    executor, streams = ScriptedExecutor({IMAGE: ""}), ScriptedStreams()
    config = DockerSettings(limits=NO_DISK)
    sandbox = DockerAdapter(config, executor, lifetime=lifetime, streams=streams, lifetime_s=90.2)
    await sandbox.execute("true")
    (created,) = executor.called("create") or [list(streams.held[0].argv)]
    assert "--rm" in created
    assert " ".join(words) in " ".join(created)
    assert created[-1] == "91"
    await sandbox.cleanup()


async def test_a_container_that_cannot_be_started_does_not_stay() -> None:
    failed = answer(exit_code=1, stderr="Error response from daemon: no space left on device")
    executor = ScriptedExecutor({IMAGE: ""}, scripted={"start": failed})
    with pytest.raises(SandboxError, match="no disk space"):
        await adapter(executor, lifetime="sandbox").execute("true")
    assert executor.containers == {}


async def test_a_container_that_has_the_name_already_is_left_alone() -> None:
    said = 'Error response from daemon: Conflict. The container name "/a1" is already in use.'
    executor = ScriptedExecutor({IMAGE: ""}, scripted={"create": answer(exit_code=1, stderr=said)})
    with pytest.raises(SandboxError, match="already a container with the name `a1`"):
        await adapter(executor, lifetime="sandbox", tag=Tag(name="a1")).execute("true")
    assert executor.called("rm") == []


async def test_a_container_that_may_have_been_made_after_all_is_removed() -> None:
    late = ExecutionTimeoutError("late")
    executor = ScriptedExecutor({IMAGE: ""}, scripted={"create": late})
    with pytest.raises(SandboxError, match="after 60 s"):
        await adapter(executor, lifetime="sandbox").execute("true")
    assert len(executor.called("rm")) == 1


@pytest.mark.requirement("B-016")
async def test_a_cleanup_that_fails_is_tried_three_times_and_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kakoi.backends.docker.engine._PAUSE_S", 0)
    failed = answer(exit_code=1, stderr="Error response from daemon: device or resource busy")
    executor = ScriptedExecutor({IMAGE: ""}, scripted={"rm": failed})
    sandbox = adapter(executor, lifetime="sandbox")
    await sandbox.execute("true")
    await sandbox.cleanup()
    assert len(executor.called("rm")) == 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "busy" in caplog.text


@pytest.mark.requirement("A-015")
async def test_a_container_that_died_is_named_with_its_state_and_not_replaced() -> None:
    executor = ScriptedExecutor({IMAGE: ""})
    streams = ScriptedStreams(ScriptedChannel(LOST), ScriptedChannel())
    sandbox = adapter(executor, streams, lifetime="sandbox")
    channel = await sandbox.channel()
    await channel.close()
    executor.containers[str(sandbox.container)] = "exited"
    with pytest.raises(SandboxError, match="exited with status 137") as caught:
        await sandbox.execute("true")
    assert "docker start" in caught.value.hint
    assert len(executor.called("create")) == 1


async def test_what_became_of_a_lost_container_is_part_of_the_result() -> None:
    executor = ScriptedExecutor({IMAGE: ""})
    sandbox = adapter(executor, ScriptedStreams(ScriptedChannel(LOST)), lifetime="sandbox")
    await sandbox.channel()
    executor.containers[str(sandbox.container)] = "exited"
    with pytest.raises(SandboxError, match="its container is exited with status 137"):
        await sandbox.execute("true")


async def test_before_a_new_runner_comes_everything_of_the_lost_one_is_ended() -> None:
    executor = ScriptedExecutor({IMAGE: ""})
    streams = ScriptedStreams(ScriptedChannel(LOST), ScriptedChannel())
    sandbox = adapter(executor, streams, lifetime="sandbox")
    with pytest.raises(SandboxError):
        await sandbox.execute("kill my runner")
    # Lost, and by the time that is told the next one is there.
    await (await sandbox.channel()).close()
    await sandbox.execute("true")
    # The first looks whether the kernel has killed the runner.
    _looking, ending = executor.called("exec")
    assert ending[2:6] == ["-i", "--user", "65533:65533", str(sandbox.container)]
    assert "kill -9 -1" in ending[-1]
    assert executor.called("restart") == []


async def test_a_container_without_room_for_one_more_process_is_restarted() -> None:
    full = answer(exit_code=126, stderr="OCI runtime exec failed: resource temporarily unavailable")
    executor = ScriptedExecutor({IMAGE: ""}, scripted={"exec": full})
    sandbox = adapter(
        executor, ScriptedStreams(ScriptedChannel(), ScriptedChannel()), lifetime="sandbox"
    )
    await (await sandbox.channel()).close()
    await sandbox.execute("true")
    assert len(executor.called("restart -t 0")) == 1


async def test_a_runner_that_waits_for_us_is_left_alone_unless_it_does_not_answer() -> None:
    executor = ScriptedExecutor({IMAGE: ""}, scripted={"exec": [answer(exit_code=10), answer()]})
    streams = ScriptedStreams(ScriptedChannel(), SandboxError("no greeting"), ScriptedChannel())
    sandbox = adapter(executor, streams, lifetime="sandbox")
    await (await sandbox.channel()).close()
    await sandbox.execute("true")
    first, second = executor.called("exec")
    assert "/proc/net/unix" in first[-1]
    assert second[-1].startswith("kill -9 -1")


@pytest.mark.parametrize(
    ("labels", "ours"),
    [
        ({"kakoi.owner": default_owner(), "kakoi.user": "65533:65533"}, True),
        ({"kakoi.owner": "somebody else", "kakoi.user": "65533:65533"}, False),
        ({"kakoi.owner": default_owner(), "kakoi.user": "0:0"}, False),
        ({"kakoi.owner": default_owner()}, False),
        ({}, False),
    ],
)
async def test_only_a_container_of_ours_is_attached_to(labels: dict[str, str], ours: bool) -> None:
    said = answer(f'{{"Status": "running"}} {json.dumps(labels)}')
    executor = ScriptedExecutor(scripted={"container inspect": said})
    if ours:
        sandbox = await DockerAdapter.attach("theirs", executor=executor)
        assert sandbox.container == "theirs"
        return
    with pytest.raises(SandboxError, match="not one of ours"):
        await DockerAdapter.attach("theirs", executor=executor)


async def test_a_container_that_is_not_there_cannot_be_attached_to() -> None:
    with pytest.raises(SandboxError, match="there is no container `gone`"):
        await DockerAdapter.attach("gone", executor=ScriptedExecutor())


# --- Users, networks, engines ----------------------------------------------------------------


@pytest.mark.parametrize("lifetime", ["command", "sandbox"])
async def test_the_numbers_of_a_user_are_looked_up_in_the_image_once(lifetime: Lifetime) -> None:
    users = "x" * 512 + "root:x:0:0::/root:\nagent:x:1234:1235::/home/agent:\n" + "\0" * 100
    executor = ScriptedExecutor({IMAGE: "agent"}, scripted={"cp": [answer(users), answer()]})
    streams = ScriptedStreams()
    sandbox = adapter(executor, streams, lifetime=lifetime)
    await sandbox.execute("true")
    await sandbox.execute("true")
    if lifetime == "command":
        assert any("uid=1234,gid=1235" in word for word in streams.held[0].argv)
    else:
        archive = executor.stdins[-2]
        assert isinstance(archive, bytes)
        assert b"0002322\0" in archive  # 1234, as tar writes it.
    assert len([call for call in executor.called("cp") if "/etc/passwd" in call[2]]) == 1
    looked = executor.called("create")[0]
    name = looked[looked.index("--name") + 1]
    assert any(word.startswith("kakoi.owner=uid-") for word in looked)  # A sweep would find it.
    assert executor.called("rm")[0][-1] == name


async def test_a_name_that_means_root_is_refused() -> None:
    users = "x" * 512 + "toor:x:0:0::/root:\n\0"
    executor = ScriptedExecutor({IMAGE: "toor"}, scripted={"cp": answer(users)})
    with pytest.raises(SandboxError, match="`toor` is root"):
        await adapter(executor, lifetime="sandbox").execute("true")
    assert executor.containers == {}


async def test_the_network_of_the_host_is_used_only_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sandbox = adapter(
        ScriptedExecutor({IMAGE: ""}), config=DockerSettings(network="host", limits=NO_DISK)
    )
    await sandbox.execute("true")
    await sandbox.execute("true")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "network" in caplog.text
    caplog.clear()
    await adapter(ScriptedExecutor({IMAGE: ""})).execute("true")
    assert caplog.records == []


@pytest.mark.parametrize(
    ("said", "words"),
    [('2 28.0.1 ["name=rootless"]', "rootless"), ('2 28.0.1 ["name=userns"]', "userns-remap")],
)
async def test_an_engine_that_changes_users_gets_no_workspace(
    said: str, words: str, tmp_path: Path
) -> None:
    executor = ScriptedExecutor({IMAGE: ""}, scripted={"info": answer(said)})
    config = DockerSettings(workspace=str(tmp_path), limits=NO_DISK)
    with pytest.raises(SandboxError, match=words) as caught:
        await adapter(executor, config=config).execute("true")
    assert "podman" in caught.value.hint


async def test_podman_is_driven_by_the_same_words() -> None:
    executor, streams = ScriptedExecutor({IMAGE: ""}), ScriptedStreams()
    sandbox = adapter(executor, streams, program="podman")
    await sandbox.execute("true")
    assert sandbox.name == "podman"
    assert {call[0] for call in executor.calls} == {"podman"}
    assert streams.held[0].argv[:4] == ["podman", "run", "--rm", "-i"]


@pytest.mark.requirement("B-014")
async def test_it_is_an_adapter_whose_name_cannot_be_set() -> None:
    sandbox: SandboxAdapter = adapter(ScriptedExecutor())
    assert sandbox.name == "docker"
    with pytest.raises(AttributeError):
        sandbox.name = "other"  # type: ignore[misc]


async def test_an_engine_that_hangs_is_given_up_on() -> None:
    late = ExecutionTimeoutError("late", details={})
    executor = ScriptedExecutor({IMAGE: ""}, scripted={"image inspect": late})
    with pytest.raises(SandboxError, match="after 60 s") as caught:
        await adapter(executor).execute("true")
    assert not isinstance(caught.value, ExecutionTimeoutError)


async def test_every_call_of_the_engine_has_a_time_limit() -> None:
    executor = ScriptedExecutor(pullable=[IMAGE])
    sandbox = adapter(executor, lifetime="sandbox")
    await sandbox.execute("true")
    await sandbox.cleanup()
    assert executor.timeouts_ms == {60_000, 1_800_000}


async def test_a_container_whose_way_out_cannot_be_served_leaves_no_channel_open() -> None:
    executor, channel = ScriptedExecutor({IMAGE: ""}), ScriptedChannel()

    def serve(_listener: socket.socket) -> OutletServer:
        raise NotImplementedError

    box = DockerAdapter(
        DockerSettings(limits=NO_DISK, network="open"),
        executor,
        lifetime="sandbox",
        streams=ScriptedStreams(channel),
        outlet=Outlet(serve),
    )
    with pytest.raises(SandboxError, match="python3"):
        await box.channel()
    assert channel.lost
    assert len(executor.called("rm -f")) == 1
    await box.cleanup()
