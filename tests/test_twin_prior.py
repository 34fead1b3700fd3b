"""Costs before anything was measured: of known cards and models, wide enough, and near what steps are known to cost."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sweep.twin import Shape, card_of, prior, shape_of_size, weights_in_name
from sweep.twin.cards import CARDS
from sweep.twin.prior import prior_costs

LLAMA_8B = Shape(weight_bytes=16.06e9, active_weights=7.5e9, layers=32, width=4096, kv_bytes_per_token=131_072)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A10G", "A10G"),
        ("a6000", "RTX A6000"),
        ("Quadro RTX 6000", None),
        ("", None),
    ],
)
def test_a_card_is_known_by_whole_words_of_its_name(name: str, known: str | None) -> None:
    found = card_of(name)
    assert (found.name if found else None) == known


def test_every_card_is_known_by_its_own_name() -> None:
    assert len({card.words for card in CARDS}) == len(CARDS)
    for card in CARDS:
        found = card_of(card.name)
        assert found is not None
        assert (found.gb_per_s, found.tflops) == (card.gb_per_s, card.tflops)


@pytest.mark.parametrize(
    ("card", "fitted"),
    [
        # Fitted to the public runs by scripts/bench_twin.py: step, prompt token, decoding request, token of context.
        ("RTX 4090", (1.67e-2, 7.7e-5, 9.1e-5, 1.36e-7)),
        ("RTX PRO 6000", (1.27e-2, 3.7e-5, 4.6e-5, 7.3e-8)),
    ],
)
def test_public_runs_lie_within_the_ensemble(card: str, fitted: tuple[float, ...]) -> None:
    known = card_of(card)
    assert known is not None
    found = prior(LLAMA_8B, known, members=200)
    logs = np.log([one.array() for one in found.members])
    low, high = np.percentile(logs, [2.5, 97.5], axis=0)
    for i, value in enumerate(fitted):
        assert low[i] < math.log(value) < high[i]
    # Wide, and yet it says something: no cost is left open by more than a factor of ten either way.
    assert np.all(high - low < 2 * math.log(10.0))


def test_a_prior_says_that_nothing_was_measured() -> None:
    card = card_of("a6000")
    assert card is not None
    found = prior(LLAMA_8B, card)
    assert (found.seen, found.fitted, found.trials, found.requests) == (None, None, 0, 0)
    assert found.members == prior(LLAMA_8B, card).members
    assert found.members != prior(LLAMA_8B, card, seed=1).members


def test_two_cards_take_half_the_time_and_their_exchanges() -> None:
    card = card_of("a6000")
    assert card is not None
    one, two = prior_costs(LLAMA_8B, card), prior_costs(LLAMA_8B, card, 2)
    assert two.prefill_token_s == pytest.approx(one.prefill_token_s / 2)
    assert one.step_s / 2 < two.step_s < one.step_s
    with pytest.raises(ValueError, match="card"):
        prior(LLAMA_8B, card, 0)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", 32e9),
        ("Qwen2.5-0.5B-Instruct", 0.5e9),
        ("mistralai/Mixtral-8x7B-v0.1", 56e9),
        ("models/llama_70b_awq", 70e9),
        ("gpt2", None),
        ("./toy", None),
        ("web", None),
    ],
)
def test_a_size_is_read_from_a_name(name: str, weights: float | None) -> None:
    assert weights_in_name(name) == weights


@pytest.mark.parametrize(
    ("weights", "layers", "kv_bytes"),
    [(8e9, 32, 131_072), (32e9, 64, 262_144), (70e9, 80, 327_680)],  # Llama 3 8B and 70B, Qwen 2.5 32B
)
def test_a_size_alone_gives_proportions_near_those_of_common_models(weights: float, layers: int, kv_bytes: int) -> None:
    shape = shape_of_size(weights)
    assert shape.layers == pytest.approx(layers, rel=0.25)
    assert shape.kv_bytes_per_token == pytest.approx(kv_bytes, rel=0.25)
    with pytest.raises(ValueError, match="above zero"):
        Shape(0.0, 1.0, 1, 1, 1.0)
