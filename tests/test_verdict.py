"""The verdict: who leads, who wins, what the sentence says, when to stop."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from verdict_cases import TTFT, launch, launches

from sweep.objective import Objective
from sweep.trial import Flags
from sweep.verdict import (
    FIRST_LAUNCHES,
    Interval,
    LaunchFigures,
    Outcome,
    Verdict,
    Why,
    enough,
    finalists,
    gain,
    judge,
)

FLAGS: dict[int, Flags] = {
    0: {"max-num-seqs": 64, "gpu-memory-utilization": 0.9, "block-size": 16},
    1: {"max-num-seqs": 128, "gpu-memory-utilization": 0.8, "block-size": 32},
    2: {"max-num-seqs": 128, "gpu-memory-utilization": 0.9, "block-size": 16},
    3: {"max-num-seqs": 32, "gpu-memory-utilization": 0.9, "block-size": 16},
}
BASE = (100.0, 102.0, 99.0, 101.0)


def verdict_of(rows: Mapping[int, tuple[float, ...]], **options: object) -> Verdict:
    return judge(launches(rows), TTFT, baseline=0, flags=FLAGS, **options)  # type: ignore[arg-type]


def test_a_clearly_better_configuration_wins_with_its_interval() -> None:
    verdict = verdict_of({0: BASE, 1: (88.0, 90.0, 87.0, 89.0), 3: (101.0, 101.0, 98.0, 103.0)})
    assert (verdict.outcome, verdict.winner) == (Outcome.BETTER, 1)
    assert verdict.leader is not None
    score = verdict.leader.score
    assert score.low < 88.5 / 100.5 < score.high < 1
    assert score.value == pytest.approx(88.5 / 100.5, abs=0.001)
    assert "Configuration 1 is 11.9 % better (95 % interval" in verdict.sentence
    assert "4 launches each" in verdict.sentence


def test_a_leader_within_the_noise_is_no_clear_winner_and_one_that_is_worse_keeps_the_flags() -> None:
    noisy = verdict_of({0: (100.0, 130.0, 90.0), 1: (95.0, 90.0, 110.0), 3: (130.0, 100.0, 120.0)})
    assert (noisy.outcome, noisy.winner) == (Outcome.NO_CLEAR_WINNER, None)
    assert "may be chance" in noisy.sentence
    worse = verdict_of({0: BASE, 1: (110.0, 112.0, 109.0, 111.0)})
    assert (worse.outcome, worse.winner) == (Outcome.KEEP, None)
    assert "10.0 % worse" in worse.sentence


def test_a_sharp_measurement_without_a_winner_reads_keep_your_flags() -> None:
    rows = {0: BASE, 1: (99.5, 102.2, 99.4, 100.5), 3: (101.0, 101.5, 99.5, 101.9)}
    assert verdict_of(rows).outcome is Outcome.KEEP
    assert verdict_of(rows, width=0.001).outcome is Outcome.NO_CLEAR_WINNER


def test_on_a_tie_fewer_changed_flags_win_and_then_the_lower_utilization() -> None:
    rows = {0: BASE, 1: (88.0, 90.0, 87.0, 89.0), 2: (88.5, 90.2, 87.4, 89.6)}
    verdict = verdict_of(rows)
    assert verdict.leader is not None
    assert (verdict.leader.key, verdict.winner, verdict.tied) == (1, 2, (1, 2))
    assert "changes 3 flags instead of 1" in verdict.sentence
    flags = {
        0: FLAGS[0],
        1: {**FLAGS[0], "gpu-memory-utilization": 0.7},
        2: {**FLAGS[0], "gpu-memory-utilization": 0.8},
    }
    assert judge(launches(rows), TTFT, baseline=0, flags=flags).winner == 1
    flags[1] = {**FLAGS[0], "gpu-memory-utilization": None}
    assert judge(launches(rows), TTFT, baseline=0, flags=flags).winner == 2


def test_a_tie_is_no_reason_to_take_what_is_not_clearly_better_itself_or_clearly_behind() -> None:
    behind = verdict_of({0: BASE, 1: (78.0, 80.0, 77.0, 79.0), 2: (92.0, 94.0, 91.0, 93.0)})
    assert (behind.winner, behind.tied) == (1, (1,))
    doubtful = verdict_of({0: BASE, 1: (94.0, 96.0, 93.0, 95.0), 2: (98.0, 99.0, 96.0, 100.0)})
    assert doubtful.tied == (1,)


def test_an_infeasible_candidate_never_wins_over_a_feasible_baseline() -> None:
    objective = Objective({"p95_ttft_ms": 1.0}, {"p95_tpot_ms": 50.0})
    figures = [
        launch(key, block, {"p95_ttft_ms": ttft + block, "p95_tpot_ms": tpot + block / 10})
        for key, ttft, tpot in ((0, 100.0, 40.0), (1, 50.0, 60.0), (2, 99.0, 41.0))
        for block in range(4)
    ]
    verdict = judge(figures, objective, baseline=0, flags=FLAGS)
    assert verdict.winner is None
    assert verdict.leader is not None
    assert verdict.leader.key == 2
    assert [effect.feasible for effect in verdict.effects] == [True, False]


@pytest.mark.parametrize(("tpot", "winner"), [((44.0, 45.0, 44.5, 44.2), 1), ((52.0, 46.0, 55.0, 46.0), None)])
def test_where_the_baseline_breaks_an_slo_the_one_that_surely_mends_it_wins(
    tpot: tuple[float, ...], winner: int | None
) -> None:
    objective = Objective({"p95_ttft_ms": 1.0}, {"p95_tpot_ms": 50.0})
    base = (51.0, 52.0, 51.5, 51.2)
    figures = [launch(0, block, {"p95_ttft_ms": 100.0 + block, "p95_tpot_ms": base[block]}) for block in range(4)]
    figures += [launch(1, block, {"p95_ttft_ms": 105.0 - block, "p95_tpot_ms": tpot[block]}) for block in range(4)]
    verdict = judge(figures, objective, baseline=0, flags=FLAGS)
    assert not verdict.baseline_feasible
    assert verdict.winner == winner
    if winner is not None:
        assert "keeps the SLOs: the baseline breaks that on p95_tpot_ms" in verdict.sentence


def test_a_throughput_slo_is_mended_by_more_of_it() -> None:
    objective = Objective({"p95_ttft_ms": 1.0}, {"output_throughput_tokens_per_s": 100.0})
    figures = [
        launch(key, block, {"p95_ttft_ms": 100.0 + block, "output_throughput_tokens_per_s": rate + block})
        for key, rate in ((0, 90.0), (1, 120.0))
        for block in range(4)
    ]
    assert judge(figures, objective, baseline=0, flags=FLAGS).winner == 1


def test_launches_that_agree_to_the_last_digit_are_no_better() -> None:
    same = verdict_of({0: (100.0,) * 3, 1: (100.0,) * 3, 2: (100.0 * (1 - 1e-12),) * 3})
    assert (same.outcome, same.winner) == (Outcome.KEEP, None)
    assert verdict_of({0: (100.0,) * 3, 1: (90.0,) * 3}).winner == 1


def test_one_lucky_launch_does_not_win() -> None:
    for blocks in range(3, 12):
        lucky = [100.0 + at % 3 for at in range(blocks)]
        lucky[1] = 30.0
        rows = {0: tuple(100.0 + (at * 7) % 3 for at in range(blocks)), 1: tuple(lucky), 3: tuple(lucky[:1] * blocks)}
        assert verdict_of(rows).winner is None


def test_search_scores_are_shown_beside_and_change_nothing() -> None:
    rows = {0: BASE, 1: (88.0, 90.0, 87.0, 89.0), 3: (101.0, 101.0, 98.0, 103.0)}
    verdict = verdict_of(rows, search_scores={1: 0.7, 3: 0.72})
    assert [item.key for item in verdict.shrinkage] == [1, 3]
    assert verdict.shrinkage[0].luck == pytest.approx(88.5 / 100.5 - 0.7, abs=0.001)
    assert verdict.effects == verdict_of(rows).effects


def test_metrics_of_baseline_and_winner_have_intervals_and_ratios() -> None:
    names = {"p95_ttft_ms": 100.0, "request_throughput_per_s": 4.0}
    figures = [
        launch(key, block, {name: value * factor * (1 + block / 100) for name, value in names.items()})
        for key, factor in ((0, 1.0), (1, 0.8))
        for block in range(4)
    ]
    figures = [figure if figure.key else with_noise(figure) for figure in figures]
    verdict = judge(figures, TTFT, baseline=0, flags=FLAGS, metric_names=("request_throughput_per_s", "p50_itl_ms"))
    assert [line.name for line in verdict.metrics] == ["p95_ttft_ms", "request_throughput_per_s"]
    for line in verdict.metrics:
        assert line.ratio.value == pytest.approx(0.8, rel=0.02)
        for interval in (line.baseline, line.leader, line.ratio):
            assert interval.low < interval.value < interval.high


def with_noise(figure: LaunchFigures) -> LaunchFigures:
    factor = 1 + 0.01 * (-1) ** figure.block
    return launch(figure.key, figure.block, {name: (value or 0) * factor for name, value in figure.metrics.items()})


def test_the_worst_ratio_is_judged_by_means_so_that_noise_does_not_favour_candidates() -> None:
    # The largest of several noisy ratios is above 1 at the baseline itself. Scoring launches one by one would make a
    # configuration with one ratio far above the others look better than it.
    rng = np.random.default_rng(5)
    objective = Objective({"p95_ttft_ms": 1, "p95_tpot_ms": 1, "p95_e2el_ms": 1}, {}, "worst")
    wins = 0
    for _ in range(60):
        figures = [
            launch(
                key,
                block,
                {
                    name: 100 * (0.8 if key and name != "p95_ttft_ms" else 1.0) * np.exp(0.1 * rng.standard_normal())
                    for name in objective.weights
                },
            )
            for key in (0, 1)
            for block in range(8)
        ]
        wins += judge(figures, objective, baseline=0, flags=FLAGS).winner == 1
    assert wins <= 4


def test_launches_that_lack_a_metric_are_left_out_and_too_few_decide_nothing() -> None:
    figures = launches({0: BASE, 1: (88.0, 90.0, 87.0, 89.0)})
    figures.append(launch(1, 4, {"p95_ttft_ms": None}))
    verdict = judge(figures, TTFT, baseline=0, flags=FLAGS)
    assert (verdict.winner, verdict.unusable, verdict.launches) == (1, 1, 4)
    alone = judge(launches({0: BASE, 1: (50.0,)}), TTFT, baseline=0, flags=FLAGS)
    assert (alone.outcome, alone.leader) == (Outcome.NO_CLEAR_WINNER, None)
    assert "too few launches" in alone.sentence
    without = judge(launches({1: BASE, 2: BASE}), TTFT, baseline=0, flags=FLAGS)
    assert without.leader is None


def test_the_stop_rule_asks_for_launches_until_the_interval_is_narrow() -> None:
    rows = {0: (100.0, 104.0, 97.0), 1: (90.0, 92.0, 85.0), 3: (101.0, 101.0, 98.0)}
    verdict = verdict_of(rows)
    assert verdict.leader is not None
    width = verdict.leader.score.width
    narrow = enough(verdict, width=width * 1.01)
    assert (narrow.stop, narrow.why, narrow.launches_needed) == (True, Why.NARROW, FIRST_LAUNCHES)
    wide = enough(verdict, width=width / 2)
    assert (wide.stop, wide.why, wide.launches_needed) == (False, Why.GO_ON, 12)
    assert enough(verdict, width=width / 2, time_left_s=90, block_s=100).why is Why.TIME
    assert not enough(verdict, width=width / 2, time_left_s=200, block_s=100).stop
    assert enough(verdict, width=width / 2, most=3).why is Why.LAUNCHES
    two = verdict_of({key: row[:2] for key, row in rows.items()})
    assert not enough(two, width=10.0).stop


def test_the_stop_rule_ends_where_no_candidate_can_be_measured() -> None:
    nothing = judge(launches({0: BASE}), TTFT, baseline=0, flags=FLAGS)
    assert enough(nothing).why is Why.NOTHING
    early = judge(launches({0: BASE[:2]}), TTFT, baseline=0, flags=FLAGS)
    assert not enough(early).stop


def test_a_gain_reads_as_better_or_worse() -> None:
    assert gain(Interval(0.88, 0.84, 0.92), 0.95) == "12.0 % better (95 % interval 8.0 to 16.0)"
    assert gain(Interval(1.03, 1.0, 1.06), 0.95) == "3.0 % worse (95 % interval -6.0 to 0.0)"


def test_finalists_are_the_best_of_those_measured_twice_then_of_the_others() -> None:
    once = {1: [0.9], 2: [0.8], 3: [1.1], 4: [0.95]}
    assert finalists(once, 2) == (2, 1)
    twice = {**once, 1: [0.9, 0.9], 2: [0.8, 1.2]}
    assert finalists(twice) == (1, 2, 4)
    assert finalists({1: [], 2: [1.0]}) == (2,)
    assert finalists({}) == ()
