"""The launches of a confirmation as the store holds them, judged: what stands, and what the verdict is.

A configuration is known by the number of the search trial that found it, the baseline by 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sweep.equivalence.binding import changed
from sweep.looks import configurations, pooled, ranked
from sweep.objective import Objective
from sweep.recommend import Recommendation
from sweep.recommend import Verdict as Decision
from sweep.reference import block_reference
from sweep.search_space import canonical, flags_key
from sweep.stages import UTILIZATION, Confirmation, ConfirmRules, Standing, counting, soak_ladder, survivor
from sweep.store import read_requests, read_rounds
from sweep.trial import Finished, Flags, TrialKind, TrialSpec, TrialStatus
from sweep.verdict import LaunchFigures, Outcome, Verdict, enough, figures_of, from_requests, judge
from sweep.verdict import gain as gain_text

BASELINE = 0


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A verdict with the configurations it is about. `recommended`: the winner, or what the soak left of it; None where
    today's flags stay. `soaked`: whether the recommended flags survived the soak, None where there was none.
    `in_place_of`: of a configuration that the search never tried, the best trial of the search that it was launched
    for: one whose flags are the same to the engine and further from today's.
    """

    verdict: Verdict
    flags: Mapping[int, Flags]
    recommended: int | None
    soaked: bool | None
    note: str = ""
    in_place_of: Mapping[int, int] = field(default_factory=dict)

    def speaks_for(self, flags: Flags) -> bool:
        """Whether these flags, the best of a search, were launched again: as they stand or nearer to today's."""
        launched = any(flags_key(one) == flags_key(flags) for one in self.flags.values())
        return launched or _launched_for(flags, self.flags) is not None


@dataclass(slots=True)
class Jury:
    """Judges launches by their stored requests. `folder` is the study's; figures are computed once a launch."""

    folder: Path
    objective: Objective
    rules: ConfirmRules
    width: float
    seed: int = 0
    metric_names: tuple[str, ...] = ()
    _figures: dict[tuple[int, int], LaunchFigures] = field(default_factory=dict)
    _stood: tuple[tuple[int, ...], Standing] | None = None

    def standing(self, finished: Mapping[int, Finished], launches: Sequence[Finished]) -> Standing:
        """What the launches that count say so far, for the plan of the next one, which asks many times a second."""
        numbers = tuple(one.number for one in launches)
        if self._stood is None or self._stood[0] != numbers:
            self._stood = (numbers, self._standing(finished, launches))
        return self._stood[1]

    def _standing(self, finished: Mapping[int, Finished], launches: Sequence[Finished]) -> Standing:
        verdict, flags = self._judge(finished, launches)
        said = enough(verdict, width=self.width, first=self.rules.launches, most=self.rules.max_launches)
        leader = verdict.leader
        still = () if leader is None else tuple(e.key for e in verdict.effects if e.score.low <= leader.score.high)
        return Standing(
            enough=said.stop,
            contending=tuple(flags[key] for key in still),
            winner=None if verdict.winner is None else flags[self._origin(verdict.winner, flags)],
        )

    def confirmed(self, finished: Mapping[int, Finished]) -> Confirmed | None:
        """The verdict on all launches, None before there are two of the baseline and of a candidate."""
        launches = counting(finished)
        if not launches:
            return None
        verdict, flags = self._judge(finished, launches)
        if verdict.leader is None:
            return None
        found = Confirmed(verdict, flags, None, None)
        if verdict.winner is not None:
            found = self._after_soak(finished, verdict, flags)
        return replace(found, in_place_of=_in_place_of(finished, flags))

    def _after_soak(self, finished: Mapping[int, Finished], verdict: Verdict, flags: Mapping[int, Flags]) -> Confirmed:
        assert verdict.winner is not None
        top = flags[self._origin(verdict.winner, flags)]
        soaks = [one for one in finished.values() if one.kind is TrialKind.SOAK]
        unknown = "whether it survives its worst burst is not known" if self.rules.soak else ""
        if not soaks:
            return Confirmed(verdict, flags, verdict.winner, None, unknown)
        left = survivor(finished, top, self.rules.utilization_step)
        if left is None:
            note = "the winner failed under its worst burst, and so did less gpu-memory-utilization"
            return Confirmed(verdict, flags, None, False, note)
        key = next((number for number, one in flags.items() if flags_key(one) == flags_key(left)), None)
        done = [one for one in soaks if one.status is TrialStatus.COMPLETE]
        soaked = any(flags_key(one.flags) == flags_key(left) for one in done)
        if key is None or verdict.effect(key) is None:
            note = "the winner failed under its worst burst; less gpu-memory-utilization is not measured yet"
            return Confirmed(verdict, flags, None, False, note)
        stepped = "" if flags_key(left) == flags_key(top) else "gpu-memory-utilization was lowered after the soak"
        return Confirmed(verdict, flags, key, soaked or None, stepped or ("" if soaked else unknown))

    def _origin(self, key: int, flags: Mapping[int, Flags]) -> int:
        """The configuration that `key` was stepped down from after a soak; `key` itself for all others."""
        for number, one in flags.items():
            steps = soak_ladder(one, self.rules.utilization_step)[1:]
            if number < key and any(flags_key(step) == flags_key(flags[key]) for step in steps):
                return number
        return key

    def _judge(
        self, finished: Mapping[int, Finished], launches: Sequence[Finished]
    ) -> tuple[Verdict, Mapping[int, Flags]]:
        keys = self._keys(finished, launches)
        figures = [self._of(keys[flags_key(one.flags)], one) for one in sorted(launches, key=lambda one: one.number)]
        flags = {keys[flags_key(one.flags)]: one.flags for one in launches}
        found = configurations(finished.values())
        scores = {number: pooled(looks).score for number, looks in found.items() if number in flags}
        scores |= {key: pooled(found[best]).score for key, best in _in_place_of(finished, flags).items()}
        verdict = judge(
            figures,
            self.objective,
            baseline=BASELINE,
            flags=flags,
            search_scores=scores,
            width=self.width,
            metric_names=self.metric_names,
        )
        return verdict, flags

    def _keys(self, finished: Mapping[int, Finished], launches: Sequence[Finished]) -> dict[object, int]:
        """The number each configuration is known by: that of the first trial with these flags."""
        keys: dict[object, int] = {}
        wanted = {flags_key(one.flags) for one in launches}
        for number in sorted(finished):
            key = flags_key(finished[number].flags)
            if key in wanted:
                keys.setdefault(key, number)
        return keys

    def _of(self, key: int, one: Finished) -> LaunchFigures:
        assert one.block is not None  # every launch of a confirmation has one
        if (one.number, key) not in self._figures:
            rounds = read_rounds(self.folder, one.number)
            launch = from_requests(
                key,
                one.block,
                one.number,
                read_requests(self.folder, one.number),
                durations_s={part.round: part.duration_s for part in rounds},
                rates={part.round: part.request_rate_per_s for part in rounds},
            )
            names = dict.fromkeys((*self.objective.metrics_needed(), *self.metric_names))
            self._figures[one.number, key] = figures_of(launch, tuple(names), slo=self.objective.limits, seed=self.seed)
        return self._figures[one.number, key]


