"""GitLabSource: issues and merge requests on gitlab.com or a self-hosted GitLab.

The texts of comments are in `tasks/comments`.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Literal

from kakoi._support.late import dataclass, pattern
from kakoi.errors import ConfigurationError, SourceError
from kakoi.tasks.sources.answers import MAX_TITLE, JsonAnswer, objects, one_line
from kakoi.tasks.sources.http import RestClient, TrackerServer, api_path
from kakoi.tasks.sources.source import StageLabels, TaskChange, TaskStatus, publishable
from kakoi.tasks.task import Comment, Task, uuid_from_key

PUBLIC: Final = "https://gitlab.com"
TOKEN_VARIABLE: Final = "GITLAB_PERSONAL_ACCESS_TOKEN"  # noqa: S105 - the name of a variable
_NAME: Final = r"(?!(?:-|\.{1,2})(?:/|$))[A-Za-z0-9_.][A-Za-z0-9_.-]{0,254}"
_PROJECT: Final = pattern(rf"{_NAME}(?:/{_NAME}){{1,20}}")
# GitLab also shows issues as work items.
_PATH: Final = pattern(
    r"/([^\s?#]{1,2000}?)/-/(issues|work_items|merge_requests)/([1-9][0-9]{0,17})/?"
)
_MAX_BODY: Final = 900_000
_Kind = Literal["issues", "merge_requests"]


def gitlab_site(web: str = PUBLIC, token: str = "") -> TrackerServer:
    """The server with the web address `web`."""
    return TrackerServer(
        name="GitLab",
        web=web,
        root=f"{web}/api/v4",
        token=token,
        token_variable=TOKEN_VARIABLE,
        token_header=("PRIVATE-TOKEN", ""),
        headers={"Accept": "application/json"},
    )


@dataclass(frozen=True, slots=True)
class _TaskAddress:
    project: str
    kind: _Kind
    number: int

    def path(self, *more: str | int) -> str:
        return api_path("projects", self.project, *more)

    def item(self, *more: str | int) -> str:
        return self.path(self.kind, self.number, *more)


class GitLabSource:
    """Tasks of projects (`group/project`). `assignee`: only tasks of this user are waiting."""

    def __init__(
        self,
        client: RestClient,
        *,
        projects: Sequence[str] = (),
        labels: StageLabels | None = None,
        assignee: str = "",
    ) -> None:
        self._client = client
        self._projects = tuple(projects)
        self.assignee = assignee
        self.labels = labels or StageLabels()
        for each in projects:
            if not _PROJECT.fullmatch(each):
                raise ConfigurationError(f"invalid GitLab project {each!r:.80}: use group/project")

    def owns(self, key: str) -> bool:
        return self._find(key) is not None

    async def waiting(self) -> tuple[str, ...]:
        kinds: tuple[_Kind, ...] = ("issues", "merge_requests")
        found: dict[str, None] = {}
        for project in self._projects:
            for kind in kinds:
                for label in (self.labels.waiting, self.labels.processing):
                    found |= dict.fromkeys(await self._list_keys(project, kind, label))
        return tuple(found)

    async def _list_keys(self, project: str, kind: _Kind, label: str) -> list[str]:
        path = api_path("projects", project, kind)
        query = {"labels": label, "state": "opened", "order_by": "created_at", "sort": "asc"}
        if self.assignee:
            query["assignee_username"] = self.assignee
        pages = await self._client.pages(path, query)
        found = objects(list(pages.items), self._client.describe("GET", path))
        return [self._url(_TaskAddress(project, kind, item.number("iid"))) for item in found]

    async def fetch(self, key: str) -> Task:
        address = self._parse(key)
        item = await self._get(address.item())
        notes = await self._client.pages(
            address.item("notes"), {"sort": "asc", "order_by": "created_at"}
        )
        status = _status(item)
        source, target = _branches(item, address)
        key = self._url(address)
        return Task(
            uuid=uuid_from_key(key),
            key=key,
            repository=f"{self._client.site.web}/{address.project}.git",
            kind="issue" if address.kind == "issues" else "pull_request",
            source_branch=source,
            target_branch=target,
            title=one_line(item.text("title"))[:MAX_TITLE],
            body=item.text_or_empty("description"),
            author=_username(item),
            comments=tuple(self._comments(notes.items, address)),
            comments_complete=notes.complete,
            assignees=status.assignees,
            labels=status.labels,
            state=status.state,
        )

    async def fetch_status(self, key: str) -> TaskStatus:
        return _status(await self._get(self._parse(key).item()))

    def _comments(self, items: Sequence[object], address: _TaskAddress) -> Iterator[Comment]:
        for note in objects(list(items), self._client.describe("GET", address.item("notes"))):
            if not note.flag("system"):
                yield Comment(
                    id=str(note.number("id")),
                    author=_username(note),
                    body=note.text_or_empty("body"),
                    created_at=note.text_or_empty("created_at"),
                )

    async def comment(self, task: Task, body: str) -> str:
        path = self._parse(task.key).item("notes")
        answer = await self._client.send("POST", path, {"body": self._publishable(body)})
        return str(JsonAnswer(answer, self._client.describe("POST", path)).number("id"))

    async def update_comment(self, task: Task, comment_id: str, body: str) -> None:
        path = self._parse(task.key).item("notes", comment_id)
        await self._client.send("PUT", path, {"body": self._publishable(body)})

    async def change_labels(self, task: Task, add: Sequence[str], remove: Sequence[str]) -> None:
        change: dict[str, object] = {}
        if add:
            change["add_labels"] = ",".join(add)
        if remove:
            change["remove_labels"] = ",".join(remove)
        if change:
            await self._client.send("PUT", self._parse(task.key).item(), change)

    async def propose(self, task: Task, change: TaskChange) -> str:
        address = self._parse(task.key)
        target = task.target_branch
        if target is None:
            target = (await self._get(address.path())).text("default_branch")
        path = address.path("merge_requests")
        body: dict[str, object] = {
            "title": one_line(self._publishable(change.title))[:MAX_TITLE],
            "description": self._publishable(change.body),
            "source_branch": change.branch,
            "target_branch": target,
        }
        try:
            answer = await self._client.send("POST", path, body)
        except SourceError as error:
            if error.details.get("status") != 409:
                raise
            existing = await self._find_open_request(address, change.branch)
            if not existing:
                raise
            return existing
        number = JsonAnswer(answer, self._client.describe("POST", path)).number("iid")
        return self._url(_TaskAddress(address.project, "merge_requests", number))

    async def _find_open_request(self, address: _TaskAddress, branch: str) -> str:
        path = address.path("merge_requests")
        found = await self._client.get(path, {"source_branch": branch, "state": "opened"})
        numbers = [
            each.number("iid") for each in objects(found, self._client.describe("GET", path))
        ]
        if not numbers:
            return ""
        return self._url(_TaskAddress(address.project, "merge_requests", numbers[0]))

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _get(self, path: str) -> JsonAnswer:
        return JsonAnswer(await self._client.get(path), self._client.describe("GET", path))

    def _url(self, address: _TaskAddress) -> str:
        # Never the address that the server sends: this one cannot point anywhere else.
        return f"{self._client.site.web}/{address.project}/-/{address.kind}/{address.number}"

    def _publishable(self, text: str) -> str:
        return publishable(text, self._client.site.token, _MAX_BODY)

    def _parse(self, key: str) -> _TaskAddress:
        address = self._find(key)
        if address is None:
            raise ConfigurationError(f"{key!r:.200} is not an issue or merge request on GitLab")
        return address

    def _find(self, key: str) -> _TaskAddress | None:
        match = _PATH.fullmatch(self._client.site.path_of(key) or "")
        if match is None or not _PROJECT.fullmatch(match[1]):
            return None
        kind: _Kind = "merge_requests" if match[2] == "merge_requests" else "issues"
        return _TaskAddress(match[1], kind, int(match[3]))


def _status(item: JsonAnswer) -> TaskStatus:
    return TaskStatus(
        state="open" if item.text("state") == "opened" else "closed",
        assignees=item.names("assignees", of="username"),
        labels=item.names("labels", of="name"),
    )


def _branches(item: JsonAnswer, address: _TaskAddress) -> tuple[str | None, str | None]:
    if address.kind == "issues":
        return None, None
    if item.number("source_project_id") != item.number("target_project_id"):
        raise SourceError(
            f"the branch of merge request {address.number} of {address.project}"
            " is in another project",
            details={"status": 0, "is_lasting": True},
            hint="push the branch to the project itself, and open the merge request from it",
        )
    return item.text("source_branch"), item.text("target_branch")


def _username(item: JsonAnswer) -> str:
    """The author; empty if the account was deleted."""
    return item.child("author").text("username") if item.has("author") else ""
