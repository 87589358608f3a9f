"""Settings → where tasks come from, and where they wait. The libraries are behind extras."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kakoi.config.credentials import server_and_token
from kakoi.config.recording import audit_file, now
from kakoi.config.settings import Settings
from kakoi.errors import ConfigurationError, QueueError
from kakoi.tasks.queue import TaskQueue
from kakoi.tasks.sources.files import FileSource
from kakoi.tasks.sources.labels import Labels
from kakoi.tasks.sources.source import TaskGetter, TaskSource

if TYPE_CHECKING:
    from kakoi.tasks.sources.http import RestClient, Site


def task_getter(settings: Settings, environ: Mapping[str, str] | None = None) -> TaskGetter:
    """All sources that the settings name. An address of any task of theirs can be fetched.

    GITHUB_PERSONAL_ACCESS_TOKEN and GITLAB_PERSONAL_ACCESS_TOKEN go to github.com and gitlab.com,
    or to the servers that GITHUB_HOST and GITLAB_HOST name, and nowhere else.
    """
    given = os.environ if environ is None else environ
    try:
        return TaskGetter(_sources(settings, given))
    except ModuleNotFoundError as error:
        raise _missing("tasks of GitHub and GitLab", "agent", error) from None


def task_queue(settings: Settings) -> TaskQueue:
    """The queue that the settings name; a folder for its file is made."""
    options = settings.tasks.queue
    if options.url:
        try:
            from kakoi.tasks.queue_redis import RedisQueue
        except ModuleNotFoundError as error:
            raise _missing("a queue on Redis", "redis", error) from None
        return RedisQueue(options.url, lease_s=options.lease_seconds)
    from kakoi.tasks.queue_sqlite import SqliteQueue

    folder = audit_file(settings).parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise QueueError(f"cannot make {folder} for the queue: {error.strerror}") from None
    return SqliteQueue(folder / "queue.db", clock=now, lease_s=options.lease_seconds)


def _sources(settings: Settings, environ: Mapping[str, str]) -> list[TaskSource]:
    from kakoi.tasks.sources.github import GitHubSource, github_site
    from kakoi.tasks.sources.gitlab import GitLabSource, gitlab_site

    named = settings.tasks.sources
    labels = Labels(**asdict(named.labels))
    hub = github_site(*server_and_token("github", environ))
    lab = gitlab_site(*server_and_token("gitlab", environ))
    folder = Path(named.folder) if named.folder else None
    return [
        GitHubSource(
            _client(hub, environ),
            repositories=named.github,
            labels=labels,
            assignee=named.assignee,
        ),
        GitLabSource(
            _client(lab, environ), projects=named.gitlab, labels=labels, assignee=named.assignee
        ),
        FileSource(folder, clock=now, labels=labels, assignee=named.assignee),
    ]


def _client(site: "Site", environ: Mapping[str, str]) -> "RestClient":
    from kakoi.tasks.sources.http import RestClient

    return RestClient(site, clock=now, proxy=proxy_for(site.root, environ))


def proxy_for(address: str, environ: Mapping[str, str]) -> str | None:
    """The proxy on the way to an address: https_proxy or http_proxy, else all_proxy.

    no_proxy names hosts that are reached without one: with their domains, or `*` for all.
    """
    parts = urlsplit(address)
    named = {name.lower(): value for name, value in environ.items() if value}
    host = parts.hostname or ""
    for each in named.get("no_proxy", "").lower().split(","):
        name = each.strip().partition(":")[0].lstrip(".")
        if name == "*" or (name and f".{host}".endswith(f".{name}")):
            return None
    return named.get(f"{parts.scheme}_proxy") or named.get("all_proxy")


def _missing(what: str, extra: str, error: ModuleNotFoundError) -> ConfigurationError:
    return ConfigurationError(
        f"for {what} the package {error.name} is needed, which is not installed",
        hint=f"pip install 'kakoi[{extra}]'",
    )
