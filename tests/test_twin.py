"""The simulator on cases that can be counted by hand, and on the shapes real servers show."""

from __future__ import annotations

import numpy as np
import pytest

from sweep.metrics import summarize
from sweep.records import EngineConfig, RequestRecord
from sweep.trial import Flag
from sweep.twin import Costs, Engine, Load, SimulatedRequest, Simulation, TwinError, simulate

pytestmark = pytest.mark.night  # numba compiles for half a minute

# A step takes a second and a prefill token a hundredth more.
PLAIN = Costs(1.0, 0.01, 0.0, 0.0, 0.0, 0.0)
# A 32B model on four cards of 48 GB, roughly.
LARGE = Costs(0.022, 1.5e-4, 5e-5, 2e-9, 1e-9, 0.02)


def sharegpt_like(n: int, rate: float, seed: int = 0) -> Load:
    """Lengths as in ShareGPT, Poisson arrivals."""
    rng = np.random.default_rng(seed)
    inputs = np.ceil(rng.lognormal(4.6, 1.3, n).clip(4, 1024)).astype(np.int64)
    outputs = np.ceil(rng.lognormal(4.9, 1.0, n).clip(4, 1000)).astype(np.int64)
    return Load.of(np.cumsum(rng.exponential(1.0 / rate, n)), inputs, outputs)


