"""Decisions after a round."""

from __future__ import annotations

import dataclasses
import math
import pickle

import numpy as np
import pytest
from race_records import BALANCED, incumbent, records, rounds

from sweep.metrics import summarize
from sweep.objective import PRESETS, Objective
from sweep.racing import GPU_NOISE, Incumbent, Noise, Planned, Round, least_violations, measure, race, split

PLANNED = Planned(rounds=3, requests=600, output_tokens=600 * 30)
STILL = Noise(server_sd=0.001, round_sd=0.001, df=1000.0)


def test_metrics_of_rounds_are_those_of_the_load() -> None:
    objective = Objective(
        {**PRESETS["balanced"], "mean_ttft_ms": 0.1, "std_itl_ms": 0.1, "goodput_per_s": -1.0},
        {"p95_ttft_ms": 400.0, "p99_tpot_ms": 25.0},
    )
    one = records()
    one[3] = dataclasses.replace(one[3], error="timed out", ttft_ms=None, itl_ms=(), e2el_ms=None)
    part = Round.of(reversed(one))
    span_s = part.span_s()
    assert span_s is not None
    expected = summarize(one, span_s, percentiles=(), slo=objective.slo, extra_names=objective.metrics_needed())
    assert measure([part], objective) == pytest.approx({name: expected[name] for name in objective.metrics_needed()})
    both = [*one, *records(number=1)]
    pooled = measure(split(both), BALANCED)
    every = summarize(both, 1.0, percentiles=(95.0, 99.0), slo={})
    assert pooled["p95_ttft_ms"] == pytest.approx(every["p95_ttft_ms"])
    assert pooled["p99_itl_ms"] == pytest.approx(every["p99_itl_ms"])


def test_much_worse_is_stopped_after_the_first_round_with_its_evidence() -> None:
    best = incumbent()
    decision = race(rounds(1, slow=2.5), best, BALANCED, planned=PLANNED, noise=GPU_NOISE)
    assert decision.stop
    assert decision.rule == "behind"
    found = decision.evidence
    assert found is not None
    assert found.pairs == 200
    assert 1.8 < found.ratio < 2.8  # the tenth of the weight that is throughput hardly changes at this rate
    assert found.metric_ratios["p95_ttft_ms"] == pytest.approx(2.5, rel=0.15)
    assert math.log(found.ratio) > found.needed_log > 4 * GPU_NOISE.server_sd
    assert "trial 3" in decision.reason
    assert f"{found.ratio:.2f}" in decision.reason


@pytest.mark.parametrize("slow", [0.5, 0.95, 1.0, 1.1, 1.2])
def test_what_noise_between_servers_explains_goes_on(slow: float) -> None:
    for done in (1, 2):
        decision = race(rounds(done, slow=slow), incumbent(), BALANCED, planned=PLANNED, noise=GPU_NOISE)
        assert not decision.stop
        assert decision.rule is None


def test_a_rank_test_over_requests_would_be_sure_where_servers_differ_by_their_noise() -> None:
    """The reason for all of it: 15 % slower is what another launch of the same flags may look like."""
    slower, best = rounds(1, slow=1.15), incumbent()
    differences = slower[0].columns.e2el_ms - best.rounds[0].columns.e2el_ms
    worse = int(np.count_nonzero(differences > 0))
    assert (worse - 100) / math.sqrt(50) > 4  # a sign test: four standard deviations
    assert not race(slower, best, BALANCED, planned=PLANNED, noise=GPU_NOISE).stop


def test_more_rounds_more_trials_and_less_error_move_the_margin() -> None:
    def needed(done: int, compared: int, error: float) -> float:
        best = incumbent(compared=compared)
        evidence = race(rounds(done, slow=2.0), best, BALANCED, planned=PLANNED, noise=GPU_NOISE, error=error).evidence
        assert evidence is not None
        return evidence.needed_log

    assert needed(2, 10, 0.01) < needed(1, 10, 0.01)
    assert needed(1, 2, 0.01) < needed(1, 10, 0.01) < needed(1, 60, 0.01)
    assert needed(1, 10, 0.05) < needed(1, 10, 0.01)


