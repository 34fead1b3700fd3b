from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import models
import pytest

from sweep.memory import (
    GIB,
    Belief,
    Device,
    Launch,
    Model,
    Parts,
    Unknown,
    model_of,
    node_memory_bytes,
    parts_of,
    read_bytes,
    read_launch,
    read_model,
)
from sweep.memory.quantized import online_bits, read_quantization
from sweep.memory.weights import stage_layers

A6000 = Device(48e9, "gpu", "NVIDIA RTX A6000")
NIGHT = {"tensor-parallel-size": 4, "gpu-memory-utilization": 0.92, "max-model-len": 32768}
STARTED = json.loads((Path(__file__).parent / "data" / "started_servers.json").read_text())["servers"]


def known(config: Mapping[str, Any], stored: int | None = None) -> Model:
    model = model_of(config, stored)
    assert isinstance(model, Model), model
    return model


def launch(flags: Mapping[str, object], model: Model, device: Device = A6000) -> Launch:
    found = read_launch(flags, model, device)
    assert isinstance(found, Launch), found
    return found


def parts(flags: Mapping[str, object], model: Model, device: Device = A6000) -> Parts:
    found = parts_of(model, launch(flags, model, device), device)
    assert isinstance(found, Parts), found
    return found


def test_the_a6000_study_worked_by_hand() -> None:
    model = known(models.qwen2_32b(), models.QWEN2_32B_BYTES)
    sum_ = parts(NIGHT, model)
    # 64 layers, K and V, 8 / 4 KV heads of 128, two bytes each
    assert sum_.bytes_per_token == 64 * 2 * (8 // 4) * 128 * 2 == 65_536
    # 32.76 billion weights of two bytes on four cards
    assert sum_.weight_bytes == pytest.approx(32_763_876_352 * 2 / 4, rel=0.001)
    assert sum_.weight_bytes == pytest.approx(16.4e9, rel=0.005)
    # logits and sorting of 256 requests over 152,064 words outweigh a step of 2,048 tokens
    assert sum_.activation_bytes == 256 * 152_064 * 22
    assert sum_.budget_bytes == pytest.approx(0.92 * 48e9)
    assert sum_.needed_bytes == 32_768 * 65_536 + 16 * 65_536
    forecast = Belief.prior(A6000).forecast(sum_, cold=False)
    assert forecast is not None
    assert forecast.kv_tokens == pytest.approx(380_000, rel=0.02)
    assert forecast.kv_tokens_low < 380_000 < forecast.kv_tokens_high
    assert forecast.requests_of_longest == pytest.approx(380_000 / 32_768, rel=0.02)
    assert forecast.starts > 0.999


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (models.qwen2_32b, models.QWEN2_32B_BYTES),
        (models.llama_8b, models.LLAMA_8B_BYTES),
        (models.llama_70b, 2 * 70_553_706_496),
        (models.qwen2_half_b, 2 * 494_032_768),
        (models.mixtral, 2 * 46_702_792_704),
        (models.qwen3_30b_moe, 2 * 30_532_122_624),
        (models.qwen3_235b_moe_fp8, 235_093_634_560),
        (models.deepseek_v3, models.DEEPSEEK_V3_BYTES),
        (models.deepseek_v2_lite, 2 * 15_706_484_224),
        (models.gemma2_9b, 4 * 9_241_705_984),
        (models.qwen2_7b_awq, 5_580_000_000),
    ],
)
def test_the_shape_of_a_model_gives_the_size_of_its_files(config: Callable[[], models.Config], size: int) -> None:
    with_files, without = known(config(), size), known(config())
    one = {"max-model-len": 1024}
    weighed, computed = parts(one, with_files).weight_bytes, parts(one, without).weight_bytes
    assert computed == pytest.approx(weighed, rel=0.01)


def test_kv_heads_are_copied_where_tensor_parallelism_goes_beyond_them() -> None:
    model = known(models.qwen3_30b_moe())
    per_token = {size: parts({**NIGHT, "tensor-parallel-size": size}, model).bytes_per_token for size in (1, 2, 4, 8)}
    assert per_token[1] == 48 * 2 * 4 * 128 * 2
    assert per_token == {1: per_token[1], 2: per_token[1] / 2, 4: per_token[1] / 4, 8: per_token[1] / 4}
    # of K and V one head in four is on each of eight devices, the rest an eighth
    eight, four = (parts({**NIGHT, "tensor-parallel-size": size}, model).weight_bytes for size in (8, 4))
    one_head = 48 * 2 * 2048 * 128 * 2
    whole = 48 * (2 * 2048 + 2048 * 128) * 2
    assert 2 * (eight - one_head - whole) == pytest.approx(four - one_head - whole, rel=1e-6)


