"""SWE-ReX. others.py runs this script in its own virtual environment.

    python bench/_swerex.py IMAGE LABEL PACKAGES

PACKAGES is a folder with SWE-ReX for the Python of the image. It is mounted into the container,
because SWE-ReX needs its server there.
"""

import importlib.metadata
import os
import sys
import threading
from pathlib import Path

from _measurements import report
from swerex.deployment.docker import DockerDeployment  # type: ignore[import-not-found]
from swerex.exceptions import CommandTimeoutError  # type: ignore[import-not-found]
from swerex.runtime.abstract import Command  # type: ignore[import-not-found]

SERVER = """#!/usr/bin/python3
import sys
sys.path.insert(0, "/opt/swerex")
from swerex.server import main
main()
"""


class SweRex:
    """A container with a server in it. `execute` runs a program there, outside of any session."""

    version = importlib.metadata.version("swe-rex")
    pid = os.getpid()

    def __init__(self, image: str, label: str, packages: Path) -> None:
        server = packages / "swerex-remote"
        server.write_text(SERVER)
        server.chmod(0o755)
        mounts = ["-v", f"{packages}:/opt/swerex:ro", "-v", f"{server}:/usr/bin/swerex-remote:ro"]
        self._arguments = {
            "image": image,
            "pull": "never",
            "docker_args": ["--init", "--label", label, *mounts],
        }

    async def open(self) -> None:
        self._deployment = DockerDeployment(**self._arguments)
        await self._deployment.start()
        # The server logs every request to a pipe that nobody reads, and blocks when it is full.
        log = self._deployment._container_process.stdout
        threading.Thread(target=log.read, daemon=True).start()

    async def close(self) -> None:
        await self._deployment.stop()

    async def run(self, argv: list[str]) -> int:
        done = await self._deployment.runtime.execute(Command(command=argv, check=True))
        return len(done.stdout)

    beside = run

    async def limited(self, code: str, limit_s: int) -> None:
        asked = Command(command=["python3", "-c", code], timeout=limit_s)
        try:
            await self._deployment.runtime.execute(asked)
        except CommandTimeoutError:
            return
        raise RuntimeError("the limit did not hold")


if __name__ == "__main__":
    report(lambda: SweRex(sys.argv[1], sys.argv[2], Path(sys.argv[3]).resolve()))