def test_one_hiccup_is_not_what_the_flags_did() -> None:
    """Forty requests that stood still for half a minute ruin every tail, but not the typical stretch."""
    one = records()
    for index in range(60, 100):
        late = 30_000.0 - 500.0 * (index - 60)
        row = one[index]
        assert row.ttft_ms is not None
        assert row.e2el_ms is not None
        one[index] = dataclasses.replace(row, ttft_ms=row.ttft_ms + late, e2el_ms=row.e2el_ms + late)
    decision = race([Round.of(one)], incumbent(), BALANCED, planned=PLANNED, noise=GPU_NOISE)
    assert decision.evidence is not None
    assert decision.evidence.ratio > 5
    assert decision.evidence.typical_ratio < 1.5
    assert not decision.stop


def test_the_baseline_and_the_last_round_are_never_stopped() -> None:
    objective = Objective(PRESETS["balanced"], {"p95_ttft_ms": 100.0})
    terrible = rounds(3, slow=20.0)
    assert not race(terrible[:1], None, objective, planned=PLANNED, noise=STILL).stop
    assert not race(terrible, incumbent(), BALANCED, planned=PLANNED, noise=STILL).stop
    assert race(terrible[:2], incumbent(), BALANCED, planned=PLANNED, noise=STILL).stop


def test_only_requests_of_the_same_prompt_at_the_same_place_are_compared() -> None:
    best = incumbent()
    others = [dataclasses.replace(row, prompt_id="other") for row in records(slow=3.0)]
    decision = race([Round.of(others)], best, BALANCED, planned=PLANNED, noise=STILL)
    assert not decision.stop
    assert "too few" in decision.reason
    mixed = Round.of([*records(slow=3.0)[:80], *others[80:]])
    decision = race([mixed], best, BALANCED, planned=PLANNED, noise=GPU_NOISE)
    assert decision.evidence is not None
    assert decision.evidence.pairs == 80
    assert decision.stop


@pytest.mark.parametrize("done", [0, 30])
def test_few_requests_decide_nothing(done: int) -> None:
    part = Round.of(records(slow=10.0)[:done])
    assert not race([part], incumbent(), BALANCED, planned=PLANNED, noise=STILL).stop


def test_an_incumbent_that_misses_an_slo_stops_nothing_by_its_score() -> None:
    objective = Objective(PRESETS["balanced"], {"p95_tpot_ms": 15.0})
    best = incumbent(objective)
    assert not best.feasible
    slow_but_fluent = rounds(1, slow=0.5, ttft_ms=8000.0)
    assert not race(slow_but_fluent, best, objective, planned=PLANNED, noise=STILL).stop
    assert race(rounds(1, slow=30.0), best, objective, planned=PLANNED, noise=STILL).rule == "slo"


def test_slo_is_beyond_repair_exactly_when_no_outcome_can_keep_it() -> None:
    """p95 of 600 requests: position 569.05 of the sorted ones, so 30 above the limit break it, 29 do not."""
    objective = Objective({"p50_ttft_ms": 1.0}, {"p95_ttft_ms": 1000.0})
    best = incumbent(objective)
    for above, broken in ((29, False), (30, False), (31, True)):
        one = [
            dataclasses.replace(row, ttft_ms=100_000.0 if row.index < above else 1.0, e2el_ms=200_000.0)
            for row in records()
        ]
        decision = race([Round.of(one)], best, objective, planned=PLANNED, noise=GPU_NOISE)
        values = np.array([100_000.0] * above + [0.0] * (600 - above))
        assert (float(np.percentile(values, 95)) > 1000.0) is (decision.rule == "slo")
        if above != 30:  # there interpolation decides
            assert (decision.rule == "slo") is broken


def test_least_violations_never_exceed_what_the_trial_ends_with() -> None:
    names = {"p95_ttft_ms": 300.0, "mean_e2el_ms": 500.0, "p99_itl_ms": 30.0, "median_tpot_ms": 20.0}
    objective = Objective({"p50_ttft_ms": 1.0}, {**names, "std_ttft_ms": 1.0, "request_throughput_per_s": 9.0})
    every = rounds(3, slow=2.0)
    final = objective.score(measure(every, objective), measure(every, objective)).violations
    for done in (1, 2, 3):
        least = least_violations(every[:done], objective, PLANNED)
        assert set(least) == set(names)
        assert all(least[name] <= final[name] + 1e-12 for name in names)
    assert least_violations([], objective, PLANNED) == {}
    unknown = dataclasses.replace(PLANNED, output_tokens=None)
    assert "p99_itl_ms" not in least_violations(every[:1], objective, unknown)


def test_an_incumbent_travels_to_a_worker() -> None:
    best: Incumbent = pickle.loads(pickle.dumps(incumbent()))
    assert race(rounds(1, slow=3.0), best, BALANCED, planned=PLANNED, noise=GPU_NOISE).stop
