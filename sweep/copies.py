"""Where a trial goes beside the study's folder, once it has ended: an object store, a database for dashboards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from sweep.prepare import Prepared
from sweep.searcher.mirror import Mirror
from sweep.store import RemoteResults, copy_missing
from sweep.trial import Finished


@contextlib.contextmanager
def copies_of(
    prepared: Prepared, finished: Mapping[int, Finished], remote: RemoteResults | None, say: Callable[[str], None]
) -> Iterator[Callable[[Finished], None]]:
    """A function to call with each trial that ended. What was `finished` before goes to the database as well.

    Neither copy that fails ends a study: `say` hears of it. Raises UserError for a `study.optuna_storage` that cannot
    be used.
    """
    study, mirror = prepared.config.study, None
    with contextlib.ExitStack() as stack:
        if study.optuna_storage is not None:
            baseline = prepared.config.baseline_flags()
            mirror = stack.enter_context(Mirror.open(study.optuna_storage, study.name, prepared.space, baseline))
            mirror.add(finished.values())

        def copy(ended: Finished) -> None:
            if remote is not None:
                copy_missing(remote, prepared.setup.folder, say)
            if mirror is not None:
                mirror.add([ended])
                for line in mirror.troubles():
                    say(line)

        yield copy
    for line in () if mirror is None else mirror.troubles():
        say(line)
