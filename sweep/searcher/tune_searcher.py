"""The plan of the night as a Ray Tune `Searcher`.

Ray's own `OptunaSearch` is not used: it swallows errors of `tell`, knows no constraints, leaves a trial whose value is
missing running for ever, and asks for the next point while the current one still runs. Here Ray asks `suggest` as often
as it likes and hears None until the plan has a trial to give, so no suggestion is older than the last result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ray.tune.search import Searcher

from sweep.plan import StudyPlan
from sweep.trial import Finished, TrialSpec
from sweep.wire import BUNDLE, PLACES, RESULT, SPEC, Rival, finished_from_result, spec_to_config


class TuneSearcher(Searcher):
    """Hands out what the plan gives and tells it what came back. Not saved by Ray: the Parquet record is the state.

    A worker that is gone without a report: `recover` looks whether its trial was stored, `on_again` hears that it runs
    once more, `on_busy` that its devices stayed busy; `give_up`, or `cut` once it is overdue, stores and returns what
    is left to say of it. `rival`: whom a trial is raced against, of those that ended. For the Ray config of a trial,
    which Ray keeps in files: `places`, the nodes of a cluster that it may run on, and `bundle`, its resources by Ray's
    names. `on_elsewhere` hears of one that failed of its node. `stranded`: whether a trial that came back never
    started, for want of a node.
    """

    def __init__(
        self,
        plan: StudyPlan,
        *,
        on_start: Callable[[TrialSpec], None] = lambda _spec: None,
        on_end: Callable[[Finished], None] = lambda _finished: None,
        recover: Callable[[TrialSpec], Finished | None] = lambda _spec: None,
        on_again: Callable[[TrialSpec], None] = lambda _spec: None,
        on_busy: Callable[[Finished], None] = lambda _finished: None,
        give_up: Callable[[TrialSpec], Finished],
        cut: Callable[[TrialSpec], Finished],
        rival: Callable[[TrialSpec, Mapping[int, Finished]], Rival | None] = lambda _spec, _finished: None,
        places: Callable[[TrialSpec], Mapping[str, Any]] = lambda _spec: {},
        bundle: Callable[[TrialSpec], Mapping[str, float]] = lambda _spec: {},
        on_elsewhere: Callable[[Finished], None] = lambda _finished: None,
        stranded: Callable[[TrialSpec], bool] = lambda _spec: False,
    ) -> None:
        super().__init__()
        self.plan = plan
        self._on_start, self._on_end = on_start, on_end
        self._on_busy = on_busy
        self._recover, self._on_again, self._give_up, self._cut = recover, on_again, give_up, cut
        self._rival, self._places, self._bundle, self._on_elsewhere = rival, places, bundle, on_elsewhere
        self._stranded = stranded
        self._specs: dict[str, TrialSpec] = {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]  # FINISHED is a string
        """The next trial as a Ray config, None for "not now", or FINISHED."""
        try:
            spec = self.plan.next()
        except StopIteration:
            return str(Searcher.FINISHED)
        if spec is None:
            return None
        self._specs[trial_id] = spec
        self._on_start(spec)
        rival = self._rival(spec, self.plan.finished)
        return {
            SPEC: spec_to_config(spec, self.plan.times_lost(spec.number) + 1, rival),
            PLACES: self._places(spec),
            BUNDLE: dict(self._bundle(spec)),
        }

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Nothing to learn before the end: what a round showed is the scheduler's."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """A trial ended, with our result or, when its worker is gone, without."""
        spec = self._specs.pop(trial_id, None)
        if spec is None:
            return
        payload = (result or {}).get(RESULT)
        if payload is None and self._stranded(spec):
            self.plan.give_back(spec)
            return
        if not error and payload is not None:
            finished = finished_from_result(payload)
        elif (found := self._recover(spec)) is not None:  # stored, but not reported any more
            finished = found
        elif self.plan.overdue():
            finished = self._cut(spec)
        elif self.plan.lost(spec.number):
            self._on_again(spec)
            return
        else:
            finished = self._give_up(spec)
        if finished.again_elsewhere:
            self._on_elsewhere(finished)
            if self.plan.lost(spec.number):
                self._on_again(spec)
                return
            finished = self._give_up(spec)
        if finished.postponed:
            self.plan.postpone(finished)
            self._on_busy(finished)
            return
        self.plan.hear(finished)
        self._on_end(finished)

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Ray pickles the searcher into its own experiment state, which is never restored."""
        return {}

    def __deepcopy__(self, memo: dict[int, Any]) -> TuneSearcher:
        """The searcher itself: there is one plan."""
        return self

    def save(self, checkpoint_path: str) -> None:
        """Nothing: a study goes on from its Parquet files."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: a study goes on from its Parquet files."""
