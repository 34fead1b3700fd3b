"""The statistics under the verdict, against tables, textbook formulas and simulations whose truth is known."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from test_metrics import recorded, requests_of
from verdict_cases import TTFT, launch, launches

from sweep.metrics import summarize
from sweep.verdict import Interval, figures_of, from_requests, judge, percentile_interval, prompts_needed
from sweep.verdict.layout import fit
from sweep.verdict.quantiles import dunnett_quantile, f_tail, t_quantile, t_tail
from sweep.verdict.stop import look_price


@pytest.mark.parametrize(
    ("tail", "df", "table"),
    [(0.025, 1, 12.706), (0.025, 2, 4.303), (0.025, 6, 2.447), (0.005, 10, 3.169), (0.05, 30, 1.697), (0.5, 5, 0.0)],
)
def test_students_t_is_that_of_the_tables(tail: float, df: float, table: float) -> None:
    assert t_quantile(tail, df) == pytest.approx(table, abs=6e-4)
    assert t_tail(-table, df) == pytest.approx(1 - tail, abs=1e-4)


def test_the_tail_of_f_is_that_of_the_tables() -> None:
    assert f_tail(10.92, 2, 6) == pytest.approx(0.01, abs=1e-4)
    assert f_tail(4.06, 4, 11) == pytest.approx(0.0285, abs=1e-3)


@pytest.mark.parametrize(
    ("k", "df", "table"), [(1, 10, 1.81), (2, 6, 2.34), (3, 6, 2.56), (3, 20, 2.19), (5, 20, 2.40), (9, 60, 2.49)]
)
def test_dunnetts_one_sided_points_are_those_of_his_table(k: int, df: float, table: float) -> None:
    assert dunnett_quantile(0.05, (math.sqrt(0.5),) * k, df) == pytest.approx(table, abs=0.02)


def test_a_quantile_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="tail probability"):
        t_quantile(0.0, 5)


def test_without_blocks_a_comparison_is_the_pooled_two_sample_t() -> None:
    rows = {0: (100.0, 110.0), 1: (90.0, 85.0)}
    layout = fit(launches(rows), 0, ["p95_ttft_ms"])
    assert layout is not None
    logs = {key: np.log(row) for key, row in rows.items()}
    pooled = sum(part.var(ddof=1) for part in logs.values()) / 2
    contrast = layout.contrast(1, 0, np.ones(1))
    assert (layout.blocked, layout.df) == (False, 2)
    assert contrast.log_ratio == pytest.approx(logs[1].mean() - logs[0].mean())
    assert contrast.error == pytest.approx(math.sqrt(pooled * 2 / 2))


def test_one_candidate_is_paired_with_the_baseline_from_three_blocks_on() -> None:
    layout = fit(launches({0: (374.0, 764.0, 722.0), 1: (369.0, 749.0, 648.0)}), 0, ["p95_ttft_ms"])
    assert layout is not None
    assert (layout.blocked, layout.df) == (True, 2)
    differences = np.log([369 / 374, 749 / 764, 648 / 722])
    contrast = layout.contrast(1, 0, np.ones(1))
    assert contrast.error == pytest.approx(differences.std(ddof=1) / math.sqrt(3))


def test_blocks_take_up_drift_as_in_a_randomised_block_design() -> None:
    rng = np.random.default_rng(1)
    drift = np.array([0.0, 0.5, -0.4, 1.0])
    logs = 4 + drift + 0.02 * rng.standard_normal((4, 4))
    layout = fit(launches(dict(enumerate(np.exp(logs).tolist()))), 0, ["p95_ttft_ms"])
    assert layout is not None
    assert (layout.blocked, layout.df) == (True, 9)
    left = logs - logs.mean(axis=1, keepdims=True) - logs.mean(axis=0) + logs.mean()
    contrast = layout.contrast(2, 0, np.ones(1))
    assert contrast.error == pytest.approx(math.sqrt((left**2).sum() / 9 * 2 / 4))
    assert contrast.log_ratio == pytest.approx(logs[2].mean() - logs[0].mean())


def test_a_missing_launch_is_made_up_for_by_the_drift_of_its_block() -> None:
    figures = launches(dict.fromkeys(range(4), (100.0, 200.0, 101.0, 102.0, 99.0)))
    figures = [figure for figure in figures if (figure.key, figure.block) != (3, 1)]
    layout = fit(figures, 0, ["p95_ttft_ms"])
    assert layout is not None
    assert layout.blocked
    assert layout.contrast(3, 0, np.ones(1)).log_ratio == pytest.approx(0, abs=1e-9)


def test_a_configuration_that_is_far_noisier_is_judged_by_its_own_spread() -> None:
    steady = {key: [100.0 + (at * (key + 3)) % 4 for at in range(8)] for key in range(3)}
    wild = [100.0 * (1 + 0.5 * (-1) ** at) for at in range(8)]
    layout = fit(launches({**steady, 3: wild}), 0, ["p95_ttft_ms"])
    assert layout is not None
    wild_one, steady_one = (layout.contrast(key, 0, np.ones(1)) for key in (3, 1))
    assert wild_one.error > 1.2 * steady_one.error
    assert wild_one.df == 7


def test_agreement_by_luck_is_not_believed_beyond_what_requests_allow() -> None:
    rng = np.random.default_rng(0)
    figures = [
        dataclasses.replace(figure, resampled=100 * np.exp(0.1 * rng.standard_normal((400, 1))))
        for figure in launches(dict.fromkeys(range(3), (100.0, 100.0, 100.01)))
    ]
    layout = fit(figures, 0, ["p95_ttft_ms"])
    assert layout is not None
    assert layout.contrast(1, 0, np.ones(1)).error == pytest.approx(0.1 * math.sqrt(2 / 3), rel=0.15)
    assert layout.within_variance(1, 0, np.ones(1)) == pytest.approx(0.01, rel=0.15)


def test_what_shared_prompts_do_to_one_configuration_widens_its_interval() -> None:
    # Every block has the same load, whose prompts suit configuration 1 or not: no spread of launches shows it.
    rng = np.random.default_rng(0)
    suits = 0.05 * rng.standard_normal((400, 1))
    rows = {0: (100.0, 104.0, 96.0), 1: (101.0, 96.0, 103.0), 2: (97.0, 102.0, 101.0)}
    errors = []
    for alike in (True, False):
        figures = []
        for key, row in rows.items():
            for block, value in enumerate(row):
                drawn = 100 * np.exp(suits * (key == 1) + 0.01 * rng.standard_normal((400, 1)))
                one = launch(key, block, {"p95_ttft_ms": value}, loads=(0,) if alike else (block,))
                figures.append(dataclasses.replace(one, resampled=drawn))
        layout = fit(figures, 0, ["p95_ttft_ms"])
        assert layout is not None
        errors.append(layout.contrast(1, 0, np.ones(1)).error)
    assert errors[0] ** 2 - errors[1] ** 2 == pytest.approx(0.05**2, rel=0.15)


@pytest.mark.parametrize(("k", "first"), [(1, 3), (3, 3)])
def test_looking_again_and_again_keeps_the_level(k: int, first: int) -> None:
    """The interval at the stop of `half <= 1`, for noise that needs about as many launches as the first look has, and
    up to five times as many."""
    rng = np.random.default_rng(3)
    configurations, most, studies = k + 1, 24, 1500
    counts = np.arange(first, most + 1)
    blocked = (configurations - 1) * (counts - 1)
    df = np.where(blocked >= 2, blocked, configurations * (counts - 1))
    quantile = np.array([t_quantile(0.025 * look_price(float(d)), float(d)) for d in df])
    levels = []
    for ratio in (0.5, 1.0, 2.0, 3.0, 5.0):
        sd = math.sqrt(ratio * first / 2) / 1.96
        logs = sd * rng.standard_normal((studies, configurations, most))
        half = np.empty((studies, len(counts)))
        for at, n in enumerate(counts):
            left = logs[:, :, :n] - logs[:, :, :n].mean(axis=2, keepdims=True)
            if blocked[at] >= 2:
                left = left - left.mean(axis=1, keepdims=True)
            half[:, at] = quantile[at] * np.sqrt((left**2).sum(axis=(1, 2)) / df[at] * 2 / n)
        narrow = half <= 1
        stop = np.where(narrow.any(axis=1), narrow.argmax(axis=1), len(counts) - 1)
        reach = half[np.arange(studies), stop] / (sd * np.sqrt(2 / counts[stop]))
        levels.append(float(np.mean([math.erf(z / math.sqrt(2)) for z in reach])))
    assert min(levels) > 0.935
    assert np.mean(levels) == pytest.approx(0.955, abs=0.012)


def test_the_leaders_interval_holds_the_truth_and_a_a_is_rarely_called_better() -> None:
    rng = np.random.default_rng(11)
    better, covered, studies = 0, 0, 300
    for _ in range(studies):
        logs = np.log(100.0) + 0.1 * rng.standard_normal(3) + 0.05 * rng.standard_normal((4, 3))
        verdict = judge(launches(dict(enumerate(np.exp(logs).tolist()))), TTFT, baseline=0, flags={})
        assert verdict.leader is not None
        score = verdict.leader.score
        covered += score.low <= 1 <= score.high
        better += verdict.winner is not None
    assert better / studies <= 0.05
    assert covered / studies >= 0.94


def test_the_figures_of_a_launch_are_the_metrics_of_its_requests() -> None:
    requests = requests_of(recorded("some_failed"))
    slo = {"p95_ttft_ms": 50.0, "p99_e2el_ms": 500.0}
    wanted = summarize(requests, 7.5, percentiles=(50.0, 95.0, 99.0), slo=slo)
    figures = figures_of(from_requests(3, 1, 4, requests, durations_s={0: 7.5}), list(wanted), slo=slo, resamples=50)
    assert (figures.key, figures.block, figures.order) == (3, 1, 4)
    for name, value in wanted.items():
        assert figures.metrics[name] == (None if value is None else pytest.approx(value, rel=1e-9)), name


def test_redrawn_figures_spread_as_the_percentile_does_and_agree_between_launches_of_one_load() -> None:
    rng = np.random.default_rng(2)
    prompts = rng.standard_normal(400)
    records = requests_of(recorded("good"))[:1] * 400
    found = []
    for speed in (1.0, 1.1):
        requests = [
            dataclasses.replace(record, index=at, round=at % 2, ttft_ms=speed * math.exp(5 + prompt), error=None)
            for at, (record, prompt) in enumerate(zip(records, prompts, strict=True))
        ]
        found.append(figures_of(from_requests(0, 0, 0, requests), ["p95_ttft_ms", "mean_ttft_ms"], resamples=300))
    assert np.allclose(found[1].resampled, 1.1 * found[0].resampled)
    exact = math.sqrt(0.05 * 0.95 / 400) / (math.exp(-(1.645**2) / 2) / math.sqrt(2 * math.pi))
    assert np.log(found[0].resampled[:, 0]).std() == pytest.approx(exact, rel=0.5)


def test_a_launch_without_an_answer_has_no_figures() -> None:
    failed = dataclasses.replace(requests_of(recorded("good"))[0], error="500", ttft_ms=None, e2el_ms=None)
    figures = figures_of(from_requests(0, 0, 0, [failed]), ["p95_ttft_ms", "request_throughput_per_s"], resamples=5)
    assert set(figures.metrics.values()) == {None}


def test_percentile_intervals_hold_the_truth_of_any_distribution() -> None:
    rng = np.random.default_rng(4)
    truth = math.exp(1.6448536)
    held = {"order": 0, "blocks": 0}
    for _ in range(200):
        sample = np.exp(rng.standard_normal(400))
        for name, blocks in (("order", None), ("blocks", np.arange(400) % 3)):
            interval = percentile_interval(sample, 95, blocks)
            assert interval is not None
            held[name] += interval.low <= truth <= interval.high
    assert 184 <= held["order"] < 200
    assert 184 <= held["blocks"] < 200


def test_values_of_one_request_and_differences_between_rounds_are_no_independent_draws() -> None:
    """Gaps between tokens: 12 of each of 300 requests, which differ, in three rounds, which differ by design."""
    rng = np.random.default_rng(5)
    rounds, owners = np.repeat(np.arange(3), 1200), np.repeat(np.arange(300), 12)

    def draw(size: int) -> NDArray[np.float64]:
        shift = np.repeat(np.arange(3), size // 3) * 0.5 + 0.4 * rng.standard_normal(size)
        return np.exp(np.repeat(shift, 12) + 0.2 * rng.standard_normal(12 * size))

    truth, held = float(np.percentile(draw(90_000), 90)), {"owners": 0, "naive": 0}
    for _ in range(150):
        sample = draw(300)
        for name, whose in (("owners", owners), ("naive", None)):
            interval = percentile_interval(sample, 90, rounds, whose)
            assert interval is not None
            held[name] += interval.low <= truth <= interval.high
    assert 136 <= held["owners"] < 150
    assert held["naive"] < 100  # 3,600 draws that are worth about 300


def test_rounds_that_differ_are_no_uncertainty() -> None:
    sample = np.concatenate([np.arange(100.0), 1000.0 + np.arange(100.0)])
    apart, pooled = (percentile_interval(sample, 75, blocks) for blocks in (np.arange(200) // 100, None))
    assert apart is not None
    assert pooled is not None
    # By rounds it is the median of the second, by a hundred values; pooled, a quantile of two hundred mixed ones.
    assert apart.width < pooled.width
    labels = np.array(["a"] * 100 + ["b"] * 100)
    assert percentile_interval(sample, 75, labels) == apart


def test_a_percentile_has_no_limit_that_its_sample_cannot_give() -> None:
    assert percentile_interval([], 95) is None
    assert percentile_interval([math.nan], 95) is None
    assert percentile_interval([3.0], 50) is None
    assert percentile_interval(np.arange(200.0), 99) is None
    few = percentile_interval(np.arange(100.0), 95, blocks=np.zeros(100))
    assert few == percentile_interval(np.arange(100.0), 95)
    with pytest.raises(ValueError, match="percentile"):
        percentile_interval([1.0], 100)


def test_the_median_of_ten_lies_between_the_second_and_the_ninth() -> None:
    assert percentile_interval(np.arange(1.0, 11.0), 50) == Interval(5.5, 2.0, 9.0)


def test_prompts_needed_are_ten_beyond_the_highest_percentile() -> None:
    assert prompts_needed(95) == 200
    assert prompts_needed([50, 99, 95.0]) == 1000
    assert prompts_needed([]) == 1
