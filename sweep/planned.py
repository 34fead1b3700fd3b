"""A prepared study's plan, and who judges its confirmation. No Ray in here: the same plan also runs in one process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from sweep.clock import grace_of
from sweep.confirm import AfterSearch, Jury
from sweep.earlier import earlier_trials
from sweep.equivalence import EngineClasses
from sweep.plan import StudyPlan
from sweep.prepare import Prepared
from sweep.proposals import make_proposer, sampler_of
from sweep.racing import GPU_NOISE
from sweep.searcher.samplers import MODELS, Recipe
from sweep.searcher.twin_sampler import twin_recipe
from sweep.stages import ConfirmRules
from sweep.trial import SEARCHING
from sweep.twinning import Adviser, Ledger


def make_plan(prepared: Prepared, *, time_left_s: Callable[[], float], ledger: Ledger | None = None) -> StudyPlan:
    """The plan with all that earlier runs stored, re-scored by the objective of today.

    `time_left_s` is asked again and again; it counts down to the end of the study. Where nothing is launched it is
    asked once, and the time that is left goes down by what trials are said to have taken. `ledger`: where trials stand,
    for a study that stores nothing.
    """
    said: list[str] = []
    virtual = None if prepared.stand_in is None else _VirtualClock(time_left_s())
    config = prepared.config
    proposer, classes = make_proposer(prepared, _models(prepared, ledger, said.append))
    checked = config.resources.check_neighbours and prepared.setup.uses_gpus
    plan = StudyPlan(
        proposer,
        config.study.trials,
        config.baseline_flags(),
        stop_after_same_failure=config.study.stop_after_same_failure,
        max_lost=config.study.max_retries,
        time_left_s=time_left_s if virtual is None else virtual,
        grace_s=grace_of(time_left_s()),
        minimum_s=sum(one.last_send_s for one in prepared.setup.plan.rounds),
        follow=_after_search(prepared, classes),
        follow_share=config.confirm.budget_share,
        drift=config.confirm.drift,
        second_looks=config.confirm.second_looks,
        calibrate=config.load.calibrate,
        rate_open=prepared.rate_open,
        server_sd=GPU_NOISE.server_sd if checked and prepared.stand_in is None else None,
        said=said,
    )
    for finished in earlier_trials(prepared):
        plan.hear(finished, earlier=True)
    if virtual is not None:
        virtual.follow(plan)
    return plan


def opening_lines(prepared: Prepared, plan: StudyPlan) -> Iterator[str]:
    """How long the study may take where servers run it, and what of it is stored already."""
    if prepared.stand_in is None and (line := plan.describe_time()) is not None:
        yield line
    if plan.finished:
        searched = sum(one.kind in SEARCHING for one in plan.finished.values())
        yield f"going on: {searched} of {prepared.config.study.trials} trials are stored"


def _models(prepared: Prepared, ledger: Ledger | None, say: Callable[[str], None]) -> Mapping[str, Recipe]:
    """Samplers by name, `twin` among them where this study wants it."""
    if sampler_of(prepared) != "twin":
        return MODELS
    setup, fingerprint = prepared.setup, prepared.fingerprint
    known = Ledger.stored(setup.folder, fingerprint) if ledger is None else ledger
    adviser = Adviser(known, prepared.space, setup.objective, prepared.config.study.seed, say)
    return {**MODELS, "twin": twin_recipe(adviser.advise)}


@dataclass(slots=True)
class _VirtualClock:
    """Seconds left of `budget_s` after the trials that a plan heard of since it is followed."""

    budget_s: float
    _plan: StudyPlan | None = None
    _before: frozenset[int] = frozenset()

    def follow(self, plan: StudyPlan) -> None:
        self._plan, self._before = plan, frozenset(plan.finished)

    def __call__(self) -> float:
        finished = {} if self._plan is None else self._plan.finished
        return self.budget_s - sum(one.total_s or 0.0 for n, one in finished.items() if n not in self._before)


def jury_of(prepared: Prepared) -> Jury:
    """Who judges the confirmation launches of this study."""
    confirm, setup = prepared.config.confirm, prepared.setup
    rules = ConfirmRules.of(confirm)
    return Jury(
        setup.folder,
        setup.objective,
        rules,
        width=confirm.width,
        seed=prepared.config.study.seed,
        metric_names=prepared.schema.metrics,
    )


def _after_search(prepared: Prepared, classes: EngineClasses | None) -> AfterSearch | None:
    if not prepared.setup.confirmation:
        return None
    jury = jury_of(prepared)
    after = AfterSearch(jury.rules, prepared.config.baseline_flags(), jury)
    return after if classes is None else dataclasses.replace(after, prefer=classes.preferred)
