"""Anthropic's sandbox-runtime. others.py runs this script.

python bench/_sandbox_runtime.py FOLDER-OF-NODE_MODULES
"""

import asyncio
import itertools
import json
import shlex
import sys
import tempfile
from pathlib import Path

from _measurements import report

PACKAGE = "node_modules/@anthropic-ai/sandbox-runtime/package.json"


class SandboxRuntime:
    """A Node process that wraps and starts commands. A request over its pipe takes about 0.1 ms."""

    def __init__(self, modules: Path, workspace: str) -> None:
        self.version = str(json.loads((modules / PACKAGE).read_text())["version"])
        self._argv = ["node", str(Path(__file__).with_name("_sandbox_runtime.mjs"))]
        self._argv += [str(modules), workspace]
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, int]]] = {}

    async def open(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self._node = await asyncio.create_subprocess_exec(*self._argv, stdin=pipe, stdout=pipe)
        assert self._node.stdout is not None
        if not await self._node.stdout.readline():
            raise RuntimeError("it does not start")
        self._reading = asyncio.create_task(self._read(self._node.stdout))

    async def close(self) -> None:
        assert self._node.stdin is not None
        self._node.stdin.close()
        await self._reading
        await self._node.wait()

    @property
    def pid(self) -> int:
        """The pid of Node."""
        return self._node.pid

    async def _read(self, answers: asyncio.StreamReader) -> None:
        while line := await answers.readline():
            answer = json.loads(line)
            self._waiting.pop(answer["id"]).set_result(answer)
        for waiting in self._waiting.values():
            waiting.set_exception(RuntimeError("it has ended"))

    async def _ask(self, argv: list[str], limit_ms: int | None) -> dict[str, int]:
        number = next(self._ids)
        answer: asyncio.Future[dict[str, int]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        asked = {"id": number, "command": shlex.join(argv), "limit_ms": limit_ms}
        assert self._node.stdin is not None
        self._node.stdin.write(json.dumps(asked).encode() + b"\n")
        return await answer

    async def run(self, argv: list[str]) -> int:
        answer = await self._ask(argv, None)
        assert answer["code"] == 0, answer
        return answer["written"]

    beside = run

    async def limited(self, code: str, limit_s: int) -> None:
        await self._ask(["python3", "-c", code], limit_s * 1000)


def main() -> None:
    with tempfile.TemporaryDirectory() as workspace:
        report(lambda: SandboxRuntime(Path(sys.argv[1]).resolve(), workspace))


if __name__ == "__main__":
    main()
