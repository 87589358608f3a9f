"""Environments, task sources and queues, created from the settings."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from kakoi._support.user_folders import cache_folder
from kakoi.backends.adapter import Network
from kakoi.backends.select import engine_environment
from kakoi.errors import ConfigurationError, QueueError
from kakoi.gate import Approver
from kakoi.network.domains import parse_domains
from kakoi.network.git_credentials import credential_for, server_and_token
from kakoi.packages.allowlist import AllowlistConfig
from kakoi.packages.from_settings import installer_policy, list_folder
from kakoi.packages.installer import read_lists
from kakoi.sandbox.from_settings import limits_from
from kakoi.settings.audit_log import audit_file, audit_log, now
from kakoi.settings.files import MISNAMED, PROJECT_FILES
from kakoi.settings.loader import load_settings, with_project
from kakoi.settings.model import Settings
from kakoi.settings.policy import policy_from
from kakoi.settings.tasks import NetworkSection
from kakoi.tasks.checkout import WORKSPACE, CloneOptions
from kakoi.tasks.dependencies import PackageCache
from kakoi.tasks.environments import EnvironmentOptions, ExecutionEnvironmentManager
from kakoi.tasks.host_git import MOST_FETCHED_BYTES
from kakoi.tasks.network import SETTING
from kakoi.tasks.queue.api import TaskQueue
from kakoi.tasks.sources.files import FileSource
from kakoi.tasks.sources.source import StageLabels, TaskGetter, TaskSource

if TYPE_CHECKING:
    from kakoi.tasks.sources.http import RestClient, TrackerServer

_SSH: Final = ("SSH_AUTH_SOCK",)


def environment_manager(
    settings: Settings | None = None, *, approver: Approver | None = None
) -> ExecutionEnvironmentManager:
    """The environment manager that the settings describe, with the user's tokens and audit log.

    `settings`: by default, those that hold in the current directory.
    """
    settings = load_settings(".").settings if settings is None else settings
    return ExecutionEnvironmentManager(
        environment_options(settings),
        clock=now,
        owner=settings.tasks.owner,
        approver=approver,
        engine_env=engine_environment(os.environ),
        credential_for=credential_for,
        ssh_env=ssh_variables(),
        audit=audit_log(audit_file(settings)),
        project_files=(*PROJECT_FILES, *MISNAMED),
        read_project=lambda files: environment_options(with_project(settings, files)),
        enabled=settings.tasks.enabled,
    )


def ssh_variables() -> dict[str, str]:
    """The environment variables that ssh needs."""
    return {name: os.environ[name] for name in _SSH if name in os.environ}


def environment_options(settings: Settings) -> EnvironmentOptions:
    """The options of task environments, from the settings."""
    tasks = settings.tasks
    network = _network(tasks.network)
    domains = tasks.network.allowed_domains if network == "allowlist" else ()
    parse_domains(domains, origin=SETTING)
    return EnvironmentOptions(
        image=tasks.base_image,
        dockerfile=tasks.dockerfile,
        network=network,
        allowed_domains=domains,
        limits=limits_from(settings),
        clone=CloneOptions(
            depth=clone_depth(settings),
            known_hosts=tasks.clone.known_hosts,
            max_bytes=limits_from(settings).disk_bytes or MOST_FETCHED_BYTES,
        ),
        install_dependencies=tasks.clone.auto_install_deps,
        lists=_lists(settings),
        cache=package_cache(settings),
        timeout_s=settings.execution.timeout_seconds,
        max_output_bytes=settings.execution.max_output_size,
        stale_after=timedelta(hours=tasks.cleanup.stale_threshold_hours),
        pool_size=tasks.pool_size,
        policy=policy_from(settings.policy, roots=[WORKSPACE], origin="settings"),
        install_policy=installer_policy(settings.policy, roots=[WORKSPACE]),
        is_shared=tasks.mcp_server.is_foreign,
    )


def clone_depth(settings: Settings) -> int | None:
    """How many commits of a project are cloned; None means all."""
    clone = settings.tasks.clone
    return clone.depth if clone.shallow else None


def _network(section: NetworkSection) -> Network:
    """A list of domains has an effect only if there is network access at all."""
    if not section.external_access:
        return "none"
    return "allowlist" if section.whitelist_mode else "open"


def package_cache(settings: Settings) -> PackageCache:
    """The cache of downloads of which every task gets a copy."""
    named = settings.packages.cache_dir
    return PackageCache(Path(named) if named else cache_folder(os.environ) / "packages")


def _lists(settings: Settings) -> AllowlistConfig | None:
    if settings.policy.packages != "allowlist":
        return None
    return read_lists(list_folder(settings.packages))


def task_getter(settings: Settings, environ: Mapping[str, str] | None = None) -> TaskGetter:
    """All task sources that the settings name. Each can fetch any of its tasks by address.

    GITHUB_PERSONAL_ACCESS_TOKEN and GITLAB_PERSONAL_ACCESS_TOKEN go to github.com and gitlab.com,
    or to the servers that GITHUB_HOST and GITLAB_HOST name, and nowhere else.
    """
    variables = os.environ if environ is None else environ
    try:
        return TaskGetter(_sources(settings, variables))
    except ModuleNotFoundError as error:
        raise _missing("tasks from GitHub and GitLab", "agent", error) from None


def task_queue(settings: Settings) -> TaskQueue:
    """The queue that the settings name; the folder for its file is created."""
    options = settings.tasks.queue
    if options.url:
        try:
            from kakoi.tasks.queue.redis import RedisQueue
        except ModuleNotFoundError as error:
            raise _missing("a Redis queue", "redis", error) from None
        return RedisQueue(options.url, lease_s=options.lease_seconds)
    from kakoi.tasks.queue.sqlite import SqliteQueue

    folder = audit_file(settings).parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise QueueError(f"cannot create {folder} for the queue: {error.strerror}") from None
    return SqliteQueue(folder / "queue.db", clock=now, lease_s=options.lease_seconds)


def _sources(settings: Settings, environ: Mapping[str, str]) -> list[TaskSource]:
    from kakoi.tasks.sources.github import GitHubSource, github_site
    from kakoi.tasks.sources.gitlab import GitLabSource, gitlab_site

    named = settings.tasks.sources
    labels = StageLabels(**asdict(named.labels))
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


def _client(site: "TrackerServer", environ: Mapping[str, str]) -> "RestClient":
    from kakoi.tasks.sources.http import RestClient

    return RestClient(site, clock=now, proxy=proxy_for(site.root, environ))


def proxy_for(address: str, environ: Mapping[str, str]) -> str | None:
    """The proxy for an address: https_proxy or http_proxy, else all_proxy.

    no_proxy lists hosts that are reached without one, including their subdomains; `*` means all.
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
        f"cannot use {what}: the package {error.name} is not installed",
        hint=f"pip install 'kakoi[{extra}]'",
    )
