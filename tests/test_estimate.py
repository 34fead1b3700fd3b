"""How long a trial may take before one was run; what a model on cards may hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sweep.fingerprint import Fingerprint
from sweep.memory import Unknown
from sweep.twin import card_of
from sweep.twinning.hardware import hardware_of
from sweep.twinning.room import room_of

QWEN_32B = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 64, "hidden_size": 5120,
    "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 152064,
    "intermediate_size": 27648, "torch_dtype": "bfloat16", "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}  # fmt: skip
FOUR: dict[str, Any] = {"tensor-parallel-size": 4, "max-model-len": 8192}


def hardware(
    model: str, flags: dict[str, object], card: str = "NVIDIA RTX A6000", billions: float | None = None
) -> Any:
    known = card_of(card)
    assert known is not None
    return hardware_of(model, flags, known, billions=billions)


def test_a_config_tells_what_four_cards_hold(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_32B))
    found = hardware(str(tmp_path), FOUR)
    assert found.cards == 4
    assert found.shape.active_weights == pytest.approx(32e9, rel=0.03)
    assert found.shape.weight_bytes == pytest.approx(65.5e9, rel=0.02)
    assert found.shape.kv_bytes_per_token == 262_144
    # The published estimate for this study is 380 thousand; a sum before any start is off by a tenth.
    assert found.kv_tokens({**FOUR, "gpu-memory-utilization": 0.92}) == pytest.approx(380_000, rel=0.15)
    assert found.kv_tokens({**FOUR, "gpu-memory-utilization": 0.3}) == 0


def test_a_name_tells_about_as_much(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_32B))
    known, guessed = hardware(str(tmp_path), FOUR), hardware("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", FOUR)
    assert guessed.model is None
    assert guessed.shape.weight_bytes == pytest.approx(known.shape.weight_bytes, rel=0.05)
    tokens = {**FOUR, "gpu-memory-utilization": 0.92}
    assert guessed.kv_tokens(tokens) == pytest.approx(known.kv_tokens(tokens), rel=0.4)
    assert "32 billion weights on 4 x RTX A6000" in guessed.described
    assert hardware("x", FOUR, billions=7).shape.active_weights == 7e9


def test_where_nothing_tells_it_says_so(tmp_path: Path) -> None:
    found = hardware(str(tmp_path / "toy"), {})
    assert isinstance(found, Unknown)
    assert "toy" in found.reason


def test_a_launch_tells_of_another_by_the_difference(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_32B))
    known = {"model": str(tmp_path), "gpus": ["NVIDIA RTX A6000"] * 4}
    room = room_of(Fingerprint.from_json(json.dumps(known)))
    assert room is not None
    launched, less = ({**FOUR, "gpu-memory-utilization": share} for share in (0.9, 0.8))
    found = room.beside(less, launched, 360_000)
    assert found is not None
    low, expected, high = found
    # A tenth of 48 GiB less on each card, at 65,536 bytes a token.
    assert expected == pytest.approx(360_000 - 0.1 * 48 * 2**30 / 65_536, rel=0.01)
    assert 0.8 * expected < low < expected < high < 1.2 * expected
    assert room.beside({**FOUR, "kv-offloading-size": 1}, launched, 360_000) is None
    assert room.beside({**FOUR, "gpu-memory-utilization": 0.1}, launched, 360_000) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    "known", [{}, {"gpus": []}, {"gpus": ["NVIDIA RTX A6000"], "model": "hub/id"}, {"gpus": ["Voodoo"]}]
)
def test_without_model_or_card_no_launch_tells_of_another(known: dict[str, Any]) -> None:
    assert room_of(Fingerprint.from_json(json.dumps(known))) is None
