"""MAY IT PASS?  The only path to a process: decide → ask → run → record.

`Gate` runs commands. `Call` and `RecordLabels` describe one call. `carry_variables` decides which
variables of one command the next one gets.
"""

from kakoi.gate.calls import Answer, Approver, Call, CarriedVariables, RecordLabels, carry_variables
from kakoi.gate.gate import Gate, Opener

__all__ = [
    "Answer",
    "Approver",
    "Call",
    "CarriedVariables",
    "Gate",
    "Opener",
    "RecordLabels",
    "carry_variables",
]
