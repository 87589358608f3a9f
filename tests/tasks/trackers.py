"""Fakes of the REST APIs of GitHub and GitLab, as documented, on real HTTP servers.

They keep issues, comments, labels and requests, paginate their lists, require a token, and fail on
demand: `trouble` replaces the answers to the next requests.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from kakoi.tasks.handler import requested_stage
from kakoi.tasks.sources.source import TaskSource
from kakoi.tasks.task import Task

TOKEN = "sentinel-5up3r53cr3t"
WAIT_S = 60.0


@dataclass(frozen=True)
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True)
class Reply:
    status: int
    value: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None

    @property
    def data(self) -> bytes:
        if self.raw is not None:
            return self.raw
        return b"" if self.value is None else json.dumps(self.value).encode()


Trouble = Reply | Callable[[BaseHTTPRequestHandler], None]
Route = tuple[str, str, Callable[..., Reply]]


class Tracker:
    """A server on loopback. `page_size`: the maximum number of items on a page."""

    name = ""
    root = ""

    def __init__(self, page_size: int = 100, address: str = "127.0.0.1") -> None:
        self.page_size = page_size
        self.seen: list[Seen] = []
        self.trouble: list[Trouble] = []
        self.released = threading.Event()
        self.lock = threading.Lock()
        tracker = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # Otherwise each answer waits 40 ms for an ACK.

            def handle_any(self) -> None:
                tracker.handle(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 - its names

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer((address, 0), Handler)
        self.server.daemon_threads = True
        self.web = f"http://{address}:{self.server.server_address[1]}"

    @contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield
        finally:
            self.released.set()
            self.server.shutdown()
            self.server.server_close()
            thread.join(WAIT_S)

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        length = int(request.headers.get("Content-Length") or 0)
        body = json.loads(request.rfile.read(length) or b"null")
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen = Seen(request.command, parts.path, query, headers, body)
        with self.lock:
            self.seen.append(seen)
            trouble = self.trouble.pop(0) if self.trouble else None
            if trouble is None:
                trouble = self.answer(seen)
        if isinstance(trouble, Reply):
            send(request, trouble)
        else:
            trouble(request)

    def answer(self, seen: Seen) -> Reply:
        if not self.knows(seen.headers):
            return self.error(401, "401 Unauthorized")
        for method, pattern, route in self.routes():
            match = re.fullmatch(self.root + pattern, seen.path)
            if match and method == seen.method:
                return route(seen, *(unquote(part) for part in match.groups()))
        return self.error(404, "Not Found")

    def paged(self, seen: Seen, items: list[Any], path: str) -> Reply:
        size = min(int(seen.query.get("per_page", 20)), self.page_size)
        page = int(seen.query.get("page", 1))
        headers = {}
        if page * size < len(items):
            query = urlencode({**seen.query, "page": page + 1})
            last = urlencode({**seen.query, "page": -(-len(items) // size)})
            address = f"{self.web}{path}"
            headers["Link"] = f'<{address}?{query}>; rel="next", <{address}?{last}>; rel="last"'
        return Reply(200, items[(page - 1) * size : page * size], headers)

    def knows(self, headers: Mapping[str, str]) -> bool:
        raise NotImplementedError

    def error(self, status: int, message: str) -> Reply:
        raise NotImplementedError

    def routes(self) -> list[Route]:
        raise NotImplementedError


def send(request: BaseHTTPRequestHandler, reply: Reply) -> None:
    request.send_response(reply.status)
    for name, value in reply.headers.items():
        request.send_header(name, value)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(reply.data)))
    request.end_headers()
    request.wfile.write(reply.data)


def hang_up(request: BaseHTTPRequestHandler) -> None:
    """Close the connection without a response."""
    request.close_connection = True


def half_an_answer(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    request.wfile.write(b'[{"number"')
    request.close_connection = True


def endless(request: BaseHTTPRequestHandler) -> None:
    """Send data without end until the client disconnects."""
    request.send_response(200)
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()
    try:
        for _ in range(10_000):
            request.wfile.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
    except OSError:
        pass
    request.close_connection = True


def silent(tracker: Tracker) -> Callable[[BaseHTTPRequestHandler], None]:
    """Return a trouble that gives no answer for the rest of the test."""

    def wait(request: BaseHTTPRequestHandler) -> None:
        tracker.released.wait(WAIT_S)
        request.close_connection = True

    return wait


def dribbling(tracker: Tracker) -> Callable[[BaseHTTPRequestHandler], None]:
    """Return a trouble that sends a byte now and then: no single wait is long, but the total is."""

    def dribble(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "100000")
        request.end_headers()
        try:
            while not tracker.released.wait(0.02):
                request.wfile.write(b" ")
        except OSError:
            pass
        request.close_connection = True

    return dribble


class FakeGitHub(Tracker):
    """The repository `team/project` on a GitHub Enterprise server, whose API is at /api/v3."""

    root = "/api/v3"

    def __init__(self, page_size: int = 100, address: str = "127.0.0.1") -> None:
        super().__init__(page_size, address)
        self.issues: dict[int, dict[str, Any]] = {}
        self.pulls: dict[int, dict[str, Any]] = {}
        self.comments: dict[int, list[dict[str, Any]]] = {}
        self.reviews: dict[int, list[dict[str, Any]]] = {}
        self.next_id = 1000

    def add_issue(self, number: int, title: str, *labels: str, **more: Any) -> None:
        self.issues[number] = {
            "id": 10_000 + number,
            "number": number,
            "title": title,
            "body": None,
            "state": "open",
            "user": {"login": "ada", "id": 1, "type": "User"},
            "labels": [{"id": 1, "name": name, "color": "ededed"} for name in labels],
            "assignees": [],
            "html_url": f"https://elsewhere.example/team/project/issues/{number}",
            "created_at": "2026-01-02T03:04:05Z",
            **more,
        }

    def add_pull(self, number: int, title: str, *labels: str, head: str, base: str) -> None:
        self.add_issue(number, title, *labels, pull_request={"url": "…"})
        repo = {"full_name": "team/project"}
        self.pulls[number] = {
            "number": number,
            "state": "open",
            "head": {"ref": head, "repo": repo},
            "base": {"ref": base, "repo": repo},
        }

    def say(self, number: int, body: str, at: str = "2026-01-02T03:04:05Z") -> dict[str, Any]:
        self.next_id += 1
        user = {"login": "grace"}
        made = {"id": self.next_id, "body": body, "user": user, "created_at": at}
        self.comments.setdefault(number, []).append(made)
        return made

    def labels_of(self, number: int) -> list[str]:
        return [label["name"] for label in self.issues[number]["labels"]]

    def knows(self, headers: Mapping[str, str]) -> bool:
        return headers.get("authorization") == f"Bearer {TOKEN}"

    def error(self, status: int, message: str) -> Reply:
        about = {"message": message, "documentation_url": "…", "status": str(status)}
        return Reply(status, about)

    def routes(self) -> list[Route]:
        project = "/repos/team/project"
        issue = rf"{project}/issues/(\d+)"
        return [
            ("GET", project, lambda _: Reply(200, {"default_branch": "main"})),
            ("GET", f"{project}/issues", self._list),
            ("GET", issue, lambda _, n: self._one(self.issues, n)),
            ("GET", f"{issue}/comments", self._comments),
            ("POST", f"{issue}/comments", lambda seen, n: self._said(seen, n)),
            ("PATCH", rf"{project}/issues/comments/(\d+)", self._changed),
            ("POST", f"{issue}/labels", self._labelled),
            ("DELETE", f"{issue}/labels/([^/]+)", self._unlabelled),
            ("GET", rf"{project}/pulls/(\d+)", lambda _, n: self._one(self.pulls, n)),
            ("GET", rf"{project}/pulls/(\d+)/comments", self._reviews),
            ("GET", f"{project}/pulls", self._pulls),
            ("POST", f"{project}/pulls", self._opened),
        ]

    def _one(self, kept: Mapping[int, Any], number: str) -> Reply:
        found = kept.get(int(number))
        return Reply(200, found) if found else self.error(404, "Not Found")

    def _list(self, seen: Seen) -> Reply:
        wanted = seen.query.get("labels")
        whose = seen.query.get("assignee")
        found = [
            issue
            for number, issue in sorted(self.issues.items())
            if issue["state"] == seen.query.get("state", "open")
            and (wanted is None or wanted in self.labels_of(number))
            and (whose is None or whose in [user["login"] for user in issue["assignees"]])
        ]
        # Like GitHub, links to pages by the id of the repository.
        return self.paged(seen, found, f"{self.root}/repositories/7/issues")

    def _comments(self, seen: Seen, number: str) -> Reply:
        return self.paged(seen, self.comments.get(int(number), []), seen.path)

    def _reviews(self, seen: Seen, number: str) -> Reply:
        return self.paged(seen, self.reviews.get(int(number), []), seen.path)

    def _said(self, seen: Seen, number: str) -> Reply:
        return Reply(201, self.say(int(number), seen.body["body"]))

    def _changed(self, seen: Seen, comment_id: str) -> Reply:
        for comment in (each for said in self.comments.values() for each in said):
            if comment["id"] == int(comment_id):
                comment["body"] = seen.body["body"]
                return Reply(200, comment)
        return self.error(404, "Not Found")

    def _labelled(self, seen: Seen, number: str) -> Reply:
        labels = self.issues[int(number)]["labels"]
        had = self.labels_of(int(number))
        labels += [{"id": 1, "name": name} for name in seen.body["labels"] if name not in had]
        return Reply(200, labels)

    def _unlabelled(self, _: Seen, number: str, name: str) -> Reply:
        issue = self.issues[int(number)]
        if name not in self.labels_of(int(number)):
            return self.error(404, "Label does not exist")
        issue["labels"] = [label for label in issue["labels"] if label["name"] != name]
        return Reply(200, issue["labels"])

    def _pulls(self, seen: Seen) -> Reply:
        branch = seen.query["head"].partition(":")[2]
        return Reply(200, [pull for pull in self.pulls.values() if pull["head"]["ref"] == branch])

    def _opened(self, seen: Seen) -> Reply:
        if any(pull["head"]["ref"] == seen.body["head"] for pull in self.pulls.values()):
            return self.error(422, "Validation Failed")
        number = max([0, *self.issues]) + 1
        self.add_pull(number, seen.body["title"], head=seen.body["head"], base=seen.body["base"])
        return Reply(201, self.pulls[number])


class FakeGitLab(Tracker):
    """The project `group/sub/project` on a GitLab server."""

    root = "/api/v4"

    def __init__(self, page_size: int = 100, address: str = "127.0.0.1") -> None:
        super().__init__(page_size, address)
        self.items: dict[tuple[str, int], dict[str, Any]] = {}
        self.notes: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self.next_id = 1000

    def add(self, kind: str, number: int, title: str, *labels: str, **more: Any) -> None:
        branches = {
            "source_branch": "feature",
            "target_branch": "main",
            "source_project_id": 7,
            "target_project_id": 7,
        }
        self.items[kind, number] = {
            "id": 10_000 + number,
            "iid": number,
            "title": title,
            "description": None,
            "state": "opened",
            "author": {"username": "ada"},
            "labels": list(labels),
            "assignees": [],
            **(branches if kind == "merge_requests" else {}),
            **more,
        }

    def say(self, kind: str, number: int, body: str, *, system: bool = False) -> dict[str, Any]:
        self.next_id += 1
        made = {
            "id": self.next_id,
            "body": body,
            "author": {"username": "grace"},
            "created_at": "2026-01-02T03:04:05.000Z",
            "system": system,
        }
        self.notes.setdefault((kind, number), []).append(made)
        return made

    def labels_of(self, kind: str, number: int) -> list[str]:
        return list(self.items[kind, number]["labels"])

    def knows(self, headers: Mapping[str, str]) -> bool:
        return headers.get("private-token") == TOKEN

    def error(self, status: int, message: str) -> Reply:
        return Reply(status, {"message": message})

    def routes(self) -> list[Route]:
        project = "/projects/group%2Fsub%2Fproject"
        kind = "(issues|merge_requests)"
        item = rf"{project}/{kind}/(\d+)"
        return [
            ("GET", project, lambda _: Reply(200, {"default_branch": "trunk"})),
            ("GET", f"{project}/{kind}", self._list),
            ("GET", item, self._one),
            ("PUT", item, self._changed),
            ("GET", f"{item}/notes", self._notes),
            ("POST", f"{item}/notes", self._said),
            ("PUT", rf"{item}/notes/(\d+)", self._said_otherwise),
            ("POST", f"{project}/merge_requests", self._opened),
        ]

    def _one(self, _: Seen, kind: str, number: str) -> Reply:
        found = self.items.get((kind, int(number)))
        return Reply(200, found) if found else self.error(404, "404 Not found")

    def _list(self, seen: Seen, kind: str) -> Reply:
        query = seen.query
        found = [
            item
            for (of, _), item in sorted(self.items.items())
            if of == kind
            and item["state"] == query.get("state", item["state"])
            and query.get("labels", "") in ["", *item["labels"]]
            and query.get("source_branch", "") in ["", item.get("source_branch", "")]
        ]
        return self.paged(seen, found, seen.path)

    def _changed(self, seen: Seen, kind: str, number: str) -> Reply:
        item = self.items[kind, int(number)]
        removed = seen.body.get("remove_labels", "").split(",")
        added = [name for name in seen.body.get("add_labels", "").split(",") if name]
        kept = [name for name in item["labels"] if name not in removed]
        item["labels"] = list(dict.fromkeys([*kept, *added]))
        return Reply(200, item)

    def _notes(self, seen: Seen, kind: str, number: str) -> Reply:
        return self.paged(seen, self.notes.get((kind, int(number)), []), seen.path)

    def _said(self, seen: Seen, kind: str, number: str) -> Reply:
        return Reply(201, self.say(kind, int(number), seen.body["body"]))

    def _said_otherwise(self, seen: Seen, kind: str, number: str, note: str) -> Reply:
        for each in self.notes.get((kind, int(number)), []):
            if each["id"] == int(note):
                each["body"] = seen.body["body"]
                return Reply(200, each)
        return self.error(404, "404 Not found")

    def _opened(self, seen: Seen) -> Reply:
        branch = seen.body["source_branch"]
        for (kind, _), item in self.items.items():
            if kind == "merge_requests" and item["source_branch"] == branch:
                text = f"Another open merge request already exists: !{item['iid']}"
                return Reply(409, {"message": [text]})
        number = max([0, *(number for _, number in self.items)]) + 1
        more = {name: seen.body[name] for name in ("source_branch", "target_branch")}
        self.add("merge_requests", number, seen.body["title"], **more)
        return Reply(201, self.items["merge_requests", number])


async def is_wanted(source: TaskSource, task: Task) -> bool:
    """Return whether the tracker reports that the task is still wanted."""
    found = await source.fetch_status(task.key)
    return requested_stage(task, found, source.labels, source.assignee) is None
