"""Built-in tools for agents: shell, git and files, as plain coroutines.

They run their own code and never ask a model. `find` returns them by the name of their group:
`@builtin.shell`, `@builtin.git` or `@builtin.file`.
"""

from kakoi.builtin.command_files import CommandFile, load_command_file
from kakoi.builtin.file import file_search, grep_content
from kakoi.builtin.git import git_commit, git_create_pr, git_push, git_status
from kakoi.builtin.registry import GROUPS, find
from kakoi.builtin.shell import shell

__all__ = [
    "GROUPS",
    "CommandFile",
    "file_search",
    "find",
    "git_commit",
    "git_create_pr",
    "git_push",
    "git_status",
    "grep_content",
    "load_command_file",
    "shell",
]
