"""An open sandbox: its workspace, its backend, the gate to it, and how all of that is closed."""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kakoi._support.files import remove_tree
from kakoi.backends.adapter import SandboxAdapter
from kakoi.backends.locked_folders import LockedFolder, sweep
from kakoi.backends.select import SandboxFactory, engine_environment, select_backend
from kakoi.backends.settings import CONFINED_HOST, SandboxConfig
from kakoi.backends.workspace import is_within
from kakoi.channel.api import Channel, Command
from kakoi.errors import UnsupportedError
from kakoi.gate import Gate, Opener, RecordLabels
from kakoi.gate.connections import DedicatedSandboxFor
from kakoi.sandbox.git_sandbox import GitSandboxes, lends_git
from kakoi.sandbox.git_settings import git_settings_file
from kakoi.sandbox.options import SandboxOptions
from kakoi.settings.audit_log import audit_log, user_name

if TYPE_CHECKING:
    from kakoi.audit import AuditLog
    from kakoi.backends.adapter import CanFork
    from kakoi.backends.outlet import Outlet
    from kakoi.network.proxy import Proxy

_log = logging.getLogger(__name__)
_PREFIX: Final = "kakoi-workspace-"


class PrivateWorkspace:
    """A directory for one sandbox, removed with it.

    The directories of killed processes are removed when the next one is made.
    """

    def __init__(self) -> None:
        sweep(_PREFIX, remove_tree)
        self._folder = LockedFolder(_PREFIX)
        # The folder itself stays ours: a command can change the modes of its workspace.
        self.path = Path(os.path.realpath(self._folder.path)) / "workspace"
        self.path.mkdir(mode=0o700)
        if os.geteuid() == 0:
            self.path.parent.chmod(0o711)  # Commands are not root, and have to get through.

    def remove(self) -> None:
        """Remove it, whatever modes commands have left in it."""
        try:
            remove_tree(self.path.parent)
        except OSError as error:
            _log.warning("%s could not be removed: %s", self.path.parent, error)
        self._folder.release()


class OpenSandbox:
    """A sandbox that is open.

    `workspace`: where commands start, as they see it.
    `outlives`: it keeps running without this process until its lifetime ends, and `Sandbox.attach`
    finds it by its id.
    """

    def __init__(
        self,
        options: SandboxOptions,
        adapter: SandboxAdapter,
        gate: Gate,
        *,
        workspace: str,
        records: "SharedRecords",
        outlives: bool,
    ) -> None:
        self.options = options
        self.adapter = adapter
        self.gate = gate
        self.workspace = workspace
        self.records = records
        self.outlives = outlives
        self._closing = contextlib.AsyncExitStack()
        self._own_id = f"{adapter.name}-{os.urandom(6).hex()}"
        self._is_connected = False
        self.paused = False

    @property
    def id(self) -> str:
        """Names the sandbox."""
        return getattr(self.adapter, "container", None) or self._own_id

    async def connect(self) -> None:
        """Make sure that the sandbox works; its first command would otherwise find out."""
        if self._is_connected:
            return
        with contextlib.suppress(UnsupportedError):  # It runs commands, and can do nothing else.
            await self.adapter.channel()
        if self.options.backend is not None and not self.options.workspace:
            self.workspace = await _first_directory(self.adapter)
        self.gate.enter(self.adapter, cwd=self.workspace)
        self._is_connected = True

    def own(self, stack: contextlib.AsyncExitStack) -> "OpenSandbox":
        """Let commands in, and close what is on the stack at the end."""
        self._closing.push_async_callback(self.records.release)
        if self.options.keeps_backend:
            self._closing.push_async_callback(stack.pop_all().aclose)
            self._closing.push_async_callback(self.gate.close)
        else:  # Jobs end with the backend, and that is recorded.
            self._closing.push_async_callback(self.gate.close, ended=True)
            self._closing.push_async_callback(stack.pop_all().aclose)
        self.gate.enter(self.adapter, cwd=self.workspace)
        return self

    async def channel(self) -> Channel:
        """Return the channel into the sandbox."""
        return await self.adapter.channel()

    async def detach(self) -> None:
        """Release a sandbox that keeps running without this process."""
        from kakoi.backends.docker.adapter import DockerAdapter

        self._closing.pop_all()
        await self.gate.close()
        if isinstance(self.adapter, DockerAdapter):
            await self.adapter.close()

    async def leave(self) -> None:
        """Release the sandbox if it keeps running without this process; otherwise end it."""
        await (self.detach() if self.outlives else self.close())

    async def close(self) -> None:
        """End the sandbox with everything in it, and remove what belongs to it."""
        await self._closing.aclose()


