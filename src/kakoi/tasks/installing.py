"""Install what a project depends on, in its environment. A failure is told, and the task goes on.

Where only listed packages may be installed, each file is held against the lists first, and one that
asks for anything else is not installed at all; nor is one that nobody here can read, such as a lock
file. The package manager then runs no code of the project or of packages: npm no scripts, and pip
takes wheels only. pip is given what was checked, never the project's own file.
"""

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from kakoi.packages.allowlist import AllowlistConfig
from kakoi.packages.logs import plain
from kakoi.packages.manifests import check_manifest
from kakoi.results import Reason
from kakoi.runner.commands import Command
from kakoi.sandbox.docker import DockerAdapter
from kakoi.tasks.caching import Cache
from kakoi.tasks.checkout import PROJECT
from kakoi.tasks.dependencies import Step, steps_for
from kakoi.tasks.reaching import Reach, way_out
from kakoi.tasks.values import TEMPORARY, Installed

_log = logging.getLogger(__name__)
_INSTALL_S: Final = 600.0
_MAX_MANIFEST_BYTES: Final = 1024 * 1024
_SAID: Final = 2000
_MOST_REFUSED: Final = 5
# Beside a listed package.json, it would say where packages come from.
_NPM_SETTINGS: Final = ".npmrc"
_CHECKED: Final = f"{TEMPORARY}/requirements-checked.txt"
# In /: no folder of the project is found by a name.
_LISTED_COMMANDS: Final = {
    "requirements.txt": "cd / && pip install --isolated --no-input --disable-pip-version-check "
    f"--only-binary :all: -r {_CHECKED}",
    "package.json": "npm install --ignore-scripts --no-audit --no-fund "
    "&& { npm ls --all 2>/dev/null || true; }",
}


async def install_all(
    adapter: DockerAdapter,
    lists: AllowlistConfig | None,
    *,
    task_uuid: str,
    cache: Cache | None = None,
    reach: Reach | None = None,
) -> tuple[Installed, ...]:
    """One step after the other. `lists`: None lets a project ask for whatever it wants.
    `cache`: downloads of earlier times, of which each step gets a copy.
    `reach`: who knows what was refused on the way out.

    SandboxError: the environment itself is lost, and there is no task to go on.
    """
    found = await (await adapter.channel()).list_files(PROJECT)
    files = [each.name for each in found if each.kind in ("file", "link")]
    done = []
    for wanted in steps_for(files):
        step, objection = wanted, ""
        if lists is not None:
            step, objection = await _listed_step(adapter, wanted, files, lists)
        if cache is not None and not objection:
            await cache.give(await adapter.channel(), wanted)
        done.append(
            Installed(step, ok=False, said=objection)
            if objection
            else await _run(adapter, step, reach, tell_all=lists is not None)
        )
        if not done[-1].ok:
            _log.warning("`%s` failed in task %s", step.command, task_uuid)
    return tuple(done)


async def _run(
    adapter: DockerAdapter, step: Step, reach: Reach | None, *, tell_all: bool
) -> Installed:
    """`tell_all`: say also what a step that went well has installed."""
    watch = None if reach is None else reach.proxy.watch()
    if step.before:
        await adapter.run(Command(command=step.before, cwd=PROJECT, timeout_s=_INSTALL_S))
    result = await adapter.run(Command(command=step.command, cwd=PROJECT, timeout_s=_INSTALL_S))
    if result.reason is Reason.SANDBOX_LOST:
        # A script may have ended the runner only. If the container is gone, this says so.
        await (await adapter.channel()).stat_file(PROJECT)
    said = (result.stderr or result.stdout or result.error)[-_SAID:]
    if result.ok:
        return Installed(step, ok=True, said=result.stdout.strip()[-_SAID:] if tell_all else "")
    refused = [] if watch is None else watch.blocked
    told = [f"{each}; {way_out(each)}" for each in refused[:_MOST_REFUSED]]
    return Installed(step, ok=False, said="\n".join((*told, said)) if told else said)


async def _listed_step(
    adapter: DockerAdapter, step: Step, files: Collection[str], lists: AllowlistConfig
) -> tuple[Step, str]:
    """The step as it may be done; or why the lists are against it."""
    if step.file == "package.json" and _NPM_SETTINGS in files:
        why = f"{_NPM_SETTINGS} beside it could change what it means"
        return step, f"{step.file} is not installed: {why}"
    channel = await adapter.channel()
    try:
        data = await channel.read_file(f"{PROJECT}/{step.file}", limit=_MAX_MANIFEST_BYTES)
    except OSError as error:
        return step, f"{step.file} is not installed: it cannot be read ({error.strerror})"
    manifest = check_manifest(step.file, data, lists)
    if manifest.objections:
        entries = "; ".join(f"`{plain(each.entry)}`: {each.reason}" for each in manifest.objections)
        return step, f"{step.file} is not installed, the lists are against it. {entries}"[:_SAID]
    if step.file == "requirements.txt":
        await channel.write_file(_CHECKED, "\n".join((*manifest.lines, "")).encode("ascii"))
    return replace(step, command=_LISTED_COMMANDS[step.file]), ""
