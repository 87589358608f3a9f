"""Tasks out of GitHub and GitLab, and what came of them back."""

import dataclasses
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from kakoi.errors import ConfigurationError, KakoiError, SourceError
from kakoi.tasks.sources.github import GitHubSource, github_site
from kakoi.tasks.sources.gitlab import GitLabSource, gitlab_site
from kakoi.tasks.sources.http import RestClient
from kakoi.tasks.sources.source import (
    StageLabels,
    TaskChange,
    TaskGetter,
    TaskSource,
    TaskStatus,
    is_due,
    is_still_assigned,
    set_stage,
)
from kakoi.tasks.task import Task, container_name
from tests.tasks.trackers import TOKEN, FakeGitHub, FakeGitLab, Reply, is_wanted

pytestmark = pytest.mark.anyio
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LABEL = "coding agent"
PROJECT = "group/sub/project"


async def no_sleep(_: float) -> None: ...


@pytest.fixture
async def hub() -> AsyncIterator[FakeGitHub]:
    tracker = FakeGitHub(page_size=2)
    with tracker.serving():
        yield tracker


@pytest.fixture
async def lab() -> AsyncIterator[FakeGitLab]:
    tracker = FakeGitLab(page_size=2)
    with tracker.serving():
        yield tracker


@pytest.fixture
async def github(hub: FakeGitHub) -> AsyncIterator[GitHubSource]:
    client = RestClient(github_site(hub.web, TOKEN), clock=lambda: NOW, sleep=no_sleep)
    source = GitHubSource(client, repositories=["team/project"])
    yield source
    await source.aclose()


@pytest.fixture
async def gitlab(lab: FakeGitLab) -> AsyncIterator[GitLabSource]:
    client = RestClient(gitlab_site(lab.web, TOKEN), clock=lambda: NOW, sleep=no_sleep)
    source = GitLabSource(client, projects=[PROJECT])
    yield source
    await source.aclose()


def test_the_api_is_where_each_server_has_it() -> None:
    assert github_site().root == "https://api.github.com"
    assert github_site("https://git.example:8443").root == "https://git.example:8443/api/v3"
    assert github_site("https://corp.ghe.com").root == "https://api.corp.ghe.com"
    assert github_site("http://x.ghe.com").root == "http://x.ghe.com/api/v3"
    assert gitlab_site("https://git.example/lab").root == "https://git.example/lab/api/v4"


# --- What waits ------------------------------------------------------------------------------


async def test_what_waits_on_github_is_listed_over_all_pages(
    hub: FakeGitHub, github: GitHubSource
) -> None:
    for number in range(1, 6):
        hub.add_issue(number, f"issue {number}", LABEL)
    hub.add_pull(6, "a change", LABEL, head="feature", base="main")
    hub.add_issue(7, "another label", "bug")
    hub.add_issue(8, "closed", LABEL, state="closed")
    hub.add_issue(9, "begun before", "coding agent processing")
    project = f"{hub.web}/team/project"
    expected = [f"{project}/issues/{number}" for number in range(1, 6)]
    assert await github.waiting() == (*expected, f"{project}/pull/6", f"{project}/issues/9")


async def test_what_waits_on_gitlab_is_listed_over_all_pages(
    lab: FakeGitLab, gitlab: GitLabSource
) -> None:
    for number in range(1, 6):
        lab.add("issues", number, f"issue {number}", LABEL)
    lab.add("merge_requests", 1, "a change", LABEL)
    lab.add("issues", 7, "another label", "bug")
    lab.add("issues", 8, "closed", LABEL, state="closed")
    project = f"{lab.web}/{PROJECT}/-"
    expected = [f"{project}/issues/{number}" for number in range(1, 6)]
    assert await gitlab.waiting() == (*expected, f"{project}/merge_requests/1")


