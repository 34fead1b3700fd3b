from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import models
import pytest

from sweep.gate import CONFIDENCE, Gatekeeper, Knowledge, Sums, gather, tally
from sweep.gpu import DeviceInfo
from sweep.guide import PassedOver, Refusal
from sweep.memory import GIB, Device, Model, Parts, Unknown, model_of
from sweep.records import EngineConfig
from sweep.trial import Finished, Flags, TrialKind, TrialStatus

CARD = Device(47.5 * GIB, "gpu", "NVIDIA RTX A6000")
FIXED = {"tensor-parallel-size": 4, "max-model-len": 32768}
MIDDLE: dict[str, object] = {"gpu-memory-utilization": 0.9, "max-num-seqs": 128, "max-num-batched-tokens": 4096}
NO_BLOCKS = "ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)])."
SHORT = (
    "ValueError: To serve at least one request with the model's max seq len (32768), (2.00 GiB KV cache is needed, "
    "which is larger than the available KV cache memory ({left} GiB). Based on the available memory, the estimated "
    "maximum model length is {longest}."
)
NO_KV = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"


def flags(**values: object) -> Flags:
    return MIDDLE | {name.replace("_", "-"): value for name, value in values.items()}  # type: ignore[return-value]


def knowledge(**changes: object) -> Knowledge:
    model = model_of(models.qwen2_32b(), models.QWEN2_32B_BYTES)
    return replace(Knowledge(model, CARD, rules=True, fixed=FIXED), **changes)  # type: ignore[arg-type]


def gate(*record: Finished, known: Knowledge | None = None, audit_share: float = 0.0) -> Gatekeeper:
    keeper = Gatekeeper(knowledge() if known is None else known, seed=7, audit_share=audit_share)
    for one in record:
        keeper.hear(one)
    return keeper


def failed(number: int, failure_class: str, line: str, **values: object) -> Finished:
    status = TrialStatus.INFEASIBLE
    return Finished(number, TrialKind.SEARCH, flags(**values), status, failure_class=failure_class, failure_line=line)


def started(number: int, kv_tokens: int | None = None, **values: object) -> Finished:
    config = EngineConfig(kv_tokens=kv_tokens)
    return Finished(number, TrialKind.SEARCH, flags(**values), TrialStatus.COMPLETE, score=1.0, engine_config=config)


def refused(keeper: Gatekeeper, **values: object) -> str | None:
    """By what rule a candidate is refused, once all that the gate heard has ended."""
    found = keeper.refusal(99, flags(**values))
    return None if found is None else found.rule


def sum_of(known: Knowledge, **values: object) -> Parts:
    found = Sums(known).of(flags(**values))
    assert not isinstance(found, Unknown)
    return found[1]


def test_what_cannot_hold_one_request_is_refused_with_the_sum_in_words() -> None:
    keeper = gate()
    found = keeper.refusal(1, flags(gpu_memory_utilization=0.34))
    assert found is not None
    assert found.rule == "kv_cache"
    assert found.confidence >= CONFIDENCE
    assert "32,768 tokens needs 2.00 GiB" in found.reason
    assert "15.3 GiB of weights" in found.reason
    # what may work is launched: no refusal without confidence
    shares = [0.3 + 0.01 * step for step in range(70)]
    verdicts = [refused(keeper, gpu_memory_utilization=share) is not None for share in shares]
    assert verdicts == sorted(verdicts, reverse=True)
    edge = shares[verdicts.index(False)]
    forecast = keeper.learned(1).forecast(flags(gpu_memory_utilization=edge))
    assert not isinstance(forecast, Unknown)
    assert 0.025 < forecast.starts < 0.3


def test_rules_that_vllm_always_has() -> None:
    keeper = gate()
    assert refused(keeper, max_num_batched_tokens=64, max_num_seqs=128) == "batched_tokens"
    assert refused(keeper, max_num_batched_tokens=128, max_num_seqs=128) is None
    assert refused(keeper, max_num_batched_tokens=64, max_num_seqs=None) is None
    # only without chunked prefill is a prompt read in one step
    assert refused(keeper, enable_chunked_prefill=False) == "batched_tokens"
    assert refused(keeper, no_enable_chunked_prefill=True) == "batched_tokens"
    assert refused(keeper, enable_chunked_prefill=True) is None
    assert refused(keeper, no_enable_chunked_prefill=False) is None
    assert refused(keeper, enable_chunked_prefill=False, max_num_batched_tokens=32768) is None
    apart = knowledge(fixed={"max-model-len": 32768})
    assert refused(gate(known=apart), tensor_parallel_size=3) == "tensor_parallel"
    assert refused(gate(known=apart), tensor_parallel_size=5) is None


