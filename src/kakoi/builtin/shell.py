"""@builtin.shell: one command of the default list."""

from pathlib import Path

from kakoi.builtin.running import executor_for, must


async def shell(command: str, working_dir: str | Path = ".") -> str:
    """Run a shell command in `working_dir` and return what it wrote to stdout.

    CommandFailedError (a RuntimeError, "Command failed: …"): its exit status was not 0.
    """
    return (await must(executor_for(working_dir), command)).stdout
