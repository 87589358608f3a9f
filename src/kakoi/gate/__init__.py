"""MAY IT PASS?  The one road to a process: decide → ask → run → record.

`Gate` is the road; `Call` and `Labels` are what comes with a command; `carry` says which variables
of one command the next one has.
"""

from kakoi.gate.calls import Approver, Call, Labels
from kakoi.gate.carrying import Carried, carry
from kakoi.gate.gate import DEFAULT_CONCURRENCY, Gate, Opener

__all__ = [
    "DEFAULT_CONCURRENCY",
    "Approver",
    "Call",
    "Carried",
    "Gate",
    "Labels",
    "Opener",
    "carry",
]
