"""GitHubSource: issues and pull requests on github.com or a GitHub Enterprise server.

The texts of comments are in `tasks/comments`.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from kakoi._support.late import dataclass, pattern
from kakoi.errors import ConfigurationError, SourceError
from kakoi.tasks.sources.answers import MAX_TITLE, JsonAnswer, objects, one_line
from kakoi.tasks.sources.http import RestClient, TrackerServer, api_path
from kakoi.tasks.sources.source import StageLabels, TaskChange, TaskStatus, publishable
from kakoi.tasks.task import Comment, Task, uuid_from_key

PUBLIC: Final = "https://github.com"
TOKEN_VARIABLE: Final = "GITHUB_PERSONAL_ACCESS_TOKEN"  # noqa: S105 - the name of a variable
_PROJECT: Final = r"([A-Za-z0-9][A-Za-z0-9-]{0,99})/(?!\.{1,2}(?:/|$))([A-Za-z0-9_.-]{1,100})"
_PATH: Final = pattern(rf"/{_PROJECT}/(issues|pull)/([1-9][0-9]{{0,17}})/?")
# GitHub Enterprise Cloud with data residency.
_HOSTED: Final = pattern(r"https://[a-z0-9-]+\.ghe\.com")
_MAX_BODY: Final = 65_000


def github_site(web: str = PUBLIC, token: str = "") -> TrackerServer:
    """The server with the web address `web`, with the API address that GitHub uses for it."""
    hosted = web == PUBLIC or _HOSTED.fullmatch(web)
    return TrackerServer(
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
class _TaskAddress:
    owner: str
    project: str
    number: int

    def path(self, *more: str | int) -> str:
        return api_path("repos", self.owner, self.project, *more)

    def issue(self, *more: str | int) -> str:
        return self.path("issues", self.number, *more)


class GitHubSource:
    """Tasks of repositories (`owner/name`). `assignee`: only tasks of this user are waiting."""

    def __init__(
        self,
        client: RestClient,
        *,
        repositories: Sequence[str] = (),
        labels: StageLabels | None = None,
        assignee: str = "",
    ) -> None:
        self._client = client
        self._repositories = tuple(repositories)
        self.assignee = assignee
        self.labels = labels or StageLabels()
        for each in repositories:
            if not re.fullmatch(_PROJECT, each):
                raise ConfigurationError(f"invalid GitHub repository {each!r:.80}: use owner/name")

    def owns(self, key: str) -> bool:
        return self._find(key) is not None

    async def waiting(self) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for name in self._repositories:
            for label in (self.labels.waiting, self.labels.processing):
                found |= dict.fromkeys(await self._list_keys(name, label))
        return tuple(found)

    async def _list_keys(self, name: str, label: str) -> list[str]:
        owner, project = name.split("/")
        path = api_path("repos", owner, project, "issues")
        query = {"labels": label, "state": "open", "sort": "created", "direction": "asc"}
        if self.assignee:
            query["assignee"] = self.assignee
        pages = await self._client.pages(path, query)
        keys = []
        for issue in objects(list(pages.items), self._client.describe("GET", path)):
            kind = "pull" if issue.has("pull_request") else "issues"
            address = _TaskAddress(owner, project, issue.number("number"))
            keys.append(self._url(address, kind, address.number))
        return keys

    async def fetch(self, key: str) -> Task:
        address = self._parse(key)
        issue = await self._get(address.issue())
        is_change = issue.has("pull_request")
        read = await self._client.pages(address.issue("comments"))
        comments, complete = list(read.items), read.complete
        branches: tuple[str | None, str | None] = (None, None)
        if is_change:
            branches = await self._branches(address)
            reviews = await self._client.pages(address.path("pulls", address.number, "comments"))
            comments += reviews.items
            complete &= reviews.complete
        # One task, one key: GitHub also shows a pull request under the address of an issue.
        key = self._url(address, "pull" if is_change else "issues", address.number)
        status = _status(issue)
        return Task(
            uuid=uuid_from_key(key),
            key=key,
            repository=f"{self._client.site.web}/{address.owner}/{address.project}.git",
            kind="pull_request" if is_change else "issue",
            source_branch=branches[0],
            target_branch=branches[1],
            title=one_line(issue.text("title"))[:MAX_TITLE],
            body=issue.text_or_empty("body"),
            author=_login(issue),
            comments=tuple(sorted(self._comments(comments, address), key=_age)),
            comments_complete=complete,
            assignees=status.assignees,
            labels=status.labels,
            state=status.state,
        )

    async def fetch_status(self, key: str) -> TaskStatus:
        return _status(await self._get(self._parse(key).issue()))

    async def _branches(self, address: _TaskAddress) -> tuple[str, str]:
        pull = await self._get(address.path("pulls", address.number))
        head, base = pull.child("head"), pull.child("base")
        fork = head.child("repo").text("full_name") if head.has("repo") else "a deleted fork"
        if fork.casefold() != base.child("repo").text("full_name").casefold():
            raise SourceError(
                f"the branch of pull request {address.number} of {address.owner}/{address.project}"
                f" is in another repository: {one_line(fork)[:120]}",
                details={"status": 0, "is_lasting": True},
                hint="push the branch to the repository itself, and open the pull request from it",
            )
        return head.text("ref"), base.text("ref")

    def _comments(self, items: list[object], address: _TaskAddress) -> Iterator[Comment]:
        for each in objects(items, self._client.describe("GET", address.issue("comments"))):
            about = f"{each.text('path')}: " if each.has("path") else ""
            yield Comment(
                id=str(each.number("id")),
                author=_login(each),
                body=about + each.text_or_empty("body"),
                created_at=each.text_or_empty("created_at"),
            )

    async def comment(self, task: Task, body: str) -> str:
        path = self._parse(task.key).issue("comments")
        answer = await self._client.send("POST", path, {"body": self._publishable(body)})
        return str(JsonAnswer(answer, self._client.describe("POST", path)).number("id"))

    async def update_comment(self, task: Task, comment_id: str, body: str) -> None:
        path = self._parse(task.key).path("issues", "comments", comment_id)
        await self._client.send("PATCH", path, {"body": self._publishable(body)})

    async def change_labels(self, task: Task, add: Sequence[str], remove: Sequence[str]) -> None:
        address = self._parse(task.key)
        if add:
            await self._client.send("POST", address.issue("labels"), {"labels": list(add)})
        for label in remove:
            try:
                await self._client.send("DELETE", address.issue("labels", label))
            except SourceError as error:
                if error.details.get("status") != 404:  # It no longer has the label.
                    raise

    async def propose(self, task: Task, change: TaskChange) -> str:
        address = self._parse(task.key)
        target = task.target_branch or await self._default_branch(address)
        path = address.path("pulls")
        body: dict[str, object] = {
            "title": one_line(self._publishable(change.title))[:MAX_TITLE],
            "body": self._publishable(change.body),
            "head": change.branch,
            "base": target,
        }
        try:
            answer = await self._client.send("POST", path, body)
        except SourceError as error:
            if error.details.get("status") != 422:
                raise
            existing = await self._find_open_request(address, change.branch)
            if not existing:
                raise
            return existing
        number = JsonAnswer(answer, self._client.describe("POST", path)).number("number")
        return self._url(address, "pull", number)

    async def _find_open_request(self, address: _TaskAddress, branch: str) -> str:
        path = address.path("pulls")
        query = {"head": f"{address.owner}:{branch}", "state": "open"}
        found = await self._client.get(path, query)
        numbers = [
            each.number("number") for each in objects(found, self._client.describe("GET", path))
        ]
        return self._url(address, "pull", numbers[0]) if numbers else ""

    async def _default_branch(self, address: _TaskAddress) -> str:
        return (await self._get(address.path())).text("default_branch")

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _get(self, path: str) -> JsonAnswer:
        return JsonAnswer(await self._client.get(path), self._client.describe("GET", path))

    def _url(self, address: _TaskAddress, kind: str, number: int) -> str:
        # Never the address that the server sends: this one cannot point anywhere else.
        return f"{self._client.site.web}/{address.owner}/{address.project}/{kind}/{number}"

    def _publishable(self, text: str) -> str:
        return publishable(text, self._client.site.token, _MAX_BODY)

    def _parse(self, key: str) -> _TaskAddress:
        address = self._find(key)
        if address is None:
            raise ConfigurationError(f"{key!r:.200} is not an issue or pull request on GitHub")
        return address

    def _find(self, key: str) -> _TaskAddress | None:
        match = _PATH.fullmatch(self._client.site.path_of(key) or "")
        return _TaskAddress(match[1], match[2], int(match[4])) if match else None


def _status(issue: JsonAnswer) -> TaskStatus:
    return TaskStatus(
        state="open" if issue.text("state") == "open" else "closed",
        assignees=issue.names("assignees", of="login"),
        labels=issue.names("labels", of="name"),
    )


def _login(item: JsonAnswer) -> str:
    """The author; empty if the account was deleted."""
    return item.child("user").text("login") if item.has("user") else ""


def _age(comment: Comment) -> str:
    return comment.created_at
