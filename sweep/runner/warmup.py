"""Warm-up: prompts that are never measured, sent as many at a time as the load will be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from sweep.errors import LoadFailed, ServerDied
from sweep.server import VllmServer
from sweep.workload import Prompt

# A thread each. More than this at once is what few servers are given by default (max-num-seqs is 256 on most cards).
_MOST_AT_ONCE = 256


def warm_up(
    server: VllmServer, prompts: Sequence[Prompt], timeout_s: float, *, max_concurrency: int | None = None
) -> None:
    """Send every prompt once, as many at a time as the load may have in flight (`max_concurrency`; None: all of them),
    256 at most. Raises ServerDied when the server ends, LoadFailed when no prompt was answered.
    """
    if not prompts:
        return
    at_once = _at_once(len(prompts), max_concurrency)
    with ThreadPoolExecutor(at_once, thread_name_prefix="warm-up") as pool:
        sent = [pool.submit(server.complete, p.text, max(1, p.output_tokens), timeout_s) for p in prompts]
        answered = 0
        for future in as_completed(sent):
            answered += future.result()
            if (code := server.exit_code()) is not None:
                pool.shutdown(wait=False, cancel_futures=True)
                raise ServerDied(code, ready=True)
    if answered == 0:
        raise LoadFailed("success_rate", f"none of {len(prompts)} warm-up requests was answered")


def warm_up_limit_s(prompts: int, timeout_s: float, *, max_concurrency: int | None = None) -> float:
    """The longest that `warm_up` can take: `timeout_s` for each lot of requests that may be in flight at once."""
    return timeout_s * math.ceil(prompts / _at_once(prompts, max_concurrency)) if prompts else 0.0


def _at_once(prompts: int, max_concurrency: int | None) -> int:
    return min(_MOST_AT_ONCE, prompts, max_concurrency or prompts)
