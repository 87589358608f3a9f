"""`kakoi hook`: judge the commands of an agent that runs them itself.

Facts relied on about Claude Code, from its hooks reference (November 2026), in our words:
- A hook of the event PreToolUse reads one JSON object on standard input, with `hook_event_name`,
  `tool_name`, `tool_input`, `session_id` and the session's `cwd`. Bash has its text in
  `tool_input.command`.
- With exit status 0 it may print `hookSpecificOutput` with `permissionDecision` (allow, ask or
  deny) and `permissionDecisionReason`: for ask the user reads it, for deny the model. `allow` skips
  the client's own question. Status 0 without output is no opinion: the client asks as usual.
- `updatedInput` replaces the whole input, so fields that stay have to be repeated. With `allow`
  the new input runs, with `ask` the user is shown it.
- Exit status 2 blocks the call, and standard error is the reason. Any other status, a hook that is
  not found and one that takes too long do not block, unless the hook's `onFailure` is `block`
  (Claude Code 2.1.295 and newer).
- Each Bash call has a bash or zsh of its own, in which the text is evaluated; if that ends well,
  the shell writes `pwd -P` to a file, and the next call starts there.
- Nothing in the event says whether the client's own sandbox is on.
- Some releases of July 2026 drop `updatedInput`, and run what they were told to begin with:
  `kakoi audit` shows whether commands arrive.
"""

import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from kakoi.cli.install_client import own_argv
from kakoi.cli.output import write_all
from kakoi.cli.telling import say
from kakoi.config.loading import load_settings
from kakoi.config.policies import policy_from
from kakoi.config.recording import record_verdict
from kakoi.errors import ConfigurationError, KakoiError
from kakoi.policy.decide import Decision, decide
from kakoi.policy.rules import Verdict
from kakoi.printable import shown

_EVENT: Final = "PreToolUse"
_TOOL: Final = "Bash"
_LONGEST: Final = 8 * 1024 * 1024
_BLOCK: Final = 2
_MOST_FINDINGS: Final = 5
_TIMEOUT_S: Final = 30
# The shell of the client goes where the confined one ended. It takes that from a descriptor which
# only kakoi has, as the value of a variable and so never as code; output and exit code are the
# command's own. In braces, because some releases append a redirection. A user's own `cd` is not
# called, and a directory that is gone by then changes nothing.
_AND_GO_THERE: Final = (
    "{{ kakoi_cwd=$({} 3>&1 1>&4 4>&-); kakoi_status=$?; "
    '[ -z "$kakoi_cwd" ] || builtin cd -- "$kakoi_cwd" 2>/dev/null; '
    '(exit "$kakoi_status"); }} 4>&1'
)
_STATUS: Final = "Exit status: 0 there is an answer, or no opinion; 2 (which blocks) anything else."


@click.group(epilog="`kakoi install-client` is for agents that are to use kakoi as a tool.")
def command() -> None:
    """Judge the commands of an agent that runs them itself."""


