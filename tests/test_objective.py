from __future__ import annotations

import math
import types
from pathlib import Path

import pytest
import yaml

from sweep.config import ObjectiveSection, loads
from sweep.errors import ConfigError
from sweep.objective import PRESETS, Aggregate, Objective, weights_of

BASE: dict[str, float | None] = {
    "p95_ttft_ms": 300.0,
    "p99_itl_ms": 70.0,
    "std_itl_ms": 11.0,
    "output_throughput_tokens_per_s": 1234.5,
    "goodput_per_s": 3.0,
}
WEIGHTS = {"p95_ttft_ms": 0.4, "p99_itl_ms": 0.3, "output_throughput_tokens_per_s": -0.3}


def test_the_baseline_scores_exactly_one() -> None:
    assert Objective(WEIGHTS, {}).score(BASE, BASE).value == 1.0
    odd = {"p95_ttft_ms": 0.1, "p99_itl_ms": 0.7, "std_itl_ms": 1 / 3, "output_throughput_tokens_per_s": -0.123}
    assert Objective(odd, {}).score(BASE, BASE).value == 1.0


def test_lower_is_better_for_latencies_and_for_throughputs() -> None:
    objective = Objective(WEIGHTS, {})
    better = {**BASE, "p95_ttft_ms": 150.0, "output_throughput_tokens_per_s": 2469.0}
    score = objective.score(better, BASE)
    assert score.value == pytest.approx(0.4 * 0.5 + 0.3 * 1.0 + 0.3 * 0.5)
    assert score.ratios == {"p95_ttft_ms": 0.5, "p99_itl_ms": 1.0, "output_throughput_tokens_per_s": 0.5}
    slower = objective.score({**BASE, "output_throughput_tokens_per_s": 1000.0}, BASE).value
    assert slower is not None
    assert slower > 1.0


def test_weights_need_not_sum_to_one() -> None:
    small, large = Objective(WEIGHTS, {}), Objective({name: 10 * weight for name, weight in WEIGHTS.items()}, {})
    metrics = {**BASE, "p99_itl_ms": 35.0}
    assert small.score(metrics, BASE).value == pytest.approx(large.score(metrics, BASE).value)


@pytest.mark.parametrize("bad", [None, 0.0, -1.0, math.nan, math.inf])
def test_a_missing_metric_gives_no_value(bad: float | None) -> None:
    objective = Objective(WEIGHTS, {"p95_ttft_ms": 2000.0})
    broken = objective.score({**BASE, "p95_ttft_ms": bad}, BASE)
    assert broken.value is None
    assert not broken.feasible
    assert objective.score(BASE, {**BASE, "p95_ttft_ms": bad}).value is None
    assert objective.score({k: v for k, v in BASE.items() if k != "p99_itl_ms"}, BASE).value is None


def test_a_missing_slo_metric_gives_no_value() -> None:
    score = Objective({"p99_itl_ms": 1.0}, {"p95_ttft_ms": 2000.0}).score({**BASE, "p95_ttft_ms": None}, BASE)
    assert score.value is None
    assert score.violations == {"p95_ttft_ms": math.inf}


def test_a_spread_of_zero_is_a_measurement_and_a_rate_of_zero_is_very_bad() -> None:
    objective = Objective({"std_itl_ms": 0.5, "goodput_per_s": -0.5}, {"p95_ttft_ms": 9000.0})
    assert objective.score({**BASE, "std_itl_ms": 0.0}, BASE).value == pytest.approx(0.5)
    none_kept = objective.score({**BASE, "goodput_per_s": 0.0}, BASE).value
    assert none_kept is not None
    assert 100 < none_kept < math.inf
    assert objective.score(BASE, {**BASE, "goodput_per_s": 0.0}).value is None


def test_slo_violations() -> None:
    objective = Objective(WEIGHTS, {"p99_itl_ms": 50.0, "p95_ttft_ms": 300.0, "output_throughput_tokens_per_s": 2469.0})
    score = objective.score(BASE, BASE)
    assert list(score.violations) == ["p99_itl_ms", "p95_ttft_ms", "output_throughput_tokens_per_s"]
    assert score.violations["p99_itl_ms"] == pytest.approx(0.4)
    assert score.violations["p95_ttft_ms"] == 0.0  # at the limit is within it
    assert score.violations["output_throughput_tokens_per_s"] == pytest.approx(1.0)
    assert not score.feasible
    assert Objective(WEIGHTS, {"p95_ttft_ms": 300.0}).score(BASE, BASE).feasible
    enough = Objective(WEIGHTS, {"goodput_per_s": 1.0, "p95_ttft_ms": 600.0})
    assert enough.score({**BASE, "goodput_per_s": 0.0}, BASE).violations == {
        "goodput_per_s": math.inf,
        "p95_ttft_ms": -0.5,
    }


