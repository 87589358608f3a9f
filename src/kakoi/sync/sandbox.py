"""Sandbox with blocking calls, and how it is closed at exit."""

import asyncio
import inspect
import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

from kakoi._support.asyncio import background
from kakoi._support.keywords import naming_nearest
from kakoi.backends.adapter import SandboxAdapter
from kakoi.overlay import ApplyResult, Change
from kakoi.policy.decide import Decision
from kakoi.policy.rules import Policy
from kakoi.results import ExecutionResult
from kakoi.sandbox import sandbox as asynchronous
from kakoi.sandbox import session as asynchronous_session
from kakoi.sandbox.info import Ability, SandboxInfo
from kakoi.sync.files import Files
from kakoi.sync.job import CommandStream, Job, Session, wait_for

Approve = Callable[[Decision], Any]


class _Held:
    """Closes a sandbox at interpreter exit, or when nobody can reach it any more."""

    def __init__(self, box: asynchronous.Sandbox) -> None:
        self._box = box
        self._process = os.getpid()

    async def close(self) -> None:
        await self._box.close()

    end = close

    def abandon(self) -> None:
        if self._process == os.getpid():
            background().start(self.close())


class Sandbox:
    """A place to run commands that you do not trust: `kakoi.Sandbox` with blocking calls.

    Arguments, results and errors are those of `kakoi.Sandbox`. `approve` can be a plain function.

        with Sandbox("docker", image="python:3.12-slim") as box:
            print(box.run("python -V").stdout)
    """

    @naming_nearest
    def __init__(
        self,
        backend: str | SandboxAdapter = "auto",
        *,
        workspace: str | os.PathLike[str] | None = None,
        image: str | None = None,
        network: Literal["none", "open", "host"] | list[str] | tuple[str, ...] = "none",
        memory: int | str | None = "4GiB",
        cpus: float | None = 2,
        processes: int | None = 512,
        disk: int | str | None = "10GiB",
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        policy: str | Policy = "coding-agent",
        approve: Approve | None = None,
        copy_on_write: bool = False,
        timeout: float = 300.0,
        lifetime: float | None = None,
        audit: str | os.PathLike[str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        box = asynchronous.Sandbox(
            backend,
            workspace=workspace,
            image=image,
            network=network,
            memory=memory,
            cpus=cpus,
            processes=processes,
            disk=disk,
            env=env,
            user=user,
            policy=policy,
            approve=_approver(approve),
            copy_on_write=copy_on_write,
            timeout=timeout,
            lifetime=lifetime,
            audit=audit,
            labels=labels,
        )
        self._wrap(box)

    def _wrap(self, box: asynchronous.Sandbox) -> None:
        self._box = box
        self._files = Files(box.files)
        self._held = _Held(box)
        background().hold(self._held)
        weakref.finalize(self, self._held.abandon).atexit = False

    def __repr__(self) -> str:
        return repr(self._box)

    @property
    def files(self) -> Files:
        """The files in the sandbox."""
        return self._files

    @classmethod
    def _of(cls, box: asynchronous.Sandbox) -> Self:
        wrapped = cls.__new__(cls)
        wrapped._wrap(box)
        return wrapped

    @classmethod
    def from_settings(
        cls,
        workspace: str | os.PathLike[str] = ".",
        *,
        approve: Approve | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Self:
        """Return the sandbox that kakoi's settings describe for a directory."""
        return cls._of(
            asynchronous.Sandbox.from_settings(workspace, approve=_approver(approve), labels=labels)
        )

    @classmethod
    def attach(
        cls,
        id: str,
        *,
        backend: str = "docker",
        policy: str | Policy = "coding-agent",
        approve: Approve | None = None,
        timeout: float = 300.0,
        audit: str | os.PathLike[str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Self:
        """Attach to a running sandbox that has a `lifetime`, on this machine, with its jobs."""
        return cls._of(
            wait_for(
                asynchronous.Sandbox.attach(
                    id,
                    backend=backend,
                    policy=policy,
                    approve=_approver(approve),
                    timeout=timeout,
                    audit=audit,
                    labels=labels,
                )
            )
        )

    def open(self) -> Self:
        """Open the sandbox now. `with` does; otherwise the first call that needs it does."""
        wait_for(self._box.open())
        return self

    def close(self) -> None:
        """End the sandbox with everything that runs in it."""
        if not sys.is_finalizing():  # Then it was closed already.
            wait_for(self._box.close())

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def id(self) -> str:
        """The id of the sandbox, once it is open; also after `detach`."""
        return self._box.id

    @property
    def info(self) -> SandboxInfo:
        """What the open sandbox is."""
        return self._box.info

    def supports(self, ability: Ability) -> bool:
        """Whether this sandbox can do something: "fork", "checkpoint", "pause", "attach", …"""
        return self._box.supports(ability)

    @naming_nearest
    def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        max_output: int | str | None = None,
        check: bool = False,
    ) -> ExecutionResult:
        """Run `command` to its end and return its result."""
        return wait_for(
            self._box.run(
                command,
                cwd=cwd,
                env=env,
                stdin=stdin,
                timeout=timeout,
                idle_timeout=idle_timeout,
                max_output=max_output,
                check=check,
            )
        )

    @naming_nearest
    def stream(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        max_output: int | str | None = None,
    ) -> CommandStream:
        """Run `command` and yield its output as it is written; `result` is there afterwards."""
        return CommandStream(
            self._box.stream(
                command,
                cwd=cwd,
                env=env,
                stdin=stdin,
                timeout=timeout,
                idle_timeout=idle_timeout,
                max_output=max_output,
            )
        )

    @naming_nearest
    def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        max_output: int | str | None = None,
        terminal: tuple[int, int] | None = None,
    ) -> Job:
        """Start `command` in the background and return its job."""
        return Job(
            wait_for(
                self._box.start(
                    command,
                    cwd=cwd,
                    env=env,
                    stdin=stdin,
                    timeout=timeout,
                    idle_timeout=idle_timeout,
                    max_output=max_output,
                    terminal=terminal,
                )
            )
        )

    def jobs(self) -> "list[Job]":
        """Return the jobs of this sandbox, running or ended."""
        return [Job(job) for job in wait_for(self._box.jobs())]

    def job(self, id: str) -> Job:
        """Return the job with this id."""
        return Job(wait_for(self._box.job(id)))

    def check(
        self, command: str | Sequence[str], *, cwd: str | os.PathLike[str] | None = None
    ) -> Decision:
        """Judge `command`. Nothing is asked, recorded or run."""
        return wait_for(self._box.check(command, cwd=cwd))

    def session(self) -> Session:
        """Return a session, which keeps directory and exported variables between commands."""
        return Session(wait_for(_session(self._box)))

    def checkpoint(self, name: str) -> None:
        """Save the workspace under a name."""
        wait_for(self._box.checkpoint(name))

    def rollback(self, name: str) -> None:
        """Return the workspace to a checkpoint."""
        wait_for(self._box.rollback(name))

    def changes(self) -> "list[Change]":
        """Return what commands changed, with `copy_on_write`."""
        return wait_for(self._box.changes())

    def diff(self, paths: Sequence[str] = ()) -> str:
        """Return the changes as a unified diff."""
        return wait_for(self._box.diff(paths))

    def apply(self, paths: Sequence[str] = (), *, force: bool = False) -> ApplyResult:
        """Write the changes to the workspace of this machine."""
        return wait_for(self._box.apply(paths, force=force))

    def discard(self) -> "list[Change]":
        """Drop all changes and checkpoints; returns what was dropped."""
        return wait_for(self._box.discard())

    def fork(self, count: int = 1) -> "list[Self]":
        """Return `count` sandboxes that begin where this one is; each goes its own way."""
        return [self._of(box) for box in wait_for(self._box.fork(count))]

    def pause(self) -> None:
        """Stop everything in the sandbox where it is, until `resume`."""
        wait_for(self._box.pause())

    def resume(self) -> None:
        """Let everything in the sandbox continue."""
        wait_for(self._box.resume())

    def detach(self) -> None:
        """Leave the sandbox running until its `lifetime` ends."""
        wait_for(self._box.detach())


async def _session(box: asynchronous.Sandbox) -> asynchronous_session.Session:
    return box.session()


def _approver(approve: Approve | None) -> Any:
    """Return an approver for the loop: a plain function is called in a thread."""
    if approve is None or not callable(approve):
        return approve

    async def ask(decision: Decision) -> Any:
        answer = await asyncio.to_thread(approve, decision)
        return await answer if inspect.isawaitable(answer) else answer

    return ask