async def test_only_tasks_of_one_user_wait_if_it_is_said_whose(hub: FakeGitHub) -> None:
    hub.add_issue(1, "mine", LABEL, assignees=[{"login": "bot"}])
    hub.add_issue(2, "theirs", LABEL, assignees=[{"login": "ada"}])
    client = RestClient(github_site(hub.web, TOKEN), clock=lambda: NOW)
    source = GitHubSource(client, repositories=["team/project"], assignee="bot")
    assert await source.waiting() == (f"{hub.web}/team/project/issues/1",)
    await source.aclose()


async def test_a_source_that_fails_hides_nothing_of_the_others(
    hub: FakeGitHub, github: GitHubSource, lab: FakeGitLab, gitlab: GitLabSource
) -> None:
    lab.add("issues", 1, "one", LABEL)
    hub.trouble.append(Reply(404, {"message": "Not Found"}))
    found = await TaskGetter([github, gitlab]).waiting()
    assert found.keys == (f"{lab.web}/{PROJECT}/-/issues/1",)
    assert [error.details["status"] for error in found.failures] == [404]


# --- One task --------------------------------------------------------------------------------


async def test_an_issue_of_github_is_a_task(hub: FakeGitHub, github: GitHubSource) -> None:
    hub.add_issue(
        5,
        "Say\x1b[1m hello\n",
        LABEL,
        "bug",
        body="In two\r\nlanguages. \ud800",
        assignees=[{"login": "bot"}],
    )
    for number in range(3):
        hub.say(5, f"comment {number}", f"2026-01-0{number + 1}T00:00:00Z")
    key = f"{hub.web}/team/project/issues/5"
    task = await TaskGetter([github]).fetch(key)
    assert (task.key, task.kind, task.title) == (key, "issue", "Say [1m hello")
    assert task.body == "In two\r\nlanguages. ?"
    assert task.repository == f"{hub.web}/team/project.git"
    assert (task.author, task.assignees, task.labels) == ("ada", ("bot",), (LABEL, "bug"))
    assert [(each.author, each.body) for each in task.comments] == [
        ("grace", f"comment {number}") for number in range(3)
    ]
    assert (task.state, task.source_branch, task.comments_complete) == ("open", None, True)
    assert task.uuid == (await github.fetch(key)).uuid
    assert container_name(task.uuid)


async def test_a_pull_request_has_its_branches_and_reviews(
    hub: FakeGitHub, github: GitHubSource
) -> None:
    hub.add_pull(6, "a change", LABEL, head="feature/x", base="develop")
    hub.say(6, "second", "2026-01-02T00:00:00Z")
    hub.reviews[6] = [
        {
            "id": 1,
            "path": "a.py",
            "body": "first",
            "user": None,
            "created_at": "2026-01-01T00:00:00Z",
        }
    ]
    task = await github.fetch(f"{hub.web}/team/project/issues/6")
    assert (task.kind, task.source_branch, task.target_branch) == (
        "pull_request",
        "feature/x",
        "develop",
    )
    assert task.key == f"{hub.web}/team/project/pull/6"
    assert [each.body for each in task.comments] == ["a.py: first", "second"]


async def test_a_branch_in_a_fork_is_refused_with_what_helps(
    hub: FakeGitHub, github: GitHubSource, lab: FakeGitLab, gitlab: GitLabSource
) -> None:
    hub.add_pull(6, "a change", LABEL, head="feature", base="main")
    for repo in ({"full_name": "eve/project"}, None):
        hub.pulls[6]["head"]["repo"] = repo
        with pytest.raises(SourceError, match="is in another repository") as caught:
            await github.fetch(f"{hub.web}/team/project/pull/6")
        assert "push the branch" in caught.value.hint
    lab.add("merge_requests", 1, "a change", source_project_id=8)
    with pytest.raises(SourceError, match="is in another project"):
        await gitlab.fetch(f"{lab.web}/{PROJECT}/-/merge_requests/1")


