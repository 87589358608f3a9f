"""CommandValidator: asks the policy if a command can run. Nothing is decided here."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final, final

from kakoi._support.parsing import wrong
from kakoi._support.text import short_repr
from kakoi.bash_executor import checks
from kakoi.errors import CommandNotAllowedError, SecurityError
from kakoi.policy.decide import DEFAULT_CWD, Decision, decide
from kakoi.policy.profiles import AllowedCommands, load_policy
from kakoi.policy.rules import Policy, Verdict

PROFILE: Final = "bash-executor"
Validator = Callable[[str], object]


@final
class CommandValidator:
    """Refuses commands by raising.

    `whitelist`: what can run: programs (`ls`), or programs with a subcommand (`git status`).
    `block_patterns`: strings that no command may contain anywhere; None uses the profile's.
    `enable_whitelist=False`: any program can run; patterns, rules and validators still apply.
    `validators`: your own checks, asked last. Each takes the command, and raises SecurityError to
        refuse it. A validator that raises anything else, or returns a value, refuses as well.
    `root_dir`: where the command would run, for rules about writing outside of it.
    """

    def __init__(
        self,
        whitelist: Iterable[str],
        block_patterns: Iterable[str] | None = None,
        enable_whitelist: bool = True,
        validators: Iterable[Validator] = (),
        *,
        root_dir: str = DEFAULT_CWD,
    ) -> None:
        self._cwd = checks.path("root_dir", root_dir)
        self._validators = tuple(_checked(validators))
        is_listed_only = checks.boolean("enable_whitelist", enable_whitelist)
        policy = _policy(whitelist, block_patterns, any_command=not is_listed_only)
        self._policy = replace(policy, roots=(self._cwd,))

    @property
    def policy(self) -> Policy:
        """The policy that is asked."""
        return self._policy

    @property
    def validators(self) -> tuple[Validator, ...]:
        """The checks that are asked after the policy."""
        return self._validators

    def validate(self, command: str) -> None:
        """Return if the command can run; otherwise raise a SecurityError.

        BlockedPatternError: it contains a blocked pattern; this is checked first.
        CommandNotAllowedError: one of its programs is not on the list, a rule refuses what it does,
        or it cannot be parsed. EmptyCommandError: it is empty.
        """
        decision = decide(self._policy, checks.command(command), cwd=self._cwd)
        if not decision.allowed:
            raise refusal(decision)
        for validator in self._validators:
            validator(command)


def refusal(decision: Decision) -> SecurityError:
    """Return the error for a refusal. Nobody can be asked, so what would be asked is refused."""
    error = decision.error()
    worst = decision.findings[0]
    hint = error.hint
    if worst.rule == "not-listed":
        hint = f"use a listed command, or add `{worst.subject}` to `security.whitelist_file`"
    if type(error) is SecurityError:
        asked = "it would need a person's approval: " if worst.verdict is Verdict.ASK else ""
        message = f"Command not allowed: {asked}{worst.reason}"
        return CommandNotAllowedError(message, decision=decision, details=error.details, hint=hint)
    error.hint = hint
    return error


def _policy(
    whitelist: Iterable[str], block_patterns: Iterable[str] | None, *, any_command: bool
) -> Policy:
    listed = checks.texts("whitelist", whitelist)
    for command in listed:
        if "/" in command:
            raise wrong(
                "a command of the whitelist", command, "a name", hint="write ls instead of /bin/ls"
            )
    allowed = AllowedCommands(use_default=False, custom_list=listed)
    policy = replace(
        load_policy(PROFILE, allowed=allowed, origin="whitelist"), any_command=any_command
    )
    if block_patterns is None:
        return policy
    return replace(policy, block_patterns=checks.patterns("block_patterns", block_patterns))


def _checked(validators: object) -> list[Validator]:
    if not isinstance(validators, Iterable):
        raise wrong("validators", validators, "a list of callables")
    found: list[Validator] = []
    for validator in validators:
        if not callable(validator):
            raise wrong("a validator", validator, "callable")
        name = getattr(validator, "__qualname__", type(validator).__qualname__)
        found.append(partial(_ask, validator, name))
    return found


def _ask(validator: Validator, name: str, command: str) -> None:
    """Ask a validator. Unknown means no: the command passes only if it returns None."""
    try:
        answer = validator(command)
    except SecurityError:
        raise
    except Exception as error:
        why = f"the validator `{name}` failed ({type(error).__name__}: {error})"
        raise SecurityError(why, hint="fix or remove it") from error
    if answer is None:
        return
    if inspect.iscoroutine(answer):
        answer.close()
    raise SecurityError(
        f"the validator `{name}` returned {short_repr(answer)}, which has no meaning",
        hint="raise SecurityError to refuse the command, return None to allow it",
    )
