"""Calls with few options that come before every command of an agent: answered without click.

Only their arguments are read here; any other call is left to the command, which answers the same.
"""

import os
import shlex
import sys
from collections.abc import Sequence

from kakoi.errors import ConfigurationError


def answer(arguments: Sequence[str]) -> bool:
    """Answer a plain call and return True, or raise SystemExit; False: click has to read it."""
    if arguments[:2] == ["hook", "claude-code"] and len(arguments) < 4:
        confine = {"": False, "--no-confine": False, "--confine": True}
        if (option := "".join(arguments[2:])) in confine:
            from kakoi.cli import claude_code

            claude_code.answer(confine=confine[option])
            return True
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