def _in_place_of(finished: Mapping[int, Finished], flags: Mapping[int, Flags]) -> dict[int, int]:
    """See `Confirmed`."""
    launched, searched = {flags_key(one) for one in flags.values()}, configurations(finished.values())
    found: dict[int, int] = {}
    for one in ranked(finished.values()):
        key = None if flags_key(one.flags) in launched else _launched_for(one.flags, flags)
        if key is not None and key not in searched:
            found.setdefault(key, one.number)
    return found


def _launched_for(searched: Flags, launched: Mapping[int, Flags]) -> int | None:
    """The configuration that was launched in place of `searched`, if one was. Told by the flags alone, so that a record
    can say it where nobody knows the device's memory: it differs in limits only, each as today's flags have it, or less
    memory; of several the one that differs in the fewest."""
    if BASELINE not in launched:
        return None
    near = [
        (len(names), key)
        for key, other in launched.items()
        if key != BASELINE
        and (names := changed(searched, other))
        and all(_nearer(name, searched, other, launched[BASELINE]) for name in names)
    ]
    return min(near)[1] if near else None


def _nearer(name: str, searched: Flags, launched: Flags, baseline: Flags) -> bool:
    if canonical(launched.get(name)) == canonical(baseline.get(name)):
        return True
    less, more = launched.get(name), searched.get(name)
    return name == UTILIZATION and isinstance(less, (int, float)) and isinstance(more, (int, float)) and less < more


def recommended(confirmed: Confirmed) -> Recommendation:
    """What the confirmation recommends: the winner, or today's flags."""
    verdict = confirmed.verdict
    note = f" {confirmed.note[:1].upper()}{confirmed.note[1:]}." if confirmed.note else ""
    if verdict.winner is not None and confirmed.recommended is not None:
        effect = verdict.effect(confirmed.recommended)
        assert effect is not None  # see `_after_soak`
        gain, soaked = effect.gain, " It survived its worst burst." if confirmed.soaked else ""
        sentence = verdict.sentence
        if confirmed.recommended != verdict.winner:
            sentence = f"Configuration {effect.key} is {gain_text(effect.score, verdict.level)}."
        return Recommendation(
            verdict=Decision.BETTER,
            number=effect.key,
            flags=confirmed.flags[effect.key],
            score=effect.score.value,
            gain_share=gain.value,
            sentence=f"{sentence}{note}{soaked}",
            confirmed=True,
            gain_low_share=gain.low,
            gain_high_share=gain.high,
        )
    kept = Decision.NO_CLEAR_WINNER if verdict.outcome is Outcome.NO_CLEAR_WINNER else Decision.KEEP
    sentence = f"{verdict.sentence}{note}" if verdict.winner is None else f"Keep your flags:{note}"
    flags = confirmed.flags.get(BASELINE)
    return Recommendation(kept, BASELINE, flags, 1.0, 0.0, sentence, confirmed=True)


@dataclass(frozen=True, slots=True)
class AfterSearch:
    """What follows the search, as the plan asks for it."""

    confirmation: ConfirmRules
    baseline: Flags
    jury: Jury
    prefer: Callable[[Flags], Flags] = lambda flags: flags

    def next(self, number: int, finished: Mapping[int, Finished], room: int | None) -> TrialSpec | None:
        """The next launch of the confirmation as a trial; see `Confirmation.next`."""
        stages = Confirmation(
            self.confirmation,
            self.baseline,
            lambda launches: self.jury.standing(finished, launches),
            self.prefer,
        )
        launch = stages.next(finished, room=room)
        if launch is None:
            return None
        reference = None if launch.block is None else block_reference(finished.values(), launch.block)
        return TrialSpec(number, launch.kind, launch.flags, reference, launch.block)

    def least_launches(self) -> int:
        """Launches of a confirmation that goes as planned."""
        return self.confirmation.least_launches()