def test_one_refusal_teaches_the_whole_rule() -> None:
    teacher = failed(3, "unsupported_block_size", NO_BLOCKS, block_size=16)
    keeper = gate(teacher)
    assert [size for size in (8, 16, 24, 32, 48, 64, 128) if refused(keeper, block_size=size)] == [8, 16, 24, 48]
    found = keeper.refusal(4, flags(block_size=48))
    assert found is not None
    assert found.reason == "block-size must be a multiple of 32 (named by the refusal of trial 3)"
    # trials before it did not know
    assert keeper.refusal(3, flags(block_size=48)) is None
    # another backend has rules of its own
    assert refused(keeper, block_size=48, attention_backend="FLASHINFER") is None
    # where the flag is left to vLLM, nothing is known of it
    assert refused(keeper, block_size=None) is None


@pytest.mark.parametrize(
    ("failure_class", "line", "taught", "also", "not_these"),
    [
        (
            "invalid_flags",
            "Value error, max_num_batched_tokens (128) must be greater than or equal to max_num_seqs (256). [",
            {"max_num_batched_tokens": 128, "max_num_seqs": 256},
            {"max_num_batched_tokens": 512, "max_num_seqs": 1024},
            {"max_num_batched_tokens": 256, "max_num_seqs": 256},
        ),
        (
            "invalid_flags",
            "ValueError: Total number of attention heads (40) must be divisible by tensor parallel size (3).",
            {"tensor_parallel_size": 3},
            {"tensor_parallel_size": 6},
            {"tensor_parallel_size": 8},
        ),
        (
            "invalid_flags",
            "ValueError: User-specified max_model_len (32768) is greater than the derived max_model_len "
            "(max_position_embeddings=8192 or model_max_length=None in model's config.json).",
            {"max_model_len": 32768},
            {"max_model_len": 8193},
            {"max_model_len": 8192},
        ),
        (
            "invalid_flags",
            "Input should be less than or equal to 1 [type=less_than_equal, input_value=1.5, input_type=float]",
            {"gpu_memory_utilization": 1.5},
            {"gpu_memory_utilization": 1.2},
            {"gpu_memory_utilization": 0.9},
        ),
        (
            "invalid_flags",
            "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp4' (choose from 'auto', 'fp8')",
            {"kv_cache_dtype": "fp4"},
            None,
            {"kv_cache_dtype": "fp8"},
        ),
        (
            "unsupported_block_size",
            "ValueError: Selected backend FLASHINFER is not valid for this configuration. "
            "Reason: ['block_size not supported']",
            {"block_size": 128},
            {"block_size": 128, "max_num_seqs": 4},
            {"block_size": 64},
        ),
        (
            "kv_cache_too_small",
            SHORT.format(left="0.5", longest=8192),
            {"max_model_len": 32768, "gpu_memory_utilization": 0.5},
            {"max_model_len": 16384, "gpu_memory_utilization": 0.4, "max_num_seqs": 256},
            {"max_model_len": 8192, "gpu_memory_utilization": 0.5},
        ),
        (
            "kv_cache_too_small",
            "ValueError: max_num_seqs (512) exceeds available Mamba cache blocks (208).",
            {"max_num_seqs": 512, "gpu_memory_utilization": 0.5},
            {"max_num_seqs": 256, "gpu_memory_utilization": 0.4},
            {"max_num_seqs": 256, "gpu_memory_utilization": 0.6},
        ),
    ],
)
def test_rules_named_by_refusals_hold_for_a_server_nobody_knows(
    failure_class: str,
    line: str,
    taught: dict[str, object],
    also: dict[str, object] | None,
    not_these: dict[str, object],
) -> None:
    nothing = Knowledge(Unknown("no model"), Unknown("no device"))
    keeper = gate(failed(1, failure_class, line, **taught), known=nothing)
    assert also is None or refused(keeper, **also) is not None
    assert refused(keeper, **taught) is not None or failure_class == "kv_cache_too_small"
    assert refused(keeper, **not_these) is None
    assert refused(gate(known=nothing), **(also or taught)) is None


