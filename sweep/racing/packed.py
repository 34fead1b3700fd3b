"""Rounds as text and back, to the last bit, in little more than half of what their numbers take as decimals."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from sweep.metrics import RequestColumns
from sweep.racing.rounds import Numbers, Round

_OF_REQUESTS = ("ttft_ms", "e2el_ms", "input_tokens", "output_tokens")


def pack(rounds: Mapping[int, Round], *, gaps: bool) -> str:
    """Rounds by their number as JSON; without the gaps between tokens, which are most of it, where nobody asks."""
    return json.dumps([[number, _packed(part, gaps=gaps)] for number, part in sorted(rounds.items())])


def unpack(text: str) -> dict[int, Round]:
    """The inverse of `pack`. Raises ValueError, LookupError or TypeError for anything else."""
    return {number: _unpacked(fields) for number, fields in json.loads(text)}


def _packed(part: Round, *, gaps: bool) -> dict[str, Any]:
    columns = part.columns
    found: dict[str, Any] = {name: _text(getattr(columns, name)) for name in _OF_REQUESTS}
    return found | {
        "keys": part.keys,
        "start_s": _text(part.start_s),
        "gap_counts": part.gap_counts.tolist(),
        "itl_ms": _text(columns.itl_ms) if gaps and columns.itl_ms is not None else None,
        "failed": columns.failed,
        "rate": part.rate,
    }


def _unpacked(fields: Mapping[str, Any]) -> Round:
    itl_ms = fields["itl_ms"]
    return Round(
        keys=tuple((index, prompt_id) for index, prompt_id in fields["keys"]),
        start_s=_numbers(fields["start_s"]),
        columns=RequestColumns(
            ttft_ms=_numbers(fields["ttft_ms"]),
            e2el_ms=_numbers(fields["e2el_ms"]),
            input_tokens=_numbers(fields["input_tokens"]),
            output_tokens=_numbers(fields["output_tokens"]),
            itl_ms=None if itl_ms is None else _numbers(itl_ms),
            failed=fields["failed"],
        ),
        gap_counts=np.array(fields["gap_counts"], dtype=np.intp),
        rate=fields["rate"],
    )


def _text(values: Numbers) -> str:
    return base64.b64encode(values.astype("<f8").tobytes()).decode("ascii")


def _numbers(text: str) -> Numbers:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<f8").astype(np.float64)