async def open_sandbox(records: "SharedRecords", gate: Gate, *, connect: bool) -> OpenSandbox:
    """Open a sandbox behind the gate. What was opened is closed again if something fails.

    `connect`: find out whether the backend works. Without it, the first command does.
    """
    options = records.options
    async with contextlib.AsyncExitStack() as stack:
        private: list[PrivateWorkspace] = []
        adapter = options.backend
        if adapter is None:
            factory = _factory(options, records.outlet, _private(private, stack))
            adapter = await select_backend(factory, options.config, options.unfit)
        if not options.keeps_backend:
            stack.push_async_callback(adapter.cleanup)
        is_detachable = options.backend is None and adapter.name in ("docker", "podman")
        opened = OpenSandbox(
            options,
            adapter,
            gate,
            workspace=str(private[0].path) if private else options.inside,
            records=records,
            outlives=is_detachable and options.config.outlives_us,
        )
        if connect:
            await opened.connect()
        return opened.own(stack)


def _factory(
    options: SandboxOptions, outlet: "Outlet | None", private: Callable[[], str] | None = None
) -> SandboxFactory:
    kernel_allowlist = options.config.kernel_allowlist
    return SandboxFactory(
        options.workspace or None,
        environ=os.environ,
        clock=time.time,
        programs=options.policy.runnable_programs() if kernel_allowlist else None,
        outlet=outlet,
        private=private,
        # A private workspace is not the user's own.
        git_settings=git_settings_file(os.environ) if options.workspace else b"",
    )


async def attach_sandbox(records: "SharedRecords", gate: Gate, id: str) -> OpenSandbox:
    """Attach to a sandbox that outlives the process which opened it."""
    from kakoi.backends.docker.adapter import DockerAdapter

    options = records.options
    name = options.config.type
    backend = CONFINED_HOST if options.config.host.confine else name
    if name not in ("docker", "podman"):
        raise UnsupportedError(
            f"a sandbox of {backend} ends with its process, so there is nothing to attach to",
            hint="docker and podman sandboxes with a `lifetime` can be attached to",
        )
    async with contextlib.AsyncExitStack() as stack:
        adapter = await DockerAdapter.attach(
            id,
            options.config.docker,
            program="podman" if name == "podman" else "docker",
            engine_env=engine_environment(os.environ),
            outlet_for=_refuse_proxied,
        )
        stack.push_async_callback(adapter.cleanup)
        opened = OpenSandbox(
            options, adapter, gate, workspace=adapter.inside, records=records, outlives=True
        )
        await opened.connect()
        return opened.own(stack)


async def fork_sandbox(opened: OpenSandbox, adapter: "CanFork", count: int) -> list[OpenSandbox]:
    """Return `count` sandboxes that begin where `opened` is."""
    records = opened.records
    found = []
    for each in await adapter.fork(count):
        stack = contextlib.AsyncExitStack()
        stack.push_async_callback(each.cleanup)
        fork = OpenSandbox(
            opened.options,
            each,
            records.share().gate(each),
            workspace=opened.workspace,
            records=records,
            outlives=opened.outlives,
        )
        found.append(fork.own(stack))
    return found


def _refuse_proxied(_note: str) -> "Outlet":
    raise UnsupportedError(
        "the network of this sandbox is served by the process that opened it",
        hint="only sandboxes with network `none` or `host` can be attached to",
    )