def test_a_rule_that_does_not_explain_its_own_refusal_teaches_nothing() -> None:
    keeper = gate(failed(1, "unsupported_block_size", NO_BLOCKS, block_size=64))
    assert refused(keeper, block_size=48) is None


def test_two_flags_of_the_refused_value_leave_it_open_which_was_meant() -> None:
    line = "Input should be greater than or equal to 1 [type=greater_than_equal, input_value=0, input_type=int]"
    nothing = Knowledge(Unknown("no model"), Unknown("no device"))
    keeper = gate(failed(1, "invalid_flags", line, max_num_seqs=0, max_num_batched_tokens=0), known=nothing)
    assert refused(keeper, max_num_seqs=0) is None
    keeper = gate(failed(1, "invalid_flags", line, max_num_seqs=0), known=nothing)
    assert refused(keeper, max_num_seqs=0, gpu_memory_utilization=0.5) == "max_num_seqs"


def test_a_server_that_started_against_a_rule_disproves_it() -> None:
    teacher = failed(1, "unsupported_block_size", NO_BLOCKS, block_size=16)
    keeper = gate(teacher, started(5, block_size=48))
    assert keeper.refusal(5, flags(block_size=80)) is not None
    assert keeper.refusal(6, flags(block_size=80)) is None
    assert refused(gate(started(1, max_num_batched_tokens=64)), max_num_batched_tokens=32) is None


def test_causes_that_are_not_the_flags_teach_nothing() -> None:
    line = "ValueError: Free memory on device cuda:0 (31.66/47.4 GiB) on startup is less than desired"
    taken = replace(failed(1, "memory_taken_by_other", line), status=TrialStatus.FAILED)
    client = failed(2, "client_error", "bench serve: error: argument --block-size: invalid choice: 16 (choose from 32)")
    before, after = gate().learned(9), gate(taken, client).learned(9)
    assert (after.belief, after.ceiling, after.rules) == (before.belief, before.ceiling, before.rules)


def test_a_start_moves_the_edge_of_what_is_refused_and_so_does_a_failure() -> None:
    shares = [0.3 + 0.002 * step for step in range(100)]

    def edge(*record: Finished) -> float:
        keeper = gate(*record)
        return next(share for share in shares if refused(keeper, gpu_memory_utilization=share) is None)

    sum_ = sum_of(knowledge(), gpu_memory_utilization=0.9)
    per_gib = 1 / 47.5

    def start(off_gib: float) -> Finished:
        return started(0, int((sum_.kv_bytes + off_gib * GIB) / sum_.bytes_per_token), gpu_memory_utilization=0.9)

    # As the formulas say: now it is known, and the edge moves up to what a request needs. Off by a GiB: so is the edge.
    assert edge() < edge(start(0))
    assert edge(start(-1.2)) - edge(start(0)) == pytest.approx(1.0 * per_gib, abs=0.6 * per_gib)
    assert edge(start(0)) - edge(start(1.2)) == pytest.approx(1.0 * per_gib, abs=0.6 * per_gib)
    assert edge(failed(0, "kv_cache_too_small", NO_KV, gpu_memory_utilization=0.4)) > edge()


def test_the_size_that_a_refusal_tells_is_as_good_as_a_start() -> None:
    line = SHORT.format(left="1.50", longest=24576)
    keeper = gate(failed(0, "kv_cache_too_small", line, gpu_memory_utilization=0.4))
    forecast = keeper.learned(1).forecast(flags(gpu_memory_utilization=0.4))
    assert not isinstance(forecast, Unknown)
    assert forecast.kv_tokens == pytest.approx(1.5 * GIB / 65536, rel=0.1)
    assert refused(keeper, gpu_memory_utilization=0.4, max_num_seqs=256) == "kv_cache"
    assert refused(keeper, gpu_memory_utilization=0.44) is None


def test_launches_that_ran_out_of_memory_lower_the_ceiling() -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert refused(gate(), gpu_memory_utilization=0.98) is None
    for failure_class in ("startup_oom", "load_oom"):
        keeper = gate(failed(1, failure_class, oom, gpu_memory_utilization=0.96))
        assert refused(keeper, gpu_memory_utilization=0.98) == "device_memory"
        assert refused(keeper, gpu_memory_utilization=0.9) is None
        found = keeper.refusal(9, flags(gpu_memory_utilization=0.99))
        assert found is not None
        assert "GiB of a device" in found.reason


