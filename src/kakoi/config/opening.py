"""Settings → the sandbox, and the gate to it with its record."""

import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from kakoi.config.recording import audit_log, user_name
from kakoi.config.settings import KubernetesSection, Settings
from kakoi.errors import EnvironmentUnavailableError, LimitError, SandboxError
from kakoi.gate import Approver, Gate, Labels
from kakoi.policy.rules import Policy
from kakoi.sandbox.adapter import Limits, Network, SandboxAdapter
from kakoi.sandbox.docker_cli import DockerSettings
from kakoi.sandbox.kubernetes_pod import KubernetesSettings
from kakoi.sandbox.select import AUTO_ORDER, SandboxFactory
from kakoi.sandbox.settings import AUTO, ContainerUseSettings, HostSettings, SandboxConfig
from kakoi.sandbox.workspace import within

if TYPE_CHECKING:
    from kakoi.audit import AuditLog
    from kakoi.egress.proxy import Proxy
    from kakoi.sandbox.outlet import Outlet
_log = logging.getLogger(__name__)
# What `auto` must not fall back to where a limit was asked for: only an engine keeps it for sure.
_WITHOUT_LIMITS = tuple(name for name in AUTO_ORDER if name != "docker")


def sandbox_from(settings: Settings) -> SandboxConfig:
    """The sandbox that the settings describe."""
    section = settings.sandbox
    docker = DockerSettings(
        image=section.docker.image,
        network=_network(section.docker.network),
        timeout_s=section.docker.timeout,
        limits=limits_from(settings),
    )
    return SandboxConfig(
        type=section.type,
        fallback=section.fallback or None,
        network=_network(section.network),
        allowed_domains=section.allowed_domains,
        credentials=section.credentials,
        copy_on_write=section.copy_on_write,
        overlays=section.overlays,
        docker=docker,
        container_use=ContainerUseSettings(
            image=section.container_use.image, env_id=section.container_use.env_id
        ),
        kubernetes=_pods(section.kubernetes),
        kernel_allowlist=section.kernel_allowlist,
        host=HostSettings(
            timeout_s=section.host.timeout,
            warn_on_start=section.host.warn_on_start,
            confine=section.host.confine,
        ),
    )


def _pods(section: KubernetesSection) -> KubernetesSettings:
    return KubernetesSettings(
        context=section.context,
        namespace=section.namespace,
        image=section.image,
        network=_network(section.network),
        runtime_class=section.runtime_class,
        timeout_s=section.timeout,
        start_timeout_s=section.start_timeout,
        max_age_s=section.max_age,
        user=section.user,
    )


def limits_from(settings: Settings) -> Limits:
    """What a sandbox may use, as the settings say."""
    resources = settings.resources
    return Limits(
        memory_bytes=resources.memory_limit,
        cpus=resources.cpu_limit,
        processes=resources.processes,
        open_files=resources.open_files,
        file_bytes=resources.file_size_limit,
        disk_bytes=resources.disk_limit,
    )


def _network(name: str) -> Network | None:
    names: tuple[Network, ...] = get_args(Network)
    return next((each for each in names if each == name), None)


@contextlib.asynccontextmanager
async def open_gate(
    policy: Policy,
    sandbox: SandboxConfig,
    *,
    workspace: str,
    unfit: Sequence[str] = (),
    approver: Approver | None = None,
    audit_file: Path | None = None,
    ask_always: bool = False,
    validators: Sequence[Callable[[str], object]] = (),
    task: str = "",
) -> AsyncIterator[Gate]:
    """The one road into a new sandbox for `workspace`, with its record; all taken away at the end.

    `workspace` is a path without links: it is the same inside, and where commands start.
    The sandbox is made for the first command that may run. `auto` does not take an `unfit` one.
    """
    audit = audit_log(audit_file)
    _warn_if_in_reach(audit, workspace)
    labels = Labels(user=user_name(), task=task)
    proxy, outlet = _way_out(sandbox, audit, labels, workspace) if sandbox.proxied else (None, None)
    factory = SandboxFactory(
        workspace,
        environ=os.environ,
        clock=time.time,
        programs=policy.runnable_programs() if sandbox.kernel_allowlist else None,
        outlet=outlet,
    )
    gate = Gate(
        policy,
        lambda: _choose(factory, sandbox, unfit),
        cwd=workspace,
        approver=approver,
        audit=audit,
        labels=labels,
        ask_always=ask_always,
        validators=validators,
        proxy=proxy,
    )
    async with contextlib.AsyncExitStack() as closing:  # Each of them, whatever the others do.
        if proxy is not None:
            closing.push_async_callback(proxy.close)
        closing.push_async_callback(_clean_up, gate)
        closing.push_async_callback(gate.close)
        yield gate


def _warn_if_in_reach(audit: "AuditLog", workspace: str) -> None:
    if within(os.path.realpath(audit.path), workspace):
        why = "the audit log %s is in the workspace, so commands can change it: keep it elsewhere"
        _log.warning(why, audit.path)


async def _clean_up(gate: Gate) -> None:
    if gate.sandbox is not None:
        await gate.sandbox.cleanup()


def _way_out(
    sandbox: SandboxConfig, audit: "AuditLog", labels: Labels, workspace: str
) -> tuple["Proxy", "Outlet"]:
    """The proxy that the network of a sandbox needs, and how the sandbox comes to it."""
    # Few sandboxes have a network.
    from kakoi.egress.credentials import parse_credentials
    from kakoi.egress.domains import EVERYTHING_PUBLIC, parse_domains
    from kakoi.egress.proxy import Proxy
    from kakoi.egress.variables import proxy_variables
    from kakoi.gate.reaching import connection_recorder
    from kakoi.sandbox.outlet import Outlet

    listed = parse_domains(sandbox.allowed_domains)
    domains = EVERYTHING_PUBLIC if sandbox.proxied == "open" else listed
    proxy = Proxy(
        domains,
        record=connection_recorder(audit, labels, workspace),
        credentials=parse_credentials(sandbox.credentials, os.environ),
    )
    return proxy, Outlet(proxy.serve, proxy_variables())


async def _choose(
    factory: SandboxFactory, config: SandboxConfig, unfit: Sequence[str]
) -> SandboxAdapter:
    if config.type != AUTO and config.fallback is None:
        # Not tried first: there is no other, and the command finds out as well.
        _log.info("the sandbox is `%s`, which was asked for", config.type)
        return factory.make(config.type, config)
    if unfit:
        _log.info("not what was asked for: %s", ", ".join(f"`{name}`" for name in unfit))
    if config.type == AUTO and AUTO_ORDER[0] not in unfit:
        # Opened, and not first tried and then opened: a short command takes no longer than that.
        first = factory.make(AUTO_ORDER[0], config)
        try:
            await first.channel()
        except LimitError as error:
            # It works, but would not hold what was asked for. Perhaps an engine does.
            await first.cleanup()
            try:
                return await factory.create(config, unfit=(*unfit, *_WITHOUT_LIMITS))
            except EnvironmentUnavailableError:
                raise error from None
        except SandboxError as error:
            _log.info("the sandbox `%s` cannot be used: %s", first.name, error)
            await first.cleanup()
        except BaseException:
            await first.cleanup()
            raise
        else:
            others = ", ".join(f"`{name}`" for name in AUTO_ORDER[1:])
            _log.info("the sandbox is `%s`, the first choice; not tried: %s", first.name, others)
            return first
    found = await factory.create(config, unfit=unfit)
    _log.info("the sandbox is `%s`, the first that works", found.name)
    return found
