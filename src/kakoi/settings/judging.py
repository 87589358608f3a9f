"""What a verdict depends on: the policy, and what would confine the command.

Where nothing is set these are the defaults, and the model of all settings is not loaded: it takes
longer than judging.
"""

import os
from collections.abc import Sequence

from kakoi._support.late import dataclass
from kakoi.policy.profiles import DEFAULT_PROFILE, load_policy
from kakoi.policy.rules import Policy
from kakoi.settings.files import is_anything_set


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingSettings:
    """The settings that judging needs.

    `confined`: the sandbox of the settings confines commands, on a network of its own.
    `perhaps_unconfined`: a command could run on the unconfined host.
    `audit_file`: the audit log; empty means the default.
    """

    policy: Policy
    confined: bool = True
    perhaps_unconfined: bool = False
    audit_file: str = ""


def judging_settings(
    workspace: str, *, roots: Sequence[str] = (), profile: str = ""
) -> JudgingSettings:
    """Return the settings for `workspace`.

    `roots`: the directories that may be written. `profile`: what the call names; empty: nothing.
    """
    if not is_anything_set(workspace, os.environ):
        return JudgingSettings(policy=load_policy(profile or DEFAULT_PROFILE, roots=roots))
    from kakoi.backends.settings import confines
    from kakoi.settings.loader import load_settings
    from kakoi.settings.policy import policy_from

    call = {"policy.profile": profile} if profile else {}
    settings = load_settings(workspace, call=call).settings
    sandbox = settings.sandbox
    confine, network = sandbox.host.confine, sandbox.network or sandbox.docker.network
    return JudgingSettings(
        policy=policy_from(settings.policy, roots=roots, origin="settings"),
        confined=confines(sandbox.type, sandbox.fallback, network, confine=confine),
        perhaps_unconfined="host" in (sandbox.type, sandbox.fallback) and not confine,
        audit_file=settings.audit.file,
    )
