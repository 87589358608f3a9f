"""A command that attacks its own runner can lose its own sandbox, and nothing else.

It can forge frames, write to every descriptor it can reach, and stop or kill the processes above
it. At worst, the result says that the sandbox was lost, and the next command gets a new one.
"""

import json
import os

import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.channel.api import MIB, Command
from kakoi.conformance.conftest import Opener
from kakoi.conformance.process_view import alive, alive_inside, peak_memory, reset_peak_memory
from kakoi.conformance.sandbox_commands import TIMEOUT_S, Reader, output_of, running
from kakoi.conformance.subjects import Traits
from kakoi.results import ExecutionResult, Reason
from kakoi.runner import frames

pytestmark = pytest.mark.anyio

NOT_DONE = 66
ANSWER = {"kind": "exited", "number": 0, "bytes": [0, 0], "duration_ms": 1, "id": "forged"}
GARBAGE = (
    b"".join(
        frames.frame(kind, number, json.dumps(ANSWER).encode())
        for kind in (frames.ANSWER, frames.STDOUT, frames.HELLO, frames.CREDIT)
        for number in range(20)
    )
    + frames.HEAD.pack(frames.STDOUT, 1, 2**32 - 1)
    + bytes(range(256))
)

# Lists every process from the command up to the one that runs this test, which is excluded. A
# command that is not below us must be in a small PID namespace of its own. Otherwise nothing is
# attacked: a sandbox with a false claim must not kill the processes of the machine.
PARENTS = f"""
parents= above=$PPID
while [ "${{above:-0}}" -gt 1 ] && [ "$above" != "$OURS" ]; do
    parents="$parents $above"
    above=$(sed -n 's/^PPid:[[:space:]]*//p' /proc/$above/status)
done
is_alone() {{
    set -- /proc/[0-9]*
    [ $# -lt 60 ] && [ "$above" != "$OURS" ] &&
        [ "$(readlink /proc/self/ns/pid)" != "$OUR_NAMESPACE" ]
}}
[ "$above" = "$OURS" ] || is_alone || exit {NOT_DONE}
"""


def attack(text: str, mark: str, **options: float) -> Command:
    """Return a command that runs `text` with the pids of its ancestors in `$parents`."""
    return Command(
        command=["sh", "-c", PARENTS + text, mark],
        env={"OURS": str(os.getpid()), "OUR_NAMESPACE": os.readlink("/proc/self/ns/pid")},
        stdin=GARBAGE,
        timeout_s=options.get("timeout_s", TIMEOUT_S),
    )


async def works(sandbox: SandboxAdapter) -> bool:
    return await output_of(sandbox, "echo hi") == "hi\n"


def is_honest(result: ExecutionResult) -> bool:
    """Is the result not forged: the command's own end, its timeout, or a lost sandbox?"""
    assert result.exit_code != NOT_DONE, "the sandbox shows processes that are not its own"
    ended = result.reason in (Reason.EXITED, Reason.SIGNALLED, Reason.TIMED_OUT)
    return result.id != "forged" and (
        (ended and result.exit_code != 0) or result.reason is Reason.SANDBOX_LOST
    )


async def test_frames_in_the_output_are_output(sandbox: SandboxAdapter) -> None:
    command = Command(command="tee /dev/stderr; exit 7", stdin=GARBAGE, timeout_s=TIMEOUT_S)
    result = await sandbox.run(command)
    assert (result.reason, result.exit_code) == (Reason.EXITED, 7)
    assert (result.stdout_bytes, result.stderr_bytes) == (len(GARBAGE), len(GARBAGE))
    assert result.stdout == GARBAGE.decode("utf-8", "replace")


async def test_frames_in_every_descriptor_forge_nothing(fresh: Opener, mark: str) -> None:
    text = """
cat >garbage
for fd in 0 1 2 3 4 5 6 7 8 9; do cat garbage >&$fd; done 2>/dev/null
exit 7"""
    async with fresh() as sandbox:
        assert is_honest(await sandbox.run(attack(text, mark)))
        assert await works(sandbox)


async def test_frames_in_the_descriptors_of_its_parents_forge_nothing(
    fresh: Opener, mark: str
) -> None:
    """A process that can read another's /proc entry can open its pipes."""
    text = """
cat >garbage
for pid in $parents; do
    for fd in /proc/$pid/fd/*; do
        case $(readlink "$fd") in pipe:* | socket:* | /dev/pts/*) cat garbage >>"$fd" & ;; esac
    done
done 2>/dev/null
sleep 0.3
exit 7"""
    async with fresh() as sandbox:
        assert is_honest(await sandbox.run(attack(text, mark)))
        assert await works(sandbox)


