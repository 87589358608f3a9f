"""llm-sandbox with Docker. others.py runs this script in its own virtual environment.

python bench/_llm_sandbox.py IMAGE LABEL
"""

import asyncio
import importlib.metadata
import os
import shlex
import sys

from _measurements import report
from llm_sandbox import SandboxSession  # type: ignore[import-not-found]
from llm_sandbox.exceptions import SandboxTimeoutError  # type: ignore[import-not-found]


class LlmSandbox:
    """A session: `execute_command` runs commands without a timeout, `run` runs code with one."""

    version = importlib.metadata.version("llm-sandbox")
    pid = os.getpid()

    def __init__(self, image: str, label: str) -> None:
        name, _, value = label.partition("=")
        self._arguments = {
            "lang": "python",
            "image": image,
            "keep_template": True,
            "skip_environment_setup": True,
            # A command of its own: the image need not have one.
            "runtime_configs": {"init": True, "labels": {name: value}, "command": "sleep 900"},
        }

    async def open(self) -> None:
        self._session = SandboxSession(**self._arguments)
        await asyncio.to_thread(self._session.open)

    async def close(self) -> None:
        # Killed, because `close` asks the container to stop and waits ten seconds for its shell.
        container = self._session.container
        if container is not None:
            await asyncio.to_thread(container.kill)
        await asyncio.to_thread(self._session.close)

    def _run(self, argv: list[str]) -> int:
        done = self._session.execute_command(shlex.join(argv))
        assert done.exit_code == 0, done.stderr
        return len(done.stdout)

    async def run(self, argv: list[str]) -> int:
        return self._run(argv)

    async def beside(self, argv: list[str]) -> int:
        return await asyncio.to_thread(self._run, argv)

    async def limited(self, code: str, limit_s: int) -> None:
        # llm-sandbox runs `python`, but Debian's images only have `python3`.
        await self.beside(["ln", "-sf", "/usr/bin/python3", "/usr/bin/python"])
        try:
            await asyncio.to_thread(self._session.run, code, timeout=limit_s)
        except SandboxTimeoutError:
            return
        raise RuntimeError("the limit did not hold")


if __name__ == "__main__":
    report(lambda: LlmSandbox(sys.argv[1], sys.argv[2]))
