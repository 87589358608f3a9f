"""Sandbox: the one object to open. Commands and files, judged, confined and recorded.

Almost nothing is imported at the top: `from kakoi import Sandbox` costs next to nothing, and what
an open sandbox needs is loaded when one is made.
"""

from kakoi._support.keywords import naming_nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Literal, Self

    from kakoi.backends.adapter import SandboxAdapter
    from kakoi.overlay import ApplyResult, Change
    from kakoi.policy.decide import Decision
    from kakoi.policy.rules import Policy
    from kakoi.results import ExecutionResult
    from kakoi.sandbox.abilities import Copies
    from kakoi.sandbox.files import Files
    from kakoi.sandbox.info import Ability, SandboxInfo
    from kakoi.sandbox.job import CommandStream, Job
    from kakoi.sandbox.lifecycle import SandboxLife
    from kakoi.sandbox.options import SandboxOptions
    from kakoi.sandbox.session import Session


class Sandbox:
    """A place to run commands that you do not trust.

    `backend`: "auto", "bubblewrap", "docker", "podman", "kubernetes", "host" (no confinement) or
        "confined-host"; or a backend of your own.
    `workspace`: a directory of this machine that commands can change, at the same path inside.
        None: a private one that ends with the sandbox. With a backend of your own: where commands
        start, as they see it.
    `image`: of containers and pods.
    `network`: "none", "open" (every public host), "host", or a list of domains.
    `memory`, `cpus`, `processes`, `disk`: limits of the whole sandbox. Sizes are bytes or words
        ("1GiB"); None means unlimited. A limit other than the default must hold, or the sandbox is
        refused; `info.limits` says which hold.
    `env`: variables of every command. They are yours, so they are not judged.
    `user`: who runs commands in containers and pods.
    `policy`: the name of a profile, or a Policy. "open" lets everything run: the sandbox is then
        the only wall. Everything is recorded in any case.
    `approve`: asked about a command or file access that needs approval; returns True to allow it.
        None: it is refused with UserCancelledError.
    `copy_on_write`: commands change a copy of `workspace`, for review (`changes`, `diff`, `apply`,
        `discard`). Closing the sandbox loses no work: changes that are neither applied nor
        discarded are there again in the next such sandbox of that workspace, and in `kakoi copy`.
        To start clean, call `discard` first. One sandbox at a time can use the copy. With docker
        and podman, it needs root on the machine of the engine.
    `timeout`: seconds that a command can run if it names no other; `math.inf` means unlimited.
    `lifetime`: seconds until the sandbox ends by itself, even if this process has been killed. A
        container with a lifetime that is not closed outlives this process until then, and `attach`
        finds it, if its network is "none" or "host".
    `audit`: the audit log; None: the user's own.
    `labels`: any names and texts; "task", "session" and "user" are recorded with every command.

        async with Sandbox("docker", image="python:3.12-slim", memory="1GiB") as box:
            print((await box.run("python -V")).stdout)

    A sandbox that is not closed ends with its process. Many tasks of one event loop can use it at
    the same time. For code without an event loop: `from kakoi.sync import Sandbox`.
    """

    @naming_nearest
    def __init__(
        self,
        backend: "str | SandboxAdapter" = "auto",
        *,
        workspace: "str | os.PathLike[str] | None" = None,
        image: str | None = None,
        network: "Literal['none', 'open', 'host'] | list[str] | tuple[str, ...]" = "none",
        memory: int | str | None = "4GiB",
        cpus: float | None = 2,
        processes: int | None = 512,
        disk: int | str | None = "10GiB",
        env: "Mapping[str, str] | None" = None,
        user: str | None = None,
        policy: "str | Policy" = "coding-agent",
        approve: "Callable[[Decision], Awaitable[bool]] | None" = None,
        copy_on_write: bool = False,
        timeout: float = 300.0,
        lifetime: float | None = None,
        audit: "str | os.PathLike[str] | None" = None,
        labels: "Mapping[str, str] | None" = None,
    ) -> None:
        from kakoi.sandbox.options import options_from_arguments

        options = options_from_arguments(
            backend,
            workspace=workspace,
            image=image,
            network=network,
            memory=memory,
            cpus=cpus,
            processes=processes,
            disk=disk,
            env={} if env is None else env,
            user=user,
            policy=policy,
            approve=approve,
            copy_on_write=copy_on_write,
            timeout=timeout,
            lifetime=lifetime,
            audit=audit,
            labels={} if labels is None else labels,
        )
        self._prepare(options)

    def _prepare(self, options: "SandboxOptions", life: "SandboxLife | None" = None) -> None:
        from kakoi.sandbox.lifecycle import SandboxLife

        self._options = options
        self._life = life or SandboxLife(options)
        self._files: Files | None = None

    @classmethod
    def _from_options(cls, options: "SandboxOptions", life: "SandboxLife | None" = None) -> "Self":
        box = cls.__new__(cls)
        box._prepare(options, life)
        return box

    def __repr__(self) -> str:
        return f"<Sandbox {self._life!r}>"

    @classmethod
    def from_settings(
        cls,
        workspace: "str | os.PathLike[str]" = ".",
        *,
        approve: "Callable[[Decision], Awaitable[bool]] | None" = None,
        labels: "Mapping[str, str] | None" = None,
    ) -> "Self":
        """Return the sandbox that kakoi's settings describe for a directory.

        The settings are the user's file, the project's file in `workspace`, and the environment, as
        for the command line (`kakoi config`).
        """
        from kakoi.sandbox.from_settings import options_from_settings

        options = options_from_settings(workspace, approve=approve, labels=labels or {})
        return cls._from_options(options)

    @property
    def files(self) -> "Files":
        """The files in the sandbox."""
        from kakoi.sandbox.files import Files

        if self._files is None:
            self._files = Files(self._life)
        return self._files

    # --- Opening and closing -----------------------------------------------------------------

    async def open(self) -> "Self":
        """Open the sandbox now, as `async with` does. Otherwise the first call that needs it does.

        A command that the policy refuses opens nothing.
        """
        await self._life.ready()
        return self

    async def close(self) -> None:
        """End the sandbox with everything that runs in it. It cannot be opened again."""
        await self._life.close()

    async def __aenter__(self) -> "Self":
        return await self.open()

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def id(self) -> str:
        """The id of the sandbox, once it is open; also after `detach`."""
        return self._life.id

    @property
    def info(self) -> "SandboxInfo":
        """What the open sandbox is: backend, limits that hold and that do not, network, workspace.

        Raises ConfigurationError while it is not open.
        """
        from kakoi.sandbox.info import info_of

        return info_of(self._life.opened)

    def supports(self, ability: "Ability") -> bool:
        """Whether this sandbox can do something: "fork", "checkpoint", "pause", "attach", …

        Raises ConfigurationError for an unknown word, and while an "auto" sandbox is not open.
        """
        from kakoi.sandbox.info import supports

        return supports(self._options, self._life.opened_or_none, ability)

    # --- Commands ----------------------------------------------------------------------------

    @naming_nearest
    async def run(
        self,
        command: "str | Sequence[str]",
        *,
        cwd: "str | os.PathLike[str] | None" = None,
        env: "Mapping[str, str] | None" = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        max_output: int | str | None = None,
        check: bool = False,
    ) -> "ExecutionResult":
        """Run `command` to its end and return its result.

            result = await box.run("make test", cwd="src", timeout=60)
            print(result.exit_code, result.reason, result.stdout)

        `command`: text for the shell; or a list: a program and its arguments, without a shell.
        `cwd`: relative to the workspace, or absolute. `env`: more variables, not judged.
        `stdin`: its input; None is an empty one. `max_output`: how much of each stream is kept.
        `timeout`, `idle_timeout`: seconds it can run, and be silent; `math.inf` means unlimited.
        `check`: raise if it does not exit with 0 (CommandFailedError; TimeoutError at a limit).

        Raises SecurityError if the policy refuses it, UserCancelledError if it needs an approval
        that it does not get. Every other outcome is a result; `reason` says why it ended.
        """
        from kakoi.sandbox.commands import check_success, prepare

        gate, asked = await prepare(
            self._life,
            command,
            cwd=cwd,
            env=env,
            stdin=stdin,
            timeout=timeout,
            idle_timeout=idle_timeout,
            max_output=max_output,
        )
        result = await gate.run(asked)
        if check:
            check_success(result, asked)
        return result

    @naming_nearest
    def stream(
        self,
        command: "str | Sequence[str]",
        *,
        cwd: "str | os.PathLike[str] | None" = None,
        env: "Mapping[str, str] | None" = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        max_output: int | str | None = None,
    ) -> "CommandStream":
        """Run `command` and yield its output as it is written; `result` is there afterwards.

            async for chunk in box.stream("make test"):
                print(chunk.text, end="")

        Leaving the loop ends the command. Arguments and errors as for `run`.
        """
        from kakoi.sandbox.job import CommandStream

        return CommandStream(
            self._life,
            command,
            cwd=cwd,
            env=env,
            stdin=stdin,
            timeout=timeout,
            idle_timeout=idle_timeout,
            max_output=max_output,
        )

    @naming_nearest
    async def start(
        self,
        command: "str | Sequence[str]",
        *,
        cwd: "str | os.PathLike[str] | None" = None,
        env: "Mapping[str, str] | None" = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        max_output: int | str | None = None,
        terminal: tuple[int, int] | None = None,
    ) -> "Job":
        """Start `command` in the background and return its job.

        `stdin`: all of its input. None leaves it open for `Job.write`.
        `timeout`: unlike for `run`, None means unlimited.
        `terminal`: run it on a terminal of this many rows and columns.

            job = await box.start("python -i", terminal=(24, 80))
            await job.write("1 + 1\\n")
        """
        import math

        from kakoi.sandbox.commands import prepare
        from kakoi.sandbox.job import Job

        gate, asked = await prepare(
            self._life,
            command,
            cwd=cwd,
            env=env,
            stdin=stdin,
            timeout=math.inf if timeout is None else timeout,
            idle_timeout=idle_timeout,
            max_output=max_output,
            terminal=terminal,
            stdin_open=stdin is None,
        )
        await gate.start(asked)
        text = command if isinstance(command, str) else " ".join(command)
        return Job(self._life, asked.id, text, max_output=asked.max_output_bytes)

    async def jobs(self) -> "list[Job]":
        """Return the jobs of this sandbox, running or ended."""
        from kakoi.sandbox.job import job_from

        opened = await self._life.ready()
        return [job_from(self._life, info) for info in await opened.gate.list_jobs()]

    async def job(self, id: str) -> "Job":
        """Return the job with this id, also one that another process started in this sandbox."""
        from kakoi.errors import ConfigurationError

        found = [job for job in await self.jobs() if job.id == id]
        if not found:
            raise ConfigurationError(f"there is no job {str(id)[:80]!r} in this sandbox")
        return found[0]

    async def check(
        self, command: "str | Sequence[str]", *, cwd: "str | os.PathLike[str] | None" = None
    ) -> "Decision":
        """Judge `command`. Nothing is asked, recorded, run or opened.

        if (await box.check("git push")).allowed: ...
        """
        from kakoi.sandbox.commands import judge

        return await judge(self._options, self._life.opened_or_none, command, cwd)

    def session(self) -> "Session":
        """Return a session, which keeps directory and exported variables between commands.

        async with box.session() as s:
            await s.run("cd src")
            await s.run("ls")
        """
        from kakoi.sandbox.session import Session

        return Session(self._life)

    # --- Copies ------------------------------------------------------------------------------

    async def _copies(self) -> "Copies":
        from kakoi.sandbox.abilities import copies

        return await copies(self._life)

    async def checkpoint(self, name: str) -> None:
        """Save the workspace under a name: a private one, or a copy (`copy_on_write`).

        Jobs end, except in a container with a private workspace. With bubblewrap, /tmp starts
        afresh.

            await box.checkpoint("before")
            await box.run("make install")
            await box.rollback("before")
        """
        from kakoi.sandbox.abilities import checkpoints

        await (await checkpoints(self._life)).checkpoint(name)

    async def rollback(self, name: str) -> None:
        """Return the workspace to a checkpoint, which is kept. Jobs end.

        Files elsewhere do not return: with bubblewrap, /tmp starts afresh; in containers, it stays.
        """
        from kakoi.sandbox.abilities import checkpoints

        await (await checkpoints(self._life)).rollback(name)

    async def changes(self) -> "list[Change]":
        """Return what commands changed, with `copy_on_write`."""
        return await (await self._copies()).changes()

    async def diff(self, paths: "Sequence[str]" = ()) -> str:
        """Return the changes as a unified diff: all of them, or those at or below `paths`.

        Binary files are only named.
        """
        from kakoi.sandbox.abilities import change_paths

        found = await (await self._copies()).diff(change_paths(paths))
        lines = b"".join(line for each in found for line in each.lines)
        return lines.decode("utf-8", "replace")

    async def apply(self, paths: "Sequence[str]" = (), *, force: bool = False) -> "ApplyResult":
        """Write the changes to the workspace of this machine: all, or those at `paths`.

        What was changed there meanwhile is refused, unless `force` is set. Jobs end.
        Raises ConfigurationError, and ends nothing, if nothing was changed at one of `paths`.

            print(await box.diff())
            await box.apply(["src"])
        """
        from kakoi.sandbox.abilities import change_paths

        return await (await self._copies()).apply(change_paths(paths), force=force)

    async def discard(self) -> "list[Change]":
        """Drop all changes and checkpoints; returns what was dropped."""
        return await (await self._copies()).discard()

    async def fork(self, count: int = 1) -> "list[Self]":
        """Return `count` sandboxes that begin where this one is; each goes its own way.

        They have the files of this sandbox, not its running commands. Close each of them.

            for fork in await box.fork(8):
                async with fork:
                    await fork.run("make test")
        """
        from kakoi.sandbox.abilities import fork

        forked = await fork(self._life, count)
        return [self._from_options(self._options, life) for life in forked]

    async def pause(self) -> None:
        """Stop everything in the sandbox where it is, until `resume`."""
        from kakoi.sandbox.abilities import pause

        await pause(self._life)

    async def resume(self) -> None:
        """Let everything in the sandbox continue."""
        from kakoi.sandbox.abilities import resume

        await resume(self._life)

    # --- Other processes ---------------------------------------------------------------------

    async def detach(self) -> None:
        """Leave the sandbox running until its `lifetime` ends; `attach` finds it by its `id`."""
        await self._life.detach()

    @classmethod
    async def attach(
        cls,
        id: str,
        *,
        backend: str = "docker",
        policy: "str | Policy" = "coding-agent",
        approve: "Callable[[Decision], Awaitable[bool]] | None" = None,
        timeout: float = 300.0,
        audit: "str | os.PathLike[str] | None" = None,
        labels: "Mapping[str, str] | None" = None,
    ) -> "Self":
        """Attach to a running sandbox that has a `lifetime`, on this machine, with its jobs.

        Raises SandboxError if there is none with this id, UnsupportedError if the backend's
        sandboxes end with their process.

            box = await Sandbox.attach("kakoi-1a2b3c")
            print([job.command for job in await box.jobs()])
        """
        box = cls(
            backend, policy=policy, approve=approve, timeout=timeout, audit=audit, labels=labels
        )
        await box._life.attach(id)
        return box
