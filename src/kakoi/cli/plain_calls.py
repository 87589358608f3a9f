"""Calls with few options that come before every command of an agent: answered without click.

Only their arguments are read here; any other call is left to the command, which answers the same.
"""

import os
import shlex
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from kakoi.errors import ConfigurationError, KakoiError

if TYPE_CHECKING:
    from kakoi.cli.target import RunTarget


def answer(arguments: Sequence[str]) -> bool:
    """Answer a plain call and return True, or raise SystemExit; False: click has to read it."""
    if arguments[:2] == ["hook", "claude-code"] and len(arguments) < 4:
        confine = {"": False, "--no-confine": False, "--confine": True}
        if (option := "".join(arguments[2:])) in confine:
            from kakoi.cli import claude_code

            claude_code.answer(confine=confine[option])
            return True
    elif arguments[:1] == ["run"]:
        return _run(arguments[1:])
    elif arguments[:1] == ["check"]:
        if arguments[1:2] != ["--profile"]:
            return _check(arguments[1:])
        profile = "".join(arguments[2:3])
        return bool(profile) and _check(arguments[3:], profile)
    return False


def _check(words: Sequence[str], profile: str = "") -> bool:
    if not words or words[0][:1] in ("-", ""):
        return False
    if len(words) > 1 and words[1].startswith("-") and " " in words[0]:
        return False  # It might be a mistake.
    from kakoi.cli.io.format import EXIT_STATUS, format_decision
    from kakoi.cli.io.streams import stdout_has_color
    from kakoi.policy.decide import decide
    from kakoi.settings.judging import judging_settings

    try:
        cwd = os.path.realpath(".", strict=True)
        settings = judging_settings(".", profile=profile)
    except (ConfigurationError, OSError):
        return False
    text = words[0] if len(words) == 1 else shlex.join(words)
    decision = decide(settings.policy, text, cwd=cwd, confined=settings.confined)
    print(format_decision(decision, color=stdout_has_color()))
    sys.exit(EXIT_STATUS[decision.verdict])


_OF_RUN: Final = {"--sandbox": "sandbox.type", "--profile": "policy.profile"}


def _run(arguments: Sequence[str]) -> bool:
    """Run a command after no option but these two, each with its value in the next word."""
    words, given = list(arguments), {}
    while len(words) > 1 and words[0] in _OF_RUN:
        given[words[0]] = words[1]
        del words[:2]
    is_argv = words[:1] == ["--"]
    del words[: int(is_argv)]
    if not words or "KAKOI_CONFIG" in os.environ or (not is_argv and words[0].startswith("-")):
        return False
    target = _target(given)
    return target is not None and _forwarded(target, words, is_argv=is_argv)


def _target(given: Mapping[str, str]) -> "RunTarget | None":
    """What the options and the settings describe; None if something is wrong with them."""
    from kakoi.cli.target import RunTarget, existing_directory
    from kakoi.settings.loader import load_settings
    from kakoi.settings.model import settings_table

    try:
        table = {option: settings_table()[path] for option, path in _OF_RUN.items()}
        call = {_OF_RUN[name]: table[name].kind.read_text(given[name], name) for name in given}
        directory = existing_directory(".")
        target = RunTarget(loaded=load_settings(".", call=call), workspace=directory)
        target.policy()
    except (KakoiError, OSError):
        return None
    return target


def _forwarded(target: "RunTarget", words: Sequence[str], *, is_argv: bool) -> bool:
    from kakoi.cli.garbage import collect_garbage
    from kakoi.cli.io.messages import FAILED, print_error
    from kakoi.cli.one_command import run_one

    collect_garbage()
    try:
        sys.exit(run_one(target, words, is_argv=is_argv))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except KakoiError as error:
        print_error(error)
    except Exception:  # A bug in kakoi must not look like the command's exit code.
        traceback.print_exc()
    sys.exit(FAILED)
