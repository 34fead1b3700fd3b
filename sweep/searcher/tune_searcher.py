"""The plan of the night as a Ray Tune `Searcher`.

Ray's own `OptunaSearch` is not used: it swallows errors of `tell`, knows no constraints, leaves a trial whose value is
missing running for ever, and asks for the next point while the current one still runs. Here Ray asks `suggest` as often
as it likes and hears None until the plan has a trial to give, so no suggestion is older than the last result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.tune.search import Searcher

from sweep.plan import StudyPlan
from sweep.trial import Finished, TrialKind, TrialSpec, TrialStatus

# The keys of a Ray config and of a Ray result that are ours.
SPEC, RESULT = "spec", "sweep_result"


class TuneSearcher(Searcher):
    """Hands out what the plan gives and tells it what came back. Not saved by Ray: the Parquet record is the state."""

    def __init__(
        self,
        plan: StudyPlan,
        *,
        on_start: Callable[[TrialSpec], None] = lambda _spec: None,
        on_end: Callable[[Finished], None] = lambda _finished: None,
        on_lost: Callable[[TrialSpec, bool], Finished | None] = lambda _spec, _again: None,
    ) -> None:
        super().__init__()
        self.plan = plan
        self._on_start, self._on_end, self._on_lost = on_start, on_end, on_lost
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
        return {SPEC: spec_to_config(spec)}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Nothing to learn before the end."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """A trial ended, with our result or, when its worker is gone, without."""
        spec = self._specs.pop(trial_id, None)
        if spec is None:
            return
        payload = (result or {}).get(RESULT)
        if error or payload is None:
            again = self.plan.lost(spec.number)
            finished = self._on_lost(spec, again)
            if finished is not None:
                self.plan.hear(finished)
                self._on_end(finished)
            return
        finished = finished_from_result(spec, payload)
        self.plan.hear(finished)
        self._on_end(finished)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: a study goes on from its Parquet files."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: a study goes on from its Parquet files."""


def spec_to_config(spec: TrialSpec) -> dict[str, Any]:
    """A trial as plain values that Ray can log."""
    return {
        "number": spec.number,
        "kind": spec.kind.value,
        "flags": dict(spec.flags),
        "baseline_metrics": None if spec.baseline_metrics is None else dict(spec.baseline_metrics),
    }


def spec_from_config(config: dict[str, Any]) -> TrialSpec:
    """The inverse of `spec_to_config`."""
    return TrialSpec(config["number"], TrialKind(config["kind"]), config["flags"], config["baseline_metrics"])


def finished_from_result(spec: TrialSpec, payload: dict[str, Any]) -> Finished:
    """What the worker reported, for the plan."""
    rest = {key: value for key, value in payload.items() if key != "status"}
    return Finished(spec.number, spec.kind, spec.flags, TrialStatus(payload["status"]), **rest)
