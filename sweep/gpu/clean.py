"""The gate before a launch: is the device as it was at the study's start, and nobody else's?"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from sweep.gpu.host import command_of
from sweep.gpu.lane import Problem
from sweep.gpu.reading import Occupancy
from sweep.gpu.values import Cleanliness, DeviceInfo, DeviceMemory, DeviceState, ForeignProcess

Seen = tuple[tuple[DeviceInfo, Occupancy | Problem], ...]
_Held = Mapping[tuple[int, int | None, int], float | None]  # GiB by device and process
_NAMED = 4
# What the server of MPS keeps on a card for itself is a few hundred MiB; its clients stand in the list beside it.
_DAEMON_GIB, _DAEMON_STEADY_GIB = 1.0, 0.02


def resting_memory(seen: Seen) -> tuple[DeviceMemory, ...]:
    """Used memory less what compute processes hold: what the device would show with nobody on it.

    Without the subtraction, somebody else's job that ends later would leave a baseline that excuses any
    leftover. An MPS server is no job: it belongs to the device at rest.
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
    """Look until all is clean or `timeout_s` has passed; at least once, and twice where an MPS server is met."""
    start_s = time.monotonic()
    before: _Held | None = None
    while True:
        seen = look()
        verdict = _judge(seen, baseline, own_pids, tolerance_gib, before)
        waited_s = time.monotonic() - start_s
        second_look = before is None and any(process.daemon for process in verdict.foreign)
        if verdict.clean or (waited_s >= timeout_s and not second_look):
            return _explained(replace(verdict, waited_s=waited_s))
        before = _held(seen)
        time.sleep(poll_s if second_look else min(poll_s, timeout_s - waited_s))


def _at_rest(found: Occupancy) -> float | None:
    if found.used_gib is None:
        return None
    held = sum(
        memory
        for pid, memory in found.processes or ()
        if memory is not None and not ForeignProcess(pid, command_of(pid), memory, 0).daemon
    )
    return max(0.0, found.used_gib - held)


def _held(seen: Seen) -> _Held:
    return {
        (device.index, device.mig_index, pid): memory
        for device, found in seen
        if not isinstance(found, Problem)
        for pid, memory in found.processes or ()
    }


def _harmless(process: ForeignProcess, before: _Held) -> bool:
    """Whether it is an MPS server with a small context that has not grown since the look before."""
    key = (process.index, process.mig_index, process.pid)
    if not process.daemon or key not in before:
        return False
    now, then = process.memory_gib or 0.0, before[key] or 0.0
    return now <= _DAEMON_GIB and now <= then + _DAEMON_STEADY_GIB


def _judge(
    seen: Seen,
    baseline: Sequence[DeviceMemory],
    own_pids: Collection[int],
    tolerance_gib: float,
    before: _Held | None,
) -> Cleanliness:
    base = {(level.index, level.mig_index): level.used_gib for level in baseline}
    states: list[DeviceState] = []
    foreign: list[ForeignProcess] = []
    daemons: list[ForeignProcess] = []
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
        harmless = [process for process in others if _harmless(process, before or {})]
        others = [process for process in others if process not in harmless]
        own = tuple(pid for pid, _ in found.processes or () if pid in own_pids)
        state = DeviceState(*key, found.used_gib, base.get(key), clean=True, own_pids=own)
        over = state.over_gib is not None and state.over_gib > tolerance_gib
        states.append(replace(state, clean=not over and not others))
        foreign.extend(others)
        daemons.extend(harmless)
    clean = all(state.clean for state in states)
    return Cleanliness(clean, 0.0, tuple(states), tuple(foreign), daemons=tuple(daemons))


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
