"""A fake GitHub and GitLab with a project: REST API and git over HTTP on one host, with a token.

The project adds two numbers incorrectly, and has a test that fails.
"""

import base64
import gzip
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.tasks.trackers import TOKEN, FakeGitHub, FakeGitLab, Reply, Tracker, send

BROKEN = "def add(a, b):\n    return a - b\n"
# Also longer, because Python detects a changed file by its size and its mtime in seconds.
MENDED = BROKEN.replace("a - b", "a + b  # both")
TESTS = """\
import unittest

from adder import add


class Adding(unittest.TestCase):
    def test_two_and_three(self):
        self.assertEqual(add(2, 3), 5)
"""
RUN_TESTS = "python3 -m unittest -q test_adder"
TITLE = "Adding is broken"
BODY = "`add(2, 3)` gives -1."
ISSUE = 7
PULL = 8


class Hosting(Tracker):
    """A tracker that also serves git. `refused`: pushes are declined."""

    folder: Path
    repository: Path

    def host(self, folder: Path, project: str, main: str) -> None:
        self.folder = folder
        self.repository = folder / f"{project}.git"
        self.refused = False
        self.git_requests: list[str] = []
        make_project(self.repository, main)

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        if ".git/" not in request.path:
            super().handle(request)
            return
        self.git_requests.append(f"{request.command} {request.path}")
        given = request.headers.get("Authorization", "").partition(" ")[2]
        if not base64.b64decode(given).decode().endswith(f":{TOKEN}"):
            send(request, Reply(401, None, {"WWW-Authenticate": 'Basic realm="git"'}))
        elif self.refused and "git-receive-pack" in request.path:
            send(request, Reply(403, {"message": "no"}))
        else:
            serve_git(self.folder, request)

    def branches(self) -> list[str]:
        return git(self.repository, "for-each-ref", "--format=%(refname:short)").split()

    def file(self, branch: str, name: str) -> str:
        return git(self.repository, "show", f"{branch}:{name}") + "\n"

    def files(self, branch: str) -> list[str]:
        return git(self.repository, "ls-tree", "-r", "--name-only", branch).split()

    def everything_said(self) -> str:
        """Return everything that is readable there."""
        history = git(self.repository, "log", "--all", "-p", "--format=%an %ae %B")
        return history + json.dumps([each.body for each in self.seen])


def serve_git(folder: Path, request: BaseHTTPRequestHandler) -> None:
    path, _, query = request.path.partition("?")
    body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
    if request.headers.get("Content-Encoding") == "gzip":
        body = gzip.decompress(body)
    env = {
        "PATH": os.environ["PATH"],
        "GIT_PROJECT_ROOT": str(folder),
        "GIT_HTTP_EXPORT_ALL": "1",
        "REMOTE_USER": "token",
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "REQUEST_METHOD": request.command,
        "CONTENT_TYPE": request.headers.get("Content-Type", ""),
        "CONTENT_LENGTH": str(len(body)),
        "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
    }
    done = subprocess.run(
        ["git", "http-backend"], input=body, env=env, capture_output=True, timeout=60
    )
    head, _, content = done.stdout.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
    status = int(headers.pop("Status", "200").split()[0])
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    request.wfile.write(content)