async def test_bytes_that_are_stolen_from_its_parents_cost_the_sandbox_at_most(
    fresh: Opener, mark: str
) -> None:
    text = """
for pid in $parents; do
    for fd in /proc/$pid/fd/*; do
        case $(readlink "$fd") in pipe:*) head -c 100 "$fd" >/dev/null & ;; esac
    done
done 2>/dev/null
sleep 0.3
exit 7"""
    async with fresh() as sandbox:
        assert is_honest(await sandbox.run(attack(text, mark, timeout_s=3)))
        assert await works(sandbox)


@pytest.mark.parametrize("signals", ["TERM", "INT HUP QUIT", "USR1 USR2 ALRM", "KILL", "ABRT"])
async def test_killing_its_parents_costs_the_sandbox_at_most(
    fresh: Opener, mark: str, traits: Traits, signals: str
) -> None:
    # On the host, nothing can end a command that has killed all processes above it.
    then = "sleep $0; exit 7" if traits.isolates_processes else "exit 7"
    text = f"for signal in {signals}; do kill -$signal $parents; done 2>/dev/null; {then}"
    async with fresh() as sandbox:
        result = await sandbox.run(attack(text, mark, timeout_s=2))
        assert is_honest(result)
        assert await works(sandbox)
        assert await alive(sandbox, mark) == []


@pytest.mark.slow("waits until a runner that was stopped is given up")
async def test_stopping_its_parents_costs_the_sandbox_at_most(fresh: Opener, mark: str) -> None:
    text = "(setsid sleep $0 &); kill -STOP $parents; sleep $0; exit 7"
    async with fresh() as sandbox:
        result = await sandbox.run(attack(text, mark, timeout_s=3))
        assert is_honest(result)
        assert await works(sandbox)
        assert await alive(sandbox, mark) == []


async def test_killing_only_its_keeper_sets_nobody_free(fresh: Opener, mark: str) -> None:
    """It kills only its parent. The process above that must end the rest."""
    text = "(setsid sleep $0 &); kill -9 $PPID; sleep $0; exit 7"
    async with fresh() as sandbox:
        result = await sandbox.run(attack(text, mark, timeout_s=5))
        assert is_honest(result)
        assert await alive(sandbox, mark) == []
        assert await works(sandbox)


@pytest.mark.needs("isolates_processes")
@pytest.mark.slow("waits for the limits of two commands, and makes a new sandbox for each")
async def test_killing_everybody_costs_the_sandbox_at_most(fresh: Opener, mark: str) -> None:
    async with fresh() as sandbox:
        for text in ("kill -9 -1; exit 7", "kill -STOP -1; sleep $0; exit 7"):
            guarded = f"is_alone || exit {NOT_DONE}; {text}"
            assert is_honest(await sandbox.run(attack(guarded, mark, timeout_s=3)))
            assert await works(sandbox)
        assert await alive(sandbox, mark) == []


@pytest.mark.needs("isolates_processes")
async def test_a_flood_of_processes_ends_with_its_command(fresh: Opener, mark: str) -> None:
    """The number of processes is limited, in case the sandbox has no limit."""
    text = """
i=0; while [ $i -lt 300 ]; do (setsid sleep $0 &); i=$((i + 1)); done 2>/dev/null
echo grown; sleep $0; exit 7"""
    async with fresh() as sandbox:
        async with running(sandbox, attack(text, mark)) as opened:
            await Reader(opened).until(b"grown\n")
        assert await alive(sandbox, mark) == []
        assert await works(sandbox)


@pytest.mark.slow("shells pass 128 MiB on")
async def test_a_command_that_fills_its_limits_has_a_small_result(
    sandbox: SandboxAdapter,
) -> None:
    """A hostile command cannot make us store more output than we asked for."""
    before = reset_peak_memory()
    text = f"head -c {64 * MIB} /dev/zero; head -c {64 * MIB} /dev/zero >&2; exit 7"
    command = Command(command=text, max_output_bytes=1000, timeout_s=TIMEOUT_S)
    result = await sandbox.run(command)
    assert (len(result.stdout), len(result.stderr), result.exit_code) == (1000, 1000, 7)
    assert peak_memory() - before < 30 * MIB


async def test_files_that_the_runner_may_want_are_not_trusted(fresh: Opener, mark: str) -> None:
    """Modules in its folder, Python start-up files, and programs that would come first on PATH."""
    text = """
for name in json os socket select struct signal sitecustomize usercustomize kakoi; do
    echo 'import os; os._exit(66)' >$name.py
done
mkdir -p bin; for name in sh bash python3 cat; do
    printf '#!/bin/sh\\nexit 66\\n' >bin/$name; chmod +x bin/$name
done
exit 7"""
    async with fresh() as sandbox:
        assert (await sandbox.run(attack(text, mark))).exit_code == 7
        assert await works(sandbox)
        await (await sandbox.channel()).close()
        assert await works(sandbox)
        assert await alive_inside(sandbox, mark) == []
