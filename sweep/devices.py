"""Devices that stay busy are taken out of the study: Ray is started again without them."""

from __future__ import annotations

import os

from sweep.gpu import Gpus
from sweep.plan import StudyPlan

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def take_out_devices(plan: StudyPlan, gpus: Gpus, needed: int, address: str | None) -> str:
    """Hide the plan's busy devices from the Ray that is started next, and return the line that says so.

    The plan is stopped when too few are left for a trial of `needed` devices, or when the cluster is not ours.
    """
    busy = sorted(plan.busy_devices)
    plan.busy_devices.clear()
    names = ", ".join(busy)
    visible = os.environ.get(_VISIBLE)
    known = [str(device.index) for device in gpus.devices] if visible is None else visible.split(",")
    left = [name for name in (one.strip() for one in known) if name and name not in busy]
    if address is not None:
        plan.stop(
            f"GPU {names} of a node of the cluster at {address} stays busy, and devices can be taken out only of a Ray "
            "that sweep starts itself: free it, or leave that node out, then type the same command again",
            failed=True,
        )
        return f"GPU {names} stays busy"
    if len(left) < needed:
        plan.stop(f"GPU {names} stays busy: a trial needs {needed} devices and {len(left)} are free", failed=True)
    else:
        os.environ[_VISIBLE] = ",".join(left)
    return f"GPU {names} stays busy and is taken out of the study; left: {', '.join(left) or 'none'}"