class Hub(Hosting, FakeGitHub):
    """A GitHub with the open issue 7 and pull request 8 (from `feature`)."""

    main = "main"

    def __init__(self, folder: Path, address: str = "127.0.0.1") -> None:
        super().__init__(address=address)
        self.host(folder, "team/project", self.main)
        self.add_issue(ISSUE, TITLE, "coding agent", body=BODY)
        self.add_pull(PULL, "Mend adding", "coding agent", head="feature", base="main")

    @property
    def issue(self) -> str:
        return f"{self.web}/team/project/issues/{ISSUE}"

    @property
    def pull(self) -> str:
        return f"{self.web}/team/project/pull/{PULL}"

    @property
    def environ(self) -> dict[str, str]:
        return {"GITHUB_HOST": self.web, "GITHUB_PERSONAL_ACCESS_TOKEN": TOKEN}

    def said(self, number: int = ISSUE) -> list[str]:
        return [str(each["body"]) for each in self.comments.get(number, [])]

    def stage(self, number: int = ISSUE) -> str:
        """Return the label in short form, or several in a row while it changes."""
        return in_short(self.labels_of(number))

    def new_pulls(self) -> list[dict[str, object]]:
        return [pull for number, pull in self.pulls.items() if number != PULL]

    def everything_said(self) -> str:
        return super().everything_said() + json.dumps(self.comments)


class Lab(Hosting, FakeGitLab):
    """A GitLab with the open issue 7 and merge request 8 (from `feature`)."""

    main = "trunk"

    def __init__(self, folder: Path, address: str = "127.0.0.1") -> None:
        super().__init__(address=address)
        self.host(folder, "group/sub/project", self.main)
        self.add("issues", ISSUE, TITLE, "coding agent", description=BODY)
        self.add("merge_requests", PULL, "Mend adding", "coding agent", target_branch="trunk")

    @property
    def issue(self) -> str:
        return f"{self.web}/group/sub/project/-/issues/{ISSUE}"

    @property
    def pull(self) -> str:
        return f"{self.web}/group/sub/project/-/merge_requests/{PULL}"

    @property
    def environ(self) -> dict[str, str]:
        return {"GITLAB_HOST": self.web, "GITLAB_PERSONAL_ACCESS_TOKEN": TOKEN}

    def said(self, number: int = ISSUE) -> list[str]:
        return [str(each["body"]) for each in self.notes.get(_item(number), [])]

    def stage(self, number: int = ISSUE) -> str:
        """Return the label in short form, or several in a row while it changes."""
        return in_short(self.labels_of(*_item(number)))

    def new_pulls(self) -> list[dict[str, object]]:
        return [
            item
            for (kind, number), item in self.items.items()
            if kind == "merge_requests" and number != PULL
        ]

    def everything_said(self) -> str:
        return super().everything_said() + json.dumps(list(self.notes.values()))


def _item(number: int) -> tuple[str, int]:
    return ("issues" if number == ISSUE else "merge_requests"), number


def in_short(labels: list[str]) -> str:
    return ", ".join(label.removeprefix("coding agent").strip() for label in labels)


@contextmanager
def a_hub(folder: Path, address: str = "127.0.0.1") -> Iterator[Hub]:
    hub = Hub(folder, address)
    with hub.serving():
        yield hub


@contextmanager
def a_lab(folder: Path, address: str = "127.0.0.1") -> Iterator[Lab]:
    lab = Lab(folder, address)
    with lab.serving():
        yield lab


def git(folder: Path, *argv: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *argv], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def make_project(bare: Path, main: str = "main") -> None:
    """Create a bare repository with the branches `main` and `feature`, of two commits each."""
    bare.parent.mkdir(parents=True)
    stream = ""
    files = {"adder.py": BROKEN, "test_adder.py": TESTS, "README.md": "Adds.\n"}
    for number, (branch, parent) in enumerate([(main, ""), (main, ""), ("feature", main)]):
        stream += f"commit refs/heads/{branch}\ncommitter A <a@b> {number} +0000\ndata 1\nx\n"
        stream += f"from refs/heads/{parent}\n" if parent else ""
        for name, text in {**files, f"step{number}.txt": "x\n"}.items():
            stream += f"M 644 inline {name}\ndata {len(text)}\n{text}\n"
    subprocess.run(["git", "init", "-q", "--bare", "-b", main, str(bare)], check=True)
    subprocess.run(
        ["git", "-C", str(bare), "fast-import", "--quiet"], input=stream.encode(), check=True
    )
    git(bare, "config", "http.receivepack", "true")