def p95(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    return float(np.percentile(values, 95))


def test_one_request_by_hand() -> None:
    costs = Costs(1.0, 0.01, 0.1, 0.001, 0.0001, 0.5)
    run = simulate(Load.of([2.0], 10, 3), Engine(asynchronous=False), costs)
    prefill = 1.0 + 10 * 0.01 + 10 * 5.0 * 0.0001
    first, second = 1.0 + 0.1 + 0.001 * 10, 1.0 + 0.1 + 0.001 * 11
    assert run.token_s == pytest.approx(np.cumsum([2.5 + prefill, first, second]))
    assert run.ttft_s == pytest.approx([0.5 + prefill])
    assert run.e2el_s == pytest.approx([0.5 + prefill + first + second])
    assert run.tpot_s == pytest.approx([(first + second) / 2])
    assert (run.steps, run.computed_tokens) == (3, 12)


def test_a_prompt_over_the_budget_is_read_in_chunks_beside_decoding() -> None:
    load = Load.of([0.0, 0.5], [4, 25], [5, 1])
    run = simulate(load, Engine(max_num_batched_tokens=10, asynchronous=False), PLAIN, traced_rows=99)
    assert run.trace.tolist() == [
        [0, 0, 4],
        [1, 0, 1],
        [1, 1, 9],
        [2, 0, 1],
        [2, 1, 9],
        [3, 0, 1],
        [3, 1, 7],
        [4, 0, 1],
    ]


def test_without_chunks_a_prompt_waits_for_a_step_it_fits_into() -> None:
    load = Load.of([0.0, 0.0], [8, 8], [2, 2])
    engine = Engine(max_num_batched_tokens=12, chunked_prefill=False, asynchronous=False)
    run = simulate(load, engine, PLAIN, traced_rows=99)
    assert run.trace.tolist() == [[0, 0, 8], [1, 0, 1], [1, 1, 8], [2, 1, 1]]
    with pytest.raises(TwinError, match="max-num-batched-tokens"):
        simulate(load, Engine(max_num_batched_tokens=7, chunked_prefill=False), PLAIN)


def test_a_long_prompt_is_held_back_only_where_others_are() -> None:
    engine = Engine(max_num_batched_tokens=100, long_prefill_tokens=10, asynchronous=False)
    together = simulate(Load.of([0.0, 0.0], [40, 40], [1, 1]), engine, PLAIN, traced_rows=99)
    assert together.trace.tolist()[:2] == [[0, 0, 10], [0, 1, 10]]
    assert simulate(Load.of([0.0], 40, 1), engine, PLAIN).steps == 1


def test_the_last_one_running_is_preempted_and_computed_anew() -> None:
    # Four blocks of four tokens: two prompts of seven take all, and the first to need a fifth block takes the other's.
    load = Load.of([0.0, 0.0], [7, 7], [4, 4])
    engine = Engine(kv_blocks=4, block_size=4, prefix_caching=False, asynchronous=False)
    run = simulate(load, engine, PLAIN, traced_rows=99)
    assert run.preemptions.tolist() == [0, 1]
    assert run.trace.tolist()[4:7] == [[2, 1, -1], [2, 0, 1], [3, 0, 1]]
    assert run.trace.tolist()[7] == [4, 1, 9], "its seven and the two it had said"
    assert run.engine.preemptions == 1
    assert np.isfinite(run.token_s).all()


def test_what_is_preempted_finds_its_own_blocks_again() -> None:
    load = Load.of([0.0, 0.0], [7, 7], [4, 4])
    with_cache = simulate(load, Engine(kv_blocks=4, block_size=4, asynchronous=False), PLAIN, traced_rows=99)
    assert with_cache.trace.tolist()[7] == [4, 1, 5], "the first of its blocks was still known"


def test_the_less_important_waits_and_is_preempted_first() -> None:
    load = Load.of([0.0, 0.0, 0.0], [7, 7, 7], [4, 4, 4], priority=[1, 0, 2])
    engine = Engine(max_num_seqs=2, kv_blocks=4, block_size=4, by_priority=True, prefix_caching=False)
    run = simulate(load, engine, PLAIN)
    assert run.ttft_s[1] <= run.ttft_s[0] < run.ttft_s[2]
    assert run.preemptions.tolist() == [1, 0, 0]


def test_a_shared_prefix_is_computed_once() -> None:
    load = Load.of([0.0, 10.0, 20.0], [40, 40, 40], 1, prefix_group=[0, 0, -1], prefix_tokens=35)
    run = simulate(load, Engine(block_size=16), PLAIN)
    assert run.computed_tokens == 40 + 8 + 40
    assert run.engine.prefix_hit_share == pytest.approx(32 / 120)
    assert simulate(load, Engine(block_size=16, prefix_caching=False), PLAIN).computed_tokens == 120


def test_the_last_token_of_a_repeated_prompt_is_computed() -> None:
    load = Load.of([0.0, 10.0], [32, 32], 1, prefix_group=0, prefix_tokens=32)
    assert simulate(load, Engine(block_size=16), PLAIN).computed_tokens == 32 + 16


def test_the_client_s_cap_delays_the_send() -> None:
    load = Load.of(np.zeros(20), 10, 10)
    run = simulate(load, Engine(), LARGE, max_concurrency=4)
    ends = run.sent_s + run.e2el_s
    for moment in run.sent_s:
        assert np.sum((run.sent_s <= moment) & (ends > moment)) <= 4
    assert run.sent_s[4] == ends.min()
    assert run.engine.peak_running == 4


def test_replicas_share_the_work() -> None:
    load = sharegpt_like(200, 20.0)
    one, two = (simulate(load, Engine(max_num_seqs=16, replicas=n), LARGE) for n in (1, 2))
    assert np.bincount(two.replica).min() > 80
    assert p95(two.ttft_s) < p95(one.ttft_s) / 2


def test_planning_ahead_seats_a_request_a_step_later() -> None:
    load = Load.of([0.0, 0.5], [5, 5], [20, 2])
    waits = {
        ahead: float(simulate(load, Engine(asynchronous=ahead), Costs(1.0, 0, 0, 0, 0, 0)).ttft_s[1])
        for ahead in (False, True)
    }
    assert waits == {False: 1.5, True: 2.5}


def test_every_token_comes_once_and_in_order() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        load = sharegpt_like(80, 30.0, seed)
        engine = Engine(
            max_num_seqs=int(rng.integers(1, 64)),
            max_num_batched_tokens=int(rng.integers(64, 4096)),
            kv_blocks=int(rng.integers(130, 700)),
            by_priority=bool(rng.integers(2)),
            prefix_caching=bool(rng.integers(2)),
            asynchronous=bool(rng.integers(2)),
        )
        run = simulate(load, engine, LARGE)
        assert len(run.token_s) == load.output_tokens.sum()
        assert np.isfinite(run.token_s).all()
        assert (run.itl_s > 0).all()
        assert (run.ttft_s >= 0.02).all()
        assert run.engine.peak_running is not None
        assert run.engine.peak_running <= engine.max_num_seqs
        assert run.engine.peak_kv_usage_share is not None
        assert run.engine.peak_kv_usage_share <= 1.0


def test_records_are_those_of_a_round_and_marked() -> None:
    load = sharegpt_like(40, 5.0)
    run = simulate(load, Engine(), LARGE)
    records = run.records(2)
    assert all(isinstance(record, RequestRecord) and record.simulated for record in records)
    assert all(record.prompt_id.startswith("simulated") for record in records)
    assert not any(hasattr(RequestRecord, name) for name in ("simulated",))
    found = summarize(records, run.duration_s, percentiles=(95,), slo={})
    assert found["p95_ttft_ms"] == pytest.approx(p95(run.ttft_s) * 1000.0)
    assert found["p95_itl_ms"] == pytest.approx(p95(run.itl_s) * 1000.0)
    assert found["p95_e2el_ms"] == pytest.approx(p95(run.e2el_s) * 1000.0)
    assert found["p95_tpot_ms"] == pytest.approx(p95(run.tpot_s) * 1000.0)
    assert records[3].e2el_ms == pytest.approx((records[3].ttft_ms or 0.0) + sum(records[3].itl_ms))


class TestShapesOfRealServers:
    """What published and own measurements agree on."""

    def run(self, rate: float, **settings: int) -> Simulation:
        return simulate(sharegpt_like(400, rate), Engine(**settings), LARGE)  # type: ignore[arg-type]

    def test_seats_below_the_natural_concurrency_explode_ttft(self) -> None:
        waits = [p95(self.run(6.0, max_num_seqs=seats).ttft_s) for seats in (8, 16, 64, 256)]
        assert waits[0] > 2 * waits[1]
        assert waits[1] > 20 * waits[2]
        assert waits[2] == pytest.approx(waits[3], rel=0.2)

    def test_kv_cache_above_need_changes_nothing(self) -> None:
        enough, plenty = (self.run(6.0, kv_blocks=blocks) for blocks in (8_000, 24_000))
        assert enough.schedule == plenty.schedule
        assert (enough.token_s == plenty.token_s).all()
        starved = self.run(6.0, kv_blocks=300)
        assert starved.schedule != plenty.schedule
        assert p95(starved.ttft_s) > 3 * p95(plenty.ttft_s)

    def test_batched_tokens_trade_itl_tails_against_ttft_tails(self) -> None:
        small, large = (self.run(16.0, max_num_batched_tokens=tokens) for tokens in (256, 4096))
        assert np.percentile(small.itl_s, 99) < 0.7 * np.percentile(large.itl_s, 99)
        assert p95(large.ttft_s) < 0.7 * p95(small.ttft_s)


def test_settings_come_from_flags_and_what_the_engine_says_of_itself() -> None:
    flags: dict[str, Flag] = {
        "max-num-seqs": 64,
        "block-size": 32,
        "enable-chunked-prefill": False,
        "scheduling-policy": "priority",
        "data-parallel-size": 2,
        "max-num-batched-tokens": None,
        "watermark": 0.02,
    }
    config = EngineConfig(block_size=16, gpu_blocks=1000, max_num_batched_tokens=8192, enable_prefix_caching=False)
    engine = Engine.of(flags, config, asynchronous=True)
    assert engine == Engine(
        max_num_seqs=64,
        max_num_batched_tokens=8192,
        kv_blocks=999,
        block_size=16,
        chunked_prefill=False,
        by_priority=True,
        prefix_caching=False,
        watermark_share=0.02,
        replicas=2,
    )
    assert Engine.of({}, EngineConfig(kv_tokens=1600), asynchronous=False).kv_blocks == 99
    whole = Engine.of({"no-enable-chunked-prefill": True}, EngineConfig(), asynchronous=False)
    assert not whole.chunked_prefill


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(TwinError, match="4,100 tokens does not fit into a KV cache of 1,600"):
        simulate(Load.of([0.0], 4000, 100), Engine(kv_blocks=100), PLAIN)
    with pytest.raises(TwinError, match="max-model-len 2,048"):
        simulate(Load.of([0.0], 4000, 100), Engine(max_model_len=2048), PLAIN)
    with pytest.raises(TwinError, match="no requests"):
        simulate(Load.of([], [], []), Engine(), PLAIN)
    with pytest.raises(ValueError, match="at least one"):
        Load.of([0.0], 0, 1)
    with pytest.raises(ValueError, match="back in time"):
        Load.of([1.0, 0.0], [1, 1], 1)
    with pytest.raises(ValueError, match="not below zero"):
        Costs(1.0, -1.0, 0.0, 0.0, 0.0, 0.0)


def test_only_answered_requests_make_a_measured_load() -> None:
    good = SimulatedRequest(0, 1, "p", 0.0, 0.5, 10, 5, 5, 20.0, (5.0,) * 4, 40.0, None)
    late = SimulatedRequest(0, 0, "p", 0.0, 0.9, 12, 5, 5, 20.0, (5.0,) * 4, 40.0, None)
    failed = SimulatedRequest(0, 2, "p", 0.0, 0.1, 10, None, 5, None, (), None, "refused")
    load, usable = Load.measured([late, failed, good])
    assert usable == (good, late)
    assert load.arrival_s.tolist() == [0.5, 0.9]
    assert load.input_tokens.tolist() == [10, 12]
