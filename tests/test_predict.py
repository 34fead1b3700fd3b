"""Predictions from stored trials whose costs are known: near the truth, within their intervals, and warned of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import models
import numpy as np
import predicted
import pytest
from predicted import FIXED, RATE, TRUTH, engine, flags, load, night, trial, truth, write

from sweep.errors import UserError
from sweep.predict import Answer, Question, answer
from sweep.predict.answer import METRICS
from sweep.predict.settings import merged, parse_changes
from sweep.report import open_source
from sweep.store import read_requests, read_rounds, read_trials
from sweep.trial import Flags, TrialKind, TrialSpec
from sweep.twin import Engine, simulate
from sweep.twin.calibrate import arrivals_per_s
from sweep.twinning.basis import choose, distance, learn, nearest_first, observed
from sweep.twinning.load import SentRound, at_rate, in_one, own_rounds
from sweep.twinning.record import Record, read_record
from sweep.twinning.target import Target, target_of
from sweep.workload import arrival_times

pytestmark = pytest.mark.night  # numba compiles for half a minute

ASKED = {"max-num-seqs": 24, "max-num-batched-tokens": 1536}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return night(tmp_path_factory.mktemp("studies") / "night")


@pytest.fixture(scope="module")
def record(folder: Path) -> Record:
    return read_record(folder, read_trials(folder))


@pytest.fixture(scope="module")
def answered(folder: Path) -> Answer:
    return answer(open_source(str(folder)), Question(ASKED))


def asked(record: Record, of: Flags) -> Target:
    return target_of(merged(record.baseline, record.fixed, of), record)


def test_a_setting_nobody_launched_is_within_a_few_per_cent_and_the_interval(answered: Answer) -> None:
    real = truth(flags(24, 1536))
    assert tuple(answered.metrics) == METRICS
    for name, interval in answered.metrics.items():
        value = real[name]
        assert value is not None
        # Of 90 requests the 99th percentile is the slowest one, and one interval in ten may miss.
        assert value in interval or "p99" in name, name
        assert interval.expected == pytest.approx(value, rel=0.1 if "p99" in name else 0.04), name
        assert interval.high / interval.low < 2.5, name
    assert answered.own_load
    assert answered.request_rates_per_s == (RATE,)
    assert answered.requests == predicted.ROUNDS * predicted.REQUESTS


def test_beside_it_stands_the_nearest_measured_trial(answered: Answer, folder: Path) -> None:
    nearest = answered.nearest
    assert (nearest.number, nearest.kind) == (0, TrialKind.BASELINE)
    assert nearest.changes == {"max-num-seqs": (32, 24), "max-num-batched-tokens": (2048, 1536)}
    stored = open_source(str(folder)).trials[0].metrics
    assert stored is not None
    assert nearest.metrics["p95_ttft_ms"] == pytest.approx(stored["p95_ttft_ms"])
    assert answered.basis.trials == (0, 1, 2)
    assert answered.flags["dtype"] == "bfloat16"


def test_another_rate_is_the_own_load_closer_together(folder: Path) -> None:
    own = own_rounds(read_requests(folder, 0), read_rounds(folder, 0))
    for k, one in enumerate(at_rate(own, 2 * RATE, burstiness=1.0, seed=0)):
        assert one.request_rate_per_s == 2 * RATE
        np.testing.assert_allclose(one.load.arrival_s, load(k, 2 * RATE).arrival_s)


def test_the_own_load_is_what_was_planned(folder: Path) -> None:
    rounds = own_rounds(read_requests(folder, 0), read_rounds(folder, 0))
    for k, one in enumerate(rounds):
        assert one.request_rate_per_s == RATE
        np.testing.assert_allclose(one.load.arrival_s, load(k).arrival_s)
        np.testing.assert_array_equal(one.load.output_tokens, load(k).output_tokens)


def test_a_burst_gets_the_arrivals_that_the_load_client_would_send() -> None:
    burst = [SentRound(load(k, None), None) for k in range(2)]
    sent = at_rate(burst, 5.0, burstiness=0.5, seed=3)
    for k, one in enumerate(sent):
        times = np.array(arrival_times(len(one.load), request_rate=5.0, burstiness=0.5, seed=3 + k))
        np.testing.assert_allclose(one.load.arrival_s, times - times[0])
        assert one.request_rate_per_s == 5.0


def test_rounds_behind_one_another_keep_their_rate() -> None:
    rounds = at_rate([SentRound(load(k), RATE) for k in range(2)], 10.0, burstiness=1.0, seed=0)
    whole = in_one(rounds, requests=300, tokens=10**9)
    assert len(whole) == 360
    assert arrivals_per_s(whole) == pytest.approx(10.0, rel=0.02)
    assert len(in_one(rounds, requests=300, tokens=1)) == 90, "every round once, however long"


def test_what_failed_and_what_is_not_known_is_sent_all_the_same() -> None:
    whole = trial(0, flags(8), requests=3)
    first, second, *rest = whole.requests
    lost = predicted.changed_request(first, output_tokens=None, ttft_ms=None, e2el_ms=None, itl_ms=(), error="500")
    blind = predicted.changed_request(second, input_tokens=None)
    (one, _) = own_rounds((lost, blind, *rest), whole.rounds)
    assert one.load.output_tokens.tolist() == [first.output_tokens, rest[0].output_tokens]
    with pytest.raises(UserError, match="no load to simulate"):
        own_rounds([blind], whole.rounds)


class TestWhatIsLearntFrom:
    def test_the_nearest_two_then_those_most_unlike(self) -> None:
        seats = (32, 30, 28, 26, 64, 4, 512)
        order = [Engine(max_num_seqs=one) for one in seats]
        assert [seats[i] for i in choose(order, 4)] == [32, 30, 512, 4]
        assert choose([order[0]] * 3, 5) == (0, 1, 2)
        assert choose([order[0], order[0], order[5]], 5) == (0, 2, 1)

    def test_a_switch_is_an_octave(self) -> None:
        one = Engine(max_num_seqs=32)
        assert distance(one, Engine(max_num_seqs=64)) == pytest.approx(1.0)
        assert distance(one, Engine(max_num_seqs=32, prefix_caching=False)) == pytest.approx(1.0)
        assert distance(one, one) == 0.0

    def test_only_whole_undisturbed_trials_with_the_same_other_flags(self, tmp_path: Path) -> None:
        calibration = TrialSpec(3, TrialKind.CALIBRATION, flags(16))
        write(
            tmp_path,
            [
                trial(0, flags(8), requests=2),
                trial(1, flags(16), requests=2, disturbances=("GPU 0 throttled",)),
                trial(2, flags(16, dtype="fp8"), requests=2),
                trial(3, flags(16), requests=2, spec=calibration),
                trial(4, flags(64), requests=2, spec=TrialSpec(4, TrialKind.CONFIRM, flags(64), block=0)),
                trial(5, flags(64), requests=2),
            ],
        )
        found = read_record(tmp_path, read_trials(tmp_path))
        assert [one.trial.number for one in nearest_first(found, asked(found, {"max-num-seqs": 33}))] == [5, 4, 0]
        assert [one.trial.number for one in nearest_first(found, asked(found, {"kv-cache-dtype": "fp8"}))] == [2]
        with pytest.raises(UserError, match=r"kv-cache-dtype=fp4, and what .* cannot be computed; measured: None, fp8"):
            nearest_first(found, asked(found, {"kv-cache-dtype": "fp4"}))

    def test_a_long_night_is_cut_to_what_takes_seconds(self, tmp_path: Path) -> None:
        write(tmp_path, [trial(0, flags(32), requests=400, rate=8.0)])
        found = read_record(tmp_path, read_trials(tmp_path))
        part = observed(found, found.launches[0], 1000)
        assert part is not None
        observation, rates, steps = part
        assert 50 < observation.counts.sum() < len(observation.load) < 400, "what was not over when it was cut is load"
        assert len(rates) == 1
        assert 1000 <= steps < 1200
        run = simulate(observation.load, observation.engine, TRUTH)
        assert run.steps + len(run.token_s) / 10 == pytest.approx(steps, rel=0.5)
        gaps = np.abs(observation.percentile_gaps(run))
        assert gaps.max() < 0.1, "those that count were not touched by what was cut off"

    def test_all_at_once_cannot_be_cut(self, tmp_path: Path) -> None:
        write(tmp_path, [trial(0, flags(8), requests=60, rate=None)])
        found = read_record(tmp_path, read_trials(tmp_path))
        part = observed(found, found.launches[0], 20)
        assert part is not None
        assert (len(part[0].load), part[0].counts.sum()) == (60, 60)

    def test_a_round_finds_the_engine_idle(self, tmp_path: Path) -> None:
        write(tmp_path, [trial(0, flags(8), requests=40, noise=0.0)])
        found = read_record(tmp_path, read_trials(tmp_path))
        part = observed(found, found.launches[0], 1e9)
        assert part is not None
        observation, rates, _ = part
        assert len(observation.load) == 80
        np.testing.assert_allclose(simulate(observation.load, observation.engine, TRUTH).ttft_s, observation.ttft_s)
        assert rates == pytest.approx([RATE, RATE], rel=0.1)

    def test_a_disturbed_round_tells_nothing(self, tmp_path: Path) -> None:
        whole = trial(0, flags(8), requests=35)
        late = predicted.changed_round(whole.rounds[1], disturbed=("the client was late",))
        write(tmp_path, [predicted.changed(whole, rounds=(whole.rounds[0], late))])
        found = read_record(tmp_path, read_trials(tmp_path))
        part = observed(found, found.launches[0], 1e9)
        assert part is not None
        assert len(part[0].load) == 35

    def test_no_step_is_faster_than_reading_the_weights(self, tmp_path: Path) -> None:
        """Costs of 20 ms a step, on two cards that need 43 ms to read 65.5 GB between them at most a tenth faster."""
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_text(json.dumps(models.qwen2_32b()))
        fixed = {name: json.dumps(value) for name, value in {**predicted.FIXED, "tensor-parallel-size": 2}.items()}
        known: dict[str, Any] = {
            "model": str(tmp_path / "model"),
            "gpus": ["NVIDIA RTX A6000"] * 2,
            "fixed_flags": fixed,
        }
        steps = []
        for name, more in (("two cards", known), ("none that is known", {**known, "gpus": ["Voodoo"] * 2})):
            write(tmp_path / name, [trial(0, flags(8), requests=30)], **more)
            record = read_record(tmp_path / name, read_trials(tmp_path / name))
            near = nearest_first(record, asked(record, {}))
            steps.append(learn(record, near, members=2).calibration)
        least = (65.5e9 - 152_064 * 5120 * 2) / 2 / (768e9 * 1.1)
        assert steps[1].costs.step_s < 0.75 * least
        assert all(one.step_s >= 0.999 * least for one in (steps[0].costs, *steps[0].members))
        assert steps[0].costs.step_s == pytest.approx(least, rel=0.2)


class TestTheEngineInQuestion:
    def test_kv_tokens_of_what_was_launched(self, record: Record) -> None:
        target = asked(record, {})
        assert target.kv_tokens is not None
        assert (target.kv_tokens.expected, target.kv_tokens.launched) == (predicted.kv_tokens(0.9), True)
        assert target.engine == engine(record.baseline)
        assert target.cautions == ()

    def test_kv_tokens_of_a_utilization_in_between(self, record: Record) -> None:
        tokens = asked(record, {"gpu-memory-utilization": 0.85}).kv_tokens
        assert tokens is not None
        assert tokens.expected == pytest.approx(predicted.kv_tokens(0.85), rel=0.01)
        assert tokens.low < tokens.expected < tokens.high
        assert not tokens.launched

    def test_what_vllm_resolves_is_taken_from_launches(self, tmp_path: Path) -> None:
        left = {**flags(8), "max-num-batched-tokens": None}
        resolved = predicted.resolved(left, max_num_batched_tokens=8192)
        write(tmp_path, [trial(0, flags(8), requests=2), trial(1, left, requests=2, engine_config=resolved)])
        found = read_record(tmp_path, read_trials(tmp_path))
        assert asked(found, {"max-num-batched-tokens": None}).engine.max_num_batched_tokens == 8192
        unseen = asked(found, {"max-num-seqs": None})
        assert unseen.engine.max_num_seqs == 256
        assert unseen.cautions == ("max-num-seqs is left to vLLM, and no launch says what that is: taken for 256",)

    def test_a_launch_without_a_kv_cache_is_said(self, tmp_path: Path) -> None:
        write(tmp_path, [trial(0, flags(8), requests=2, engine_config=predicted.resolved(flags(8), empty=True))])
        found = read_record(tmp_path, read_trials(tmp_path))
        target = asked(found, {})
        assert (target.kv_tokens, target.engine.kv_blocks) == (None, None)
        assert any("KV cache" in text for text in target.cautions)

    @pytest.mark.parametrize(
        ("known", "ahead"),
        [
            ({}, True),
            ({"gpus": []}, False),
            ({"vllm": "0.13.1"}, False),
            ({"gpus": None, "vllm": None}, True),
            ({"fixed_flags": {"async-scheduling": "false"}}, False),
        ],
    )
    def test_steps_are_planned_ahead_where_vllm_does(self, tmp_path: Path, known: dict[str, Any], ahead: bool) -> None:
        write(tmp_path, [trial(0, flags(8), requests=2)], **known)
        found = read_record(tmp_path, read_trials(tmp_path))
        assert found.launches[0].engine.asynchronous is asked(found, {}).engine.asynchronous is ahead

    def test_the_client_s_own_limit_is_known(self, tmp_path: Path) -> None:
        write(tmp_path, [trial(0, flags(8), requests=2)], load={"max_concurrency": "4", "burstiness": "Infinity"})
        found = read_record(tmp_path, read_trials(tmp_path))
        assert (found.max_concurrency, found.burstiness, found.seed) == (4, float("inf"), 0)

    def test_a_lost_fingerprint_is_no_obstacle(self, tmp_path: Path) -> None:
        (write(tmp_path, [trial(0, flags(8), requests=2)]) / "fingerprint.json").write_text("{")
        found = read_record(tmp_path, read_trials(tmp_path))
        assert found.fixed == {}
        assert "fingerprint.json" in found.notes[0]


class TestFlagsAsTyped:
    def test_values_are_what_they_look_like(self) -> None:
        words = ["--max_num_seqs=64", "gpu-memory-utilization=0.85", "enable-prefix-caching=False", "block-size=null"]
        assert parse_changes([*words, "kv-cache-dtype=fp8"]) == {
            "max-num-seqs": 64,
            "gpu-memory-utilization": 0.85,
            "enable-prefix-caching": False,
            "block-size": None,
            "kv-cache-dtype": "fp8",
        }

    def test_changes_stand_above_the_baseline_and_the_fixed_flags(self) -> None:
        together = merged(flags(8), FIXED, {"max-num-seqs": 9, "max-model-len": 2048})
        assert (together["max-num-seqs"], together["max-model-len"], together["dtype"]) == (9, 2048, "bfloat16")

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["max-num-seqs"], "not FLAG=VALUE"),
            (["=3"], "not FLAG=VALUE"),
            (["max-num-seqs=3", "max_num_seqs=4"], "stands twice"),
            (["max-num-seq=3"], "did you mean 'max-num-seqs'"),
            (["swap-space=4"], "neither a flag of this study nor one whose effect can be computed"),
            (["max-num-seqs=0"], "a whole number of at least 1"),
            (["max-num-seqs=8.5"], "a whole number of at least 1"),
            (["max-num-seqs=true"], "a whole number of at least 1"),
            (["gpu-memory-utilization=90"], "a number above 0, and 1 at most"),
            (["gpu-memory-utilization=nan"], "a number above 0, and 1 at most"),
            (["enable-prefix-caching=1"], "true or false"),
            (["scheduling-policy=fair"], "fcfs or priority"),
        ],
    )
    def test_mistakes_are_named(self, words: list[str], said: str) -> None:
        with pytest.raises(UserError, match=said):
            merged(flags(8), FIXED, parse_changes(words))
