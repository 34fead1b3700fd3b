"""The highest request rate within limits: what keeps them, what does not, and what is no rate at all."""

from __future__ import annotations

import numpy as np
import pytest
from predicted import RATE, TRUTH, engine, flags, load

from sweep.errors import UserError
from sweep.predict import Capacity
from sweep.predict.capacity import THROUGHPUT, capacity, limits_of
from sweep.twin import Calibration, Engine, Fitted, simulate
from sweep.twin.calibrate import Seen
from sweep.twinning.load import SentRound, at_rate, in_one

pytestmark = pytest.mark.night  # numba compiles for half a minute


@pytest.fixture
def known() -> Calibration:
    """As if a fit had found the very costs, with 2 % doubt."""
    nothing = np.zeros(0)
    seen = Seen((8, 64), (256, 2048), None, (16, 16), (RATE, RATE))
    fitted = Fitted(TRUTH, 0.0, nothing, nothing, nothing, nothing, nothing, 0.0, 0)
    members = (TRUTH.times(0.98), TRUTH, TRUTH.times(1.02))
    return Calibration(TRUTH, members, (0.02, 0.02, 0.02), (), seen, 100, 3, fitted)


class TestTheHighestRate:
    def found(
        self, known: Calibration, slo: dict[str, float], seats: int = 16, others: tuple[Engine, ...] = ()
    ) -> Capacity:
        return capacity(
            known,
            [engine(flags(seats)), *others],
            [SentRound(load(k), RATE) for k in range(2)],
            limits_of(slo),
            start_per_s=RATE,
            max_concurrency=None,
            burstiness=1.0,
            seed=0,
        )

    def waits(self, rate: float, seats: int = 16) -> float:
        rounds = at_rate([SentRound(load(k), RATE) for k in range(2)], rate, burstiness=1.0, seed=0)
        run = simulate(in_one(rounds, requests=300, tokens=10**9), engine(flags(seats)), TRUTH)
        return float(np.percentile(run.ttft_s, 95)) * 1000

    def test_it_keeps_the_limit_and_a_little_more_does_not(self, known: Calibration) -> None:
        found = self.found(known, {"p95_ttft_ms": 400})
        assert found.expected_per_s is not None
        assert found.sure_per_s is not None
        assert self.waits(found.expected_per_s) <= 400 < self.waits(found.expected_per_s * 1.05)
        assert RATE < found.sure_per_s < found.expected_per_s
        assert (found.binding, found.requests) == ("p95_ttft_ms", 360)

    def test_a_limit_that_idle_engines_break_is_kept_by_no_rate(self, known: Calibration) -> None:
        found = self.found(known, {"p95_ttft_ms": 1})
        assert (found.expected_per_s, found.sure_per_s, found.binding) == (None, None, None)

    def test_a_rate_that_is_not_answered_does_not_count(self, known: Calibration) -> None:
        found = self.found(known, {"p95_tpot_ms": 1e6}, seats=8)
        assert found.binding == THROUGHPUT
        assert found.expected_per_s is not None
        wide = self.found(known, {"p95_tpot_ms": 1e6}, seats=64)
        assert wide.expected_per_s is not None
        assert found.expected_per_s < wide.expected_per_s / 1.5

    def test_less_kv_cache_than_expected_is_reckoned_with(self, known: Calibration) -> None:
        scarce = Engine(max_num_seqs=16, kv_blocks=200)
        one, other = (self.found(known, {"p95_ttft_ms": 400}, others=more).sure_per_s for more in ((), (scarce,)))
        assert one is not None
        assert other is not None
        assert other < one

    @pytest.mark.parametrize(
        ("slo", "said"),
        [
            ({"mean_ttft_ms": 5.0}, "no percentile of a latency"),
            ({"output_throughput_tokens_per_s": 5.0}, "no percentile of a latency"),
            ({"p95_ttft_ms": 0.0}, "above zero"),
            ({"p95_ttft_ms": float("nan")}, "above zero"),
            ({"p95_tftt_ms": 5.0}, "did you mean 'p95_ttft_ms'"),
        ],
    )
    def test_limits_that_cannot_be_held(self, slo: dict[str, float], said: str) -> None:
        with pytest.raises(UserError, match=said):
            limits_of(slo)

    def test_a_median_is_the_50th_percentile(self) -> None:
        limits = limits_of({"median_ttft_ms": 5.0, "p50_e2el_ms": 6.0, "p99.9_itl_ms": 7.0})
        assert limits.names == {
            "median_ttft_ms": "p50_ttft_ms",
            "p50_e2el_ms": "p50_e2el_ms",
            "p99.9_itl_ms": "p99.9_itl_ms",
        }
        assert limits.ranks == (50.0, 99.9)