def test_mla_keeps_one_vector_a_token_on_every_device() -> None:
    model = known(models.deepseek_v3(), models.DEEPSEEK_V3_BYTES)
    eight = parts({"tensor-parallel-size": 8, "max-model-len": 4096}, model, Device(141e9))
    assert eight.bytes_per_token == 61 * (512 + 64) * 2 == 70_272
    # 671 billion weights of one byte on eight devices, and what each has whole; the layer to predict is not loaded
    assert 671e9 / 8 < eight.weight_bytes < 1.06 * 671e9 / 8
    assert parts({"tensor-parallel-size": 16, "max-model-len": 4096}, model, Device(141e9)).bytes_per_token == 70_272
    assert model.longest_tokens == 163_840


def test_the_fp8_cache_takes_half() -> None:
    model = known(models.qwen2_32b())
    whole, half = (parts({**NIGHT, "kv-cache-dtype": kind}, model).bytes_per_token for kind in ("auto", "fp8_e4m3"))
    assert half == whole / 2 == 32_768


def test_known_servers_of_an_moe_in_fp8() -> None:
    """vllm issue 21348: 178,880 tokens in 8.11 GiB on each of four H100; the other ranks had a little less room."""
    model = known(models.qwen3_235b_moe_fp8(), 235_093_634_560)
    four = parts({"tensor-parallel-size": 4, "max-model-len": 40960}, model, Device(79.2 * GIB))
    assert four.bytes_per_token == pytest.approx(8.11 * GIB / 178_880, rel=0.015)
    assert four.weight_bytes == pytest.approx(235e9 / 4, rel=0.02)


def test_what_a_token_reads_of_the_weights_by_hand() -> None:
    dense = known(models.qwen2_32b(), models.QWEN2_32B_BYTES)
    # All but the embedding, of which a row is read; on two stages as much, one after the other.
    every = models.QWEN2_32B_BYTES - 152_064 * 5120 * 2
    for flags, share in (({}, 1), ({"tensor-parallel-size": 4}, 4), ({"pipeline-parallel-size": 2}, 1)):
        assert read_bytes(dense, launch(flags, dense)) == pytest.approx(every / share, rel=0.001)
    tied = known(models.qwen2_half_b())
    whole = parts({}, tied).weight_bytes
    assert read_bytes(tied, launch({}, tied)) == pytest.approx(whole, rel=1e-6), "the embedding is the last matrix, too"
    mixed = known(models.mixtral())
    # Two of eight experts of 14,336 a layer, attention with 8 of 32 KV heads, and the last matrix.
    expected = 32 * (2 * 3 * 4096 * 14_336 + 2 * 4096**2 + 2 * 4096 * 1024) + 32_000 * 4096
    assert read_bytes(mixed, launch({}, mixed)) == pytest.approx(2 * expected, rel=0.001)