def gathered(name: str = "org/m", *, own: bool = False, folder: Path | None = None) -> Knowledge:
    return gather(own_command=own, build="gpu", model_folder=folder, model_name=name, devices=(), fixed=FIXED, env={})


@pytest.mark.parametrize(
    ("known", "word"),
    [
        (gathered(own=True), "serve.command"),
        (gathered(), "org/m"),
        (gathered(folder=Path("/none")), "config.json"),
        (Knowledge(model_of(models.qwen2_32b()), Unknown("no GPU can be asked for its memory"), True, FIXED), "no GPU"),
        (Knowledge(model_of({"model_type": "x"}), CARD, True, FIXED), "num_hidden_layers"),
    ],
)
def test_a_gate_that_knows_nothing_of_memory_says_so_and_learns_by_order_alone(known: Knowledge, word: str) -> None:
    keeper = gate(known=known)
    assert word in (keeper.learned(1).nothing_of_memory or "")
    forecast = keeper.learned(1).forecast(flags())
    assert isinstance(forecast, Unknown)
    assert forecast.reason
    for share in (0.01, 0.2, 0.5, 0.99, 1.0):
        assert refused(keeper, gpu_memory_utilization=share) is None
    short = failed(1, "kv_cache_too_small", NO_KV, gpu_memory_utilization=0.5)
    keeper = gate(short, started(2, 1000), known=known)
    assert refused(keeper, gpu_memory_utilization=0.4) == "kv_cache"
    assert refused(keeper, gpu_memory_utilization=0.6) is None
    # one that starts with as little says that the cause was another
    keeper.hear(started(3, 1000, gpu_memory_utilization=0.4))
    assert refused(keeper, gpu_memory_utilization=0.3) is None


def test_what_leaves_no_more_memory_than_too_little_is_refused_by_order_alone() -> None:
    known = gathered(own=True)
    keeper = gate(failed(1, "kv_cache_too_small", NO_KV, gpu_memory_utilization=0.5), known=known)
    found = keeper.refusal(2, flags(gpu_memory_utilization=0.4, block_size=64))
    assert found is not None
    assert found.reason == "trial 1 had no room for its KV cache, and this leaves no more"
    assert CONFIDENCE <= found.confidence < 1
    assert refused(keeper, gpu_memory_utilization=0.5, max_num_seqs=256) == "kv_cache"
    others: list[dict[str, object]] = [
        {"max_num_seqs": 64},
        {"max_num_batched_tokens": 1024},
        {"kv_cache_dtype": "fp8"},
    ]
    for less in others:
        assert refused(keeper, gpu_memory_utilization=0.4, **less) is None
    assert refused(keeper, gpu_memory_utilization=None) is None
    assert keeper.refusal(1, flags(gpu_memory_utilization=0.4)) is None  # it had not ended by then


@pytest.mark.parametrize("failure_class", ["startup_oom", "load_oom"])
def test_what_fills_as_much_memory_as_too_much_is_refused_by_order_alone(failure_class: str) -> None:
    keeper = gate(failed(1, failure_class, "CUDA out of memory", gpu_memory_utilization=0.96), known=gathered(own=True))
    assert refused(keeper, gpu_memory_utilization=0.98) == "device_memory"
    assert refused(keeper, gpu_memory_utilization=0.96, max_num_seqs=256) == "device_memory"
    assert refused(keeper, gpu_memory_utilization=0.98, max_num_seqs=64) is None
    assert refused(keeper, gpu_memory_utilization=0.94) is None
    keeper.hear(started(2, 1000, gpu_memory_utilization=0.97))
    assert refused(keeper, gpu_memory_utilization=0.98) is None
    # and so does one before it
    before = started(1, 1000, gpu_memory_utilization=0.97)
    out = failed(2, failure_class, "CUDA out of memory", gpu_memory_utilization=0.96)
    assert refused(gate(before, out, known=gathered(own=True)), gpu_memory_utilization=0.98) is None


def test_a_part_of_what_is_refused_by_order_is_launched_to_check() -> None:
    keeper = gate(failed(1, "kv_cache_too_small", NO_KV), known=gathered(own=True), audit_share=0.25)
    found = [keeper.refusal(2, flags(gpu_memory_utilization=0.5 - place / 1000)) for place in range(400)]
    assert 60 < sum(one is not None and one.audit for one in found) < 140


