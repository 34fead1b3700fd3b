"""The gate before a launch: which flags cannot work, with what confidence, by the record of launches so far.

`Gatekeeper` hears launches and answers for a trial number and flags; `learn` is the pure function behind it. `tally`
says afterwards how often the gate was right. A gate that knows nothing refuses nothing.
"""

from sweep.gate.gatekeeper import Gatekeeper
from sweep.gate.knowledge import NOTHING, Knowledge, gather
from sweep.gate.learned import CONFIDENCE, Learned, failed_by_its_flags, learn
from sweep.gate.outlook import Outlook, outlook
from sweep.gate.sums import Sums
from sweep.gate.tally import Tally, tally

__all__ = [
    "CONFIDENCE",
    "NOTHING",
    "Gatekeeper",
    "Knowledge",
    "Learned",
    "Outlook",
    "Sums",
    "Tally",
    "failed_by_its_flags",
    "gather",
    "learn",
    "outlook",
    "tally",
]
