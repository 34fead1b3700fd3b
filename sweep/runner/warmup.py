"""Warm-up: prompts that are never measured, sent as many at a time as the server takes them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from sweep.errors import LoadFailed, ServerDied
from sweep.server import VllmServer
from sweep.workload import Prompt

_AT_ONCE = 16


def warm_up(server: VllmServer, prompts: Sequence[Prompt], timeout_s: float) -> None:
    """Send every prompt once. Raises ServerDied when the server ends, LoadFailed when no prompt was answered."""
    if not prompts:
        return
    with ThreadPoolExecutor(min(_AT_ONCE, len(prompts)), thread_name_prefix="warm-up") as pool:
        sent = [pool.submit(server.complete, p.text, max(1, p.output_tokens), timeout_s) for p in prompts]
        answered = 0
        for future in as_completed(sent):
            answered += future.result()
            if (code := server.exit_code()) is not None:
                pool.shutdown(wait=False, cancel_futures=True)
                raise ServerDied(code, ready=True)
    if answered == 0:
        raise LoadFailed("success_rate", f"none of {len(prompts)} warm-up requests was answered")
