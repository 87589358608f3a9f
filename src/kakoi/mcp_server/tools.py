"""The tools: their names, what clients are told of them, and what does them."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from mcp_types import CallToolResult, Tool, ToolAnnotations

from kakoi.mcp_server import files, installing, running
from kakoi.mcp_server.arguments import Argument, schema_of
from kakoi.mcp_server.house import House, ToolCall
from kakoi.mcp_server.sessions import DEFAULT_SESSION
from kakoi.packages.allowlist import ECOSYSTEMS, LONGEST

Work = Callable[[House, ToolCall], Awaitable[CallToolResult]]

_SESSION: Final = Argument(
    kind="string",
    doc="Commands of one session go on where the last one ended, with the variables that it "
    "exported. A variable that the policy would refuse in front of a command is not kept. If an "
    "answer names a session, name it here to go on from there; without it you begin afresh.",
    default=DEFAULT_SESSION,
    longest=64,
)
_JOB: Final = Argument(kind="string", doc="The job, as execute_command has named it.", longest=64)
_PATH: Final = Argument(
    kind="string", doc="A path in the workspace; relative ones start in the session's directory."
)
_COMMAND: Final = Argument(
    kind="string", doc="Shell text, run by bash (sh where there is none).", longest=128 * 1024
)
_WORKDIR: Final = Argument(
    kind="string",
    doc="Where to run it; empty is where the last command of the session ended.",
    default="",
)
_YIELD: Final = Argument(
    kind="integer",
    doc="When to answer even if it still runs; it goes on then.",
    default=45_000,
    maximum=600_000,
)
_EXECUTE: Final[Mapping[str, Argument]] = {
    "command": _COMMAND,
    "workdir": _WORKDIR,
    "timeout_ms": Argument(
        kind="integer",
        doc="When it is ended with all that it started. In the background: as long as the "
        "settings allow, unless given.",
        default=running.DEFAULT_TIMEOUT_MS,
        minimum=1,
    ),
    "yield_ms": _YIELD,
    "background": Argument(
        kind="boolean", doc="Answer at once; it runs on as a job.", default=False
    ),
    "stdin": Argument(
        kind="string", doc="What it reads from its input.", default="", longest=1024 * 1024
    ),
    "stdin_open": Argument(
        kind="boolean", doc="Leave its input open for write_stdin.", default=False
    ),
    "env": Argument(
        kind="object",
        doc="Variables for this and the later commands of the session.",
        default={},
    ),
    "session": _SESSION,
    "description": Argument(
        kind="string",
        doc="What it is for, in a few words; shown to the user if they are asked.",
        default="",
        longest=1000,
    ),
    "container_id": Argument(
        kind="string", doc="Your environment, if you name it; no other can be used.", default=""
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One tool."""

    title: str
    doc: str
    work: Work
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    only_reads: bool = False
    destroys: bool = False
    may_repeat: bool = False
    reaches_out: bool = False

    def tool(self, name: str) -> Tool:
        """As clients are told of it. No output schema: some show nothing else then."""
        return Tool(
            name=name,
            title=self.title,
            description=self.doc,
            input_schema=schema_of(self.arguments),
            annotations=ToolAnnotations(
                title=self.title,
                read_only_hint=self.only_reads,
                destructive_hint=self.destroys,
                idempotent_hint=self.may_repeat or self.only_reads,
                open_world_hint=self.reaches_out,
            ),
        )


