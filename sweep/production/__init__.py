"""Files that production takes: `STUDY/recommended/` with the confirmed flags, `STUDY/rollback/` with today's."""

from __future__ import annotations

from sweep.production.serving import Serving
from sweep.production.write import RECOMMENDED, ROLLBACK, write_production

__all__ = ["RECOMMENDED", "ROLLBACK", "Serving", "write_production"]