async def test_an_issue_of_gitlab_is_a_task(lab: FakeGitLab, gitlab: GitLabSource) -> None:
    lab.add(
        "issues", 5, "Say hello", LABEL, description="In words.", assignees=[{"username": "bot"}]
    )
    for number in range(3):
        lab.say("issues", 5, f"note {number}")
    lab.say("issues", 5, "changed the title", system=True)
    task = await gitlab.fetch(f"{lab.web}/{PROJECT}/-/work_items/5")
    assert (task.key, task.kind) == (f"{lab.web}/{PROJECT}/-/issues/5", "issue")
    assert (task.title, task.body, task.author) == ("Say hello", "In words.", "ada")
    assert (task.assignees, task.labels) == (("bot",), (LABEL,))
    assert [each.body for each in task.comments] == ["note 0", "note 1", "note 2"]
    assert task.repository == f"{lab.web}/{PROJECT}.git"


async def test_a_merge_request_has_its_branches(lab: FakeGitLab, gitlab: GitLabSource) -> None:
    lab.add("merge_requests", 6, "a change", state="merged")
    task = await gitlab.fetch(f"{lab.web}/{PROJECT}/-/merge_requests/6")
    assert (task.source_branch, task.target_branch, task.state) == ("feature", "main", "closed")


BAD_ISSUES: list[Any] = [
    None,
    [],
    "x",
    {},
    {"title": "x"},
    {"title": 5, "state": "open"},
    {"title": "x", "state": ["open"]},
    {"title": "x", "state": "open", "assignees": "bot"},
    {"title": "x", "state": "open", "labels": [5]},
    {"title": "x", "state": "open", "labels": [{"name": None}]},
    {"title": "x", "state": "open", "user": "ada"},
    {"title": "x", "state": "open", "body": {"a": 1}},
]


@pytest.mark.parametrize("answer", BAD_ISSUES)
async def test_an_answer_of_another_shape_is_told(
    hub: FakeGitHub, github: GitHubSource, answer: object
) -> None:
    hub.trouble += [Reply(200, answer), Reply(200, [])]
    with pytest.raises(SourceError, match="it should be ") as caught:
        await github.fetch(f"{hub.web}/team/project/issues/1")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "item", [{}, {"number": "../1"}, {"number": -1}, {"number": True}, {"number": 1e9}, 5]
)
async def test_a_list_of_another_shape_is_told(
    hub: FakeGitHub, github: GitHubSource, item: object
) -> None:
    hub.trouble.append(Reply(200, [item]))
    with pytest.raises(SourceError, match="it should be "):
        await github.waiting()


@pytest.mark.parametrize("branch", ["--upload-pack=x", "a..b", "", "a b", "x.lock", "a\nb"])
async def test_a_branch_that_git_could_not_be_given_is_refused(
    hub: FakeGitHub, github: GitHubSource, branch: str
) -> None:
    hub.add_pull(6, "a change", head=branch, base="main")
    with pytest.raises(KakoiError, match="not a branch name"):
        await github.fetch(f"{hub.web}/team/project/pull/6")


async def test_a_title_is_no_book(hub: FakeGitHub, github: GitHubSource) -> None:
    hub.add_issue(5, "x" * 1_000_000)
    task = await github.fetch(f"{hub.web}/team/project/issues/5")
    assert len(task.title) == 255


async def test_a_task_that_is_not_there_says_so(github: GitHubSource, hub: FakeGitHub) -> None:
    with pytest.raises(SourceError, match=r"answered 404 .*: Not Found") as caught:
        await github.fetch(f"{hub.web}/team/project/issues/404")
    assert "GITHUB_PERSONAL_ACCESS_TOKEN" in caught.value.hint


