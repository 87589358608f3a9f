"""Settings → the manager of the tasks' environments."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Final

from kakoi.config.credentials import credential_for
from kakoi.config.loading import PROJECT_FILES, with_project
from kakoi.config.opening import limits_from
from kakoi.config.packages import list_folder
from kakoi.config.policies import policy_from
from kakoi.config.recording import audit_file, audit_log, now
from kakoi.config.settings import Settings
from kakoi.config.task_settings import NetworkSection
from kakoi.egress.domains import parse_domains
from kakoi.gate import Approver
from kakoi.homes import cache_folder
from kakoi.packages.allowlist import AllowlistConfig
from kakoi.packages.install import read_lists
from kakoi.sandbox.adapter import Network
from kakoi.sandbox.select import engine_environment
from kakoi.tasks.caching import Cache
from kakoi.tasks.checkout import CloneOptions
from kakoi.tasks.environments import WORKSPACE, EnvironmentOptions, ExecutionEnvironmentManager
from kakoi.tasks.our_git import MAX_FILE_BYTES
from kakoi.tasks.reaching import SETTING

_SSH: Final = ("SSH_AUTH_SOCK",)


def environment_manager(
    settings: Settings, *, approver: Approver | None = None
) -> ExecutionEnvironmentManager:
    """The manager that the settings describe, with our tokens and our record."""
    return ExecutionEnvironmentManager(
        environment_options(settings),
        clock=now,
        owner=settings.tasks.owner,
        approver=approver,
        engine_env=engine_environment(os.environ),
        credential_for=credential_for,
        ssh_env=ssh_variables(),
        audit=audit_log(audit_file(settings)),
        project_files=PROJECT_FILES,
        read_project=lambda files: environment_options(with_project(settings, files)),
    )


def ssh_variables() -> dict[str, str]:
    """Variables of ours that ssh needs."""
    return {name: os.environ[name] for name in _SSH if name in os.environ}


def environment_options(settings: Settings) -> EnvironmentOptions:
    """What the environments of tasks are like, as the settings say."""
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
            depth=tasks.clone.depth if tasks.clone.shallow else None,
            known_hosts=tasks.clone.known_hosts,
            max_bytes=limits_from(settings).disk_bytes or MAX_FILE_BYTES,
        ),
        install_dependencies=tasks.clone.auto_install_deps,
        lists=_lists(settings),
        cache=package_cache(settings),
        timeout_s=settings.execution.timeout_seconds,
        max_output_bytes=settings.execution.max_output_size,
        stale_after=timedelta(hours=tasks.cleanup.stale_threshold_hours),
        pool_size=tasks.pool_size,
        policy=policy_from(settings.policy, roots=[WORKSPACE], origin="settings"),
    )


def _network(section: NetworkSection) -> Network:
    """A list has effect only where there is access at all (spec A 3.5)."""
    if not section.external_access:
        return "none"
    return "allowlist" if section.whitelist_mode else "open"


def package_cache(settings: Settings) -> Cache:
    """Where downloads are kept that every task gets a copy of."""
    named = settings.packages.cache_dir
    return Cache(Path(named) if named else cache_folder(os.environ) / "packages")


def _lists(settings: Settings) -> AllowlistConfig | None:
    if settings.policy.packages != "allowlist":
        return None
    return read_lists(list_folder(settings.packages))
