"""inspect_ai's Docker sandbox. others.py runs this script in its own virtual environment.

python bench/_inspect_ai.py IMAGE LABEL
"""

import importlib.metadata
import os
import sys
import tempfile
from pathlib import Path

from _measurements import report
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.docker import docker
from inspect_ai.util._sandbox.docker.docker import DockerSandboxEnvironment
from inspect_ai.util._sandbox.docker.prereqs import validate_prereqs
from inspect_ai.util._sandbox.limits import OutputLimitExceededError

TASK = "others"
COMPOSE = """services:
  default:
    image: {image}
    x-local: true
    init: true
    command: tail -f /dev/null
    network_mode: none
    labels: ["{label}"]
"""


async def _pass_over() -> None:
    """Replace the check of the engine's version."""


class Inspect:
    """The environment of one sample, made by the steps of an evaluation: task, sample, `exec`."""

    version = importlib.metadata.version("inspect_ai")
    pid = os.getpid()

    def __init__(self, image: str, label: str, folder: Path) -> None:
        compose = folder / "compose.yaml"
        compose.write_text(COMPOSE.format(image=image, label=label))
        self._config = str(compose)
        self._there: dict[str, SandboxEnvironment] = {}

    async def open(self) -> None:
        try:
            await validate_prereqs()
        except PrerequisiteError:
            # The engine is older than inspect_ai requires. The figures do not depend on that, but
            # the table mentions it.
            setattr(docker, "validate_prereqs", _pass_over)  # noqa: B010
            self.version = f"{Inspect.version} (its check of the engine's version passed over)"
        await DockerSandboxEnvironment.task_init(TASK, self._config)
        self._there = await DockerSandboxEnvironment.sample_init(TASK, self._config, {})

    async def close(self) -> None:
        await DockerSandboxEnvironment.sample_cleanup(TASK, self._config, self._there, False)
        await DockerSandboxEnvironment.task_cleanup(TASK, self._config, True)

    async def run(self, argv: list[str]) -> int:
        try:
            done = await self._there["default"].exec(argv)
        except OutputLimitExceededError as more:
            return len(more.truncated_output or "")
        assert done.returncode == 0, done.stderr
        return len(done.stdout)

    beside = run

    async def limited(self, code: str, limit_s: int) -> None:
        try:
            await self._there["default"].exec(["python3", "-c", code], timeout=limit_s)
        except TimeoutError:
            return
        raise RuntimeError("the limit did not hold")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report(lambda: Inspect(sys.argv[1], sys.argv[2], Path(folder)))


if __name__ == "__main__":
    main()
