"""The remembered approvals of a workspace, from settings."""

import os
import time
from collections.abc import Mapping

from kakoi.approvals import Approvals, ApprovalStore, approvals_file
from kakoi.settings.model import Settings


def approvals_from(
    settings: Settings, workspace: str, *, environ: Mapping[str, str] | None = None
) -> Approvals:
    """Return the approvals that the user wants remembered for `workspace`."""
    variables = os.environ if environ is None else environ
    store = ApprovalStore(approvals_file(variables))
    return Approvals(store, workspace, days=settings.policy.remember_days, clock=time.time)
