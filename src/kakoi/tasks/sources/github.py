"""GitHubSource: issues and pull requests of github.com, or of a GitHub Enterprise server."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kakoi.errors import ConfigurationError, SourceError
from kakoi.tasks.sources.answers import MAX_TITLE, Answer, objects, one_line
from kakoi.tasks.sources.http import RestClient, Site, path_of
from kakoi.tasks.sources.labels import Labels
from kakoi.tasks.sources.source import Change, Look, sayable
from kakoi.tasks.task import Comment, Task, uuid_of

PUBLIC: Final = "https://github.com"
TOKEN_VARIABLE: Final = "GITHUB_PERSONAL_ACCESS_TOKEN"  # noqa: S105 - the name of a variable
_PROJECT: Final = r"([A-Za-z0-9][A-Za-z0-9-]{0,99})/(?!\.{1,2}(?:/|$))([A-Za-z0-9_.-]{1,100})"
_PATH: Final = re.compile(rf"/{_PROJECT}/(issues|pull)/([1-9][0-9]{{0,17}})/?")
# GitHub Enterprise Cloud with data residency.
_HOSTED: Final = re.compile(r"https://[a-z0-9-]+\.ghe\.com")
_MAX_BODY: Final = 65_000


def github_site(web: str = PUBLIC, token: str = "") -> Site:
    """The server that people see at `web`: its API is where GitHub puts it."""
    hosted = web == PUBLIC or _HOSTED.fullmatch(web)
    return Site(
        name="GitHub",
        web=web,
        root=web.replace("://", "://api.") if hosted else f"{web}/api/v3",
        token=token,
        token_variable=TOKEN_VARIABLE,
        headers={
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
        },
    )


@dataclass(frozen=True, slots=True)
class _Place:
    owner: str
    project: str
    number: int

    def path(self, *more: str | int) -> str:
        return path_of("repos", self.owner, self.project, *more)

    def issue(self, *more: str | int) -> str:
        return self.path("issues", self.number, *more)


class GitHubSource:
    """Tasks of some repositories (`owner/name`). `assignee`: only tasks of this user wait."""

    def __init__(
        self,
        client: RestClient,
        *,
        repositories: Sequence[str] = (),
        labels: Labels | None = None,
        assignee: str = "",
    ) -> None:
        self._client = client
        self._repositories = tuple(repositories)
        self.assignee = assignee
        self.labels = labels or Labels()
        for each in repositories:
            if not re.fullmatch(_PROJECT, each):
                raise ConfigurationError(f"a repository of GitHub is {each!r:.80}, not owner/name")

    def owns(self, key: str) -> bool:
        return self._find(key) is not None

    async def waiting(self) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for name in self._repositories:
            for label in (self.labels.waiting, self.labels.processing):
                found |= dict.fromkeys(await self._listed(name, label))
        return tuple(found)

    async def _listed(self, name: str, label: str) -> list[str]:
        owner, project = name.split("/")
        path = path_of("repos", owner, project, "issues")
        query = {"labels": label, "state": "open", "sort": "created", "direction": "asc"}
        if self.assignee:
            query["assignee"] = self.assignee
        pages = await self._client.pages(path, query)
        keys = []
        for issue in objects(list(pages.items), self._client.place("GET", path)):
            kind = "pull" if issue.has("pull_request") else "issues"
            place = _Place(owner, project, issue.number("number"))
            keys.append(self._address(place, kind, place.number))
        return keys

    async def fetch(self, key: str) -> Task:
        place = self._place(key)
        issue = await self._answer(place.issue())
        is_change = issue.has("pull_request")
        read = await self._client.pages(place.issue("comments"))
        comments, complete = list(read.items), read.complete
        branches: tuple[str | None, str | None] = (None, None)
        if is_change:
            branches = await self._branches(place)
            reviews = await self._client.pages(place.path("pulls", place.number, "comments"))
            comments += reviews.items
            complete &= reviews.complete
        # One task, one key: GitHub shows a pull request under the address of an issue, too.
        key = self._address(place, "pull" if is_change else "issues", place.number)
        look = _look(issue)
        return Task(
            uuid=uuid_of(key),
            key=key,
            repository=f"{self._client.site.web}/{place.owner}/{place.project}.git",
            kind="pull_request" if is_change else "issue",
            source_branch=branches[0],
            target_branch=branches[1],
            title=one_line(issue.text("title"))[:MAX_TITLE],
            body=issue.text_or_empty("body"),
            author=_login(issue),
            comments=tuple(sorted(self._comments(comments, place), key=_age)),
            comments_complete=complete,
            assignees=look.assignees,
            labels=look.labels,
            state=look.state,
        )

    async def look(self, key: str) -> Look:
        return _look(await self._answer(self._place(key).issue()))

    async def _branches(self, place: _Place) -> tuple[str, str]:
        pull = await self._answer(place.path("pulls", place.number))
        head, base = pull.child("head"), pull.child("base")
        theirs = head.child("repo").text("full_name") if head.has("repo") else "a fork that is gone"
        if theirs.casefold() != base.child("repo").text("full_name").casefold():
            raise SourceError(
                f"the branch of pull request {place.number} of {place.owner}/{place.project}"
                f" is in another repository: {one_line(theirs)[:120]}",
                details={"status": 0, "is_lasting": True},
                hint="push the branch to the repository itself, and open the pull request from it",
            )
        return head.text("ref"), base.text("ref")

    def _comments(self, items: list[object], place: _Place) -> Iterator[Comment]:
        for each in objects(items, self._client.place("GET", place.issue("comments"))):
            about = f"{each.text('path')}: " if each.has("path") else ""
            yield Comment(
                id=str(each.number("id")),
                author=_login(each),
                body=about + each.text_or_empty("body"),
                created_at=each.text_or_empty("created_at"),
            )

    async def comment(self, task: Task, body: str) -> str:
        path = self._place(task.key).issue("comments")
        made = await self._client.send("POST", path, {"body": self._sayable(body)})
        return str(Answer(made, self._client.place("POST", path)).number("id"))

    async def update_comment(self, task: Task, comment_id: str, body: str) -> None:
        path = self._place(task.key).path("issues", "comments", comment_id)
        await self._client.send("PATCH", path, {"body": self._sayable(body)})

    async def change_labels(self, task: Task, add: Sequence[str], remove: Sequence[str]) -> None:
        place = self._place(task.key)
        if add:
            await self._client.send("POST", place.issue("labels"), {"labels": list(add)})
        for label in remove:
            try:
                await self._client.send("DELETE", place.issue("labels", label))
            except SourceError as error:
                if error.details.get("status") != 404:  # It has it no more.
                    raise

    async def propose(self, task: Task, change: Change) -> str:
        place = self._place(task.key)
        target = task.target_branch or await self._default_branch(place)
        path = place.path("pulls")
        body: dict[str, object] = {
            "title": one_line(self._sayable(change.title))[:MAX_TITLE],
            "body": self._sayable(change.body),
            "head": change.branch,
            "base": target,
        }
        try:
            made = await self._client.send("POST", path, body)
        except SourceError as error:
            if error.details.get("status") != 422:
                raise
            existing = await self._proposed(place, change.branch)
            if not existing:
                raise
            return existing
        number = Answer(made, self._client.place("POST", path)).number("number")
        return self._address(place, "pull", number)

    async def _proposed(self, place: _Place, branch: str) -> str:
        path = place.path("pulls")
        query = {"head": f"{place.owner}:{branch}", "state": "open"}
        found = await self._client.get(path, query)
        numbers = [
            each.number("number") for each in objects(found, self._client.place("GET", path))
        ]
        return self._address(place, "pull", numbers[0]) if numbers else ""

    async def _default_branch(self, place: _Place) -> str:
        return (await self._answer(place.path())).text("default_branch")

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _answer(self, path: str) -> Answer:
        return Answer(await self._client.get(path), self._client.place("GET", path))

    def _address(self, place: _Place, kind: str, number: int) -> str:
        # Never what the server calls it: an address of ours cannot lead anywhere else.
        return f"{self._client.site.web}/{place.owner}/{place.project}/{kind}/{number}"

    def _sayable(self, text: str) -> str:
        return sayable(text, self._client.site.token, _MAX_BODY)

    def _place(self, key: str) -> _Place:
        place = self._find(key)
        if place is None:
            raise ConfigurationError(f"{key!r:.200} is no issue or pull request of GitHub")
        return place

    def _find(self, key: str) -> _Place | None:
        match = _PATH.fullmatch(self._client.site.path_of(key) or "")
        return _Place(match[1], match[2], int(match[4])) if match else None


def _look(issue: Answer) -> Look:
    return Look(
        state="open" if issue.text("state") == "open" else "closed",
        assignees=issue.names("assignees", of="login"),
        labels=issue.names("labels", of="name"),
    )


def _login(said: Answer) -> str:
    """Who said it; nobody if the account is gone."""
    return said.child("user").text("login") if said.has("user") else ""


def _age(comment: Comment) -> str:
    return comment.created_at
