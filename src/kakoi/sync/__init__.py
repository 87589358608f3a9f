"""`kakoi.sync.Sandbox`: the same object as `kakoi.Sandbox`, for code without an event loop.

Names, arguments and results are the same; calls block. They work in threads, inside a running event
loop, in a notebook, after a fork (in sandboxes opened there), and at interpreter exit. Everything
happens in one event loop in a thread of its own.

    from kakoi.sync import Sandbox

    with Sandbox() as box:
        print(box.run("echo hello").stdout)
"""

from kakoi.sync.files import Files, Watch
from kakoi.sync.job import CommandStream, Job, Session
from kakoi.sync.sandbox import Sandbox

__all__ = ["CommandStream", "Files", "Job", "Sandbox", "Session", "Watch"]
