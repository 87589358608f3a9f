"""The default commands by category: one table for the allowlist and the prompt."""

from collections.abc import Mapping
from typing import Final

# Category → heading in the prompt, in the order of the prompt.
HEADINGS: Final[Mapping[str, str]] = {
    "build": "Build/Package Management",
    "test": "Test Execution",
    "lint": "Linter/Formatter",
    "files": "File Operations",
    "vcs": "Version Control",
    "utilities": "Utilities",
}

COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "build": (
        "npm", "yarn", "pnpm", "pip", "pip3", "conda", "mamba", "python", "python3", "go", "cargo",
        "maven", "gradle", "make", "cmake", "bundle", "gem", "composer", "dotnet",
    ),
    "test": (
        "pytest", "jest", "mocha", "rspec", "phpunit", "go test", "cargo test", "dotnet test",
    ),
    "lint": (
        "eslint", "prettier", "black", "flake8", "pylint", "mypy", "rubocop", "gofmt", "golint",
        "rustfmt", "clippy", "tsc",
    ),
    "files": (
        "ls", "cat", "head", "tail", "grep", "find", "wc", "diff", "tree", "file", "stat",
    ),
    "vcs": (
        "git status", "git diff", "git log", "git branch", "git show", "git blame",
    ),
    "utilities": (
        "echo", "pwd", "cd", "mkdir", "rm", "cp", "mv", "touch", "chmod", "env", "which", "curl",
        "wget", "tar", "unzip", "jq", "sed", "awk", "sort", "uniq", "xargs",
    ),
}  # fmt: skip

# Other names of the same program: listed once in the prompt, accepted under every name.
ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "maven": ("mvn", "mvnw"),
    "gradle": ("gradlew",),
    "clippy": ("cargo clippy", "cargo-clippy", "clippy-driver"),
    "pytest": ("py.test",),
    "awk": ("gawk", "mawk"),
    "grep": ("egrep", "fgrep", "zgrep"),
}


def category_of(command: str) -> str:
    """Return the category a command is listed under; commands that a user adds are utilities."""
    for category, commands in COMMANDS.items():
        if command in commands:
            return category
    return "utilities"


def allowed_commands_text(listed: Mapping[str, str]) -> str:
    """Return the list for the prompt: a line for each category with commands, in a fixed order.

    `listed` maps each advertised command to its category.
    """
    lines = []
    for category, heading in HEADINGS.items():
        commands = [command for command, where in listed.items() if where == category]
        if commands:
            lines.append(f"{heading}: {', '.join(commands)}")
    return "\n".join(lines)
