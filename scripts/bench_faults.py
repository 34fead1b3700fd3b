"""Every fault in every phase, on the fake of vLLM: is it called by its name, does it come to what it should, is
anything left behind or lost? Then a study that is killed again and again, beside one that is not.

    python scripts/bench_faults.py [--json FILE] [--quick]

Prints the matrix; with --json FILE the summary goes to FILE and the matrix beside it, as FILE's name with `.parquet`.
Without --quick it is every signal to every process of a study in every phase, beside 44 other faults.
`turnaround_s_median` is over the cells whose point is tried again: from the moment the server was gone (the last line
of its log, or our signal) to the next launch. `resume_runs` are the restarts of the killed study, `resume_equal`
those after which its record was that of the one left alone, as far as it went; the last had to end as that one did.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "scripts")]

import fake_study  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from fault_matrix import CELLS, SIGNAL_CELLS, SOME_SIGNAL_CELLS, Cell, Row  # noqa: E402
from fault_studies import resume, signal_rows  # noqa: E402
from hits import hit  # noqa: E402
from rich import box  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from studies import all_studies  # noqa: E402

from sweep.config import load  # noqa: E402
from sweep.gpu import Gpus  # noqa: E402
from sweep.prepare import Prepared, prepare  # noqa: E402
from sweep.recommend import recommend  # noqa: E402
from sweep.redact import Redactor  # noqa: E402
from sweep.runner import TrialOutcome, run_trial  # noqa: E402
from sweep.store import Store, read_trials  # noqa: E402
from sweep.trial import TrialKind, TrialSpec, TrialStatus  # noqa: E402

AT_ONCE = 6
FLAGS = {"max-num-seqs": 64, "gpu-memory-utilization": 0.8}


class Matrix:
    """Runs cells beside one another in `home`, each in a folder of its own."""

    def __init__(self, home: Path) -> None:
        self._home = home
        path = fake_study.write(home / "study.yaml", fake_study.study(home, load={"num_prompts": 8}))
        with Gpus() as gpus:
            self._prepared: Prepared = prepare(load(path), path, home / "results" / "night", gpus)
        self._baseline = self._run(Cell("none", "none", (), ()), self._home / "cell-baseline", TrialKind.BASELINE)[0]

    def rows(self, cells: Sequence[Cell]) -> list[Row]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(self._row, range(len(cells)), cells))

    def _run(self, cell: Cell, folder: Path, kind: TrialKind) -> tuple[TrialOutcome, float | None]:
        """The outcome, and when its server was gone; NaN for a cell whose signal found nobody."""
        folder.mkdir()
        text = json.dumps({"ttft_ms": 2, "itl_ms": 0.2, "seed": 1, **cell.fake})
        env = {"FAKE_VLLM": text.replace('"STATE"', json.dumps(str(folder / "launches")))}
        setup = dataclasses.replace(
            self._prepared.setup,
            **{
                "folder": folder,
                "served_name": folder.name,
                "server_env": env,
                "client_env": env,
                "max_retries": int(cell.recovers or cell.again),
                "retry_wait_s": 0.0,
                **cell.setup,
            },
        )
        first = kind is TrialKind.BASELINE
        baseline = None if first else self._baseline.result.metrics
        spec = TrialSpec(0 if first else 1, kind, FLAGS, baseline)
        with Gpus() as gpus, ThreadPoolExecutor(1) as beside:
            shot = beside.submit(_shoot, cell, folder, spec.number)
            outcome = run_trial(spec, setup, redactor=Redactor({}), gpus=gpus)
            if cell.hit is not None:
                return outcome, shot.result()
        log = setup.log_folder(spec.number) / "server-1.log"
        return outcome, log.stat().st_mtime if log.exists() else None

    def _row(self, number: int, cell: Cell) -> Row:
        folder = self._home / f"cell-{number:02d}"
        outcome, gone_at = self._run(cell, folder, TrialKind.SEARCH)
        result = outcome.result
        orphans = len(fake_study.processes_with(f"served-model-name {folder.name}"))
        store = Store(folder, self._prepared.schema, metadata={}, redactor=Redactor({}), reserve_bytes=0)
        store.append(result, engine_summary=outcome.engine_summary, telemetry=outcome.telemetry)
        stored = read_trials(folder)
        failed = [event for event in result.events if event.kind == "failed"]
        found = failed[0].failure_class or "" if failed else ""
        policy = result.failure.policy if result.failure else ""
        if cell.recovers and failed:
            policy = "retry" if result.attempts == 2 else "none"
        whole = not cell.classes or cell.recovers
        aimed = cell.hit is None or not math.isnan(gone_at or 0.0)
        right_end = (result.status is TrialStatus.COMPLETE) is whole
        policies = ("", *cell.policies) if whole and not cell.classes else cell.policies
        won = recommend([self._baseline.finished(), outcome.finished()]).number == 1
        launches = [event.wall_s for event in result.events if event.kind == "phase" and event.phase == "start"]
        return Row(
            fault=cell.fault,
            phase=cell.phase,
            expected=" or ".join(cell.classes) or "complete",
            found=(found or "complete") if aimed else "not hit",
            policy=policy or "none",
            right_class=aimed and (found in cell.classes if cell.classes else not failed),
            right_policy=right_end and ("retry" if policy == "retry" else policy.removesuffix("_now")) in policies,
            attempts=result.attempts,
            orphans=orphans,
            lost_rows=int([trial.number for trial in stored] != [1]),
            wrong_winner=won and not whole,
            turnaround_s=launches[1] - gone_at if len(launches) > 1 and gone_at is not None and aimed else None,
        )


def _shoot(cell: Cell, folder: Path, number: int) -> float:
    """Send the signal of a cell in its phase; when that was (wall clock), NaN if there was nobody to hit."""
    if cell.hit is None:
        return math.nan
    try:
        hit(folder, number, *cell.hit, cell.phase, timeout_s=30.0)
    except (AssertionError, ProcessLookupError):
        return math.nan
    return time.time()


def _with_studies(home: Path, trials: int, kills: int, *, every: bool) -> tuple[int, list[Row]]:
    """What takes whole studies: the killed one and, with `every`, signals to driver and worker."""
    with all_studies() as studies:
        return resume(home, studies, trials=trials, kills=kills), signal_rows(home, studies) if every else []


def show(rows: list[Row], summary: dict[str, Any]) -> None:
    """The matrix and its summary."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("phase", "fault", "class", "policy", "attempts", "turnaround s", ""):
        table.add_column(name, no_wrap=True)
    for row in rows:
        faults = [
            text
            for text, wrong in (
                (f"class should be {row.expected}", not row.right_class),
                ("wrong policy", not row.right_policy),
                (f"{row.orphans} orphans", row.orphans),
                ("row lost", row.lost_rows),
                ("wrong winner", row.wrong_winner),
            )
            if wrong
        ]
        wait = "" if row.turnaround_s is None else f"{row.turnaround_s:.2f}"
        table.add_row(row.phase, row.fault, row.found, row.policy, str(row.attempts), wait, "; ".join(faults))
    console = Console(width=150, highlight=False)
    console.print(table)
    for key, value in summary.items():
        console.print(f"{key}: {value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary there")
    parser.add_argument("--quick", action="store_true", help="fewer signals, and fewer kills of a shorter study")
    asked = parser.parse_args()
    trials, kills = (4, 2) if asked.quick else (20, 25)
    cells = CELLS + (SOME_SIGNAL_CELLS if asked.quick else SIGNAL_CELLS)
    with tempfile.TemporaryDirectory(prefix="faults-") as name, ThreadPoolExecutor(1) as beside:
        home = Path(name)
        equal = beside.submit(_with_studies, home, trials, kills, every=not asked.quick)  # all of it waits a lot
        rows = Matrix(home).rows(cells)
        resume_equal, more = equal.result()
        rows += more
    waits = [row.turnaround_s for row in rows if row.turnaround_s is not None]
    summary = {
        "cells": len(rows),
        "right_class_share": statistics.mean(row.right_class for row in rows),
        "right_policy_share": statistics.mean(row.right_policy for row in rows),
        "orphans": sum(row.orphans for row in rows),
        "lost_rows": sum(row.lost_rows for row in rows),
        "wrong_winners": sum(row.wrong_winner for row in rows),
        "turnaround_s_median": statistics.median(waits),
        "resume_equal": resume_equal,
        "resume_runs": kills,
    }
    show(rows, summary)
    if asked.json is not None:
        asked.json.write_text(json.dumps(summary, indent=2) + "\n")
        pq.write_table(
            pa.Table.from_pylist([dataclasses.asdict(row) for row in rows]), asked.json.with_suffix(".parquet")
        )


if __name__ == "__main__":
    main()