class TestAggregates:
    RATIOS = types.MappingProxyType({"p95_ttft_ms": 0.25, "p99_itl_ms": 2.0, "output_throughput_tokens_per_s": 0.5})

    def measured(self) -> dict[str, float | None]:
        return {
            **BASE,
            "p95_ttft_ms": 0.25 * 300.0,
            "p99_itl_ms": 2.0 * 70.0,
            "output_throughput_tokens_per_s": 1234.5 / 0.5,
        }

    @pytest.mark.parametrize(
        ("aggregate", "value"),
        [
            ("mean", 0.4 * 0.25 + 0.3 * 2.0 + 0.3 * 0.5),
            ("geometric", 0.25**0.4 * 2.0**0.3 * 0.5**0.3),
            ("worst", 2.0),
        ],
    )
    def test_values_by_hand(self, aggregate: Aggregate, value: float) -> None:
        objective = Objective(WEIGHTS, {"p99_itl_ms": 100.0}, aggregate)
        score = objective.score(self.measured(), BASE)
        assert score.value == pytest.approx(value)
        assert score.ratios == {name: pytest.approx(ratio) for name, ratio in self.RATIOS.items()}
        assert score.violations == {"p99_itl_ms": pytest.approx(0.4)}  # a constraint, no part of the value
        assert objective.score(BASE, BASE).value == 1.0
        assert objective.score({**self.measured(), "p99_itl_ms": None}, BASE).value is None

    def test_weights_of_the_geometric_mean_need_not_sum_to_one(self) -> None:
        tenfold = Objective({name: 10 * weight for name, weight in WEIGHTS.items()}, {}, "geometric")
        assert tenfold.score(self.measured(), BASE).value == pytest.approx(0.25**0.4 * 2.0**0.3 * 0.5**0.3)

    def test_a_spread_of_zero_does_not_make_the_rest_of_a_geometric_mean_disappear(self) -> None:
        objective = Objective({"std_itl_ms": 0.1, "p95_ttft_ms": 0.9}, {}, "geometric")
        good = objective.score({**BASE, "std_itl_ms": 0.0}, BASE).value
        bad = objective.score({**BASE, "std_itl_ms": 0.0, "p95_ttft_ms": 3000.0}, BASE).value
        assert good is not None
        assert bad is not None
        assert 0 < good < 1 < bad

    def test_mistakes_and_words(self) -> None:
        with pytest.raises(ConfigError, match="mean, geometric, worst"):
            Objective(WEIGHTS, {}, "median")  # type: ignore[arg-type]
        text = Objective(WEIGHTS, {}, "worst", ("p95_ttft_ms", "p99_itl_ms")).describe()
        assert yaml.safe_load(f"{{{text}}}") == {
            "weights": WEIGHTS,
            "aggregate": "worst",
            "front": ["p95_ttft_ms", "p99_itl_ms"],
        }


class TestFront:
    def test_its_ratios_stand_beside_the_value(self) -> None:
        objective = Objective(WEIGHTS, {}, front=("output_throughput_tokens_per_s", "std_itl_ms"))
        metrics = {**BASE, "output_throughput_tokens_per_s": 2469.0, "std_itl_ms": 22.0}
        score = objective.score(metrics, BASE)
        assert score.front == (0.5, 2.0)
        assert set(score.ratios) == set(WEIGHTS)
        assert objective.score(BASE, BASE).front == (1.0, 1.0)
        half = objective.score({**metrics, "std_itl_ms": None}, BASE)
        assert half.front is None
        assert half.value == score.value
        assert Objective(WEIGHTS, {}).score(metrics, BASE).front is None
        assert "std_itl_ms" in objective.metrics_needed()

    @pytest.mark.parametrize("front", [("p95_ttft_ms",), ("p95_ttft_ms", "p95_ttft_ms"), ("p95_ttft_ms", "p95_tt_ms")])
    def test_mistakes(self, front: tuple[str, ...]) -> None:
        with pytest.raises(ConfigError, match=r"two or three|did you mean"):
            Objective(WEIGHTS, {}, front=front)


@pytest.mark.parametrize("slo", [{}, {"p99_itl_ms": 50.0}, {"std_ttft_ms": 5.0}, {"request_throughput_per_s": 1.0}])
def test_goodput_needs_an_slo_that_a_request_can_keep(slo: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="goodput_per_s needs an SLO"):
        Objective({"goodput_per_s": -1.0}, slo)
    with pytest.raises(ConfigError, match="goodput_per_s needs an SLO"):
        Objective(WEIGHTS, slo, front=("goodput_per_s", "p95_ttft_ms"))
    Objective({"goodput_per_s": -1.0}, {**slo, "p95_e2el_ms": 5000.0})


