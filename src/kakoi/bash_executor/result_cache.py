"""PureResults: cached results of commands that the caller declared pure."""

from collections import OrderedDict
from dataclasses import replace
from typing import Final

from kakoi.bash_executor import checks
from kakoi.policy.decide import decide
from kakoi.policy.profiles import AllowedCommands, load_policy
from kakoi.results import ExecutionResult

_MOST: Final = 256
_LONGEST: Final = 64 * 1024
_NOWHERE: Final = "/nonexistent/kakoi"
_Key = tuple[str, str]


class PureResults:
    """The last results by command and directory, kept until an impure command runs.

    `pure_commands`: programs (`pwd`) or programs with a subcommand (`git status`) that the caller
    declares pure. A command is pure if every program in it is, and the policy sees no file that it
    writes below the root. Changes that other processes make are not noticed.
    """

    def __init__(self, pure_commands: object = ()) -> None:
        listed = checks.texts("pure_commands", pure_commands)
        allowed = AllowedCommands(use_default=False, custom_list=listed)
        # The policy knows which programs a command runs and what it writes. With this list and no
        # writable root it is used only for that.
        policy = (
            load_policy("bash-executor", allowed=allowed, roots=(_NOWHERE,)) if listed else None
        )
        self._policy = policy and replace(policy, block_patterns=(*policy.block_patterns, ">"))
        self._kept: OrderedDict[_Key, ExecutionResult] = OrderedDict()
        self._age = 0

    @property
    def is_used(self) -> bool:
        """True if any command is pure."""
        return self._policy is not None

    def is_pure(self, command: str, cwd: str) -> bool:
        """Tell if the result of this command can be used again."""
        return self._policy is not None and decide(self._policy, command, cwd=cwd).allowed

    def get(self, command: str, cwd: str) -> ExecutionResult | None:
        """Return the cached result, or None."""
        found = self._kept.get((command, cwd))
        if found is not None:
            self._kept.move_to_end((command, cwd))
        return found

    @property
    def age(self) -> int:
        """A number that changes with every command that may have changed something."""
        return self._age

    def put(self, command: str, cwd: str, result: ExecutionResult, *, age: int) -> None:
        """Cache the result of a command that started at `age`, if it can be used again."""
        small = result.stdout_bytes + result.stderr_bytes <= _LONGEST
        if result.ok and result.cwd == cwd and small and age == self._age:
            self._kept[command, cwd] = result
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        """Drop all results: an impure command is about to run, or has run."""
        self._kept.clear()
        self._age += 1
