"""Settings → the policy. Judging a command needs no more than this: no gate, no sandbox."""

from collections.abc import Sequence
from dataclasses import replace

from kakoi.config.settings import PolicySettings
from kakoi.packages.rules import INSTALLER, RULES
from kakoi.policy.blocking import with_blocked
from kakoi.policy.profiles import AllowedCommands, load_policy, tightened
from kakoi.policy.rules import Policy


def policy_from(settings: PolicySettings, *, roots: Sequence[str], origin: str) -> Policy:
    """The policy that the settings describe."""
    listed_only = settings.packages == "allowlist"
    installer = (INSTALLER,) if listed_only else ()
    allowed = AllowedCommands(
        use_default=settings.use_default,
        additional=(*settings.additional, *installer),
        exclude=settings.exclude,
        custom_list=(*settings.custom_list, *installer),
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
    return with_blocked(policy, settings.blocked, origin=origin)