OFFERS: Final[Mapping[str, Offer]] = {
    "execute_command": Offer(
        title="Run a command",
        doc="Run a shell command in the sandbox: judged by a policy, confined, ended for certain, "
        "recorded. The answer is what it wrote and a last line with exit code, duration, reason "
        "and job id. A non-zero exit is an answer. A refusal says why, and what to do instead.",
        work=running.execute_command,
        arguments=_EXECUTE,
        destroys=True,
        reaches_out=True,
    ),
    "read_output": Offer(
        title="Read a job's output",
        doc="What a job has written from `offset` on; waits up to `wait_ms` for more.",
        work=running.read_output,
        arguments={
            "job_id": _JOB,
            "wait_ms": Argument(
                kind="integer",
                doc="How long to wait if there is nothing new.",
                default=0,
                maximum=55_000,
            ),
            "offset": Argument(
                kind="integer", doc="Where to go on: the end of what was read.", default=0
            ),
            "stream": Argument(
                kind="string",
                doc="Which output.",
                default="stdout",
                choices=("stdout", "stderr"),
            ),
            "limit": Argument(
                kind="integer",
                doc="How many bytes at most.",
                default=256 * 1024,
                minimum=1,
                maximum=1024 * 1024,
            ),
        },
        only_reads=True,
    ),
    "write_stdin": Offer(
        title="Write to a job",
        doc="Give input to a job that was started with `stdin_open`.",
        work=running.write_stdin,
        arguments={
            "job_id": _JOB,
            "text": Argument(kind="string", doc="What it reads.", default="", longest=1024 * 1024),
            "close": Argument(kind="boolean", doc="Its input ends with that.", default=False),
        },
        destroys=True,
        reaches_out=True,
    ),
    "stop_command": Offer(
        title="Stop a job",
        doc="End a job and every process that it has started.",
        work=running.stop_command,
        arguments={"job_id": _JOB},
        destroys=True,
        may_repeat=True,
    ),
    "list_jobs": Offer(
        title="List jobs",
        doc="The jobs of this connection, running or not; or those of `session`, if an answer "
        "has named one.",
        work=running.list_jobs,
        arguments={"session": _SESSION},
        only_reads=True,
    ),
    "read_file": Offer(
        title="Read a file",
        doc="Lines of a text file of the workspace. Of a binary file only the size is told.",
        work=files.read_file,
        arguments={
            "path": _PATH,
            "first_line": Argument(
                kind="integer", doc="The first line, counted from 1.", default=1, minimum=1
            ),
            "lines": Argument(
                kind="integer", doc="How many lines at most.", default=2000, minimum=1
            ),
            "session": _SESSION,
        },
        only_reads=True,
    ),
    "write_file": Offer(
        title="Write a file",
        doc="Create or replace a file of the workspace. Its directory has to be there.",
        work=files.write_file,
        arguments={
            "path": _PATH,
            "content": Argument(
                kind="string", doc="All of the new content.", longest=files.MAX_FILE_BYTES
            ),
            "session": _SESSION,
        },
        destroys=True,
        may_repeat=True,
    ),
    "edit_file": Offer(
        title="Edit a file",
        doc="Replace an exact text in a file of the workspace. It has to be there exactly once, "
        "unless `replace_all` is given.",
        work=files.edit_file,
        arguments={
            "path": _PATH,
            "old_text": Argument(
                kind="string", doc="What is there now.", longest=files.MAX_FILE_BYTES
            ),
            "new_text": Argument(
                kind="string", doc="What is to be there.", longest=files.MAX_FILE_BYTES
            ),
            "replace_all": Argument(kind="boolean", doc="Wherever it is.", default=False),
            "session": _SESSION,
        },
        destroys=True,
    ),
    "list_files": Offer(
        title="List files",
        doc="What is in a directory of the workspace.",
        work=files.list_files,
        arguments={
            "path": Argument(kind="string", doc=_PATH.doc, default="."),
            "session": _SESSION,
        },
        only_reads=True,
    ),
    "install_package": Offer(
        title="Install a package",
        doc="Install a package that is on the list of its type: pip into .venv of the workspace, "
        "npm into the workspace. Whatever is not on the list is refused.",
        work=installing.install_package,
        arguments={
            "type": Argument(kind="string", doc="Whose package it is.", choices=ECOSYSTEMS),
            "package": Argument(
                kind="string",
                doc="Its name, with a version if need be: requests==2.32, @types/node@20.",
                longest=LONGEST,
            ),
            "yield_ms": _YIELD,
            "session": _SESSION,
        },
        destroys=True,
        may_repeat=True,
        reaches_out=True,
    ),
    "check_command": Offer(
        title="Judge a command",
        doc="Say whether a command would be allowed, asked about or refused, and why.",
        work=running.check_command,
        arguments={"command": _COMMAND, "workdir": _WORKDIR, "session": _SESSION},
        only_reads=True,
    ),
}
