"""Sandboxes from settings."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kakoi._support.fields import model_from
from kakoi.backends.adapter import Limits
from kakoi.backends.settings import SandboxConfig
from kakoi.gate import Approver
from kakoi.sandbox.options import SandboxOptions, workspace_path
from kakoi.settings.loader import load_settings
from kakoi.settings.model import Settings
from kakoi.settings.policy import policy_from


def sandbox_from(settings: Settings) -> SandboxConfig:
    """Return the configuration of the sandbox that the settings describe."""
    config = model_from(SandboxConfig, settings.sandbox, origin="sandbox")
    return replace(config, docker=replace(config.docker, limits=limits_from(settings)))


def limits_from(settings: Settings) -> Limits:
    """Return the resource limits of the settings."""
    return model_from(Limits, settings.resources, origin="resources")


def options_from_settings(
    workspace: str | os.PathLike[str],
    *,
    approve: Approver | None = None,
    labels: Mapping[str, str],
) -> SandboxOptions:
    """Return what kakoi's settings say about a sandbox for `workspace`."""
    directory = workspace_path(workspace)
    settings = load_settings(directory).settings
    return SandboxOptions(
        config=sandbox_from(settings),
        policy=policy_from(settings.policy, roots=[directory], origin="settings"),
        workspace=directory,
        approve=approve,
        timeout_s=settings.execution.timeout_seconds,
        max_output_bytes=settings.execution.max_output_size,
        audit_file=Path(settings.audit.file) if settings.audit.file else None,
        labels=labels,
        concurrency=settings.execution.concurrency,
    )
