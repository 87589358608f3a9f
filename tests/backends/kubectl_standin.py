"""A fake `kubectl` that keeps pods in a folder and really runs the programs executed in them.

Files in FOLDER:

- `asked`: the calls so far, one JSON list each
- `fail-VERB`: the error message for that verb
- `status`: the status of every pod
- `items`: the list that it returns
- `executes`: the process that executes something

A program in a pod runs in bubblewrap, as another user without capabilities.
"""

import json
import os
import sys
import time
from pathlib import Path

INSIDE = "bwrap --unshare-all --unshare-user --cap-drop ALL --uid 4242 --gid 4242 --die-with-parent"
OWN = "--proc /proc --dev /dev --tmpfs /tmp --dir /workspace --chdir /workspace"
RUNNING = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}


def install(folder: Path) -> Path:
    """Return a folder for PATH with this program as `kubectl`. Its state is in `folder`."""
    bin = folder / "bin"
    bin.mkdir()
    program = bin / "kubectl"
    words = f"exec {sys.executable} -I {Path(__file__).resolve()} {folder}"
    program.write_text(f'#!/bin/sh\n{words} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return bin


def asked(folder: Path) -> list[list[str]]:
    """Return the calls so far."""
    file = folder / "asked"
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def main(folder: Path, words: list[str]) -> int:
    with (folder / "asked").open("a", encoding="utf-8") as file:
        file.write(json.dumps(words) + "\n")
    given = [word for word in words if not word.startswith(("--context=", "--namespace="))]
    verb = given[0]
    complaint = folder / f"fail-{verb}"
    if complaint.exists():
        text = complaint.read_text(encoding="utf-8")
        if text == "hang":
            time.sleep(600)
        print(text, file=sys.stderr)
        return 1
    pods = folder / "pods"
    pods.mkdir(exist_ok=True)
    if verb == "create":
        pod = json.load(sys.stdin)
        if "--dry-run=server" not in given:
            (pods / pod["metadata"]["name"]).write_text(json.dumps(pod), encoding="utf-8")
    elif verb == "get":
        get(folder, pods, given)
    elif verb == "delete":
        for word in given[2:]:
            if not word.startswith("-"):
                (pods / word).unlink(missing_ok=True)
    elif verb == "exec":
        (folder / "executes").write_text(str(os.getpid()), encoding="ascii")
        argv = [*INSIDE.split(), *machine(), *OWN.split(), *given[given.index("--") + 1 :]]
        os.execvp(argv[0], argv)  # noqa: S606
    return 0


def machine() -> list[str]:
    """Return arguments that show this machine's files: all but what a pod has of its own."""
    words: list[str] = []
    for name in sorted(set(os.listdir("/")) - {"proc", "dev", "tmp", "workspace"}):
        path = f"/{name}"
        is_link = os.path.islink(path)
        words += ["--symlink", os.readlink(path), path] if is_link else ["--ro-bind", path, path]
    return words


def get(folder: Path, pods: Path, given: list[str]) -> None:
    if "pods" in given:
        items = folder / "items"
        print(items.read_text(encoding="utf-8") if items.exists() else '{"items": []}')
        return
    file = pods / given[given.index("pod") + 1]
    if file.exists():
        pod = json.loads(file.read_text(encoding="utf-8"))
        status = folder / "status"
        pod["status"] = json.loads(status.read_text("utf-8")) if status.exists() else RUNNING
        print(json.dumps(pod))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
