from __future__ import annotations

import random

import models
import pytest

from sweep.memory import (
    GIB,
    Belief,
    Ceiling,
    Device,
    Forecast,
    Launch,
    Model,
    Observation,
    Parts,
    model_of,
    parts_of,
    read_launch,
)

CARD = Device(47.5 * GIB, "gpu", "NVIDIA RTX A6000")


def parts(utilization: float, seqs: int = 256, batched: int = 2048, longest: int = 32768) -> Parts:
    model = model_of(models.qwen2_32b(), models.QWEN2_32B_BYTES)
    assert isinstance(model, Model)
    flags = {
        "tensor-parallel-size": 4, "gpu-memory-utilization": utilization, "max-num-seqs": seqs,
        "max-num-batched-tokens": batched, "max-model-len": longest,
    }  # fmt: skip
    launch = read_launch(flags, model, CARD)
    assert isinstance(launch, Launch)
    found = parts_of(model, launch, CARD)
    assert isinstance(found, Parts)
    return found


def forecast(belief: Belief, sum_: Parts, *, cold: bool = False) -> Forecast:
    found = belief.forecast(sum_, cold=cold)
    assert found is not None
    return found


class World:
    """A simulated machine: errors of its own, and up to 5 % less cache for the first boot of a pair."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.constant = self.rng.gauss(0, 0.4) * GIB
        self.weights, self.activations = self.rng.gauss(1, 0.01), self.rng.uniform(0.5, 1.8)
        self.graphs = self.rng.uniform(0.3, 1.6)
        self.cold_share = self.rng.uniform(0.02, 0.05)
        self.booted: set[tuple[float, float]] = set()

    def boot(self, utilization: float, seqs: int, batched: int) -> tuple[Parts, float, bool]:
        """The parts, the KV cache that this boot really gets, and whether it was a first one."""
        sum_ = parts(utilization, seqs, batched)
        cold = (seqs, batched) not in self.booted
        self.booted.add((seqs, batched))
        left = sum_.budget_bytes - self.weights * sum_.weight_bytes - self.activations * sum_.activation_bytes
        left -= self.graphs * sum_.graph_bytes + sum_.fixed_bytes + self.constant
        left -= self.cold_share * max(0.0, left) if cold else 0.0
        return sum_, left + self.rng.gauss(0, 0.04) * GIB, cold


def test_it_learns_a_simulated_machine_and_its_intervals_hold() -> None:
    covered = told = 0
    widths: list[float] = []
    for seed in range(12):
        world, belief = World(seed), Belief.prior(CARD)
        for step in range(14):
            flags = (world.rng.uniform(0.6, 0.95), world.rng.choice((32, 64, 128, 256)), world.rng.choice((1024, 4096)))
            sum_, kv_bytes, cold = world.boot(*flags)
            expected = forecast(belief, sum_, cold=cold)
            if step >= 1:
                told += 1
                covered += expected.kv_tokens_low <= kv_bytes / sum_.bytes_per_token <= expected.kv_tokens_high
            belief = belief.learn(Observation(sum_, cold, kv_bytes))
            assert belief.misfit is None
        widths.append(forecast(belief, parts(0.8)).kv_tokens_high - forecast(belief, parts(0.8)).kv_tokens_low)
    assert covered / told > 0.93
    before = forecast(Belief.prior(CARD), parts(0.8))
    assert max(widths) < 0.5 * (before.kv_tokens_high - before.kv_tokens_low)


def test_a_cold_boot_is_not_taken_for_a_machine_with_less_memory() -> None:
    """Two pairs, each booted cold and then warm: a third pair's forecasts are apart by about what a cold boot costs."""
    world, belief = World(3), Belief.prior(CARD)
    world.cold_share = 0.05
    for seqs, batched in ((64, 1024), (128, 4096), (64, 1024), (128, 4096), (64, 1024)):
        sum_, kv_bytes, cold = world.boot(0.9, seqs, batched)
        belief = belief.learn(Observation(sum_, cold, kv_bytes))
    sum_ = parts(0.9, 256, 2048)
    warm, cold_ = forecast(belief, sum_), forecast(belief, sum_, cold=True)
    assert 1 - cold_.kv_tokens / warm.kv_tokens == pytest.approx(0.05, abs=0.012)


