"""Let a command change a copy of a project, review the changes, and apply the approved ones."""

import sys
import tempfile
from pathlib import Path

from kakoi.sync import Sandbox


def is_fine(path: str) -> bool:
    """Stand in for a person: approve Python files and nothing else."""
    return path.endswith(".py")


def review(project: Path, command: str) -> None:
    """Run a command on a copy of the project, and apply the approved changes."""
    with Sandbox("bubblewrap", workspace=project, copy_on_write=True) as box:
        box.run(command, check=True)
        print(box.diff())
        chosen = [change.path for change in box.changes() if is_fine(change.path)]
        if chosen:
            box.apply(chosen)
        box.discard()
        print("applied:", *chosen)


def main() -> None:
    if len(sys.argv) == 3:
        review(Path(sys.argv[1]), sys.argv[2])
        return
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "project")
        project.mkdir()
        (project / "hello.py").write_text("print('hello')\n")
        review(project, "echo 'print(42)' >> hello.py; echo 'rm -rf ~' > .git-hook")
        print(*sorted(path.name for path in project.iterdir()))


if __name__ == "__main__":
    main()
