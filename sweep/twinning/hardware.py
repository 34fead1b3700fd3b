"""A model on cards nobody need own: what steps may cost there, and how many tokens its KV cache may hold.

From the model's `config.json` where there is one, otherwise from the size in its name; from the table of cards. All of
it is for a first idea: intervals are wide, and nothing of it is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sweep.memory import GIB, Device, Model, Unknown, parts_of, read_launch, read_model
from sweep.records import EngineConfig
from sweep.trial import Flag, Flags
from sweep.twin import Calibration, Card, Engine, Shape, prior, shape_of_size, weights_in_name
from sweep.twinning.computed import usable

_PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size")
# Of a card beside weights and KV cache, where the model is known by its size alone: activations, graphs, libraries.
_OTHER_GIB, _UTILIZATION = 2.5, 0.92
# From a launch to a server that answers: imports, compilation and graphs, then weights from a fast disk.
_START_S, _LOAD_GB_PER_S = 45.0, 2.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """A model on some cards of a kind. `model` is None where only its size is known."""

    shape: Shape
    model: Model | None
    card: Card
    cards: int

    @property
    def described(self) -> str:
        """In a few words."""
        several = f"{self.cards} x " if self.cards > 1 else ""
        return f"{self.shape.active_weights / 1e9:.3g} billion weights on {several}{self.card.name}"

    def costs(self, *, seed: int = 0, members: int = 24) -> Calibration:
        """What steps may cost; see `sweep.twin.prior`."""
        return prior(self.shape, self.card, self.cards, members=members, seed=seed)

    def kv_tokens(self, flags: Flags) -> int:
        """KV tokens of a server with all of these flags; 0 where it would have no room for any."""
        if self.model is not None:
            device = Device(self.card.memory_gib * GIB, name=self.card.name)
            launch = read_launch(flags, self.model, device)
            parts = launch if isinstance(launch, Unknown) else parts_of(self.model, launch, device)
            if not isinstance(parts, Unknown):
                enough = parts.kv_bytes >= parts.needed_bytes
                return int(parts.kv_bytes / parts.bytes_per_token) if enough else 0
        share = flags.get("gpu-memory-utilization")
        used = float(share) if isinstance(share, (int, float)) and not isinstance(share, bool) else _UTILIZATION
        room = self.cards * (self.card.memory_gib * used - _OTHER_GIB) * GIB - self.shape.weight_bytes
        return max(0, int(room / self.shape.kv_bytes_per_token))

    def engine(self, flags: Mapping[str, object]) -> Engine:
        """The engine that these flags would make, as vLLM of today plans it."""
        plain = plain_flags(flags)
        return Engine.of(usable(plain), EngineConfig(kv_tokens=max(self.kv_tokens(plain), 1)), asynchronous=True)

    @property
    def startup_s(self) -> float:
        """Seconds from a launch to a server that answers, about."""
        return _START_S + self.shape.weight_bytes / 1e9 / _LOAD_GB_PER_S


def plain_flags(flags: Mapping[str, object]) -> dict[str, Flag]:
    """Those with a plain value: a list or a mapping says nothing that the twin computes."""
    return {name: value for name, value in flags.items() if value is None or isinstance(value, (str, int, float))}


def hardware_of(
    model: str, flags: Mapping[str, object], card: Card, *, billions: float | None = None
) -> Hardware | Unknown:
    """`model` (a folder or a hub id) with `flags` on as many cards as they ask for; `billions` of weights where a
    person says so. Unknown, with the reason, where nothing tells its size.
    """
    cards = 1
    for name in _PARALLEL:
        value = flags.get(name)
        cards *= value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1
    known: Model | Unknown = Unknown("")
    if billions is None and Path(model).is_dir():
        known = read_model(Path(model))
    if isinstance(known, Model):
        shape = _shape(known, flags, card)
        if not isinstance(shape, Unknown):
            return Hardware(shape, known, card, cards)
    weights = weights_in_name(Path(model).name) if billions is None else billions * 1e9
    if weights is None:
        why = f" ({known.reason})" if isinstance(known, Unknown) and known.reason else ""
        return Unknown(f"neither a config.json nor the name of {model} says how large the model is{why}")
    return Hardware(shape_of_size(weights), None, card, cards)


def _shape(model: Model, flags: Mapping[str, object], card: Card) -> Shape | Unknown:
    """The model whole, as one card would hold it."""
    device = Device(card.memory_gib * GIB, name=card.name)
    launch = read_launch({name: value for name, value in flags.items() if name not in _PARALLEL}, model, device)
    if isinstance(launch, Unknown):
        return launch
    parts = parts_of(model, launch, device)
    if isinstance(parts, Unknown):
        return parts
    return Shape(
        weight_bytes=parts.weight_bytes,
        active_weights=_active(model),
        layers=model.layers,
        width=model.heads * model.head_dim,
        kv_bytes_per_token=parts.bytes_per_token,
    )


def _active(model: Model) -> float:
    """Weights that work on a token, by the usual shape of a decoder: attention, MLP or experts, and the vocabulary."""
    attention = model.hidden * model.head_dim * (2 * model.heads + 2 * model.kv_heads)
    matrices = 3 if model.gated else 2
    dense = matrices * model.hidden * model.intermediate
    mixed, layers = 0.0, 0
    if model.moe is not None:
        layers = model.moe.layers
        mixed = 3.0 * model.hidden * (model.moe.active * model.moe.intermediate + model.moe.shared_intermediate)
    every = model.layers * attention + (model.layers - layers) * dense + layers * mixed
    return float(every + model.vocabulary * model.hidden)
