"""What the live view of a terminal costs: CPU time of its thread as a share of one core, in a night of many trials.

    python scripts/bench_live_view.py [--quick] [--json FILE]

A view is held open in this process over a pseudo-terminal, beside trials whose journals change twice a second as those
of real ones do. Keys: `live_view_core_percent` (median of the windows), `live_view_core_percent_worst`, `trials`,
`seconds`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pty
import statistics
import tempfile
import threading
import time
from pathlib import Path

from figures import tell
from rich.console import Console

from sweep.console import LiveView, Sources
from sweep.gpu import DeviceReading
from sweep.journal import Journal
from sweep.trial import Finished, Phase, TrialKind, TrialSpec, TrialStatus

_WINDOW_S = 10.0
_TRIALS, _LIVE, _DEVICES = 200, 2, 8


def ended(number: int) -> Finished:
    """A trial of the night."""
    score = 1.0 + ((number * 37) % 101 - 60) / 200
    kind = TrialKind.SEARCH if number else TrialKind.BASELINE
    flags = {"max-num-seqs": number, "max-num-batched-tokens": 2048, "gpu-memory-utilization": 0.9, "block-size": None}
    metrics = {"p95_ttft_ms": 900.0 * score, "p95_tpot_ms": 50.0 * score}
    return Finished(number, kind, flags, TrialStatus.COMPLETE, score, metrics=metrics, total_s=300.0)


def busy(journals: list[Journal], stop: threading.Event) -> None:
    """What the workers of running trials write; its CPU time is not counted."""
    done = 0
    while not stop.wait(0.5):
        done += 1
        for journal in journals:
            journal.advance(done)


def drain(master: int) -> None:
    """The terminal's other end, read so that it never fills up."""
    with contextlib.suppress(OSError):  # closed
        while os.read(master, 65536):
            pass


def measure(windows: int) -> list[float]:
    """Percent of one core that this process uses in each window, without the thread that plays the workers."""
    master, slave = pty.openpty()
    threading.Thread(target=drain, args=(master,), daemon=True).start()
    finished = [ended(number) for number in range(_TRIALS)]
    reading = {
        "memory_used_gib": 44.0,
        "sm_clock_mhz": 1800.0,
        "temperature_c": 70.0,
        "throttle_reasons": ("sw power cap",),
    }
    devices = tuple(DeviceReading(0.0, index, **reading) for index in range(_DEVICES))  # type: ignore[arg-type]
    stop = threading.Event()
    shares = []
    with tempfile.TemporaryDirectory() as made, os.fdopen(slave, "w") as terminal:
        folder = Path(made)
        journals = []
        for number in range(_LIVE):
            journals.append(Journal(folder / str(_TRIALS + number), _TRIALS + number, redact=str))
            journals[-1].enter(Phase.LOAD, total=100_000)
        console = Console(file=terminal, force_terminal=True, width=120, height=40, markup=False, highlight=False)
        sources = Sources(finished=lambda: finished, left_s=lambda: (3600.0, 1200.0), devices=lambda: devices)
        with LiveView(lambda number: folder / str(number), console, trials=1000, sources=sources) as view:
            for journal in journals:
                view.started(TrialSpec(journal._number, TrialKind.SEARCH, finished[1].flags))
            view._tick()
            work = threading.Thread(target=busy, args=(journals, stop))
            work.start()
            for _ in range(windows):
                began_s, cpu_s = time.monotonic(), _view_cpu_s(view)
                time.sleep(_WINDOW_S)
                shares.append(100 * (_view_cpu_s(view) - cpu_s) / (time.monotonic() - began_s))
            stop.set()
            work.join()
    return shares


def _view_cpu_s(view: LiveView) -> float:
    """CPU seconds of the view's own thread, as the kernel counts them."""
    fields = Path(f"/proc/self/task/{view._thread.native_id}/schedstat").read_text().split()
    return int(fields[0]) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="two windows of ten seconds instead of six")
    given = parser.parse_args()
    shares = measure(2 if given.quick else 6)
    found = {
        "live_view_core_percent": round(statistics.median(shares), 3),
        "live_view_core_percent_worst": round(max(shares), 3),
        "trials": _TRIALS,
        "seconds": len(shares) * _WINDOW_S,
    }
    tell(found, given.json)


if __name__ == "__main__":
    main()