@pytest.mark.parametrize(
    "key",
    [
        "",
        "https://github.com/team/project/issues/1",
        "{web}.evil.example/team/project/issues/1",
        "{web}@evil.example/team/project/issues/1",
        "{web}/team/project/issues/0",
        "{web}/team/project/issues/1/../../x",
        "{web}/team/../issues/1",
        "{web}/../project/issues/1",
        "{web}/team/project/tree/1",
        "{web}/team/project/issues/" + "9" * 50,
        "file:///etc/passwd",
    ],
)
async def test_an_address_of_somebody_else_belongs_to_no_source(
    hub: FakeGitHub, github: GitHubSource, lab: FakeGitLab, gitlab: GitLabSource, key: str
) -> None:
    getter = TaskGetter([github, gitlab])
    with pytest.raises(ConfigurationError, match="is not the address of a task"):
        getter.source_of(key.format(web=hub.web))
    with pytest.raises(ConfigurationError):
        await github.fetch(key.format(web=hub.web))
    assert hub.seen == lab.seen == []


@pytest.mark.parametrize(
    "address",
    [
        "https://GitHub.com/team/project/issues/1",
        "https://github.com/team/project/issues/1/",
        "https://github.com/team/project/issues/1#issuecomment-5",
        "https://github.com/team/project/issues/1?x=1",
    ],
)
def test_an_address_as_browsers_give_it_is_understood(address: str) -> None:
    assert GitHubSource(RestClient(github_site(), clock=lambda: NOW)).owns(address)


@pytest.mark.parametrize("name", ["", "project", "a/b/c", "../x", "a/..", "a/b#", "a b/c", "a/b\n"])
def test_a_repository_without_owner_and_name_is_refused(name: str) -> None:
    client = RestClient(github_site(), clock=lambda: NOW)
    with pytest.raises(ConfigurationError, match="use owner/name"):
        GitHubSource(client, repositories=[name])


@pytest.mark.parametrize("name", ["", "project", "../x", "a/..", "a/-/b", "a//b", "a/b?", "a/b\n"])
def test_a_project_without_a_group_is_refused(name: str) -> None:
    client = RestClient(gitlab_site(), clock=lambda: NOW)
    with pytest.raises(ConfigurationError, match="use group/project"):
        GitLabSource(client, projects=[name])


# --- What came of it -------------------------------------------------------------------------


@dataclasses.dataclass
class Desk:
    """A source with one task on a tracker, looked at from both sides."""

    source: TaskSource
    task: Task
    tracker: FakeGitHub | FakeGitLab

    def said(self) -> list[str]:
        kept = (
            self.tracker.comments[1]
            if isinstance(self.tracker, FakeGitHub)
            else self.tracker.notes["issues", 1]
        )
        return [str(each["body"]) for each in kept]

    def labels(self) -> list[str]:
        if isinstance(self.tracker, FakeGitHub):
            return self.tracker.labels_of(1)
        return self.tracker.labels_of("issues", 1)

    def item(self) -> dict[str, Any]:
        return (
            self.tracker.issues[1]
            if isinstance(self.tracker, FakeGitHub)
            else self.tracker.items["issues", 1]
        )


@pytest.fixture(params=["github", "gitlab"])
async def desk(
    request: pytest.FixtureRequest,
    hub: FakeGitHub,
    github: GitHubSource,
    lab: FakeGitLab,
    gitlab: GitLabSource,
) -> Desk:
    if request.param == "github":
        hub.add_issue(1, "one", LABEL, "bug", assignees=[{"login": "bot"}])
        return Desk(github, await github.fetch(f"{hub.web}/team/project/issues/1"), hub)
    lab.add("issues", 1, "one", LABEL, "bug", assignees=[{"username": "bot"}])
    return Desk(gitlab, await gitlab.fetch(f"{lab.web}/{PROJECT}/-/issues/1"), lab)


async def test_a_comment_is_made_and_changed_and_holds_no_secret(desk: Desk) -> None:
    made = await desk.source.comment(desk.task, f"I use {TOKEN} and ghp_{'a1' * 18}.")
    assert desk.said() == ["I use [redacted] and [redacted]."]
    await desk.source.update_comment(desk.task, made, "Done.")
    assert desk.said() == ["Done."]
    with pytest.raises(SourceError, match="404"):
        await desk.source.update_comment(desk.task, "999999", "x")


