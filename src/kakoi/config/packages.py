"""Settings → what installs packages: where the lists are, what is logged, which policy holds."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from kakoi.config.policies import policy_from
from kakoi.config.recording import now
from kakoi.config.settings import PackagesSection, PolicySettings
from kakoi.packages.allowlist import AllowlistConfig
from kakoi.packages.install import SHIPPED, Installer, PackagePlace
from kakoi.packages.logs import InstallLog
from kakoi.policy.decide import Decision
from kakoi.policy.rules import Policy


def list_folder(settings: PackagesSection) -> Path:
    """Where the lists are."""
    return Path(settings.allowlist) if settings.allowlist else SHIPPED


def installer_policy(settings: PolicySettings, *, roots: Sequence[str]) -> Policy:
    """What the installer itself may run: it has asked the list, so it is not sent to itself."""
    return policy_from(replace(settings, packages="unrestricted"), roots=roots, origin="settings")


def installer_from(
    settings: PackagesSection,
    lists: AllowlistConfig,
    place: PackagePlace,
    *,
    audit_file: Path,
    tell_rejected: Callable[[Decision], Awaitable[None]],
) -> Installer:
    """Installs in `place`; its log is beside the audit log, unless the settings say otherwise.

    `tell_rejected`: puts a refusal into the audit log itself.
    """
    folder = Path(settings.log_dir) if settings.log_dir else audit_file.parent
    return Installer(
        lists,
        place,
        log=InstallLog(folder),
        clock=now,
        tell_rejected=tell_rejected,
    )
