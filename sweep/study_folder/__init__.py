"""The folder of one study: where everything is kept, who may write in it, and whether it may be continued."""

from __future__ import annotations

from sweep.study_folder.folder import StudyFolder
from sweep.study_folder.lock import Holder, last_holder

__all__ = ["Holder", "StudyFolder", "last_holder"]