def test_a_wrong_configuration_is_found_by_the_weights_or_by_the_first_start() -> None:
    other = model_of(models.llama_8b(), models.QWEN2_32B_BYTES)
    keeper = gate(known=knowledge(model=other))
    assert refused(keeper, gpu_memory_utilization=0.01) is None
    # without weights to compare, the first server tells: it has half of what this model would leave
    small = model_of(models.llama_8b())
    known = knowledge(model=small, fixed={"max-model-len": 32768})
    assert refused(gate(known=known), gpu_memory_utilization=0.3) == "kv_cache"
    sum_ = sum_of(known)
    keeper = gate(started(0, int(sum_.kv_bytes / 2 / sum_.bytes_per_token)), known=known)
    assert "does not fit" in (keeper.learned(1).nothing_of_memory or "")
    assert refused(keeper, gpu_memory_utilization=0.3) is None


def test_devices_it_knows_and_those_it_does_not(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(models.llama_8b()))

    def of(*devices: DeviceInfo, build: str | None = "gpu", **env: str) -> Knowledge:
        return gather(
            own_command=False, build=build, model_folder=tmp_path, model_name="m", devices=devices, fixed={}, env=env
        )

    card = DeviceInfo(0, None, "NVIDIA RTX A6000", 48.0, None, None)
    found = of(card, replace(card, index=1, memory_total_gib=47.0))
    assert found.device == Device(46.5 * GIB, "gpu", "NVIDIA RTX A6000")
    assert found.nothing is None
    assert isinstance(found.model, Model)
    assert "MIG" in (of(replace(card, mig=True)).nothing or "")
    assert "memory" in (of(replace(card, memory_total_gib=None)).nothing or "")
    assert "GPU" in (of().nothing or "")
    assert "GPU" in (of(card, build=None).nothing or "")
    assert not of(card, build=None).rules
    assert "VLLM_PP_LAYER_PARTITION" in (of(card, VLLM_PP_LAYER_PARTITION="1,2").nothing or "")
    on_cpu = of(build="cpu")
    assert isinstance(on_cpu.device, Device)
    assert on_cpu.device.kind == "cpu"


def test_answers_depend_on_the_launches_of_lower_number_alone_in_whatever_order() -> None:
    rng = random.Random(5)
    sum_ = sum_of(knowledge())
    tokens = int((sum_.kv_bytes - 0.5 * GIB) / sum_.bytes_per_token)
    record: list[Finished] = [
        started(0, tokens),
        failed(1, "unsupported_block_size", NO_BLOCKS, block_size=16),
        failed(2, "kv_cache_too_small", NO_KV, gpu_memory_utilization=0.33),
        failed(3, "load_oom", "OutOfMemoryError", gpu_memory_utilization=0.97),
        started(4, None, block_size=32),
    ]
    asked: Sequence[dict[str, object]] = [
        {"gpu_memory_utilization": rng.uniform(0.3, 1.0), "block_size": rng.choice((16, 32, 48))} for _ in range(40)
    ]
    expected = {n: [gate(*record[:n], audit_share=0.3).refusal(n, flags(**one)) for one in asked] for n in range(6)}
    assert len({tuple(answers) for answers in map(str, expected.values())}) > 2
    mixed = list(record)
    for _ in range(4):
        rng.shuffle(mixed)
        keeper = gate(audit_share=0.3)
        for one in mixed:
            keeper.refusal(rng.randrange(6), flags(**rng.choice(asked)))
            keeper.hear(one)
        assert {n: [keeper.refusal(n, flags(**one)) for one in asked] for n in range(6)} == expected


def test_a_share_of_what_is_refused_is_launched_all_the_same() -> None:
    points = [flags(gpu_memory_utilization=0.3, max_num_seqs=seqs) for seqs in range(1, 401)]

    def audits(share: float, seed: int = 7) -> list[bool]:
        keeper = Gatekeeper(knowledge(), seed=seed, audit_share=share)
        found = [keeper.refusal(1, point) for point in points]
        return [one.audit for one in found if one is not None]

    drawn = audits(0.05)
    assert len(drawn) == 400
    assert 8 < sum(drawn) < 36
    assert drawn == audits(0.05)
    assert drawn != audits(0.05, seed=8)
    assert not any(audits(0.0))
    assert all(audits(1.0))


