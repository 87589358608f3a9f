"""The PreToolUse hook of Claude Code: reads a call, judges its command, answers and records it.

Facts about Claude Code, from its hooks reference (November 2026):
- A hook of the event PreToolUse reads one JSON object on stdin, with `hook_event_name`,
  `tool_name`, `tool_input`, `session_id` and the session's `cwd`. Bash has its text in
  `tool_input.command`.
- With exit code 0 it can print `hookSpecificOutput` with `permissionDecision` (allow, ask or
  deny) and `permissionDecisionReason`: for ask the user reads it, for deny the model. `allow` skips
  the client's own question. Code 0 without output means no opinion: the client asks as usual.
- `updatedInput` replaces the whole input, so fields that stay have to be repeated. With `allow`
  the new input runs, with `ask` the user is shown it.
- Exit code 2 blocks the call, and stderr is the reason. Any other code, a hook that is not found
  and one that takes too long do not block, unless the hook's `onFailure` is `block`
  (Claude Code 2.1.295 and newer).
- Each Bash call has a bash or zsh of its own, in which the text is evaluated; if that ends well,
  the shell writes `pwd -P` to a file, and the next call starts there.
- Nothing in the event says whether the client's own sandbox is on.
- Some releases of July 2026 ignore `updatedInput` and run the original command: `kakoi audit`
  shows whether commands arrive.
"""

import json
import os
import shlex
import sys
from typing import Any, Final

from kakoi._support.late import dataclass
from kakoi._support.text import shown
from kakoi.cli.installation import own_argv
from kakoi.cli.io.messages import print_message
from kakoi.cli.io.streams import write_all
from kakoi.errors import ConfigurationError, KakoiError
from kakoi.policy.decide import Decision, decide
from kakoi.policy.rules import Verdict
from kakoi.settings.audit_log import record_verdict
from kakoi.settings.judging import judging_settings

_EVENT: Final = "PreToolUse"
_TOOL: Final = "Bash"
_LONGEST: Final = 8 * 1024 * 1024
_BLOCK: Final = 2
_MOST_FINDINGS: Final = 5
_TIMEOUT_S: Final = 30
# The client's shell changes to the directory in which the confined one ended. It gets that from a
# descriptor that only kakoi has, as the value of a variable and so never as code; output and exit
# code are the command's own. In braces, because some releases append a redirection. A user's own
# `cd` function is not called, and a directory that no longer exists changes nothing.
_AND_CHANGE_DIRECTORY: Final = (
    "{{ kakoi_cwd=$({} 3>&1 1>&4 4>&-); kakoi_status=$?; "
    '[ -z "$kakoi_cwd" ] || builtin cd -- "$kakoi_cwd" 2>/dev/null; '
    '(exit "$kakoi_status"); }} 4>&1'
)


