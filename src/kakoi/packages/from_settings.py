"""The package installer from settings: its lists, log and policy."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from kakoi.packages.allowlist import AllowlistConfig
from kakoi.packages.installer import SHIPPED, Installer, InstallLog, InstallTarget
from kakoi.policy.decide import Decision
from kakoi.policy.rules import Policy
from kakoi.settings.audit_log import now
from kakoi.settings.model import PackagesSection, PolicySettings
from kakoi.settings.policy import policy_from


def list_folder(settings: PackagesSection) -> Path:
    """Return the folder of the lists."""
    return Path(settings.allowlist) if settings.allowlist else SHIPPED


def installer_policy(settings: PolicySettings, *, roots: Sequence[str]) -> Policy:
    """Return the policy for the installer itself, which has already checked the lists."""
    return policy_from(replace(settings, packages="unrestricted"), roots=roots, origin="settings")


def installer_from(
    settings: PackagesSection,
    lists: AllowlistConfig,
    target: InstallTarget,
    *,
    audit_file: Path,
    report_rejected: Callable[[Decision], Awaitable[None]],
) -> Installer:
    """Return an installer for `target`; its log is beside the audit log unless `log_dir` is set.

    `report_rejected`: writes a refusal to the audit log itself.
    """
    folder = Path(settings.log_dir) if settings.log_dir else audit_file.parent
    return Installer(
        lists,
        target,
        log=InstallLog(folder),
        clock=now,
        report_rejected=report_rejected,
    )
