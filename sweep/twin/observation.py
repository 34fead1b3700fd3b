"""What a fit is held against: measured requests, the settings they ran on, and how far a simulation is from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sweep.records import RequestRecord
from sweep.twin.simulate import Simulation
from sweep.twin.values import Engine, Floats, Load

PERCENTILES = (50.0, 95.0, 99.0)
FAMILIES = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class Observation:
    """One round on one launched server: when requests were really sent, and what each of them saw, in seconds.

    `counts` says which requests the fit may look at; the others are load alone. Raises ValueError for times that are
    not above zero.
    """

    load: Load
    engine: Engine
    ttft_s: Floats
    e2el_s: Floats
    counts: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        if not (np.all(self.ttft_s > 0) and np.all(self.e2el_s >= self.ttft_s) and self.counts.any()):
            raise ValueError("an observation needs requests whose latencies are above zero")

    @classmethod
    def of(cls, load: Load, engine: Engine, ttft_s: Floats, e2el_s: Floats, *, first: int | None = None) -> Observation:
        """Of a load and its latencies; with `first` only the first so many requests count."""
        return cls(load, engine, ttft_s, e2el_s, np.arange(len(load)) < (len(load) if first is None else first))

    @classmethod
    def measured(cls, requests: Sequence[RequestRecord], engine: Engine) -> Observation:
        """Of one round's records. Raises ValueError where none of them can be used."""
        load, usable = Load.measured(requests)
        ttft_s = np.array([request.ttft_ms or 0.0 for request in usable]) / 1000.0
        e2el_s = np.array([request.e2el_ms or 0.0 for request in usable]) / 1000.0
        return cls.of(load, engine, ttft_s, e2el_s)

    def sharing(self, share: float) -> Observation:
        """The same on an engine whose full KV cache looks larger; see `Engine.sharing`."""
        return replace(self, engine=self.engine.sharing(share))

    @property
    def tpot_s(self) -> Floats:
        """Time per output token after the first, NaN for requests of one token."""
        gaps = self.load.output_tokens - 1.0
        whole = self.e2el_s - self.ttft_s
        each: Floats = np.divide(whole, gaps, out=np.full(len(gaps), np.nan), where=gaps > 0)
        return each

    def latencies(self) -> Floats:
        """One row a family, one column a request."""
        return np.stack([self.ttft_s, self.tpot_s, self.e2el_s])

    def request_gaps(self, simulation: Simulation) -> Floats:
        """log(simulated / measured) of TTFT, TPOT and E2EL of every request; NaN where it does not count."""
        with np.errstate(divide="ignore", invalid="ignore"):
            gaps: Floats = np.log(latencies(simulation) / self.latencies())
        gaps[~np.isfinite(gaps)] = np.nan
        gaps[:, ~self.counts] = np.nan
        return gaps

    def percentile_gaps(self, simulation: Simulation, weights: Floats | None = None) -> Floats:
        """log(simulated / measured) of p50, p95 and p99, one row a family; NaN where nothing defines it.

        `weights`: how often each request is taken to have been there.
        """
        chosen = self.counts if weights is None else self.counts & (weights > 0)
        times = None if weights is None else weights[chosen]
        theirs = percentiles(latencies(simulation)[:, chosen], times)
        with np.errstate(divide="ignore", invalid="ignore"):
            gaps: Floats = np.log(theirs / percentiles(self.latencies()[:, chosen], times))
        gaps[~np.isfinite(gaps)] = np.nan
        return gaps


def latencies(simulation: Simulation) -> Floats:
    """TTFT, TPOT and E2EL in seconds: one row a family, one column a request."""
    return np.stack([simulation.ttft_s, simulation.tpot_s, simulation.e2el_s])


def percentiles(values: Floats, weights: Floats | None = None, ranks: Sequence[float] = PERCENTILES) -> Floats:
    """Percentiles of each row, NaNs left out; with whole `weights` as if a column stood there so many times."""
    rows = []
    for row in values:
        known = np.isfinite(row)
        kept = row[known] if weights is None else np.repeat(row[known], weights[known].astype(np.int64))
        rows.append(_between(np.sort(kept), ranks) if len(kept) else np.full(len(ranks), np.nan))
    return np.array(rows)


def _between(ordered: Floats, ranks: Sequence[float]) -> Floats:
    """Linear interpolation, as numpy's own, which is a third of what a fit takes."""
    places = np.asarray(ranks) / 100.0 * (len(ordered) - 1)
    below = np.floor(places).astype(np.int64)
    above = np.minimum(below + 1, len(ordered) - 1)
    found: Floats = ordered[below] + (places - below) * (ordered[above] - ordered[below])
    return found
