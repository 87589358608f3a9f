"""Where and how a command of kakoi's runs others: the workspace, its settings, and its options.

Nothing here needs click, so that plain calls do without it.
"""

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kakoi._support.late import dataclass
from kakoi.backends.settings import (
    AUTO,
    CONFINED_HOST,
    NAMES,
    NETWORKS,
    WITH_COPY_ON_WRITE,
    SandboxConfig,
    confines,
)
from kakoi.errors import ConfigurationError
from kakoi.settings.loader import LoadedSettings
from kakoi.settings.model import Settings

if TYPE_CHECKING:
    from kakoi.approvals import Approvals
    from kakoi.gate import Approver
    from kakoi.policy.rules import Policy
    from kakoi.sandbox.options import SandboxOptions

_WITH_IMAGES: Final = ("docker", "podman")
_WITHOUT_KERNEL_ALLOWLIST: Final = ("host", "container-use", "kubernetes")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTarget:
    """Where and how to run: the workspace, its settings, and the options of this call.

    `needs_image`: `--image` was given, so a sandbox without images will not do.
    `allowed_domains`: domains allowed in addition to those of the settings.
    """

    loaded: LoadedSettings
    workspace: str = "."
    needs_image: bool = False
    allowed_domains: tuple[str, ...] = ()

    @property
    def settings(self) -> Settings:
        """The effective settings."""
        return self.loaded.settings

    @property
    def directory(self) -> str:
        """The real path of the workspace; every sandbox mounts it at this path."""
        return os.path.realpath(self.workspace)

    def within(self, cwd: str) -> str:
        """`cwd` resolved against the workspace."""
        return os.path.normpath(os.path.join(self.directory, cwd))

    @property
    def audit_file(self) -> Path | None:
        """The audit log, if one is set."""
        return Path(self.settings.audit.file) if self.settings.audit.file else None

    @property
    def config(self) -> SandboxConfig:
        """The sandbox. ConfigurationError: a named sandbox cannot do what the options ask for."""
        # Not imported at the top: judging a command does not need it, and must start fast.
        from kakoi.backends.select import AUTO_ORDER

        config = self._config
        for name in (config.type, config.fallback):
            if name is not None and name != AUTO and (why := self._objection(name)):
                fitting = [each for each in (*AUTO_ORDER, *NAMES) if not self._objection(each)]
                raise ConfigurationError(
                    f"the sandbox `{name}` {why}",
                    hint=f"omit that option, or use --sandbox {fitting[0]}",
                )
        return config

    @property
    def _config(self) -> SandboxConfig:
        from kakoi.sandbox.from_settings import sandbox_from

        config = sandbox_from(self.settings)
        if not self.allowed_domains:
            return config
        return replace(config, allowed_domains=(*config.allowed_domains, *self.allowed_domains))

    @property
    def unfit(self) -> list[str]:
        """The sandboxes that `auto` must not choose."""
        return [name for name in (*NAMES, CONFINED_HOST) if self._objection(name)]

    def sandbox_options(self, policy: "Policy", *, approve: "Approver | None") -> "SandboxOptions":
        """What the sandbox is opened with."""
        from kakoi.sandbox.options import SandboxOptions

        return SandboxOptions(
            config=self.config,
            policy=policy,
            workspace=self.directory,
            approve=approve,
            audit_file=self.audit_file,
            unfit=self.unfit,
            concurrency=self.settings.execution.concurrency,
            approvals=self.approvals,
        )

    @property
    def approvals(self) -> "Approvals":
        """What the user wants remembered for this workspace."""
        from kakoi.settings.policy import approvals_from

        return approvals_from(self.settings, self.directory)

    def policy(self, *, allow: Sequence[str] = (), rooted: bool = True) -> "Policy":
        """The policy; `allow` adds programs.

        `rooted`: writes are allowed in the workspace only, else wherever the command starts.
        """
        from kakoi.settings.policy import policy_from

        settings = self.settings.policy
        if allow:
            settings = replace(settings, additional=(*settings.additional, *allow))
        roots = [self.directory] if rooted else []
        return policy_from(settings, roots=roots, origin="settings")

    @property
    def confined(self) -> bool:
        """Whether the sandbox of the settings confines commands, on a network of its own."""
        section = self.settings.sandbox
        wanted = section.network or section.docker.network
        if self.allowed_domains:
            wanted = "allowlist"
        return confines(section.type, section.fallback, wanted, confine=section.host.confine)

    def _objection(self, name: str) -> str:
        network = self._config.network
        if name == "host" and self.settings.sandbox.host.confine:
            name = CONFINED_HOST
        if self.settings.sandbox.kernel_allowlist and name in _WITHOUT_KERNEL_ALLOWLIST:
            unless = " unless it is confined (--confine)" if name == "host" else ""
            return f"cannot enforce the list of programs (kernel_allowlist){unless}"
        # A plug-in checks the network itself.
        if network and name in NETWORKS and network not in NETWORKS[name]:
            return f"does not support the network `{network}`, only {', '.join(NETWORKS[name])}"
        if self.needs_image and name not in _WITH_IMAGES:
            own = "takes its image from sandbox.kubernetes.image, not from --image"
            return own if name == "kubernetes" else "does not support images"
        if self.settings.sandbox.copy_on_write and name not in WITH_COPY_ON_WRITE:
            return "does not support a copy-on-write workspace"
        return ""


def existing_directory(path: str) -> str:
    """The real path of a directory. ConfigurationError: it does not exist."""
    try:
        found = os.path.realpath(path, strict=True)
        if not os.path.isdir(found):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(
            f"the workspace is {path!r}: {why}",
            hint="change to an existing directory, or name one: --workspace DIR",
        ) from None
    return found
