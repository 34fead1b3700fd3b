"""Costs before anything was measured: from a model's size and what its cards move and compute, with wide intervals.

    a step             every weight is read once                     weight bytes / bandwidth + overheads
    a prompt token     two operations a weight that works for it     2 x weights / arithmetic
    a decoding one     the same, and its share of sampling           2 x weights / arithmetic + 15 us
    a token of context its keys and values are read                  KV bytes of a token / bandwidth
    attention          two products of two operations a pair         4 x layers x width / arithmetic

all divided by the cards that share the work. This is the roofline of Williams, Waterman and Patterson (2009), term by
term; how near kernels come to it is set below. With tensor parallelism each layer adds two exchanges between cards.
What differs between kernels, clocks and hosts is taken for a factor on each cost, log-normal, wide on purpose: the
public runs of `scripts/bench_twin.py` must lie inside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sweep.twin.calibrate import Calibration
from sweep.twin.cards import Card
from sweep.twin.values import Costs

# What kernels reach of the stated bandwidth and arithmetic.
_BANDWIDTH_SHARE, _ARITHMETIC_SHARE, _ATTENTION_SHARE = 0.85, 0.8, 0.4
# Launching a step, sampling for a request, an exchange between cards, and the way of a request to the engine: seconds.
_LAUNCH_S, _SAMPLE_S, _EXCHANGE_S, _OFFSET_S = 1e-3, 1.5e-5, 2e-5, 0.01
# Standard deviations of logarithms, in the order of `Costs`; the first is of a factor that all but the offset share.
_COMMON_SD = 0.15
_OWN_SD = (0.2, 0.35, 0.5, 0.35, 0.7, 0.8)
# How far a launch lies from the costs that are its own: TTFT, TPOT, E2EL.
_SPREAD = (0.15, 0.08, 0.08)


@dataclass(frozen=True, slots=True)
class Shape:
    """A model, as far as the time of a step hangs on it, whole (not its share of a card).

    `active_weights`: how many weights work on a token, fewer than there are in a mixture of experts. `width`: of
    attention, heads x their size.
    """

    weight_bytes: float
    active_weights: float
    layers: int
    width: int
    kv_bytes_per_token: float

    def __post_init__(self) -> None:
        if min(self.weight_bytes, self.active_weights, self.layers, self.width, self.kv_bytes_per_token) <= 0:
            raise ValueError("every size of a model is above zero")


def prior_costs(shape: Shape, card: Card, cards: int = 1) -> Costs:
    """The middle of what steps may cost with `cards` of a kind, before one was launched."""
    bandwidth = card.gb_per_s * 1e9 * cards * _BANDWIDTH_SHARE
    arithmetic = card.tflops * 1e12 * cards * _ARITHMETIC_SHARE
    a_token = 2.0 * shape.active_weights / arithmetic
    exchanges_s = 2 * shape.layers * _EXCHANGE_S if cards > 1 else 0.0
    return Costs(
        step_s=shape.weight_bytes / bandwidth + _LAUNCH_S + exchanges_s,
        prefill_token_s=a_token,
        decode_request_s=a_token + _SAMPLE_S,
        context_token_s=shape.kv_bytes_per_token / bandwidth,
        attention_s=4.0 * shape.layers * shape.width / (arithmetic * _ATTENTION_SHARE / _ARITHMETIC_SHARE),
        offset_s=_OFFSET_S,
    )


def prior(shape: Shape, card: Card, cards: int = 1, *, members: int = 24, seed: int = 0) -> Calibration:
    """Costs with all that is not known about them; to be used as a calibration that rests on no trial.

    The same for the same seed. Raises ValueError for fewer than one card.
    """
    if cards < 1:
        raise ValueError("a server needs a card")
    middle = prior_costs(shape, card, cards)
    rng = np.random.default_rng(seed)
    logs = np.log(middle.array())
    common = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0]) * _COMMON_SD
    # Both signs of every draw: few members, and their middle is the middle.
    draws = rng.standard_normal((math.ceil(members / 2), 1 + len(logs)))
    off = np.concatenate([draws, -draws])[:members]
    ensemble = tuple(Costs.of(np.exp(logs + one[0] * common + one[1:] * np.array(_OWN_SD))) for one in off)
    return Calibration(
        costs=middle, members=ensemble, spread=_SPREAD, left_open=(), seen=None, requests=0, trials=0, fitted=None
    )


def weights_in_name(name: str) -> float | None:
    """How many weights a model has by its name, "Qwen2.5-32B-Instruct" or "8x7B"; None where it does not say."""
    found = None
    for word in name.replace("_", "-").replace("/", "-").split("-"):
        number, is_size = word.lower().removesuffix("b"), word.lower().endswith("b")
        times, by, each = number.rpartition("x")
        try:
            size = float(each) * (float(times) if by else 1.0)
        except ValueError:
            continue
        if is_size and 0 < size < 10_000:
            found = size * 1e9
    return found


def shape_of_size(weights: float, *, bytes_a_weight: float = 2.0) -> Shape:
    """A decoder of common proportions with so many weights: for when only a model's size is known.

    Width grows with the third root (8 B: 4096, 70 B: 8400), layers hold 15 width^2 weights each, and keys and values
    are 1,024 numbers each (grouped heads). Within a quarter of Llama 3 and Qwen 2.5 of 7 to 72 B.
    """
    width = 4096.0 * (weights / 8e9) ** (1 / 3)
    layers = max(1, round(weights / (15.0 * width**2)))
    return Shape(
        weight_bytes=weights * bytes_a_weight,
        active_weights=weights,
        layers=layers,
        width=round(width),
        kv_bytes_per_token=layers * 2 * min(1024.0, width / 4) * 2,
    )
