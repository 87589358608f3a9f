"""A command that attacks its own runner can lose its own sandbox, and nothing else.

It may forge frames, write into every descriptor it can reach, stop and kill whoever stands above
it: at worst the result says that the sandbox was lost, and the next command gets a new one.
"""

import json
import os

import pytest

from kakoi.conformance.asking import PATIENCE_S, Reader, running, said
from kakoi.conformance.conftest import Opener
from kakoi.conformance.subjects import Traits
from kakoi.conformance.watching import alive, alive_inside, peak_memory, reset_peak_memory
from kakoi.results import ExecutionResult, Reason
from kakoi.runner import frames
from kakoi.runner.commands import MIB, Command
from kakoi.sandbox.adapter import SandboxAdapter

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

# Every process from the command up to, and without, the one that runs this test. Whoever is not
# below us must be in a small place of its own, or nothing is attacked: a sandbox that is not what
# it claims must not cost a machine its processes.
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
    """A command that knows its parents, and stays to see what comes of it."""
    return Command(
        command=["sh", "-c", PARENTS + text, mark],
        env={"OURS": str(os.getpid()), "OUR_NAMESPACE": os.readlink("/proc/self/ns/pid")},
        stdin=GARBAGE,
        timeout_s=options.get("timeout_s", PATIENCE_S),
    )


async def works(sandbox: SandboxAdapter) -> bool:
    return await said(sandbox, "echo hi") == "hi\n"


def is_honest(result: ExecutionResult) -> bool:
    """Not forged: the command's own end, its limit, or the loss of the sandbox."""
    assert result.exit_code != NOT_DONE, "the sandbox shows processes that are not its own"
    ended = result.reason in (Reason.EXITED, Reason.SIGNALLED, Reason.TIMED_OUT)
    return result.id != "forged" and (
        (ended and result.exit_code != 0) or result.reason is Reason.SANDBOX_LOST
    )


async def test_frames_in_the_output_are_output(sandbox: SandboxAdapter) -> None:
    command = Command(command="tee /dev/stderr; exit 7", stdin=GARBAGE, timeout_s=PATIENCE_S)
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
    """A pipe can be opened by whoever may look at the process that holds it."""
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
    # On the host nothing holds a command that has killed whoever stood above it.
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
    """The one right above; whoever stands above that is left to see to the rest."""
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
    """Bounded, in case the sandbox is not."""
    text = """
i=0; while [ $i -lt 300 ]; do (setsid sleep $0 &); i=$((i + 1)); done 2>/dev/null
echo grown; sleep $0; exit 7"""
    async with fresh() as sandbox:
        async with running(sandbox, attack(text, mark)) as opened:
            await Reader(opened).until(b"grown\n")
        assert await alive(sandbox, mark) == []
        assert await works(sandbox)


@pytest.mark.slow("shells pass 128 MiB on")
async def test_a_command_that_fills_its_limits_is_told_in_a_small_result(
    sandbox: SandboxAdapter,
) -> None:
    """What a hostile command can make us keep is what we asked for."""
    before = reset_peak_memory()
    text = f"head -c {64 * MIB} /dev/zero; head -c {64 * MIB} /dev/zero >&2; exit 7"
    command = Command(command=text, max_output_bytes=1000, timeout_s=PATIENCE_S)
    result = await sandbox.run(command)
    assert (len(result.stdout), len(result.stderr), result.exit_code) == (1000, 1000, 7)
    assert peak_memory() - before < 30 * MIB


async def test_files_that_the_runner_may_want_are_not_trusted(fresh: Opener, mark: str) -> None:
    """Modules beside the command, a Python start-up file, programs first on its own PATH."""
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
