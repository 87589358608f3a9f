"""The loop of the faces: one for all threads, for each process its own, and no trap at exit."""

import subprocess
import sys

HELD = """
import atexit, contextlib, os, sys, threading
from kakoi._support.asyncio import LazyResource, background

@contextlib.asynccontextmanager
async def opener():
    print("opened", flush=True)
    yield "it"
    print("closed", flush=True)

held = LazyResource(opener)
"""


def said(code: str) -> list[str]:
    """What a program prints that does this with something held."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", HELD + code],
        capture_output=True,
        text=True,
        timeout=15,  # Less than the loop waits for what does not close.
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_threads_that_come_at_once_get_the_same_loop() -> None:
    code = """
sys.setswitchinterval(1e-6)
barrier = threading.Barrier(16)
found = []
def work():
    barrier.wait()
    found.append((background(), background().run(held.get())))
threads = [threading.Thread(target=work) for _ in range(16)]
for each in threads: each.start()
for each in threads: each.join()
print(len(set(found)))
"""
    assert said(code) == ["opened", "1", "closed"]


def test_what_was_opened_is_closed_once_even_if_others_close_it_at_exit() -> None:
    code = """
atexit.register(lambda: background().run(held.close()))  # Before the loop registers its own.
background().run(held.get())
"""
    assert said(code) == ["opened", "closed"]


def test_nothing_is_opened_at_exit_after_all_was_closed() -> None:
    code = """
def late(held):
    try:
        background().run(held.get())
    except RuntimeError as error:
        print("refused")
atexit.register(late, held)
atexit.register(late, LazyResource(opener))
background().run(held.get())
"""
    assert said(code) == ["opened", "closed", "refused", "refused"]


def test_a_child_has_its_own_loop_and_opens_its_own() -> None:
    code = """
background().run(held.get())
for _ in range(2):
    child = os.fork()
    if child == 0:
        background().run(held.get())
        grandchild = os.fork()
        if grandchild == 0:
            background().run(held.get())
            background().run(held.close())
            os._exit(0)
        os.waitpid(grandchild, 0)
        background().run(held.close())
        os._exit(0)
    os.waitpid(child, 0)
"""
    below = ["opened", "opened", "closed", "closed"]
    assert said(code) == ["opened", *below, *below, "closed"]


def test_a_child_that_ends_does_not_wait_for_the_loop_of_its_parent() -> None:
    code = """
background().run(held.get())
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
print("ended")
"""
    assert said(code) == ["opened", "ended", "closed"]


def test_work_that_is_cancelled_before_its_first_step_ends_the_wait_for_it() -> None:
    code = """
import asyncio
is_held, go_on = threading.Event(), threading.Event()
async def hold():
    is_held.set()
    go_on.wait()
async def main():
    background().start(hold())
    is_held.wait()
    task = asyncio.create_task(background().arun(held.get()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    try:
        await task
    except asyncio.CancelledError:
        print("cancelled")
asyncio.run(main())
"""
    assert said(code) == ["cancelled"]
