"""deepagents and LangChain: an agent's backend, and a tool. `pip install 'kakoi[deepagents]'`.

with Sandbox() as box:
    agent = create_deep_agent(model=…, backend=SandboxBackend(box))
"""

import errno
from collections.abc import Callable
from typing import Final

from kakoi._support.extras import missing_framework

try:
    from deepagents.backends.protocol import (
        ExecuteResponse,
        FileDownloadResponse,
        FileOperationError,
        FileUploadResponse,
    )
    from deepagents.backends.sandbox import BaseSandbox
    from langchain_core.tools import BaseTool, tool
except ModuleNotFoundError as error:
    raise missing_framework(error, extra="deepagents") from error

from kakoi.errors import FileError
from kakoi.integrations.commands import (
    REFUSALS,
    approve_as_framework,
    approved,
    check_kept,
    question_of,
    refusal_text,
    result_text,
)
from kakoi.sync import Sandbox
from kakoi.tools.replies import format_ending, join_streams, with_trailer

__all__ = ["SandboxBackend", "approve_as_framework", "command_tool"]

OUTPUT_LIMIT: Final = 10 * 1024 * 1024
REFUSED: Final = 126  # As `kakoi run` exits.
_ERRORS: Final[dict[int, FileOperationError]] = {
    errno.ENOENT: "file_not_found",
    errno.ENOTDIR: "invalid_path",
    errno.EISDIR: "is_directory",
}


class SandboxBackend(BaseSandbox):
    """Commands and files of a deep agent in a `kakoi.sync.Sandbox`, which stays open.

    Its file tools are shell and Python programs, so that the policy has to allow those:
    `Sandbox(policy="open")` confines and records them without judging.
    """

    def __init__(self, box: Sandbox) -> None:
        self.box = box

    @property
    def id(self) -> str:
        """The id of the sandbox."""
        return self.box.open().id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command. One that the policy refuses has the exit code 126, and says why."""
        try:
            result = self.box.run(command, timeout=timeout or None, max_output=OUTPUT_LIMIT)
        except REFUSALS as error:
            return ExecuteResponse(refusal_text(error), REFUSED)
        check_kept(result)
        output, _ = join_streams(result.stdout, result.stderr)
        if result.reason != "exited":
            output = with_trailer(output, *format_ending(result))
        return ExecuteResponse(output, result.exit_code, result.truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files, each with its own outcome."""
        return [FileUploadResponse(path, self._write(path, data)) for path, data in files]

    def _write(self, path: str, data: bytes) -> FileOperationError | str | None:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self.box.files.write(path, data)
        except (FileError, *REFUSALS) as error:
            return _file_error(error)
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files, each with its own outcome."""
        return [self._read(path) for path in paths]

    def _read(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path, error="invalid_path")
        try:
            return FileDownloadResponse(path, self.box.files.read(path))
        except (FileError, *REFUSALS) as error:
            return FileDownloadResponse(path, error=_file_error(error))


def _file_error(error: Exception) -> FileOperationError:
    return _ERRORS.get(getattr(error, "errno", None) or 0, "permission_denied")


def command_tool(box: Sandbox, ask: Callable[[str], object] | None = None) -> BaseTool:
    """Return a LangChain tool that runs shell commands in a sandbox.

    `ask`: gets the question about a command that needs approval, and returns True to allow it;
        `langgraph.types.interrupt` is one. The sandbox must have `approve=approve_as_framework`.
    """

    @tool
    def run_command(command: str) -> str:
        """Run a shell command in the workspace and return its output."""
        question = "" if ask is None else question_of(box.check(command))
        with approved(ask(question) if ask is not None and question else False):
            try:
                return result_text(box.run(command))
            except REFUSALS as error:
                return refusal_text(error)

    return run_command