async def _first_directory(adapter: SandboxAdapter) -> str:
    """Return where the commands of a caller's backend start."""
    result = await adapter.run(Command(command=["pwd", "-P"], timeout_s=60))
    path = result.stdout.removesuffix("\n")
    return path if path.startswith("/") else "/"


class SharedRecords:
    """The audit log and the proxy of a sandbox and its forks. The last of them closes the proxy.

    `outlet`: leads to the proxy, if the sandbox needs one.
    """

    def __init__(self, options: SandboxOptions) -> None:
        self.options = options
        self.outlet: Outlet | None = None
        self._audit = options.audit or audit_log(options.audit_file)
        self._labels = RecordLabels(**{"user": user_name(), **options.record_labels})
        self._proxy: Proxy | None = None
        self._users = 1
        if options.workspace and options.backend is None:
            _warn_if_in_workspace(self._audit, options.workspace)
        if options.config.proxied and options.backend is None:
            self._proxy, self.outlet = _open_proxy(options, self._audit, self._labels)

    def gate(self, sandbox: SandboxAdapter | Opener) -> Gate:
        """Return a gate to a sandbox; the only place where one is made."""
        options = self.options
        return Gate(
            options.policy,
            sandbox,
            cwd=options.inside,
            approver=options.approve,
            audit=self._audit,
            labels=self._labels,
            concurrency=options.concurrency,
            ask_always=options.ask_always,
            validators=options.validators,
            proxy=self._proxy or options.proxy,
            confined=options.confined,
            dedicated=self._git_sandboxes(),
            approvals=options.approvals,
        )

    def _git_sandboxes(self) -> DedicatedSandboxFor | None:
        options = self.options
        if options.backend is not None or not lends_git(options.config, options.workspace):
            return None
        from kakoi.gate.connections import connection_recorder

        async def open_backend(config: SandboxConfig, outlet: "Outlet") -> SandboxAdapter:
            return await select_backend(_factory(options, outlet), config, options.unfit)

        return GitSandboxes(
            options.config,
            options.workspace,
            open_backend=open_backend,
            record=connection_recorder(self._audit, self._labels, options.workspace),
            environ=os.environ,
        ).dedicated_sandbox

    def share(self) -> "SharedRecords":
        """Count one more sandbox that uses them, and will call `release`."""
        self._users += 1
        return self

    async def release(self) -> None:
        """Count one sandbox less that uses them."""
        self._users -= 1
        if not self._users and self._proxy is not None:
            await self._proxy.close()


def _warn_if_in_workspace(audit: "AuditLog", workspace: str) -> None:
    """Warn that commands can change the audit log, if it is in their workspace."""
    if is_within(os.path.realpath(audit.path), workspace):
        text = "the audit log %s is inside the workspace, so commands can change it: move it"
        _log.warning(text, audit.path)


def _open_proxy(
    options: SandboxOptions, audit: "AuditLog", labels: RecordLabels
) -> tuple["Proxy", "Outlet"]:
    """Return the proxy that the sandbox's network needs, and the outlet that leads to it."""
    # Imported here because few sandboxes have a network.
    from kakoi.backends.outlet import Outlet, proxy_variables
    from kakoi.gate.connections import connection_recorder
    from kakoi.network.domains import EVERYTHING_PUBLIC, parse_domains
    from kakoi.network.header_credentials import parse_credentials
    from kakoi.network.proxy import Proxy

    config = options.config
    listed = parse_domains(config.allowed_domains)
    domains = EVERYTHING_PUBLIC if config.proxied == "open" else listed
    proxy = Proxy(
        domains,
        record=connection_recorder(audit, labels, options.workspace),
        credentials=parse_credentials(config.credentials, os.environ),
    )
    return proxy, Outlet(proxy.serve, proxy_variables(), proxy.serve_names)


def _private(made: list[PrivateWorkspace], stack: contextlib.AsyncExitStack) -> Callable[[], str]:
    """Return a function that makes the private workspace when a backend needs one."""

    def make() -> str:
        if not made:
            made.append(PrivateWorkspace())
            stack.callback(made[0].remove)
        return str(made[0].path)

    return make