async def test_a_comment_that_is_too_long_is_shortened(desk: Desk) -> None:
    await desk.source.comment(desk.task, "x" * 2_000_000)
    assert desk.said()[0].endswith("(shortened)")
    assert len(desk.said()[0]) <= (65_000 if isinstance(desk.tracker, FakeGitHub) else 900_000)


async def test_labels_show_how_far_a_task_is(desk: Desk) -> None:
    await set_stage(desk.source, desk.task, "processing")
    assert sorted(desk.labels()) == ["bug", "coding agent processing"]
    await set_stage(desk.source, desk.task, "done")
    await set_stage(desk.source, desk.task, "done")
    assert sorted(desk.labels()) == ["bug", "coding agent done"]
    found = await desk.source.fetch(desk.task.key)
    assert not is_due(found, desk.source.labels)
    assert is_due(desk.task, desk.source.labels)


async def test_a_label_that_is_gone_already_is_no_error(desk: Desk) -> None:
    await desk.source.change_labels(desk.task, [], ["never there"])
    await desk.source.change_labels(desk.task, [], [])
    assert sorted(desk.labels()) == ["bug", LABEL]


async def test_a_change_is_proposed_once(desk: Desk) -> None:
    change = TaskChange(branch="kakoi/1", title="One\nline", body=f"text {TOKEN}")
    address = await desk.source.propose(desk.task, change)
    assert desk.source.owns(address)
    assert await desk.source.propose(desk.task, change) == address
    request = next(seen for seen in desk.tracker.seen if seen.method == "POST")
    assert request.body["title"] == "One line"
    assert TOKEN not in str(request.body)
    target = request.body.get("base") or request.body.get("target_branch")
    assert target == ("main" if isinstance(desk.tracker, FakeGitHub) else "trunk")


async def test_a_change_that_is_refused_for_another_reason_is_an_error(desk: Desk) -> None:
    status = 422 if isinstance(desk.tracker, FakeGitHub) else 409
    task = dataclasses.replace(desk.task, target_branch="main")
    desk.tracker.trouble.append(Reply(status, {"message": "No commits between main and x"}))
    with pytest.raises(SourceError, match="No commits between main and x"):
        await desk.source.propose(task, TaskChange(branch="x", title="t", body=""))


async def test_a_task_that_is_assigned_to_nobody_any_more_is_not_wanted(desk: Desk) -> None:
    assert await is_wanted(desk.source, desk.task)
    desk.item()["assignees"] = []
    assert not await is_wanted(desk.source, desk.task)


async def test_a_closed_task_is_not_wanted(desk: Desk) -> None:
    desk.item()["state"] = "closed"
    assert not await is_wanted(desk.source, desk.task)


@pytest.mark.parametrize(
    ("before", "after", "assignee", "wanted"),
    [
        ((), (), "", True),
        ((), ("ada",), "bot", True),
        (("bot",), ("Bot",), "", True),
        (("bot", "ada"), ("ada",), "", True),
        (("bot", "ada"), ("ada",), "bot", False),
        (("bot",), ("eve",), "", False),
        (("bot",), (), "", False),
    ],
)
def test_who_was_assigned_decides(
    before: tuple[str, ...], after: tuple[str, ...], assignee: str, wanted: bool
) -> None:
    task = Task(uuid="x", repository="/x", assignees=before)
    found = TaskStatus(state="open", assignees=after, labels=())
    assert is_still_assigned(task, found, assignee) is wanted


# --- Labels ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", " ", "a,b", "x" * 51, " a", "coding agent done", "Coding Agent Done"]
)
def test_a_label_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="label"):
        StageLabels(waiting=name)


def test_a_task_that_somebody_wants_again_waits() -> None:
    labels = StageLabels()
    assert labels.stage_of(("coding agent done", "Coding Agent")) == "waiting"
    assert labels.stage_of(("coding agent done",)) == "done"
    assert labels.stage_of(("bug",)) is None
    assert labels.change(("Coding Agent", "bug"), "processing") == (
        ["coding agent processing"],
        ["Coding Agent"],
    )
