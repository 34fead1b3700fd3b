"""Costs from requests: found again where they are known, open where nothing tells, wide where a little changes much."""

from __future__ import annotations

import numpy as np
import pytest

from sweep.twin import Calibration, Costs, Engine, Load, Observation, calibrate, fit, kv_tokens_for, predict, simulate
from sweep.twin.observation import latencies, percentiles

pytestmark = pytest.mark.night  # numba compiles for half a minute

TRUTH = Costs(0.02, 1.2e-4, 1.5e-4, 6e-8, 1e-8, 0.03)


def load(n: int, rate: float, seed: int = 0) -> Load:
    rng = np.random.default_rng(seed)
    inputs = np.ceil(rng.lognormal(4.6, 1.2, n).clip(4, 1024)).astype(np.int64)
    outputs = np.ceil(rng.lognormal(4.2, 0.9, n).clip(2, 400)).astype(np.int64)
    return Load.of(np.cumsum(rng.exponential(1.0 / rate, n)), inputs, outputs)


def observed(requests: Load, engine: Engine, *, costs: Costs = TRUTH, noise: float = 0.0, seed: int = 0) -> Observation:
    """What a server with these costs would have let us measure."""
    run, rng = simulate(requests, engine, costs), np.random.default_rng(seed)
    ttft = run.ttft_s * np.exp(noise * rng.standard_normal(len(requests)))
    rest = (run.e2el_s - run.ttft_s) * np.exp(noise * rng.standard_normal(len(requests)))
    return Observation.of(requests, engine, ttft, ttft + rest)


def settings() -> list[Engine]:
    return [
        Engine(max_num_seqs=8, max_num_batched_tokens=512),
        Engine(max_num_seqs=32, max_num_batched_tokens=2048),
        Engine(max_num_seqs=128, max_num_batched_tokens=256),
    ]


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    trials = [observed(load(80, 4.0, i), one, noise=0.05, seed=i) for i, one in enumerate(settings())]
    return calibrate(trials, members=8)


def far_off(costs: Costs, requests: Load, engine: Engine) -> float:
    """The largest error of a percentile, against the truth."""
    mine, true = (percentiles(latencies(simulate(requests, engine, one))) for one in (costs, TRUTH))
    return float(np.abs(np.log(mine / true)).max())


def test_a_run_gives_its_own_percentiles_back() -> None:
    requests, engine = load(200, 6.0), Engine(max_num_seqs=64)
    fitted = fit([observed(requests, engine)])
    assert far_off(fitted.costs, requests, engine) < 0.02


def test_three_settings_tell_of_others(calibration: Calibration) -> None:
    for engine in (Engine(max_num_seqs=24, max_num_batched_tokens=1024), Engine(max_num_seqs=64)):
        assert far_off(calibration.costs, load(150, 3.0, 9), engine) < 0.1
    assert (calibration.costs.array() >= 0).all()
    assert (calibration.trials, calibration.requests) == (3, 240)


def test_stalled_requests_do_not_move_the_costs() -> None:
    requests, engine = load(200, 6.0), Engine(max_num_seqs=64)
    clean = observed(requests, engine)
    ttft = clean.ttft_s.copy()
    ttft[::50] += 30.0
    stalled = Observation.of(requests, engine, ttft, clean.e2el_s - clean.ttft_s + ttft)
    median = percentiles(latencies(simulate(requests, engine, fit([stalled]).costs)))[:, 0]
    assert median == pytest.approx(percentiles(clean.latencies())[:, 0], rel=0.03)


def test_a_step_is_no_faster_than_the_weights_can_be_read() -> None:
    requests, engine = load(100, 3.0), Engine()
    assert fit([observed(requests, engine)], least_step_s=0.025).costs.step_s >= 0.025


def test_only_what_counts_is_looked_at() -> None:
    requests, engine = load(200, 6.0), Engine(max_num_seqs=64)
    clean = observed(requests, engine)
    wrong = np.where(np.arange(200) < 70, 1.0, 5.0)
    half = Observation.of(requests, engine, clean.ttft_s * wrong, clean.e2el_s * wrong, first=70)
    assert far_off(fit([half]).costs, requests, engine) < 0.06


