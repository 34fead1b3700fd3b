"""What servers that started, or did not, say of the formulas' errors: a small Bayesian model of residuals.

The KV cache that a server gets is taken to be

    formula + c + w x weights + a x activations + g x graphs - k x cold + noise

with five unknown errors that belong to the machine, the model and the version (so to one fingerprint), each normal
around a prior: `c` a constant, `w`, `a`, `g` shares by which a part is misjudged, `k` what a cold start costs, as a
share of 5 % of the cache: a first boot of a pair of batched tokens and seqs finds no compile cache and gets up to 5 %
less KV cache than later ones (vllm issue 54383). A logged size updates the errors as a Bayesian linear regression does;
that a server started, or had too little, is an inequality, and updates them by the moments of the truncated normal
(assumed density filtering: Minka, "A family of algorithms for approximate Bayesian inference", 2001, chapter 3). With
each observation the interval of a forecast narrows towards the noise.

An observation that the prior calls impossible (beyond five standard deviations) means that the formulas do not describe
this server: the belief is then `misfit` and makes no forecast any more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sweep.memory.values import GIB, Device, Forecast, Parts

_Vector = tuple[float, ...]

# Prior standard deviations. The constant is in bytes, the others are shares of their part.
_CONSTANT, _CPU_CONSTANT = 0.6 * GIB, 0.3 * GIB
# A card has a little less than NVML says, and how much differs with card and driver.
_CONSTANT_OF_DEVICE = 0.008
_WEIGHTS, _ACTIVATIONS, _GRAPHS = 0.02, 0.6, 0.7
_COLD_SHARE, _COLD_MEAN, _COLD = 0.05, 0.5, 0.5
# Launches of the same flags differ by this much, whatever was learned: a constant and a share of the budget.
_NOISE, _NOISE_SHARE = 0.05 * GIB, 0.003
_IMPOSSIBLE = 5.0
_Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class Observation:
    """What one launch said. `kv_bytes`: the size of its KV cache per device where it is known; otherwise whether there
    was `enough` for a start. `cold`: whether it was the first of its batched tokens and seqs.
    """

    parts: Parts
    cold: bool
    kv_bytes: float | None = None
    enough: bool = True


@dataclass(frozen=True, slots=True)
class Belief:
    """Errors of the formulas as known so far: their means, their covariance, and from how many launches."""

    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    observed: int = 0
    misfit: str | None = None

    @classmethod
    def prior(cls, device: Device) -> Belief:
        """Before anything was started on `device`."""
        constant = _CPU_CONSTANT if device.kind == "cpu" else _CONSTANT
        constant = math.hypot(constant, _CONSTANT_OF_DEVICE * device.total_bytes if device.kind == "gpu" else 0.0)
        spread = (constant / GIB, _WEIGHTS, _ACTIVATIONS, _GRAPHS, _COLD)
        matrix = tuple(tuple(one * one if i == j else 0.0 for j in range(5)) for i, one in enumerate(spread))
        return cls((0.0, 0.0, 0.0, 0.0, _COLD_MEAN), matrix)

    def learn(self, seen: Observation) -> Belief:
        """The belief after one more launch."""
        if self.misfit is not None:
            return self
        mean, variance = self._kv(seen.parts, cold=seen.cold)
        spread = math.sqrt(variance)
        if seen.kv_bytes is not None:
            target, shrink = seen.kv_bytes / GIB, 0.0
            surprise = (target - mean) / spread
        else:
            bound = seen.parts.needed_bytes / GIB
            surprise = (bound - mean) / spread if seen.enough else (mean - bound) / spread
            target, shrink = truncated(mean, spread, bound, above=seen.enough)
        if abs(surprise) > _IMPOSSIBLE and (seen.kv_bytes is not None or surprise > 0):
            return replace(self, misfit=_misfit(seen, mean))
        return self._moved(_features(seen.parts, cold=seen.cold), mean, variance, target, shrink)

    def forecast(self, parts: Parts, *, cold: bool) -> Forecast | None:
        """What a start with these parts comes to; None where the formulas were found not to fit."""
        if self.misfit is not None:
            return None
        mean, variance = self._kv(parts, cold=cold)
        spread = math.sqrt(variance)
        each = parts.bytes_per_token / GIB
        low, middle, high = (max(0, int((mean + z * spread) / each)) for z in (-_Z95, 0.0, _Z95))
        longest = parts.longest_tokens
        return Forecast(
            parts=parts,
            starts=normal((mean - parts.needed_bytes / GIB) / spread),
            kv_tokens=middle,
            kv_tokens_low=low,
            kv_tokens_high=high,
            requests_of_longest=None if not longest else middle / longest,
            observed_starts=self.observed,
        )

    def _kv(self, parts: Parts, *, cold: bool) -> tuple[float, float]:
        """Mean and variance of the KV cache, in GiB."""
        row = _features(parts, cold=cold)
        mean = parts.kv_bytes / GIB + _dot(row, self.mean)
        return mean, sum(one * _dot(line, row) for one, line in zip(row, self.covariance, strict=True)) + (
            _noise(parts) ** 2
        )

    def _moved(self, row: _Vector, mean: float, variance: float, target: float, shrink: float) -> Belief:
        """Given that the KV cache of the launch `row` has mean `target` and `shrink` times its variance.

        With a `shrink` of 0, an exact value, this is the update of a Kalman filter.
        """
        gain = tuple(_dot(line, row) / variance for line in self.covariance)
        known = variance * (1 - shrink)
        return Belief(
            tuple(old + share * (target - mean) for old, share in zip(self.mean, gain, strict=True)),
            tuple(
                tuple(old - one * other * known for old, other in zip(line, gain, strict=True))
                for line, one in zip(self.covariance, gain, strict=True)
            ),
            self.observed + 1,
        )


def _features(parts: Parts, *, cold: bool) -> _Vector:
    """What each error counts for in this launch, in GiB."""
    lost = _COLD_SHARE * max(0.0, parts.kv_bytes) / GIB if cold else 0.0
    return 1.0, -parts.weight_bytes / GIB, -parts.activation_bytes / GIB, -parts.graph_bytes / GIB, -lost


def _dot(one: _Vector, other: _Vector) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _noise(parts: Parts) -> float:
    return (_NOISE + _NOISE_SHARE * parts.budget_bytes) / GIB


def _misfit(seen: Observation, mean: float) -> str:
    found = "enough" if seen.enough else "too little"
    if seen.kv_bytes is not None:
        found = f"{seen.kv_bytes / GIB:.1f} GiB"
    return (
        f"a server had {found} of KV cache where the memory model expected {mean:.1f} GiB: it does not fit this model"
    )


def normal(z: float) -> float:
    """The standard normal distribution function."""
    return 0.5 * math.erfc(-z / math.sqrt(2))


def truncated(mean: float, spread: float, bound: float, *, above: bool) -> tuple[float, float]:
    """Mean of a normal cut at `bound`, and what is left of its variance as a share."""
    z = (mean - bound) / spread if above else (bound - mean) / spread
    hazard = -z - 1 / z if z < -30 else math.exp(-z * z / 2) / math.sqrt(2 * math.pi) / normal(z)
    shift = spread * hazard
    return mean + (shift if above else -shift), max(1e-6, 1 - hazard * (hazard + z))
