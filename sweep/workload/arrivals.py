"""When the load client sends each request: its own arithmetic, so that the plan is what happens."""

from __future__ import annotations

import math

import numpy as np


def arrival_times(count: int, *, request_rate: float | None, burstiness: float, seed: int) -> tuple[float, ...]:
    """Seconds from the client's start of the load to each of `count` sends; all 0 when `request_rate` is None.

    As `get_request` in vllm/benchmarks/serve.py does it (the same in 0.10.1 and 0.32.0): `--seed` seeds numpy's old
    generator and nothing draws from it before; one gamma delay a request with shape `burstiness` and mean 1 / rate
    (constant for infinite burstiness), summed, then scaled so that the last request leaves at exactly count / rate.
    The first request therefore leaves after a delay, too. Same sums in the same order: equal to the last bit.
    """
    if request_rate is None or math.isinf(request_rate):
        return (0.0,) * count
    if math.isinf(burstiness):
        delays = [1.0 / request_rate] * count
    else:
        # The old generator on purpose: the client calls np.random.seed and np.random.gamma.
        random = np.random.RandomState(seed)
        theta = 1.0 / (request_rate * burstiness)
        delays = [float(random.gamma(shape=burstiness, scale=theta)) for _ in range(count)]
    for index in range(1, count):
        delays[index] += delays[index - 1]
    if not delays or delays[-1] == 0:
        return tuple(delays)
    factor = count / request_rate / delays[-1]
    return tuple(delay * factor for delay in delays)