@pytest.mark.parametrize(
    ("weights", "slo", "words"),
    [
        ({}, {}, "no weights"),
        ({"p95_ttft_ms": -0.4}, {}, "p95_ttft_ms.*above zero"),
        ({"p95_ttft_ms": 0.0}, {}, "above zero"),
        ({"p95_ttft_ms": math.nan}, {}, "above zero"),
        ({"output_throughput_tokens_per_s": 0.4}, {}, "below zero"),
        ({"p95_tftt_ms": 0.4}, {}, "did you mean 'p95_ttft_ms'"),
        ({"p95_ttft_ms": 1.0}, {"p95_itl": 3.0}, "unknown metric"),
        ({"p95_ttft_ms": 1.0}, {"p95_itl_ms": 0.0}, "above zero"),
        ({"p95_ttft_ms": 1.0}, {"p95_itl_ms": math.nan}, "above zero"),
    ],
)
def test_mistakes(weights: dict[str, float], slo: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Objective(weights, slo)


def test_presets() -> None:
    assert set(PRESETS) == {"responsive", "fluent", "steady", "complete", "balanced"}
    stems = {"responsive": "ttft", "fluent": "tpot", "steady": "itl", "complete": "e2el"}
    for name, weights in PRESETS.items():
        objective = Objective.of(name, {}, {})
        assert objective.weights == weights
        assert sum(abs(weight) for weight in weights.values()) == pytest.approx(1.0)
        assert set(objective.percentiles_needed()) <= {50.0, 95.0, 99.0}  # what a study stores by default
        assert all(stems.get(name, "") in metric for metric in weights)
    assert Objective.of(None, {}, {}).weights == PRESETS["balanced"]
    assert Objective.of(None, WEIGHTS, {}).weights == WEIGHTS
    with pytest.raises(ConfigError, match="responsive, fluent"):
        weights_of("fast")


def test_a_description_can_be_pasted_into_a_study_file() -> None:
    objective = Objective(WEIGHTS, {"p95_ttft_ms": 2000.0})
    assert "\n" not in objective.describe()
    assert yaml.safe_load(f"{{{objective.describe()}}}") == {"weights": WEIGHTS, "slo": {"p95_ttft_ms": 2000.0}}
    assert "slo" not in Objective(WEIGHTS, {}).describe()


def test_what_is_needed() -> None:
    objective = Objective(
        {"p99.9_ttft_ms": 1.0, "mean_e2el_ms": 1.0, "median_itl_ms": 1.0}, {"p95_itl_ms": 9.0, "mean_e2el_ms": 1.0}
    )
    assert objective.metrics_needed() == ("p99.9_ttft_ms", "mean_e2el_ms", "median_itl_ms", "p95_itl_ms")
    assert objective.percentiles_needed() == (50.0, 95.0, 99.9)


class TestStudyFile:
    HEAD = (
        "study: {name: n}\nmodel: {path: m}\nbaseline: {}\n"
        "search_space:\n  parameters: {a: {type: bool}}\n\nobjective:\n"
    )

    def load(self, text: str) -> ObjectiveSection:
        return loads(self.HEAD + text, Path("night.yaml")).objective

    def test_aggregate_and_front(self) -> None:
        found = self.load("  aggregate: worst\n  front: [p95_ttft_ms, goodput_per_s]\n  slo: {p99_ttft_ms: 500}\n")
        assert (found.aggregate, found.front) == ("worst", ("p95_ttft_ms", "goodput_per_s"))
        plain = self.load("  preset: fluent\n")
        assert (plain.aggregate, plain.front) == ("mean", ())

    @pytest.mark.parametrize(
        ("text", "where", "said"),
        [
            ("  aggregate: median\n", "night.yaml:8: objective.aggregate", "'worst'"),
            ("  front: [p95_ttft_ms]\n", "night.yaml:8: objective.front", "two or three different metrics"),
            ("  front:\n  - p95_ttft_ms\n  - p95_tpto_ms\n", "night.yaml:10: objective.front.1", "'p95_tpot_ms'"),
            ("  front: [p95_ttft_ms, goodput_per_s]\n", "night.yaml:8: objective.front", "needs an SLO on TTFT"),
            ("  weights:\n    goodput_per_s: -1\n", "night.yaml:8: objective.weights", "needs an SLO on TTFT"),
            ("  slo: {goodput_per_s: 1, p99_itl_ms: 5}\n", "night.yaml:8: objective.slo", "needs an SLO on TTFT"),
        ],
    )
    def test_mistakes_are_named_by_line_and_key(self, text: str, where: str, said: str) -> None:
        with pytest.raises(ConfigError) as caught:
            self.load(text)
        assert where in str(caught.value)
        assert said in str(caught.value)
