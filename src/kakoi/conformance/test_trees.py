"""When a command has ended, no process that it started is running, however it hides."""

import asyncio

import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.channel.api import Command
from kakoi.conformance.conftest import Opener
from kakoi.conformance.process_view import alive
from kakoi.conformance.sandbox_commands import (
    TIMEOUT_S,
    Reader,
    output_of,
    running,
    wait_until,
    wait_until_exists,
)
from kakoi.results import Reason

# Name → the commands that create the process tree; `$0` is the mark.
TREES = {
    "child": "sleep $0 &",
    "own session": "setsid sleep $0 &",
    "daemons": "for i in 1 2 3 4 5 6 7 8 9 10; do (setsid sleep $0 & setsid sleep $0 &); done",
    "empty environment": "(env -i setsid sleep $0 &)",
    "deaf to signals": """
trap '' HUP INT QUIT TERM USR1 USR2 ALRM TSTP TTIN TTOU PIPE
sh -c 'sleep $0; sleep $0; sleep $0' $0 &
""",
    "stopped": """
sh -c 'kill -STOP $$; sleep $0' $0 &
until grep -q '^State:.*T' /proc/$!/status; do :; done
""",
    "a chain of sessions": """
export CHAIN='
if [ $1 -gt 0 ]; then setsid sh -c "$CHAIN" $0 $(($1 - 1)); :
else echo up >"$HERE/up"; sleep $0
fi'
sh -c "$CHAIN" $0 20 &
read -r word <"$HERE/up"
""",
    "holders of every stream": "(setsid sh -c 'sleep $0; :' $0 <&0 &)",
    # Each process lives only long enough to start the next one, for some seconds, not forever.
    "comets": """
export COMET='[ $1 -gt 5000 ] || setsid sh -c "$COMET" $0 $(($1 + 1)) &'
for i in 1 2 3; do sh -c "$COMET" $0 0; done
""",
    "a guard that raises its dead": "(trap '' TERM; while :; do sleep $0; done) &",
}


def tree(
    kind: str, mark: str, folder: str, *, then: str, timeout_s: float | None = None
) -> Command:
    """Return a command that creates the tree, prints `grown`, and then runs `then`."""
    script = f'mkfifo "$HERE/up" 2>/dev/null\n{TREES[kind]}\necho grown\n{then}\n'
    return Command(
        command=["sh", "-c", script, mark],
        env={"MARK": mark, "HERE": folder},
        timeout_s=timeout_s,
    )


pytestmark = pytest.mark.anyio

every_tree = pytest.mark.parametrize("kind", TREES)


@every_tree
async def test_what_a_command_leaves_behind_is_dead_when_it_has_exited(
    sandbox: SandboxAdapter, folder: str, mark: str, kind: str
) -> None:
    result = await sandbox.run(tree(kind, mark, folder, then="exit 7", timeout_s=TIMEOUT_S))
    assert await alive(sandbox, mark) == []
    assert (result.reason, result.exit_code, result.stdout) == (Reason.EXITED, 7, "grown\n")
    assert result.leftovers_ended >= 1


@every_tree
async def test_everything_is_dead_when_the_time_is_up(
    sandbox: SandboxAdapter, folder: str, mark: str, kind: str
) -> None:
    # A busy machine may need more than a second to create the whole tree.
    for timeout_s in (1, 4, 16):
        command = tree(kind, mark, folder, then="sleep $0", timeout_s=timeout_s)
        result = await sandbox.run(command)
        assert await alive(sandbox, mark) == []
        assert (result.reason, result.exit_code) == (Reason.TIMED_OUT, 124)
        if result.stdout == "grown\n":
            return
    pytest.fail("the tree never grew")


@every_tree
async def test_everything_is_dead_when_a_cancellation_has_arrived(
    sandbox: SandboxAdapter, folder: str, mark: str, kind: str
) -> None:
    command = tree(kind, mark, folder, then=': >"$HERE/grown"; sleep $0')
    task = asyncio.create_task(sandbox.run(command))
    await wait_until_exists(sandbox, f"{folder}/grown")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await alive(sandbox, mark) == []


@every_tree
async def test_everything_is_dead_after_the_block_that_opened_it(
    sandbox: SandboxAdapter, folder: str, mark: str, kind: str
) -> None:
    async with running(sandbox, tree(kind, mark, folder, then="sleep $0")) as opened:
        await Reader(opened).until(b"grown\n")
        # Of the comets, there may be no process at a given moment.
        assert kind == "comets" or await alive(sandbox, mark)
    assert await alive(sandbox, mark) == []


@pytest.mark.needs("channel")
async def test_a_command_returns_when_it_exits_though_a_child_holds_its_output(
    sandbox: SandboxAdapter, mark: str
) -> None:
    command = Command(command=["sh", "-c", "sleep $0 & echo hi", mark], timeout_s=TIMEOUT_S)
    result = await sandbox.run(command)
    assert (result.reason, result.stdout) == (Reason.EXITED, "hi\n")
    assert result.leftovers_ended == 1
    assert result.duration_ms < 30_000  # the child would have slept ten times as long
    assert await alive(sandbox, mark) == []


async def test_what_a_child_wrote_before_the_command_exited_is_not_lost(
    sandbox: SandboxAdapter, folder: str, mark: str
) -> None:
    text = """
mkfifo "$1/written"
(echo from the child; echo x >"$1/written"; sleep $0) &
read -r word <"$1/written"
echo from the command
"""
    result = await sandbox.run(
        Command(command=["sh", "-c", text, mark, folder], timeout_s=TIMEOUT_S)
    )
    assert result.stdout == "from the child\nfrom the command\n"


@pytest.mark.needs("resident", "isolates_processes")
async def test_no_zombie_is_left_by_many_commands(fresh: Opener, mark: str) -> None:
    async with fresh() as sandbox:
        for _ in range(10):
            await sandbox.run(Command(command=["sh", "-c", "(setsid sleep $0 &)", mark]))

        async def none_left() -> bool:
            text = "grep -l '^State:.*Z' /proc/[0-9]*/status 2>/dev/null | wc -l"
            return int(await output_of(sandbox, text)) == 0

        await wait_until(none_left, "every process that has ended is reaped")
