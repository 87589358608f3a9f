"""The tools: their names, descriptions, arguments, and the functions that do the work."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import Final

from kakoi._support.late import dataclass
from kakoi.packages.allowlist import ECOSYSTEMS, LONGEST
from kakoi.tools import commands, files, packages
from kakoi.tools.arguments import Argument
from kakoi.tools.replies import ToolResult
from kakoi.tools.sessions import DEFAULT_SESSION
from kakoi.tools.state import ToolCall, ToolState

Work = Callable[[ToolState, ToolCall], Awaitable[ToolResult]]

_SESSION: Final = Argument(
    kind="string",
    doc="Commands of a session continue where the last one ended, with the variables that it "
    "exported. A variable that the policy would refuse in front of a command is not kept. If an "
    "answer names a session, pass it here to continue from there; without it you start afresh.",
    default=DEFAULT_SESSION,
    longest=64,
)
_JOB: Final = Argument(kind="string", doc="The job id that execute_command returned.", longest=64)
_PATH: Final = Argument(
    kind="string", doc="A path in the workspace; relative paths start in the session's directory."
)
_COMMAND: Final = Argument(
    kind="string",
    doc="The shell command, run by bash (sh if there is no bash).",
    longest=128 * 1024,
)
_WORKDIR: Final = Argument(
    kind="string",
    doc="The directory to run it in; empty means where the last command of the session ended.",
    default="",
)
_YIELD: Final = Argument(
    kind="integer",
    doc="When to answer even if it is still running; it then continues.",
    default=45_000,
    maximum=600_000,
)
_EXECUTE: Final[Mapping[str, Argument]] = {
    "command": _COMMAND,
    "workdir": _WORKDIR,
    "timeout_ms": Argument(
        kind="integer",
        doc="The timeout, which ends it and every process it started. Background jobs: as long "
        "as the settings allow, unless given.",
        default=commands.DEFAULT_TIMEOUT_MS,
        minimum=1,
    ),
    "yield_ms": _YIELD,
    "background": Argument(
        kind="boolean", doc="Answer at once; it continues as a job.", default=False
    ),
    "stdin": Argument(
        kind="string", doc="The input for its stdin.", default="", longest=1024 * 1024
    ),
    "stdin_open": Argument(
        kind="boolean", doc="Keep its stdin open for write_stdin.", default=False
    ),
    "env": Argument(
        kind="object",
        doc="Variables for this and later commands of the session.",
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
        kind="string",
        doc="The id of your environment (optional); no other can be used.",
        default="",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """One tool. `only_reads`, `destroys`, `may_repeat` (the same call twice is like once) and
    `reaches_out` (it can affect more than the workspace) are hints for clients."""

    title: str
    doc: str
    work: Work
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    only_reads: bool = False
    destroys: bool = False
    may_repeat: bool = False
    reaches_out: bool = False


TOOLS: Final[Mapping[str, ToolSpec]] = {
    "execute_command": ToolSpec(
        title="Run a command",
        doc="Run a shell command in the sandbox: judged by a policy, confined, reliably ended, "
        "recorded. Returns its output and a last line with exit code, duration, reason and job "
        "id. A non-zero exit is not an error. A refusal says why, and what to do instead.",
        work=commands.execute_command,
        arguments=_EXECUTE,
        destroys=True,
        reaches_out=True,
    ),
    "read_output": ToolSpec(
        title="Read a job's output",
        doc="Return the output of a job from `offset` on; waits up to `wait_ms` for more.",
        work=commands.read_output,
        arguments={
            "job_id": _JOB,
            "wait_ms": Argument(
                kind="integer",
                doc="How long to wait if there is no new output.",
                default=0,
                maximum=55_000,
            ),
            "offset": Argument(
                kind="integer", doc="Where to continue: the end of what you have read.", default=0
            ),
            "stream": Argument(
                kind="string",
                doc="Which output stream.",
                default="stdout",
                choices=("stdout", "stderr"),
            ),
            "limit": Argument(
                kind="integer",
                doc="The maximum number of bytes.",
                default=256 * 1024,
                minimum=1,
                maximum=1024 * 1024,
            ),
        },
        only_reads=True,
    ),
    "write_stdin": ToolSpec(
        title="Write to a job",
        doc="Write to the stdin of a job that was started with `stdin_open`.",
        work=commands.write_stdin,
        arguments={
            "job_id": _JOB,
            "text": Argument(kind="string", doc="The input.", default="", longest=1024 * 1024),
            "close": Argument(kind="boolean", doc="Close its stdin afterwards.", default=False),
        },
        destroys=True,
        reaches_out=True,
    ),
    "stop_command": ToolSpec(
        title="Stop a job",
        doc="Stop a job and every process that it started.",
        work=commands.stop_command,
        arguments={"job_id": _JOB},
        destroys=True,
        may_repeat=True,
    ),
    "list_jobs": ToolSpec(
        title="List jobs",
        doc="List the jobs of this connection, running or ended; or of `session`, if an answer "
        "named one.",
        work=commands.list_jobs,
        arguments={"session": _SESSION},
        only_reads=True,
    ),
    "read_file": ToolSpec(
        title="Read a file",
        doc="Return lines of a text file in the workspace. For a binary file, only its size.",
        work=files.read_file,
        arguments={
            "path": _PATH,
            "first_line": Argument(
                kind="integer",
                doc="The first line to return, counted from 1.",
                default=1,
                minimum=1,
            ),
            "lines": Argument(
                kind="integer", doc="The maximum number of lines.", default=2000, minimum=1
            ),
            "session": _SESSION,
        },
        only_reads=True,
    ),
    "write_file": ToolSpec(
        title="Write a file",
        doc="Create or replace a file in the workspace. Its directory must exist.",
        work=files.write_file,
        arguments={
            "path": _PATH,
            "content": Argument(
                kind="string", doc="The complete new content.", longest=files.MOST_FILE_BYTES
            ),
            "session": _SESSION,
        },
        destroys=True,
        may_repeat=True,
    ),
    "edit_file": ToolSpec(
        title="Edit a file",
        doc="Replace an exact text in a file in the workspace. It must occur exactly once, unless "
        "`replace_all` is set.",
        work=files.edit_file,
        arguments={
            "path": _PATH,
            "old_text": Argument(
                kind="string", doc="The text to replace.", longest=files.MOST_FILE_BYTES
            ),
            "new_text": Argument(kind="string", doc="The new text.", longest=files.MOST_FILE_BYTES),
            "replace_all": Argument(kind="boolean", doc="Replace every occurrence.", default=False),
            "session": _SESSION,
        },
        destroys=True,
    ),
    "list_files": ToolSpec(
        title="List files",
        doc="List a directory in the workspace, and what is below it down to `depth` levels. Links "
        "are not followed.",
        work=files.list_files,
        arguments={
            "path": Argument(kind="string", doc=_PATH.doc, default="."),
            "depth": Argument(
                kind="integer",
                doc="How many levels to list; 1 is the directory alone.",
                default=1,
                minimum=1,
                maximum=32,
            ),
            "session": _SESSION,
        },
        only_reads=True,
    ),
    "install_package": ToolSpec(
        title="Install a package",
        doc="Install a package that is on the list of its type: pip into .venv of the workspace, "
        "npm into the workspace. Packages that are not on the list are refused.",
        work=packages.install_package,
        arguments={
            "type": Argument(kind="string", doc="The package manager.", choices=ECOSYSTEMS),
            "package": Argument(
                kind="string",
                doc="The package name; with a version only in the form that the list gives.",
                longest=LONGEST,
            ),
            "yield_ms": _YIELD,
            "session": _SESSION,
        },
        destroys=True,
        may_repeat=True,
        reaches_out=True,
    ),
    "check_command": ToolSpec(
        title="Judge a command",
        doc="Say whether a command would be allowed, need approval or be refused, and why.",
        work=commands.check_command,
        arguments={"command": _COMMAND, "workdir": _WORKDIR, "session": _SESSION},
        only_reads=True,
    ),
}
# Those that run commands of the model's, or say what became of them.
COMMAND_TOOLS: Final = frozenset(
    ("execute_command", "read_output", "write_stdin", "stop_command", "list_jobs")
)
