"""WHAT NEED NOT BE ASKED AGAIN?  Answers that a person wants to be remembered.

`forms` says which commands can be remembered, and in which form. `store` keeps the forms of one
user in a private file. `Approvals` answers a gate's questions for one workspace. `proposals` reads
from the audit log what a person may want to add.
"""

from kakoi.approvals.approvals import ApprovalOffer, Approvals, describe
from kakoi.approvals.store import ApprovalStore, RememberedApproval, approvals_file

__all__ = [
    "ApprovalOffer",
    "ApprovalStore",
    "Approvals",
    "RememberedApproval",
    "approvals_file",
    "describe",
]
