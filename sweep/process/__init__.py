"""Commands that never outlive the tool: server and load client both run under a supervisor.

`end_leftovers` clears what an earlier run left behind when even its supervisor was killed.
"""

from __future__ import annotations

from sweep.process.leftovers import Leftover, end_leftovers
from sweep.process.supervised import StopReport, SupervisedProcess

__all__ = ["Leftover", "StopReport", "SupervisedProcess", "end_leftovers"]
