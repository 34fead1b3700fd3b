"""One study of `bench_racing.py`: played to the end, raced, and with a rank test in place of the rule."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import racing_world as world

from sweep.objective import Objective
from sweep.racing import (
    Incumbent,
    Noise,
    Planned,
    RaceDecision,
    Round,
    estimate_noise,
    live_verdict,
    measure,
    race,
)
from sweep.trial import Score

LOOK_EVERY_S = 5.0
WILCOXON_P = 0.1


@dataclass(frozen=True, slots=True)
class Size:
    """How much is played."""

    studies: int
    trials: int
    requests: int


@dataclass(frozen=True, slots=True)
class Regime:
    """Studies of one kind: what is `believed` before them, and the truth, times a factor drawn from `factors`."""

    name: str
    believed: Noise
    scatter: world.Scatter
    factors: tuple[float, float]


@dataclass(slots=True)
class Tally:
    """What the studies of one row came to."""

    studies: int = 0
    winner_stopped: int = 0
    best_stopped: int = 0
    worse_winner: int = 0
    load_s: float = 0.0
    full_s: float = 0.0
    rules: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        self.studies += other.studies
        self.winner_stopped += other.winner_stopped
        self.best_stopped += other.best_stopped
        self.worse_winner += other.worse_winner
        self.load_s += other.load_s
        self.full_s += other.full_s
        self.rules.update(other.rules)

    def summary(self) -> dict[str, float | int]:
        return {
            "studies": self.studies,
            "load_time_saved_share": round(1.0 - self.load_s / self.full_s, 4),
            "winner_stopped_share": self.winner_stopped / self.studies,
            "best_stopped_share": self.best_stopped / self.studies,
            "worse_winner_share": self.worse_winner / self.studies,
        }


@dataclass(frozen=True, slots=True)
class Played:
    """One trial as a full night would store it."""

    launch: world.Launch
    rounds: tuple[Round, ...]
    metrics: Mapping[str, float | None]
    score: Score

    def key(self) -> tuple[float, float]:
        """Sorts as the product ranks: SLOs first, then the score."""
        return _excess(self.score), self.score.value if self.score.value is not None else math.inf


class Night:
    """One study: launches of the baseline (number 0), of candidates, and of the baseline once more in the middle."""

    def __init__(self, seed: int, size: Size, regime: Regime, objective: Objective, lengths: world.Numbers | None):
        rng = np.random.default_rng(seed)
        factor = float(rng.uniform(*regime.factors))
        self.objective, self._believed = objective, regime.believed
        noise = regime.scatter.times(factor)
        load = world.make_load(rng, size.requests, lengths)
        points = [world.BASELINE, *(world.draw_flags(rng) for _ in range(size.trials - 1))]
        *launches, again = world.run(load, [*points, world.BASELINE], noise, rng)
        first = launches[0].rounds()
        self._baseline = measure(first, objective)
        self.trials = [self._played(launch) for launch in launches]
        self._again = again.rounds()
        truth = [launch.rounds() for launch in world.run(load, points, None, rng)]
        zero = measure(truth[0], objective)
        scores = [objective.score(measure(rounds, objective), zero) for rounds in truth]
        self.truth = [(_excess(s), s.value if s.value is not None else math.inf) for s in scores]
        self.planned = Planned(world.ROUNDS, world.ROUNDS * size.requests, int(load.output_tokens.sum()))

    def _played(self, launch: world.Launch) -> Played:
        rounds = launch.rounds()
        metrics = measure(rounds, self.objective)
        return Played(launch, rounds, metrics, self.objective.score(metrics, self._baseline))

    def raced(self) -> Tally:
        """The night with every trial raced against the best complete one before it."""
        noise = self._believed
        done, broken, load_s, rules = [0], list[int](), _full_s(self.trials[0]), Counter[str]()
        incumbent = self._incumbent(0, 1)
        for number in range(1, len(self.trials)):
            if number == len(self.trials) // 2:
                launches = [self.trials[0].rounds, self._again]
                noise = estimate_noise(launches, self.objective, self._baseline, self._believed)
            took_s, decision = self._one(number, incumbent, noise)
            load_s += took_s
            if decision is not None:
                rules[decision.rule or ""] += 1
                broken += [number] if decision.rule == "slo" else []
                continue
            done.append(number)
            best = min(done, key=lambda index: self.trials[index].key())
            incumbent = self._incumbent(best, len(done))
        return self._tally(done, broken, load_s, rules)

    def _one(self, number: int, incumbent: Incumbent, noise: Noise) -> tuple[float, RaceDecision | None]:
        """Load time of a raced trial, and what stopped it."""
        trial, spent_s = self.trials[number], 0.0
        for index in range(world.ROUNDS):
            duration_s = trial.launch.duration_s(index)
            if trial.launch.most_waiting(index) >= 10:  # below, no live rule can speak
                samples = trial.launch.samples(index)
                for at_s in np.arange(LOOK_EVERY_S, duration_s, LOOK_EVERY_S).tolist():
                    decision = live_verdict(
                        [sample for sample in samples if sample.at_s <= at_s],
                        incumbent,
                        self.objective,
                        round_index=index,
                        started_at_s=0.0,
                        planned=self.planned,
                        rounds=trial.rounds[:index],
                    )
                    if decision.stop:
                        return spent_s + at_s, decision
            spent_s += duration_s
            decision = race(trial.rounds[: index + 1], incumbent, self.objective, planned=self.planned, noise=noise)
            if decision.stop:
                return spent_s, decision
        return spent_s, None

    def _incumbent(self, number: int, compared: int) -> Incumbent:
        trial = self.trials[number]
        assert trial.score.value is not None  # every metric of the model is defined
        return Incumbent(
            number=number,
            rounds=trial.rounds,
            metrics=trial.metrics,
            score=trial.score.value,
            violations=trial.score.violations,
            baseline_metrics=self._baseline,
            compared=compared,
            traces=tuple(trial.launch.trace(index) for index in range(world.ROUNDS)),
        )

    def wilcoxon(self) -> Tally:
        """The night with a rank test over requests in place of the rule, on their end-to-end latency."""
        done, best, load_s = [0], 0, _full_s(self.trials[0])
        for number in range(1, len(self.trials)):
            trial, stopped = self.trials[number], False
            for index in range(world.ROUNDS):
                load_s += trial.launch.duration_s(index)
                mine, theirs = (_e2el_ms(self.trials[n].rounds[: index + 1]) for n in (number, best))
                stopped = (
                    index + 1 < world.ROUNDS and mine.mean() > theirs.mean() and rank_p(mine - theirs) < WILCOXON_P
                )
                if stopped:
                    break
            if not stopped:
                done.append(number)
                best = min(done, key=lambda which: self.trials[which].key())
        return self._tally(done, (), load_s, Counter())

    def _tally(self, done: Sequence[int], broken: Sequence[int], load_s: float, rules: Counter[str]) -> Tally:
        """`done` ran to their end; `broken` were stopped for an SLO that they would have missed in the end, too."""
        every = range(len(self.trials))
        full = min(every, key=lambda number: self.trials[number].key())
        raced = min(done, key=lambda number: self.trials[number].key())
        truly = min(every, key=lambda number: self.truth[number])
        worse = self.truth[raced][0] > self.truth[full][0] or self.truth[raced][1] > 1.02 * self.truth[full][1]
        return Tally(
            studies=1,
            winner_stopped=int(full not in done),
            best_stopped=int(truly not in (*done, *broken)),
            worse_winner=int(worse),
            load_s=load_s,
            full_s=sum(_full_s(trial) for trial in self.trials),
            rules=rules,
        )


def rank_p(differences: world.Numbers) -> float:
    """One-sided p of Wilcoxon's signed-rank test that `differences` are not above zero; normal approximation."""
    ranks = np.argsort(np.argsort(np.abs(differences))) + 1.0
    n = len(differences)
    z = (ranks[differences > 0].sum() - n * (n + 1) / 4) / math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def _e2el_ms(rounds: Sequence[Round]) -> world.Numbers:
    return np.concatenate([part.columns.e2el_ms for part in rounds])


def _excess(score: Score) -> float:
    return sum(max(0.0, value) for value in score.violations.values())


def _full_s(trial: Played) -> float:
    return sum(trial.launch.duration_s(index) for index in range(world.ROUNDS))
