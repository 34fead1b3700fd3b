"""The requests of a trial as arrays: a night of 100,000 requests and millions of gaps is read in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sweep.metrics import RequestColumns
from sweep.store.read import read_file
from sweep.store.write import trial_file

_NUMBERS = ("ttft_ms", "e2el_ms", "input_tokens", "output_tokens")


def read_request_columns(folder: Path, number: int, *, gaps: bool = True) -> RequestColumns:
    """The completed requests of one trial in stored order, all rounds; `gaps`: with the gaps between their tokens.

    Only the columns that are needed are decoded. Raises HostError as `read_requests`.
    """
    names = ["error", "round", *_NUMBERS, *(["itl_ms"] if gaps else [])]
    table = read_file(trial_file(folder, "requests", number), columns=names)
    done = table.filter(pc.and_(pc.is_null(table["error"]), pc.is_valid(table["ttft_ms"])))
    return RequestColumns(
        **{name: _array(done[name]) for name in _NUMBERS},
        itl_ms=_array(pc.list_flatten(done["itl_ms"])) if gaps else None,
        failed=table.num_rows - done.num_rows,
        gap_counts=_counts(pc.fill_null(pc.list_value_length(done["itl_ms"]), 0)) if gaps else None,
        rounds=_counts(done["round"]),
    )


def _counts(column: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    found: np.ndarray[tuple[int], np.dtype[np.intp]] = column.cast(pa.int64()).to_numpy()
    return found


def _array(column: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = column.cast(pa.float64()).to_numpy()
    return found
