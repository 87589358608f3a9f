"""PureResults: results of commands that were declared pure, until anything else runs."""

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
    """The last results by command and directory. `pure_commands` is the caller's word for it:
    each is a program (`pwd`) or a program with a subcommand (`git status`).

    A text is pure if every program in it is, and the policy sees no file that it writes below the
    root. What changes files behind our back is not noticed.
    """

    def __init__(self, pure_commands: object = ()) -> None:
        listed = checks.texts("pure_commands", pure_commands)
        allowed = AllowedCommands(use_default=False, custom_list=listed)
        # The judge of commands knows which programs a text runs, and what it writes; here, with
        # another list and no place to write, it is only asked that.
        policy = (
            load_policy("bash-executor", allowed=allowed, roots=(_NOWHERE,)) if listed else None
        )
        self._policy = policy and replace(policy, block_patterns=(*policy.block_patterns, ">"))
        self._kept: OrderedDict[_Key, ExecutionResult] = OrderedDict()
        self._age = 0

    @property
    def is_used(self) -> bool:
        """Is anything pure at all?"""
        return self._policy is not None

    def is_pure(self, command: str, cwd: str) -> bool:
        """May the result of this be used again?"""
        return self._policy is not None and decide(self._policy, command, cwd=cwd).allowed

    def get(self, command: str, cwd: str) -> ExecutionResult | None:
        """What it came to the last time, if nothing has changed since."""
        found = self._kept.get((command, cwd))
        if found is not None:
            self._kept.move_to_end((command, cwd))
        return found

    @property
    def age(self) -> int:
        """Another number after every command that may have changed something."""
        return self._age

    def put(self, command: str, cwd: str, result: ExecutionResult, *, age: int) -> None:
        """Keep a result of a command that began at `age`, if it is good for another time."""
        small = result.stdout_bytes + result.stderr_bytes <= _LONGEST
        if result.ok and result.cwd == cwd and small and age == self._age:
            self._kept[command, cwd] = result
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        """Something runs, or ran, that is not pure."""
        self._kept.clear()
        self._age += 1
