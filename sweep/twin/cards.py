"""Common accelerators: what they move and compute, as their makers state it.

Bandwidth in GB/s and dense bfloat16 tensor arithmetic in TFLOPS (float16 where a card has no bfloat16; half of a figure
given "with sparsity"; with 32-bit accumulation), memory in GiB. From the makers' data sheets: nvidia.com (RTX A4000,
A5000, A6000, 6000 Ada, PRO 6000 Blackwell; A10, A30, A100, H100, H200, B200, L4, L40, L40S, T4, V100; the Ampere GA102,
Ada and Blackwell architecture papers for GeForce cards) and amd.com (MI210, MI300X).
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """One accelerator. `words` are those of its name by which it is known."""

    name: str
    words: tuple[str, ...]
    gb_per_s: float
    tflops: float
    memory_gib: float


_TABLE = (
    ("RTX A6000", "a6000", 768, 154.8, 48),
    ("RTX A5000", "a5000", 768, 111.1, 24),
    ("RTX A4000", "a4000", 448, 76.7, 16),
    ("RTX 6000 Ada", "6000 ada", 960, 364.2, 48),
    ("RTX PRO 6000 Blackwell", "pro 6000", 1792, 503.8, 96),
    ("GeForce RTX 3090", "3090", 936, 71.2, 24),
    ("GeForce RTX 4090", "4090", 1008, 165.2, 24),
    ("GeForce RTX 5090", "5090", 1792, 209.5, 32),
    ("A10", "a10", 600, 125, 24),
    ("A10G", "a10g", 600, 70, 24),
    ("A30", "a30", 933, 165, 24),
    ("A40", "a40", 696, 149.7, 48),
    ("A100 40GB", "a100", 1555, 312, 40),
    ("A100 80GB PCIe", "a100 80gb pcie", 1935, 312, 80),
    ("A100 80GB", "a100 80gb", 2039, 312, 80),
    ("A100 SXM4 80GB", "a100 sxm4 80gb", 2039, 312, 80),
    ("H100", "h100", 3350, 989.5, 80),
    ("H100 PCIe", "h100 pcie", 2000, 756, 80),
    ("H100 NVL", "h100 nvl", 3900, 835, 94),
    ("H200", "h200", 4800, 989.5, 141),
    ("B200", "b200", 8000, 2250, 180),
    ("L4", "l4", 300, 121, 24),
    ("L40", "l40", 864, 181, 48),
    ("L40S", "l40s", 864, 362, 48),
    ("T4", "t4", 320, 65, 16),
    ("V100", "v100", 900, 125, 16),
    ("Instinct MI210", "mi210", 1638, 181, 64),
    ("Instinct MI300X", "mi300x", 5300, 1307.4, 192),
)

CARDS = tuple(
    Card(name, tuple(words.split()), float(bandwidth), float(tflops), float(memory))
    for name, words, bandwidth, tflops, memory in _TABLE
)


def card_of(name: str) -> Card | None:
    """The card of a name as a driver or a person gives it, "NVIDIA A100-SXM4-80GB" or "a6000"; None for others."""
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    known = [card for card in CARDS if words.issuperset(card.words)]
    return max(known, key=lambda card: len(card.words), default=None)