@command.command("claude-code", epilog=_STATUS)
@click.option(
    "--confine/--no-confine",
    default=None,
    help="Run allowed commands inside kakoi, by rewriting them; the default of `--settings`.",
)
@click.option(
    "--settings", is_flag=True, help="Print what ~/.claude/settings.json needs, and read nothing."
)
def claude_code(*, confine: bool | None, settings: bool) -> None:
    """Answer a PreToolUse hook of Claude Code: may this Bash command run?

    The policy is the one that holds in the project. Without `--confine` an allowed command would
    run on the host as it is, so Claude Code decides about it as if there were no hook. Other tools
    are left to Claude Code. Each verdict is recorded (see `kakoi audit`).
    """
    if settings:
        click.echo(json.dumps(_settings(confine=confine is not False), indent=2))
        return
    try:
        call = _read(sys.stdin.buffer.read(_LONGEST + 1))
        answer = _answer(call, confine=bool(confine)) if call is not None else None
        if answer is not None:
            # Without a buffer: one that cannot be emptied at the end has a status of its own.
            write_all(1, json.dumps(answer).encode() + b"\n")
    except KakoiError as error:
        _block(f"{error}. {error.hint}" if error.hint else str(error))
    except Exception as error:
        # Whatever it is: any status but 2 would let the command run unjudged.
        _block(f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class Call:
    """What the agent is about to do. `project` is where it works, `cwd` where it is now."""

    tool_input: dict[str, Any]
    command: str
    cwd: str
    project: str
    session: str = ""


def _read(data: bytes) -> Call | None:
    """The call to judge; None if it is one of another tool."""
    if len(data) > _LONGEST:
        raise _malformed(f"it has more than {_LONGEST} bytes")
    try:
        given = json.loads(data.decode())
    except (ValueError, RecursionError):
        raise _malformed("it is no JSON") from None
    if not isinstance(given, dict):
        raise _malformed("it is no object")
    if given.get("hook_event_name") != _EVENT:
        raise _malformed(f"its hook_event_name is not {_EVENT}")
    tool, tool_input, cwd = (given.get(key) for key in ("tool_name", "tool_input", "cwd"))
    if not isinstance(tool, str):
        raise _malformed("its tool_name is no text")
    if tool != _TOOL:
        return None
    if not isinstance(tool_input, dict) or not isinstance(tool_input.get("command"), str):
        raise _malformed("its tool_input has no command")
    if not isinstance(cwd, str) or not os.path.isabs(cwd) or "\0" in cwd:
        raise _malformed("its cwd is no absolute path")
    project = os.environ.get("CLAUDE_PROJECT_DIR", "")
    within = os.path.realpath(project if os.path.isabs(project) else cwd)
    session = given.get("session_id")
    label = f"claude-code:{session}" if isinstance(session, str) else "claude-code"
    return Call(tool_input, tool_input["command"], os.path.realpath(cwd), within, label)


def _answer(call: Call, *, confine: bool) -> dict[str, Any] | None:
    """What Claude Code is told; None is no opinion.

    The policy allows what is fine behind a wall. Where there is none of ours, and nobody says
    whether there is one of the client's, that is not enough to spare the user its question.
    """
    loaded = load_settings(call.project)
    policy = policy_from(loaded.settings.policy, roots=[call.project], origin="settings")
    decision = decide(policy, call.command, cwd=call.cwd)
    named = loaded.settings.audit.file
    # Before the answer: what cannot be recorded must not run.
    record_verdict(
        decision, Path(named) if named else None, cwd=call.cwd, session=shown(call.session)
    )
    if decision.verdict is Verdict.ALLOW and not confine:
        return None
    told: dict[str, Any] = {
        "hookEventName": _EVENT,
        "permissionDecision": decision.verdict.value,
        "permissionDecisionReason": _reason(decision),
    }
    if confine and decision.verdict is not Verdict.DENY:
        yes = decision.verdict is Verdict.ASK
        told["updatedInput"] = {**call.tool_input, "command": _confined(call, yes=yes)}
    return {"hookSpecificOutput": told}


def _reason(decision: Decision) -> str:
    if not decision.findings:
        return "kakoi: the policy allows it"
    parts = [
        f"{shown(each.reason)} [{each.rule}]{f': {shown(each.hint)}' if each.hint else ''}"
        for each in decision.findings[:_MOST_FINDINGS]
    ]
    worst = decision.findings[0].rule
    return "kakoi: " + "; ".join(parts) + f" (`kakoi explain {worst}` says more)"


def _confined(call: Call, *, yes: bool) -> str:
    """The command as one that runs it in kakoi. `yes`: the user agrees by letting it run."""
    # A text that begins with a dash would be taken for an option, and `--` makes it a program.
    text = f" {call.command}" if call.command.startswith("-") else call.command
    where = ["--workspace", call.project, "--cwd", call.cwd, "--cwd-fd", "3"]
    argv = [*own_argv(), "run", *where, *(["--yes"] if yes else []), text]
    return _AND_GO_THERE.format(shlex.join(argv))


def _settings(*, confine: bool) -> dict[str, Any]:
    argv = [*own_argv(), "hook", "claude-code", *(["--confine"] if confine else [])]
    hook = {
        "type": "command",
        "command": shlex.join(argv),
        "timeout": _TIMEOUT_S,
        "onFailure": "block",
    }
    return {"hooks": {_EVENT: [{"matcher": _TOOL, "hooks": [hook]}]}}


def _malformed(why: str) -> ConfigurationError:
    return ConfigurationError(
        f"what Claude Code sent cannot be judged: {why}",
        hint="`kakoi hook claude-code --settings` prints how to set the hook up",
    )


def _block(why: str) -> None:
    say(f"blocked, because {why}")
    sys.exit(_BLOCK)