def test_it_says_which_costs_the_data_leave_open(calibration: Calibration) -> None:
    # One request at a time, all alike: the step, the request and its context cannot be told apart.
    alike = Load.of(np.arange(30) * 60.0, 100, 50)
    narrow = calibrate([observed(alike, Engine(), noise=0.02)], members=12)
    assert {"decode_request_s", "context_token_s", "attention_s"} <= set(narrow.left_open)
    assert "step_s" not in calibration.left_open
    assert any("do not tell" in caution for caution in predict(narrow, alike, Engine()).cautions)


def test_the_same_seed_gives_the_same_ensemble() -> None:
    trial = observed(load(30, 3.0), Engine(), noise=0.05)
    one, two, other = (calibrate([trial], members=4, seed=seed) for seed in (1, 1, 2))
    assert one.members == two.members != other.members


def test_intervals_are_narrow_far_from_saturation(calibration: Calibration) -> None:
    calm = predict(calibration, load(150, 2.0, 5), Engine(max_num_seqs=64))
    assert not calm.saturated
    for name in ("p50_ttft_ms", "p50_tpot_ms", "p95_tpot_ms", "p95_e2el_ms"):
        interval = calm.metrics[name]
        assert interval.low < interval.expected < interval.high
        assert interval.high / interval.low < 1.6, name


@pytest.mark.parametrize("off", [1.2, 1 / 1.2])
def test_near_saturation_a_capacity_20_percent_off_lies_inside(calibration: Calibration, off: float) -> None:
    requests, engine = load(300, 3.6, 6), Engine(max_num_seqs=8, max_num_batched_tokens=512)
    guess = predict(calibration, requests, engine)
    real = simulate(requests, engine, TRUTH.times(off))
    assert guess.saturated
    assert any("saturation" in caution for caution in guess.cautions)
    for rank in (50, 95, 99):
        assert float(np.percentile(real.ttft_s, rank)) * 1000 in guess.metrics[f"p{rank}_ttft_ms"]
        assert float(np.percentile(real.e2el_s, rank)) * 1000 in guess.metrics[f"p{rank}_e2el_ms"]
    width = guess.metrics["p95_ttft_ms"]
    assert width.high / width.low > 1.4


def test_it_warns_of_what_was_not_seen(calibration: Calibration) -> None:
    cautions = predict(calibration, load(50, 4.0), Engine(max_num_seqs=512)).cautions
    assert any(caution.startswith("max-num-seqs 512 was not seen") for caution in cautions)
    assert not any(
        "seqs" in caution for caution in predict(calibration, load(50, 4.0), Engine(max_num_seqs=64)).cautions
    )


def test_kv_tokens_follow_utilization() -> None:
    low, expected, high = kv_tokens_for([(0.8, 80_000), (0.9, 120_000)], 0.85)
    assert low < expected < high
    assert expected == pytest.approx(100_000)
    low, expected, high = kv_tokens_for([(0.8, 80_000)], 0.9)
    assert low <= 120_000 <= high
    with pytest.raises(ValueError, match="nothing to fit"):
        fit([])


def crowded(sharing: float, seed: int = 0) -> Observation:
    """A run on a cache that is always full, and holds more than its blocks say."""
    requests, engine = load(150, 6.0, seed), Engine(max_num_seqs=64, kv_blocks=200)
    seen = observed(requests, engine.sharing(sharing), noise=0.01, seed=seed)
    return Observation.of(requests, engine, seen.ttft_s, seen.e2el_s)


def test_blocks_that_requests_share_are_found_on_a_full_cache() -> None:
    plain, shared = fit([crowded(0.0)]), fit([crowded(0.03)])
    assert plain.sharing is not None
    assert shared.sharing is not None
    assert plain.sharing < 0.01 < shared.sharing
    assert shared.engine(Engine(kv_blocks=1000)).kv_blocks == round(1000 * (1.0 + shared.sharing))


def test_nothing_is_said_of_shared_blocks_where_the_cache_was_never_full() -> None:
    found = calibrate([observed(load(60, 4.0), Engine(max_num_seqs=32, kv_blocks=4000))], members=8)
    assert found.fitted is not None
    assert (found.fitted.sharing, found.sharing) == (None, 0.0)
    assert all(share >= 0.0 for _, share in found.ensemble())
    assert max(share for _, share in found.ensemble()) > 0.005, "an ensemble that does not know it"


def test_a_cache_without_prefix_caching_shares_nothing() -> None:
    engine = Engine(kv_blocks=100, prefix_caching=False)
    assert engine.sharing(0.1) is engine
    assert Engine().sharing(0.1).kv_blocks is None
