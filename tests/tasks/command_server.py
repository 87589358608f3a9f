"""Somebody's command executor, with the official SDK: `python command_server.py KIND`.

It does what the original design says: `docker exec` in the container whose id it is given.
"""

import subprocess
import sys

from mcp.server import MCPServer

server = MCPServer("executor")


def run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    return f"{done.stdout}{done.stderr}(exit code {done.returncode})"


if sys.argv[1] == "good":

    @server.tool()
    def execute_command(container_id: str, command: str, verbose: bool = False) -> str:
        """Run a command in a container."""
        return f"{'verbose ' * verbose}{run('docker', 'exec', container_id, 'sh', '-c', command)}"


@server.tool()
def run_here(command: str) -> str:
    """Run a command on this machine."""
    return run("sh", "-c", command)


@server.tool()
def run_anywhere(container_id: str, command: str, host: str) -> str:
    """Run a command in a container of another engine."""
    return run("docker", "-H", host, "exec", container_id, "sh", "-c", command)


server.run()