def test_a_window_holds_no_more_than_it_sees() -> None:
    model = known(models.gemma2_9b())
    assert (model.window, model.windowed_layers) == (4096, 21)
    whole = parts({"max-model-len": 8192, "max-num-batched-tokens": 2048}, model)
    layer = 2 * 8 * 256 * 2
    seen = -(-(4096 - 1 + 2048) // 16) * 16
    assert whole.needed_bytes == layer * (21 * 8192 + 21 * seen) + 42 * layer * 16
    assert whole.bytes_per_token == layer * 21 * (8192 + seen) / 8192
    short = parts({"max-model-len": 1024}, model)
    assert short.bytes_per_token == 42 * layer


def test_layers_are_shared_between_stages_as_vllm_does() -> None:
    assert [stage_layers(*one) for one in ((64, 2), (61, 4), (63, 2), (7, 3))] == [
        (32, 32), (15, 15, 16, 15), (32, 31), (2, 3, 2),
    ]  # fmt: skip
    model = known(models.llama_70b())
    two = parts({"pipeline-parallel-size": 2, "max-model-len": 4096}, model, Device(80e9))
    assert two.bytes_per_token == 40 * 2 * 8 * 128 * 2
    layer = (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192) * 2
    assert two.weight_bytes == pytest.approx(40 * layer + 128_256 * 8192 * 2, rel=1e-4)


def test_tied_embeddings_are_there_twice_where_the_ends_are_apart() -> None:
    model = known(models.qwen2_half_b(), 988_065_536)
    one, two = (parts({"pipeline-parallel-size": size, "max-model-len": 512}, model).weight_bytes for size in (1, 2))
    assert one == pytest.approx(988_065_536, rel=0.001)
    assert two > one / 2 + 100e6


@pytest.mark.parametrize("server", STARTED, ids=[f"{place}-{one['model']}" for place, one in enumerate(STARTED)])
def test_servers_that_started(server: dict[str, Any]) -> None:
    model = known(getattr(models, server["model"])())
    device = Device(server["total_bytes"], server["kind"])
    found = parts(server["flags"], model, device)
    if server["weights_gib"] is not None:
        assert found.weight_bytes / GIB == pytest.approx(server["weights_gib"], rel=0.003)
    if server["kv_tokens"] is None and server["kv_gib"] is None:
        return
    tokens = server["kv_tokens"] or int(server["kv_gib"] * GIB / found.bytes_per_token)
    forecast = Belief.prior(device).forecast(found, cold=False)
    assert forecast is not None
    assert forecast.kv_tokens_low < tokens < forecast.kv_tokens_high
    assert forecast.starts > 0.5


@pytest.mark.parametrize(
    ("config", "bits"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, 4 + 20 / 64),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8.0),
        ({"quant_method": "fp8"}, 8.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 4.127),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8.0),
        ({"quant_method": "mxfp4"}, 4.25),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        (
            {"quant_method": "compressed-tensors",
             "config_groups": {"a": {"weights": {"num_bits": 4, "group_size": 128, "symmetric": True}}}},
            4 + 16 / 128,
        ),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": None}}}, None),
        ({"quant_method": "something new"}, None),
    ],
)  # fmt: skip
def test_bits_of_quantised_weights(config: dict[str, Any], bits: float | None) -> None:
    found = read_quantization(config)
    assert found is not None
    assert found.bits == bits


def test_weights_quantised_as_they_are_loaded() -> None:
    model = known(models.llama_8b(), models.LLAMA_8B_BYTES)
    plain, half = (parts({"max-model-len": 512, **more}, model) for more in ({}, {"quantization": "fp8"}))
    ends = 2 * 128_256 * 4096 * 2
    assert half.weight_bytes - ends == pytest.approx((plain.weight_bytes - ends) / 2, rel=0.001)
    assert isinstance(read_launch({"quantization": "new"}, model, A6000), Unknown)
    assert online_bits("bitsandbytes") == 4.5


def test_weights_of_four_bytes_are_served_in_two() -> None:
    stored = 4 * 9_241_705_984
    model = known(models.gemma2_9b(), stored)
    assert parts({"max-model-len": 1024}, model).weight_bytes == pytest.approx(stored / 2, rel=0.001)
    assert parts({"max-model-len": 1024, "dtype": "float32"}, model).weight_bytes == pytest.approx(stored, rel=0.001)


def test_what_vllm_chooses_where_it_is_not_told() -> None:
    model = known(models.llama_8b())
    plain = launch({}, model, Device(47.5 * GIB))
    assert (plain.batched_tokens, plain.seqs, plain.max_model_len) == (2048, 256, 131072)
    assert (launch({}, model, Device(79.2 * GIB, "gpu", "NVIDIA H100")).batched_tokens) == 8192
    assert (launch({}, model, Device(79.2 * GIB, "gpu", "NVIDIA A100-SXM4-80GB")).seqs) == 256
    assert (launch({}, model, Device(180 * GIB)).batched_tokens) == 16384
    assert (launch({}, model, Device(20e9, "cpu")).seqs) == 128
    assert launch({"max-model-len": "32k"}, model).max_model_len == 32_000
    assert launch({"max-model-len": "32K"}, model).max_model_len == 32_768
    assert launch({"max-model-len": -1}, model).max_model_len is None
    assert launch({"max-model-len": 64, "max-num-seqs": 4}, model).batched_tokens == 256
    assert launch({"enable-chunked-prefill": False, "max-model-len": 9000}, model).batched_tokens == 9000


