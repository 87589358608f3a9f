"""MAY IT PASS?  The one road to a process: decide → ask → run → record.

`Gate` is the road; `Call` and `Labels` are what comes with a command.
"""

from kakoi.gate.calls import Approver, Call, Labels
from kakoi.gate.gate import DEFAULT_CONCURRENCY, Gate, Opener

__all__ = ["DEFAULT_CONCURRENCY", "Approver", "Call", "Gate", "Labels", "Opener"]
