"""The gate before a launch: is the device as it was at the study's start, and nobody else's?"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from sweep.gpu.host import command_of
from sweep.gpu.lane import Problem
from sweep.gpu.reading import Occupancy
from sweep.gpu.values import Cleanliness, DeviceInfo, DeviceMemory, DeviceState, ForeignProcess

Seen = tuple[tuple[DeviceInfo, Occupancy | Problem], ...]
_NAMED = 4


def resting_memory(seen: Seen) -> tuple[DeviceMemory, ...]:
    """Used memory less what compute processes hold: what the device would show with nobody on it.

    Without the subtraction, somebody else's job that ends later would leave a baseline that excuses any
    leftover.
    """
    return tuple(
        DeviceMemory(device.index, None if isinstance(found, Problem) else _at_rest(found), device.mig_index)
        for device, found in seen
    )


def wait_until_clean(
    look: Callable[[], Seen],
    baseline: Sequence[DeviceMemory],
    *,
    timeout_s: float,
    own_pids: Collection[int],
    tolerance_gib: float,
    poll_s: float,
) -> Cleanliness:
    """Look until all is clean or `timeout_s` has passed; at least once."""
    start_s = time.monotonic()
    while True:
        verdict = _judge(look(), baseline, own_pids, tolerance_gib)
        waited_s = time.monotonic() - start_s
        if verdict.clean or waited_s >= timeout_s:
            return _explained(replace(verdict, waited_s=waited_s))
        time.sleep(min(poll_s, timeout_s - waited_s))


def _at_rest(found: Occupancy) -> float | None:
    if found.used_gib is None:
        return None
    held = sum(memory or 0.0 for _, memory in found.processes or ())
    return max(0.0, found.used_gib - held)


def _judge(
    seen: Seen, baseline: Sequence[DeviceMemory], own_pids: Collection[int], tolerance_gib: float
) -> Cleanliness:
    base = {(level.index, level.mig_index): level.used_gib for level in baseline}
    states: list[DeviceState] = []
    foreign: list[ForeignProcess] = []
    for device, found in seen:
        key = (device.index, device.mig_index)
        if isinstance(found, Problem):
            states.append(DeviceState(*key, None, base.get(key), clean=False, problem=found.text))
            continue
        others = [
            ForeignProcess(pid, command_of(pid), memory, *key)
            for pid, memory in found.processes or ()
            if pid not in own_pids
        ]
        own = tuple(pid for pid, _ in found.processes or () if pid in own_pids)
        state = DeviceState(*key, found.used_gib, base.get(key), clean=True, own_pids=own)
        over = state.over_gib is not None and state.over_gib > tolerance_gib
        states.append(replace(state, clean=not over and not others))
        foreign.extend(others)
    return Cleanliness(all(state.clean for state in states), 0.0, tuple(states), tuple(foreign))


def _explained(verdict: Cleanliness) -> Cleanliness:
    if verdict.clean:
        return verdict
    tenants = {(process.index, process.mig_index) for process in verdict.foreign}
    parts = [str(process) for process in verdict.foreign]
    for state in verdict.dirty:
        if state.problem is not None:
            parts.append(f"{state.label} cannot be read: {state.problem}")
        elif (state.index, state.mig_index) not in tenants and state.over_gib is not None:
            ours = ", ".join(map(str, state.own_pids))
            holder = f"held by our own process {ours}" if ours else "held by no process the driver names"
            parts.append(
                f"{state.label} has {state.over_gib:.1f} GiB more in use than its baseline of "
                f"{state.baseline_gib:.1f} GiB, {holder}"
            )
    more = f"; and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
    message = f"{'; '.join(parts[:_NAMED])}{more} (after {verdict.waited_s:.0f} s of waiting)"
    return replace(verdict, message=message)
