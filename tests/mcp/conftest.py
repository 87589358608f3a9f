"""The fixtures of the command line's tests."""

from tests.cli.conftest import (
    client,
    confined_mcp_door,
    docker_mcp_door,
    mark,
    mcp_door,
)

__all__ = ["client", "confined_mcp_door", "docker_mcp_door", "mark", "mcp_door"]