def test_a_candidate_that_comes_up_for_every_trial_is_drawn_once() -> None:
    keeper = gate(audit_share=0.25)
    points = [flags(gpu_memory_utilization=0.3, max_num_seqs=seqs) for seqs in range(1, 81)]
    drawn = [{found.audit for n in range(1, 41) if (found := keeper.refusal(n, point)) is not None} for point in points]
    assert all(len(one) == 1 for one in drawn)
    assert 8 < sum(True in one for one in drawn) < 32


def test_precision_is_told_from_the_record() -> None:
    def passed(number: int, seqs: int, *, audit: bool = False, rule: str = "kv_cache") -> PassedOver:
        return PassedOver(number, flags(max_num_seqs=seqs), Refusal(f"no room for {seqs}", rule, 0.98, audit))

    record = {
        4: failed(4, "kv_cache_too_small", NO_KV, max_num_seqs=4),
        5: started(5, max_num_seqs=5),
        6: replace(started(6), status=TrialStatus.FAILED),
        7: failed(7, "kv_cache_too_small", NO_KV, max_num_seqs=7),
    }
    points = [
        passed(1, 1), passed(2, 1), passed(2, 2), passed(3, 3, rule="block_size"),
        passed(4, 4, audit=True), passed(5, 5, audit=True), passed(6, 6, audit=True), passed(7, 7, audit=True),
        passed(8, 8, audit=True), PassedOver(9, flags(), same=None),
    ]  # fmt: skip
    found = tally(points, record)
    assert [(one.rule, one.count, one.example) for one in found.refused] == [
        ("kv_cache", 2, "no room for 1"), ("block_size", 1, "no room for 3"),
    ]  # fmt: skip
    assert (found.count, found.audited, found.audited_failed) == (3, 3, 2)
    assert found.precision == pytest.approx(2 / 3)
    assert found.lines()[-1] == (
        "gate: 3 candidates refused without a launch; 2 of 3 refusals that were launched all the same failed as said"
    )
    assert tally([], record).lines() == []
    assert tally(points[:1], {}).precision is None


class Night:
    """A machine with a truth of its own: errors of the formulas, cold boots, a ceiling, and a rule on block sizes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.known = knowledge()
        self.constant, self.activations = self.rng.gauss(0, 0.4) * GIB, self.rng.uniform(0.6, 1.6)
        self.ceiling_bytes = self.rng.uniform(0.95, 1.0) * CARD.total_bytes
        self.booted: set[tuple[object, object]] = set()

    def point(self) -> dict[str, object]:
        return {
            "gpu_memory_utilization": self.rng.uniform(0.3, 0.99),
            "max_num_seqs": self.rng.choice((16, 64, 256)),
            "max_num_batched_tokens": self.rng.choice((1024, 2048, 8192)),
            "block_size": self.rng.choice((8, 16, 24, 32)),
        }

    def launch(self, number: int, point: dict[str, object]) -> Finished:
        pair, size = (point["max_num_seqs"], point["max_num_batched_tokens"]), point["block_size"]
        sum_ = sum_of(self.known, **point)
        left = sum_.kv_bytes - self.constant - (self.activations - 1) * sum_.activation_bytes
        left += self.rng.gauss(0, 0.04) * GIB
        left *= 1.0 if pair in self.booted or left < 0 else 0.95
        self.booted.add(pair)
        if size in (8, 24):
            line = f"ValueError: No common block size for {size} (FLASH_ATTN: [MultipleOf(16)])."
            return failed(number, "unsupported_block_size", line, **point)
        if left < sum_.needed_bytes:
            return failed(number, "kv_cache_too_small", NO_KV, **point)
        if sum_.budget_bytes > self.ceiling_bytes:
            return failed(number, "load_oom", "torch.OutOfMemoryError: CUDA out of memory.", **point)
        return started(number, int(left / sum_.bytes_per_token), **point)


def test_simulated_nights_refuse_what_fails_and_next_to_nothing_else() -> None:
    right = wrong = failures = 0
    for seed in range(5):
        night, keeper = Night(seed), gate()
        for number in range(40):
            point = night.point()
            verdict, truth = keeper.refusal(number, flags(**point)), night.launch(number, point)
            fails = truth.status is TrialStatus.INFEASIBLE
            if verdict is None:
                failures += fails
                keeper.hear(truth)
            else:
                right, wrong = right + fails, wrong + (not fails)
    assert right > 60
    assert wrong <= 0.025 * right
    assert failures < 0.4 * right
