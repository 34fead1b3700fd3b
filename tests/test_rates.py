"""A load at several request rates: each is judged by itself, in scores, races, verdicts and reports alike."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from race_records import records
from reported import DURATION_S, flags, measured, request
from reported import report_of as report
from test_config import GOOD
from test_racing_live import STARTED_S, USUAL, samples

from sweep.config import loads
from sweep.errors import ConfigError, UserError
from sweep.metric_table import metric_at, parse_metric, rate_text, request_limits
from sweep.metrics import Part, RequestColumns, metric_names, summarize, summarize_parts
from sweep.objective import Aggregate, Objective
from sweep.racing import Incumbent, Noise, Planned, Round, live_verdict, measure, pack, race, unpack
from sweep.racing.rounds import score as score_of
from sweep.records import RequestRecord, RoundRecord
from sweep.redact import Redactor
from sweep.store import Schema, Store, read_trials
from sweep.trial import TrialKind, TrialResult, TrialSpec
from sweep.verdict import Outcome, RoundData, figures_of, from_requests, judge

LOW, HIGH = 4.0, 8.0
RATES = (LOW, HIGH)
TURNS = (LOW, HIGH, LOW, HIGH)  # of the rounds


def objective(weights: dict[str, float], slo: dict[str, float] | None = None, **more: Any) -> Objective:
    return Objective.of(None, weights, slo or {}, rates=RATES, **more)


TTFT = objective({"p95_ttft_ms": 1.0})


class TestNames:
    def test_a_rate_is_a_part_of_the_name(self) -> None:
        found = parse_metric("p95_ttft_ms@4.0")
        assert (found.name, found.base, found.at, found.percentile) == ("p95_ttft_ms@4", "p95_ttft_ms", "4", 95)
        assert parse_metric("goodput_per_s@inf").at == rate_text(None) == "inf"
        assert parse_metric("p95_ttft_ms").at is None
        assert metric_at("p95_ttft_ms", 0.5) == "p95_ttft_ms@0.5"
        assert float(rate_text(1234567.25)) == 1234567.25

    @pytest.mark.parametrize("name", ["p95_ttft_ms@", "p95_ttft_ms@x", "p95_ttft_ms@0", "p95_ttft_ms@-1", "a@4@4"])
    def test_what_is_no_rate(self, name: str) -> None:
        with pytest.raises(ConfigError, match="@"):
            parse_metric(name)

    def test_a_limit_at_one_rate_counts_for_requests_at_that_rate(self) -> None:
        slo = {"p95_ttft_ms@4": 100.0, "p95_ttft_ms@8": 900.0, "p95_e2el_ms": 5000.0}
        assert request_limits(slo, "4") == {"ttft": 100.0, "e2el": 5000.0}
        assert request_limits(slo) == {"ttft": 900.0, "e2el": 5000.0}


BEFORE = {"p95_ttft_ms@4": 100.0, "p95_ttft_ms@8": 1000.0, "goodput_per_s@4": 4.0, "goodput_per_s@8": 8.0}


class TestObjective:
    def test_the_score_is_the_mean_over_rates_of_what_each_is_to_the_baseline_there(self) -> None:
        """The pooled p95 is that of the high rate alone: it would not see that the low one became three times worse."""
        found = TTFT.score({"p95_ttft_ms": 1.0, "p95_ttft_ms@4": 300.0, "p95_ttft_ms@8": 900.0}, BEFORE)
        assert found.value == pytest.approx((3.0 + 0.9) / 2)
        assert found.ratios == {"p95_ttft_ms@4": 3.0, "p95_ttft_ms@8": 0.9}
        assert TTFT.score(BEFORE, BEFORE).value == 1.0
        assert TTFT.score({"p95_ttft_ms": 1.0, "p95_ttft_ms@4": 300.0}, BEFORE).value is None

    @pytest.mark.parametrize(("aggregate", "value"), [("geometric", math.sqrt(3.0 * 0.9)), ("worst", 3.0)])
    def test_the_aggregate_is_over_rates_too(self, aggregate: Aggregate, value: float) -> None:
        found = objective({"p95_ttft_ms": 1.0}, aggregate=aggregate)
        assert found.score({"p95_ttft_ms@4": 300.0, "p95_ttft_ms@8": 900.0}, BEFORE).value == pytest.approx(value)

    def test_weights_of_one_rate_add_to_those_of_all(self) -> None:
        found = objective({"p95_ttft_ms": 0.5, "p95_ttft_ms@8": 0.5})
        assert found.terms == {"p95_ttft_ms@4": 0.25, "p95_ttft_ms@8": 0.75}
        assert found.shares() == {LOW: 0.25, HIGH: 0.75}
        assert objective({"p95_ttft_ms@8": 1.0}).shares() == {HIGH: 1.0}
        assert found.describe() == "weights: {p95_ttft_ms: 0.5, p95_ttft_ms@8: 0.5}"

    def test_an_slo_must_be_kept_at_every_rate_or_at_the_one_it_names(self) -> None:
        found = objective({"p95_ttft_ms": 1.0}, {"p95_ttft_ms@8": 2000.0, "p95_ttft_ms": 200.0, "goodput_per_s": 4.0})
        assert found.limits == {
            "p95_ttft_ms@4": 200.0,
            "p95_ttft_ms@8": 2000.0,
            "goodput_per_s@4": 4.0,
            "goodput_per_s@8": 4.0,
        }
        score = found.score(BEFORE, BEFORE)
        assert score.feasible
        assert score.violations["p95_ttft_ms@8"] == -0.5
        assert not found.score({**BEFORE, "goodput_per_s@8": 3.0}, BEFORE).feasible

    def test_a_round_is_scored_by_the_metrics_of_its_rate(self) -> None:
        found = objective({"p95_ttft_ms": 0.9, "goodput_per_s@8": -0.1}, {"p95_ttft_ms": 1e5})
        low = {"p95_ttft_ms@4": 300.0}
        assert found.value_at(low, BEFORE, {LOW}) == 3.0
        assert found.value_at(low, BEFORE, {LOW, HIGH}) is None
        high = {"p95_ttft_ms@8": 500.0, "goodput_per_s@8": 16.0}
        assert found.value_at(high, BEFORE, {HIGH}) == pytest.approx(0.5)
        assert objective({"p95_ttft_ms@8": 1.0}).value_at(low, BEFORE, {LOW}) is None

    @pytest.mark.parametrize(
        ("keys", "said"),
        [
            ("weights: {p95_ttft_ms@5: 1}", "no round at that rate, only at 4, 8"),
            ("front: [p95_ttft_ms, p95_tpot_ms@4]", "names one of them: p95_ttft_ms@4 or p95_ttft_ms@8"),
            ("slo: {p95_ttft_ms@inf: 5}", "no round at that rate"),
            ("front: [p95_ttft_ms@4, p95_ttft_ms@4.0]", "two or three different metrics"),
        ],
    )
    def test_mistakes_in_a_study_file_cost_one_line_with_the_key(self, keys: str, said: str) -> None:
        text = f"{GOOD}load: {{request_rate: [4, 8]}}\nobjective:\n  {keys}\n"
        with pytest.raises(ConfigError, match=r"objective") as caught:
            loads(text, Path("night.yaml"))
        assert said in str(caught.value)

    def test_a_load_of_one_rate_has_no_rate_in_a_name(self) -> None:
        with pytest.raises(ConfigError, match="one request rate; write p95_ttft_ms"):
            Objective({"p95_ttft_ms@4": 1.0}, {})
        assert Objective.of(None, {"p95_ttft_ms": 1.0}, {}, rates=(4.0,)).terms == {"p95_ttft_ms": 1.0}


def rounds_of(low: float, high: float, count: int = 60, seed: int = 0) -> list[list[RequestRecord]]:
    """Four rounds that take turns, so much slower at each rate."""
    slow = {LOW: low, HIGH: 4.0 * high}
    return [records(number=k, slow=slow[rate], count=count, seed=seed) for k, rate in enumerate(TURNS)]


def test_metrics_of_a_rate_are_those_of_its_rounds_and_without_one_those_of_all() -> None:
    every = rounds_of(1.0, 1.0)
    parts = [
        Part(RequestColumns.of(one), 10.0 + k, rate) for k, (one, rate) in enumerate(zip(every, TURNS, strict=True))
    ]
    slo = {"p95_ttft_ms@4": 300.0, "p95_ttft_ms@8": 900.0}
    found = summarize_parts(parts, metric_names((50.0, 95.0), RATES), slo=slo)
    high = summarize([*every[1], *every[3]], 11.0 + 13.0, percentiles=(50, 95), slo={"p95_ttft_ms": 900.0})
    assert {name: found[f"{name}@8"] for name in high} == high
    pooled = summarize([row for one in every for row in one], 46.0, percentiles=(50, 95), slo={"ttft": 900.0})
    assert {name: found[name] for name in pooled} == pooled
    assert set(summarize_parts(parts[:1], ["p95_ttft_ms@8", "goodput_per_s@8"], slo=slo).values()) == {None}


class TestVerdict:
    def launch(self, key: int, block: int, low: float, high: float) -> Any:
        noise = np.random.default_rng((key, block)).normal(0.0, 0.01)
        every = rounds_of(low * math.exp(noise), high * math.exp(noise), seed=10 * block + key)
        rows = [row for one in every for row in one]
        rates = dict(enumerate(TURNS))
        launch = from_requests(key, block, 0, rows, durations_s=dict.fromkeys(range(4), 10.0), rates=rates)
        return launch, figures_of(launch, (*TTFT.metrics_needed(), "p95_ttft_ms"), resamples=40)

    def test_figures_are_of_each_rate_and_redrawn_within_it(self) -> None:
        launch, found = self.launch(0, 0, 1.0, 1.0)
        for name, rate in (("p95_ttft_ms@4", LOW), ("p95_ttft_ms@8", HIGH)):
            parts: list[RoundData] = [part for part in launch.rounds if part.rate == rate]
            values = np.concatenate([part.ttft_ms for part in parts])
            assert found.metrics[name] == pytest.approx(float(np.percentile(values, 95)))
        names = list(found.metrics)
        redrawn = found.resampled[:, [names.index("p95_ttft_ms@4"), names.index("p95_ttft_ms@8")]]
        assert np.isfinite(redrawn).all()
        # Requests of the other rate, four times as slow, never take part.
        assert redrawn[:, 0].max() < redrawn[:, 1].min()

    def test_better_at_one_rate_and_as_much_worse_at_the_other_is_no_winner(self) -> None:
        traded = [self.launch(k, b, *((1.25, 0.75) if k else (1.0, 1.0)))[1] for b in range(4) for k in (0, 1)]
        found = judge(traded, TTFT, baseline=0, flags={0: {}, 1: {"a": 1}})
        assert found.outcome is not Outcome.BETTER
        assert found.leader is not None
        assert found.leader.score.value == pytest.approx(1.0, abs=0.05)
        lines = {line.name: line.ratio.value for line in found.metrics}
        assert lines["p95_ttft_ms@4"] == pytest.approx(1.25, abs=0.07)
        assert lines["p95_ttft_ms@8"] == pytest.approx(0.75, abs=0.05)
        better = [self.launch(k, b, *((1.0, 0.5) if k else (1.0, 1.0)))[1] for b in range(4) for k in (0, 1)]
        assert judge(better, TTFT, baseline=0, flags={0: {}, 1: {"a": 1}}).winner == 1
        strict = objective({"p95_ttft_ms": 1.0}, {"p95_ttft_ms@8": 1.0})
        assert not judge(better, strict, baseline=0, flags={0: {}, 1: {}}).baseline_feasible


class TestRacing:
    noise = Noise(server_sd=0.06, round_sd=0.03, df=10.0)
    planned = Planned(
        4, 240, 240 * 30, rates=TURNS, by_rate={"4": Planned(2, 120, 120 * 30), "8": Planned(2, 120, 120 * 30)}
    )

    def rounds(self, low: float, high: float, seed: int, many: int = 4) -> tuple[Round, ...]:
        every = zip(rounds_of(low, high, seed=seed), TURNS, strict=True)
        return tuple(Round.of(one, rate) for one, rate in every)[:many]

    def incumbent(self, goal: Objective = TTFT) -> Incumbent:
        mine = self.rounds(1.0, 1.0, 1)
        metrics, baseline = measure(mine, goal), measure(self.rounds(1.0, 1.0, 100), goal)
        score = goal.score(metrics, baseline)
        assert score.value is not None
        return Incumbent(3, mine, metrics, score.value, score.violations, baseline, 10, (USUAL,) * 4)

    def raced(self, low: float, high: float, many: int, goal: Objective = TTFT) -> Any:
        mine = self.rounds(low, high, 2, many)
        return race(mine, self.incumbent(goal), goal, planned=self.planned, noise=self.noise)

    def test_nothing_is_decided_before_every_rate_that_counts_was_measured(self) -> None:
        assert "not every request rate" in self.raced(9.0, 9.0, 1).reason
        assert self.raced(9.0, 9.0, 2).rule == "behind"
        only_low = objective({"p95_ttft_ms@4": 1.0})
        assert self.raced(9.0, 1.0, 1, only_low).rule == "behind"

    def test_far_behind_at_one_rate_alone_is_stopped_when_the_mean_is(self) -> None:
        decision = self.raced(1.0, 6.0, 2)
        assert decision.rule == "behind"
        assert decision.evidence.ratio == pytest.approx(3.5, rel=0.15)
        assert decision.evidence.metric_ratios["p95_ttft_ms@4"] == pytest.approx(1.0, rel=0.2)
        assert not self.raced(1.6, 0.5, 2).stop

    def test_an_slo_at_one_rate_is_beyond_repair_by_the_requests_at_that_rate(self) -> None:
        """Seven of 120 requests above the limit break its p95; of all 240 they would not."""
        goal = objective({"p50_ttft_ms": 1.0}, {"p95_ttft_ms@4": 50_000.0})
        rows = [
            dataclasses.replace(row, ttft_ms=1e5 if row.index < 7 else 1.0, e2el_ms=2e5) for row in rounds_of(1, 1)[0]
        ]
        for rate, rule in ((LOW, "slo"), (HIGH, None)):
            one = [Round.of(rows, rate)]
            assert race(one, self.incumbent(goal), goal, planned=self.planned, noise=self.noise).rule == rule

    def test_a_queue_says_nothing_of_the_other_rate(self) -> None:
        growing = samples(60, waiting=lambda t: 20.0 * t, finished=lambda t: t)
        for number, goal, rule in (
            (0, TTFT, "queue"),
            (0, objective({"p95_ttft_ms@8": 1.0}), None),
            (1, objective({"p95_ttft_ms@8": 1.0}), "queue"),
        ):
            best = self.incumbent(goal)
            found = live_verdict(growing, best, goal, round_index=number, started_at_s=STARTED_S, planned=self.planned)
            assert found.rule == rule

    def test_rounds_travel_with_their_rate(self) -> None:
        mine = dict(enumerate(self.rounds(1.0, 1.0, 2)))
        there = unpack(pack(mine, gaps=False))
        assert [one.rate for one in there.values()] == list(TURNS)
        assert score_of(list(there.values()), TTFT, self.incumbent().baseline_metrics) == score_of(
            list(mine.values()), TTFT, self.incumbent().baseline_metrics
        )


SEARCHED = {"max-num-seqs": int, "block-size": int, "gpu-memory-utilization": float}


def stored(folder: Path, number: int, low_ms: float, high_ms: float, count: int = 20) -> TrialResult:
    """A trial of two rounds, one at each rate, stored without any metric of a rate."""
    rows = [
        dataclasses.replace(request(index, ms + index / 100), round=number)
        for number, ms in enumerate((low_ms, high_ms))
        for index in range(count)
    ]
    half = DURATION_S / 2
    parts = [RoundRecord(1, k, 40.0, half, 12.0, rate, count, count, 0, 3 * count) for k, rate in enumerate(RATES)]
    result = measured(number, rows, rounds=tuple(parts))
    schema = Schema(SEARCHED, tuple(result.metrics or ()))
    Store(folder, schema, metadata={}, redactor=Redactor({}), reserve_bytes=0).append(result, engine_summary={})
    return result


class TestReport:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """By the pooled p95, which is that of the high rate, trial 1 is best; over both rates trial 2."""
        for number, (low_ms, high_ms) in enumerate([(100.0, 1000.0), (300.0, 900.0), (50.0, 1000.0)]):
            stored(tmp_path, number, low_ms, high_ms)
        settings = {"study": {"name": "night", "trials": 3}, "load": {"request_rate": list(RATES)}}
        (tmp_path / "study.json").write_text(json.dumps({**settings, "objective": {"weights": {"p95_ttft_ms": 1}}}))
        return tmp_path

    def test_trials_are_ranked_by_the_mean_over_rates(self, folder: Path) -> None:
        found = report(folder)
        assert [trial.number for trial in found.trials] == [2, 0, 1]
        assert [trial.score.value for trial in found.trials if trial.score] == pytest.approx(
            [(0.5 + 1) / 2, 1.0, (3 + 0.9) / 2], rel=2e-3
        )
        assert found.metric_names == ("p95_ttft_ms@4", "p95_ttft_ms@8")
        assert found.trials[0].metrics["p95_ttft_ms@4"] == pytest.approx(50.1805)

    def test_limits_and_fronts_at_a_rate(self, folder: Path) -> None:
        assert report(folder, slo={"p95_ttft_ms@4": 75.0}).recommendation.number == 2
        # Nobody keeps it at the high rate, by which trial 1 misses least.
        assert report(folder, slo={"p95_ttft_ms": 400.0}).recommendation.number == 1
        front = report(folder, front=("p95_ttft_ms@4", "p95_ttft_ms@8")).front
        assert front is not None
        assert [point.number for point in front.points] == [2, 1]
        with pytest.raises(UserError, match="names one of them: p95_ttft_ms@4 or p95_ttft_ms@8"):
            report(folder, front=("p95_ttft_ms", "p95_tpot_ms@4"))

    def test_each_rate_needs_requests_enough_for_its_percentiles(self, tmp_path: Path) -> None:
        for number in range(2):
            stored(tmp_path, number, 100.0, 1000.0, count=150)
        found = report(tmp_path, weights={"p95_ttft_ms": 1.0})
        assert [(one.metric, one.needed, one.completed) for one in found.thin] == [
            ("p95_ttft_ms@4", 200, 150),
            ("p95_ttft_ms@8", 200, 150),
        ]
        assert read_trials(tmp_path)[0].thin_percentiles == ("p95",)

    def test_columns_of_a_rate_have_their_name_back(self, tmp_path: Path) -> None:
        names = metric_names((95.0,), RATES)
        result = measured(0, [request(0, 1.0)], spec=TrialSpec(0, TrialKind.BASELINE, flags(0)))
        result = dataclasses.replace(result, metrics=dict.fromkeys(names, 2.0))
        schema = Schema(SEARCHED, names)
        Store(tmp_path, schema, metadata={}, redactor=Redactor({}), reserve_bytes=0).append(result, engine_summary={})
        (back,) = read_trials(tmp_path)
        assert back.metrics == result.metrics