def test_one_start_narrows_and_shifts() -> None:
    sum_ = parts(0.92)
    before = forecast(Belief.prior(CARD), sum_)
    after = forecast(Belief.prior(CARD).learn(Observation(sum_, False, sum_.kv_bytes - 0.8 * GIB)), sum_)
    assert after.kv_tokens_high - after.kv_tokens_low < 0.4 * (before.kv_tokens_high - before.kv_tokens_low)
    assert after.kv_tokens == pytest.approx((sum_.kv_bytes - 0.8 * GIB) / sum_.bytes_per_token, rel=0.01)
    assert after.observed_starts == 1
    elsewhere = forecast(Belief.prior(CARD).learn(Observation(sum_, False, sum_.kv_bytes - 0.8 * GIB)), parts(0.7))
    assert elsewhere.kv_tokens < forecast(Belief.prior(CARD), parts(0.7)).kv_tokens


def test_a_start_that_failed_says_that_there_was_too_little() -> None:
    edge = next(sum_ for step in range(100) if (sum_ := parts(0.36 + 0.002 * step)).kv_bytes > sum_.needed_bytes)
    prior = Belief.prior(CARD)
    assert 0.4 < forecast(prior, edge).starts < 0.6
    failed = prior.learn(Observation(edge, False, enough=False))
    assert forecast(failed, edge).starts < 0.25
    worked = prior.learn(Observation(edge, False, enough=True))
    assert forecast(worked, edge).starts > 0.75
    for more in (failed, worked):
        width = [one.kv_tokens_high - one.kv_tokens_low for one in (forecast(more, edge), forecast(prior, edge))]
        assert width[0] < width[1]


def test_many_failures_that_were_foreseen_change_little_and_break_nothing() -> None:
    belief, hopeless = Belief.prior(CARD), parts(0.3)
    for _ in range(200):
        belief = belief.learn(Observation(hopeless, False, enough=False))
        belief = belief.learn(Observation(parts(0.95), False, enough=True))
    assert belief.misfit is None
    assert forecast(belief, parts(0.92)).kv_tokens == pytest.approx(
        forecast(Belief.prior(CARD), parts(0.92)).kv_tokens, rel=0.02
    )


@pytest.mark.parametrize(
    "seen",
    [
        Observation(parts(0.92), False, kv_bytes=8 * GIB),
        Observation(parts(0.92), False, kv_bytes=60 * GIB),
        Observation(parts(0.92), False, enough=False),
        Observation(parts(0.2), False, enough=True),
    ],
)
def test_what_cannot_be_makes_it_say_nothing_any_more(seen: Observation) -> None:
    belief = Belief.prior(CARD).learn(seen)
    assert belief.misfit is not None
    assert belief.forecast(parts(0.92), cold=False) is None
    assert belief.learn(Observation(parts(0.92), False, parts(0.92).kv_bytes)).misfit == belief.misfit


def test_a_device_fills_up_to_a_ceiling_that_is_learned() -> None:
    ceiling = Ceiling.prior(CARD)
    assert ceiling.survives(0.9 * CARD.total_bytes) > 0.99
    assert 0.3 < ceiling.survives(0.98 * CARD.total_bytes) < 0.9
    failed = ceiling.learn(0.96 * CARD.total_bytes, survived=False)
    assert failed.survives(0.98 * CARD.total_bytes) < 0.025
    assert failed.survives(0.96 * CARD.total_bytes) > 0.025
    assert failed.survives(0.9 * CARD.total_bytes) > 0.975
    held = ceiling.learn(0.98 * CARD.total_bytes, survived=True)
    assert held.survives(0.98 * CARD.total_bytes) > ceiling.survives(0.98 * CARD.total_bytes)
    # out of memory at half a card has nothing to do with how full it is
    assert ceiling.learn(0.5 * CARD.total_bytes, survived=False) == ceiling