@pytest.mark.parametrize(
    "flags",
    [
        {"cpu-offload-gb": 4},
        {"speculative-config": {"num_speculative_tokens": 3}},
        {"kv-cache-memory-bytes": 1},
        {"enable-lora": True},
        {"kv-cache-dtype": "nvfp4"},
        {"max-model-len": "long"},
        {"max-num-seqs": True},
        {"gpu-memory-utilization": "most"},
        {"tensor-parallel-size": 2.5},
    ],
)
def test_flags_it_does_not_understand_end_in_a_word_about_them(flags: dict[str, object]) -> None:
    found = read_launch(flags, known(models.llama_8b()), A6000)
    assert isinstance(found, Unknown)
    assert next(iter(flags)) in found.reason


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"vision_config": {"depth": 3}}, "vision"),
        ({"layer_types": ["full_attention", "linear_attention"] * 32, "use_sliding_window": True}, "kinds of layers"),
        ({"mamba_d_state": 16}, "recurrent"),
        ({"is_encoder_decoder": True}, "decoder"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"num_attention_heads": [1, 2]}, "num_attention_heads"),
        ({"vocab_size": True}, "vocab_size"),
    ],
)
def test_models_it_does_not_understand_end_in_a_word_about_them(change: dict[str, Any], word: str) -> None:
    found = model_of(models.qwen2_32b() | change)
    assert isinstance(found, Unknown)
    assert word in found.reason


def test_recurrent_layers_are_seen_without_a_window_too() -> None:
    found = model_of(models.qwen3_30b_moe() | {"layer_types": ["linear_attention", "full_attention"] * 24})
    assert isinstance(found, Unknown)


def test_a_text_model_within_another_configuration_is_found() -> None:
    inner = models.llama_8b()
    model = known({"architectures": ["Wrapped"], "text_config": inner, "model_type": "wrapped"})
    assert (model.layers, model.architecture) == (32, "Wrapped")


def test_a_configuration_that_is_not_of_these_weights_is_not_believed() -> None:
    wrong = known(models.llama_8b(), models.QWEN2_32B_BYTES)
    found = parts_of(wrong, launch(NIGHT, wrong), A6000)
    assert isinstance(found, Unknown)
    assert "65.5 GB where config.json describes 16.1 GB" in found.reason


def test_sizes_are_read_without_the_weights(tmp_path: Path) -> None:
    assert isinstance(read_model(tmp_path), Unknown)
    (tmp_path / "config.json").write_text(json.dumps(models.toy()))
    model = read_model(tmp_path)
    assert isinstance(model, Model)
    assert model.stored_bytes is None
    header = b'{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
    content = len(header).to_bytes(8, "little") + header + b"\0" * 4
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(content)
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(content)
    assert (read_model(tmp_path)).stored_bytes == 8  # type: ignore[union-attr]
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 9}}')
    assert (read_model(tmp_path)).stored_bytes == 9  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff\xfe", '"a"', '{"model_type": 3}', "null", "{}"])
def test_a_broken_configuration_is_unknown_and_no_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 12)
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": "much"}}')
    assert isinstance(read_model(tmp_path), Unknown)


def test_sizes_that_do_not_divide_the_model_are_unknown() -> None:
    model = known(models.qwen2_32b())
    for flags in ({"tensor-parallel-size": 3}, {"pipeline-parallel-size": 65}):
        assert isinstance(parts_of(model, launch({**NIGHT, **flags}, model), A6000), Unknown)
    several = launch({"tensor-parallel-size": 2}, model)
    assert isinstance(parts_of(model, several, Device(20e9, "cpu")), Unknown)


def test_the_node_of_this_machine(tmp_path: Path) -> None:
    found = node_memory_bytes()
    assert found is not None
    assert 2**28 < found < 2**50
    node = tmp_path / "node0"
    node.mkdir()
    (node / "meminfo").write_text("Node 0 MemTotal:       1000 kB\nNode 0 MemFree: 10 kB\n")
    limit = tmp_path / "memory.max"
    assert node_memory_bytes(tmp_path, (limit,)) == 1000 * 1024
    limit.write_text("max\n")
    assert node_memory_bytes(tmp_path, (limit,)) == 1000 * 1024
    limit.write_text("4096\n")
    assert node_memory_bytes(tmp_path, (limit,)) == 4096