def answer(*, confine: bool) -> None:
    """Answer the call on stdin. `confine`: rewrite an allowed command to run inside kakoi."""
    try:
        call = _read(sys.stdin.buffer.read(_LONGEST + 1))
        reply = _reply(call, confine=confine) if call is not None else None
        if reply is not None:
            # Unbuffered: a buffer that cannot be flushed at exit would change the exit code.
            write_all(1, json.dumps(reply).encode() + b"\n")
    except KakoiError as error:
        _block(f"{error}. {error.hint}" if error.hint else str(error))
    except Exception as error:
        # Every error: any exit code but 2 would let the command run unjudged.
        _block(f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class HookCall:
    """What the agent is about to run. `project`: where it works; `cwd`: where it is now."""

    tool_input: dict[str, Any]
    command: str
    cwd: str
    project: str
    session: str = ""


def _read(data: bytes) -> HookCall | None:
    """The call to judge; None for another tool."""
    if len(data) > _LONGEST:
        raise _malformed(f"it is larger than {_LONGEST} bytes")
    try:
        event = json.loads(data.decode())
    except (ValueError, RecursionError):
        raise _malformed("it is not valid JSON") from None
    if not isinstance(event, dict):
        raise _malformed("it is not an object")
    if event.get("hook_event_name") != _EVENT:
        raise _malformed(f"its hook_event_name is not {_EVENT}")
    tool, tool_input, cwd = (event.get(key) for key in ("tool_name", "tool_input", "cwd"))
    if not isinstance(tool, str):
        raise _malformed("its tool_name is not a string")
    if tool != _TOOL:
        return None
    if not isinstance(tool_input, dict) or not isinstance(tool_input.get("command"), str):
        raise _malformed("its tool_input has no command")
    if not isinstance(cwd, str) or not os.path.isabs(cwd) or "\0" in cwd:
        raise _malformed("its cwd is not an absolute path")
    project = os.environ.get("CLAUDE_PROJECT_DIR", "")
    within = os.path.realpath(project if os.path.isabs(project) else cwd)
    session = event.get("session_id")
    label = f"claude-code:{session}" if isinstance(session, str) else "claude-code"
    return HookCall(tool_input, tool_input["command"], os.path.realpath(cwd), within, label)


def _reply(call: HookCall, *, confine: bool) -> dict[str, Any] | None:
    """The reply to Claude Code; None means no opinion.

    The policy allows what is safe inside a sandbox. Without kakoi's sandbox, and without knowing
    whether the client uses its own, that is not enough to skip the client's question to the user.
    So settings that could run a command on the unconfined host have the effect of `--no-confine`.
    """
    settings = judging_settings(call.project, roots=[call.project])
    confine = confine and not settings.perhaps_unconfined
    confined = confine and settings.confined
    decision = decide(settings.policy, call.command, cwd=call.cwd, confined=confined)
    # Before the reply: what cannot be recorded must not run.
    record_verdict(decision, settings.audit_file, cwd=call.cwd, session=shown(call.session))
    verdict, reason = decision.verdict, _reason(decision)
    if verdict is Verdict.ASK:
        approved = _remembered(decision, call.project)
        if approved:
            verdict, reason = Verdict.ALLOW, f"kakoi: you approved it before: {approved}"
    if verdict is Verdict.ALLOW and not confine:
        return None
    output: dict[str, Any] = {
        "hookEventName": _EVENT,
        "permissionDecision": verdict.value,
        "permissionDecisionReason": reason,
    }
    if confine and verdict is not Verdict.DENY:
        yes = verdict is Verdict.ASK
        output["updatedInput"] = {**call.tool_input, "command": _confined(call, yes=yes)}
    return {"hookSpecificOutput": output}


def _remembered(decision: Decision, project: str) -> str:
    """Describe the remembered approvals that answer the question; empty if they do not."""
    from kakoi.approvals import describe
    from kakoi.settings.loader import load_settings
    from kakoi.settings.policy import approvals_from

    found = approvals_from(load_settings(project).settings, project).answer(decision)
    return describe(found) if found else ""


def _reason(decision: Decision) -> str:
    if not decision.findings:
        return "kakoi: the policy allows it"
    parts = [
        f"{shown(each.reason)} [{each.rule}]{f': {shown(each.hint)}' if each.hint else ''}"
        for each in decision.findings[:_MOST_FINDINGS]
    ]
    worst = decision.findings[0].rule
    return "kakoi: " + "; ".join(parts) + f" (`kakoi explain {worst}` says more)"


def _confined(call: HookCall, *, yes: bool) -> str:
    """A command that runs it in kakoi. `yes`: the user approves by letting it run."""
    # Text that begins with a dash would be read as an option, and `--` would make it a program.
    text = f" {call.command}" if call.command.startswith("-") else call.command
    where = ["--workspace", call.project, "--cwd", call.cwd, "--cwd-fd", "3"]
    argv = [*own_argv(), "run", *where, *(["--yes"] if yes else []), text]
    return _AND_CHANGE_DIRECTORY.format(shlex.join(argv))


def settings(*, confine: bool) -> dict[str, Any]:
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
        f"cannot judge the event from Claude Code: {why}",
        hint="`kakoi hook claude-code --settings` prints the settings for the hook",
    )


def _block(why: str) -> None:
    print_message(f"blocked: {why}")
    sys.exit(_BLOCK)
