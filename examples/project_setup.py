"""A new Python project with a first commit: `python examples/project_setup.py NAME`."""

import asyncio
import sys

from kakoi.builtin import shell

PROJECT = """[project]
name = "{name}"
version = "0.1.0"
"""


async def setup_python_project(name: str) -> str:
    done = []
    # Each command begins in the directory it is given: nothing is remembered between them.
    for directory, command in (
        (".", f"mkdir {name}"),
        (name, "mkdir src tests docs"),
        (name, f"cat > pyproject.toml <<'END'\n{PROJECT.format(name=name)}END"),
        (name, "git init --quiet"),
        (name, "git add ."),
        (name, 'git -c user.name="A Newcomer" -c user.email=me@example.org commit -m "Initial"'),
    ):
        await shell(command, working_dir=directory)
        done.append(f"✓ {command.splitlines()[0]}")
    return "\n".join(done)


if __name__ == "__main__":
    print(asyncio.run(setup_python_project(sys.argv[1] if len(sys.argv) > 1 else "hello")))
