"""GitLabSource: issues and merge requests of gitlab.com, or of a GitLab of your own."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kakoi.errors import ConfigurationError, SourceError
from kakoi.tasks.sources.answers import MAX_TITLE, Answer, objects, one_line
from kakoi.tasks.sources.http import RestClient, Site, path_of
from kakoi.tasks.sources.labels import Labels
from kakoi.tasks.sources.source import Change, Look, sayable
from kakoi.tasks.task import Comment, Task, uuid_of

PUBLIC: Final = "https://gitlab.com"
TOKEN_VARIABLE: Final = "GITLAB_PERSONAL_ACCESS_TOKEN"  # noqa: S105 - the name of a variable
_NAME: Final = r"(?!(?:-|\.{1,2})(?:/|$))[A-Za-z0-9_.][A-Za-z0-9_.-]{0,254}"
_PROJECT: Final = re.compile(rf"{_NAME}(?:/{_NAME}){{1,20}}")
# GitLab shows issues as work items, too.
_PATH: Final = re.compile(
    r"/([^\s?#]{1,2000}?)/-/(issues|work_items|merge_requests)/([1-9][0-9]{0,17})/?"
)
_MAX_BODY: Final = 900_000
_Kind = Literal["issues", "merge_requests"]


def gitlab_site(web: str = PUBLIC, token: str = "") -> Site:
    """The server that people see at `web`."""
    return Site(
        name="GitLab",
        web=web,
        root=f"{web}/api/v4",
        token=token,
        token_variable=TOKEN_VARIABLE,
        token_header=("PRIVATE-TOKEN", ""),
        headers={"Accept": "application/json"},
    )


@dataclass(frozen=True, slots=True)
class _Place:
    project: str
    kind: _Kind
    number: int

    def path(self, *more: str | int) -> str:
        return path_of("projects", self.project, *more)

    def item(self, *more: str | int) -> str:
        return self.path(self.kind, self.number, *more)


class GitLabSource:
    """Tasks of some projects (`group/project`). `assignee`: only tasks of this user wait."""

    def __init__(
        self,
        client: RestClient,
        *,
        projects: Sequence[str] = (),
        labels: Labels | None = None,
        assignee: str = "",
    ) -> None:
        self._client = client
        self._projects = tuple(projects)
        self.assignee = assignee
        self.labels = labels or Labels()
        for each in projects:
            if not _PROJECT.fullmatch(each):
                raise ConfigurationError(f"a project of GitLab is {each!r:.80}, not group/project")

    def owns(self, key: str) -> bool:
        return self._find(key) is not None

    async def waiting(self) -> tuple[str, ...]:
        kinds: tuple[_Kind, ...] = ("issues", "merge_requests")
        found: dict[str, None] = {}
        for project in self._projects:
            for kind in kinds:
                for label in (self.labels.waiting, self.labels.processing):
                    found |= dict.fromkeys(await self._listed(project, kind, label))
        return tuple(found)

    async def _listed(self, project: str, kind: _Kind, label: str) -> list[str]:
        path = path_of("projects", project, kind)
        query = {"labels": label, "state": "opened", "order_by": "created_at", "sort": "asc"}
        if self.assignee:
            query["assignee_username"] = self.assignee
        pages = await self._client.pages(path, query)
        found = objects(list(pages.items), self._client.place("GET", path))
        return [self._address(_Place(project, kind, item.number("iid"))) for item in found]

    async def fetch(self, key: str) -> Task:
        place = self._place(key)
        item = await self._answer(place.item())
        notes = await self._client.pages(
            place.item("notes"), {"sort": "asc", "order_by": "created_at"}
        )
        look = _look(item)
        source, target = _branches(item, place)
        key = self._address(place)
        return Task(
            uuid=uuid_of(key),
            key=key,
            repository=f"{self._client.site.web}/{place.project}.git",
            kind="issue" if place.kind == "issues" else "pull_request",
            source_branch=source,
            target_branch=target,
            title=one_line(item.text("title"))[:MAX_TITLE],
            body=item.text_or_empty("description"),
            author=_username(item),
            comments=tuple(self._comments(notes.items, place)),
            comments_complete=notes.complete,
            assignees=look.assignees,
            labels=look.labels,
            state=look.state,
        )

    async def look(self, key: str) -> Look:
        return _look(await self._answer(self._place(key).item()))

    def _comments(self, items: Sequence[object], place: _Place) -> Iterator[Comment]:
        for note in objects(list(items), self._client.place("GET", place.item("notes"))):
            if not note.flag("system"):
                yield Comment(
                    id=str(note.number("id")),
                    author=_username(note),
                    body=note.text_or_empty("body"),
                    created_at=note.text_or_empty("created_at"),
                )

    async def comment(self, task: Task, body: str) -> str:
        path = self._place(task.key).item("notes")
        made = await self._client.send("POST", path, {"body": self._sayable(body)})
        return str(Answer(made, self._client.place("POST", path)).number("id"))

    async def update_comment(self, task: Task, comment_id: str, body: str) -> None:
        path = self._place(task.key).item("notes", comment_id)
        await self._client.send("PUT", path, {"body": self._sayable(body)})

    async def change_labels(self, task: Task, add: Sequence[str], remove: Sequence[str]) -> None:
        change: dict[str, object] = {}
        if add:
            change["add_labels"] = ",".join(add)
        if remove:
            change["remove_labels"] = ",".join(remove)
        if change:
            await self._client.send("PUT", self._place(task.key).item(), change)

    async def propose(self, task: Task, change: Change) -> str:
        place = self._place(task.key)
        target = task.target_branch
        if target is None:
            target = (await self._answer(place.path())).text("default_branch")
        path = place.path("merge_requests")
        body: dict[str, object] = {
            "title": one_line(self._sayable(change.title))[:MAX_TITLE],
            "description": self._sayable(change.body),
            "source_branch": change.branch,
            "target_branch": target,
        }
        try:
            made = await self._client.send("POST", path, body)
        except SourceError as error:
            if error.details.get("status") != 409:
                raise
            existing = await self._proposed(place, change.branch)
            if not existing:
                raise
            return existing
        number = Answer(made, self._client.place("POST", path)).number("iid")
        return self._address(_Place(place.project, "merge_requests", number))

    async def _proposed(self, place: _Place, branch: str) -> str:
        path = place.path("merge_requests")
        found = await self._client.get(path, {"source_branch": branch, "state": "opened"})
        numbers = [each.number("iid") for each in objects(found, self._client.place("GET", path))]
        if not numbers:
            return ""
        return self._address(_Place(place.project, "merge_requests", numbers[0]))

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _answer(self, path: str) -> Answer:
        return Answer(await self._client.get(path), self._client.place("GET", path))

    def _address(self, place: _Place) -> str:
        # Never what the server calls it: an address of ours cannot lead anywhere else.
        return f"{self._client.site.web}/{place.project}/-/{place.kind}/{place.number}"

    def _sayable(self, text: str) -> str:
        return sayable(text, self._client.site.token, _MAX_BODY)

    def _place(self, key: str) -> _Place:
        place = self._find(key)
        if place is None:
            raise ConfigurationError(f"{key!r:.200} is no issue or merge request of GitLab")
        return place

    def _find(self, key: str) -> _Place | None:
        match = _PATH.fullmatch(self._client.site.path_of(key) or "")
        if match is None or not _PROJECT.fullmatch(match[1]):
            return None
        kind: _Kind = "merge_requests" if match[2] == "merge_requests" else "issues"
        return _Place(match[1], kind, int(match[3]))


def _look(item: Answer) -> Look:
    return Look(
        state="open" if item.text("state") == "opened" else "closed",
        assignees=item.names("assignees", of="username"),
        labels=item.names("labels", of="name"),
    )


def _branches(item: Answer, place: _Place) -> tuple[str | None, str | None]:
    if place.kind == "issues":
        return None, None
    if item.number("source_project_id") != item.number("target_project_id"):
        raise SourceError(
            f"the branch of merge request {place.number} of {place.project} is in another project",
            details={"status": 0, "is_lasting": True},
            hint="push the branch to the project itself, and open the merge request from it",
        )
    return item.text("source_branch"), item.text("target_branch")


def _username(said: Answer) -> str:
    """Who said it; nobody if the account is gone."""
    return said.child("author").text("username") if said.has("author") else ""
