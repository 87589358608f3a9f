"""The policy and the remembered approvals from settings: no gate, no sandbox."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kakoi._support.fields import model_from
from kakoi.policy.blocked_commands import with_blocked
from kakoi.policy.package_rules import INSTALLER, RULES
from kakoi.policy.profiles import AllowedCommands, load_policy, tightened
from kakoi.policy.rules import Policy, Rule, Verdict
from kakoi.settings.model import PolicySettings, Settings

if TYPE_CHECKING:
    from kakoi.approvals import Approvals


def policy_from(settings: PolicySettings, *, roots: Sequence[str], origin: str) -> Policy:
    """Return the policy that the settings describe."""
    listed_only = settings.packages == "allowlist"
    allowed = model_from(AllowedCommands, settings, origin="policy")
    if listed_only:
        allowed = replace(
            allowed,
            additional=(*allowed.additional, INSTALLER),
            custom_list=(*allowed.custom_list, INSTALLER),
        )
    changed = allowed != AllowedCommands()
    policy = load_policy(
        settings.profile, allowed=allowed if changed else None, roots=roots, origin=origin
    )
    if settings.block_patterns:
        patterns = (*policy.block_patterns, *settings.block_patterns)
        policy = replace(policy, block_patterns=patterns)
    if listed_only:
        policy = tightened(policy, rules=RULES, origin="policy.packages")
    if settings.rules:
        policy = tightened(policy, rules=settings.rules, origin=origin)
    policy = with_switches(
        policy,
        enabled=settings.enabled,
        require_confirmation=settings.require_confirmation,
        directories=settings.allowed_directories,
        where=f"`kakoi config show --profile {settings.profile} --origin` shows where it is set",
    )
    return with_blocked(policy, settings.blocked, origin=origin)


def with_switches(
    policy: Policy,
    *,
    enabled: bool,
    require_confirmation: bool,
    directories: Sequence[str] | None,
    where: str,
) -> Policy:
    """Return the policy with what security.toml says about every command. `where` it says so."""
    rules = []
    if not enabled:
        reason = "shell execution is turned off (`enabled = false`)"
        rules.append(Rule("shell-off", Verdict.DENY, reason, f"Do not retry; {where}."))
    if require_confirmation:
        reason = "every command needs the user's approval (`require_confirmation = true`)"
        rules.append(Rule("confirmation", Verdict.ASK, reason))
    resolved = None
    if directories is not None:
        resolved = tuple(os.path.realpath(os.path.expanduser(each)) for each in directories)
    return replace(policy, rules_for_all=tuple(rules), directories=resolved)


def approvals_from(
    settings: Settings, workspace: str, *, environ: Mapping[str, str] | None = None
) -> "Approvals":
    """Return the approvals that the user wants remembered for `workspace`."""
    from kakoi.approvals import Approvals, ApprovalStore, approvals_file

    variables = os.environ if environ is None else environ
    store = ApprovalStore(approvals_file(variables))
    return Approvals(store, workspace, days=settings.policy.remember_days, clock=time.time)
