"""Every fault in every phase, on the fake of vLLM: is it called by its name, does it come to what it should, is
anything left behind or lost? Then a study that is killed again and again, beside one that is not.

    python scripts/bench_faults.py [--json FILE] [--quick]

Prints the matrix; with --json FILE the summary goes to FILE and the matrix beside it, as FILE's name with `.parquet`.
`turnaround_s_median` is over the cells whose point is tried again: from the moment the server was gone (the last line
of its log, or our signal) to the next launch.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "scripts")]

import fake_study  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from fault_matrix import CELLS, Cell  # noqa: E402
from rich import box  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from running import Running  # noqa: E402
from studies import Studies, all_studies, kill_again_and_again, nothing_left  # noqa: E402

from sweep.config import load  # noqa: E402
from sweep.gpu import Gpus  # noqa: E402
from sweep.journal import read_progress  # noqa: E402
from sweep.prepare import Prepared, prepare  # noqa: E402
from sweep.recommend import recommend  # noqa: E402
from sweep.redact import Redactor  # noqa: E402
from sweep.runner import TrialOutcome, run_trial  # noqa: E402
from sweep.store import Store, read_trials  # noqa: E402
from sweep.trainable import finished_of  # noqa: E402
from sweep.trial import TrialKind, TrialSpec, TrialStatus  # noqa: E402

AT_ONCE = 3
FLAGS = {"max-num-seqs": 64, "gpu-memory-utilization": 0.8}


@dataclass(frozen=True, slots=True)
class Row:
    """What a cell came to. `found` is the class of the first attempt."""

    fault: str
    phase: str
    expected: str
    found: str
    policy: str
    right_class: bool
    right_policy: bool
    attempts: int
    orphans: int
    lost_rows: int
    wrong_winner: bool
    turnaround_s: float | None


class Matrix:
    """Runs cells beside one another in `home`, each in a folder of its own."""

    def __init__(self, home: Path) -> None:
        self._home = home
        path = fake_study.write(home / "study.yaml", fake_study.study(home, load={"num_prompts": 8}))
        with Gpus() as gpus:
            self._prepared: Prepared = prepare(load(path), path, home / "results" / "night", gpus)
        self._baseline = self._run(Cell("none", "none", (), ()), self._home / "cell-baseline", TrialKind.BASELINE)[0]

    def rows(self) -> list[Row]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(self._row, range(len(CELLS)), CELLS))

    def _run(self, cell: Cell, folder: Path, kind: TrialKind) -> tuple[TrialOutcome, float | None]:
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
        hit_at: list[float] = []
        if cell.hit is not None:
            threading.Thread(target=_hit, args=(cell, folder, setup.log_folder(1), hit_at), daemon=True).start()
        with Gpus() as gpus:
            outcome = run_trial(spec, setup, redactor=Redactor({}), gpus=gpus)
        log = setup.log_folder(spec.number) / "server-1.log"
        gone_at = hit_at[0] if hit_at else log.stat().st_mtime if log.exists() else None
        return outcome, gone_at

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
        right_end = (result.status is TrialStatus.COMPLETE) is whole
        policies = ("", *cell.policies) if whole and not cell.classes else cell.policies
        won = recommend([finished_of(self._baseline), finished_of(outcome)]).number == 1
        launches = [event.wall_s for event in result.events if event.kind == "phase" and event.phase == "start"]
        return Row(
            fault=cell.fault,
            phase=cell.phase,
            expected=" or ".join(cell.classes) or "complete",
            found=found or "complete",
            policy=policy or "none",
            right_class=found in cell.classes if cell.classes else not failed,
            right_policy=right_end and ("retry" if policy == "retry" else policy.removesuffix("_now")) in policies,
            attempts=result.attempts,
            orphans=orphans,
            lost_rows=int([trial.number for trial in stored] != [1]),
            wrong_winner=won and not whole,
            turnaround_s=launches[1] - gone_at if len(launches) > 1 and gone_at is not None else None,
        )


def _hit(cell: Cell, folder: Path, logs: Path, hit_at: list[float]) -> None:
    """Send the signal of a cell in its phase."""
    assert cell.hit is not None
    who, name = cell.hit
    while (now := read_progress(logs)) is None or now.phase != cell.phase:
        time.sleep(0.01)
    pid = getattr(Running.of(folder, cell.phase), who)
    hit_at.append(time.time())
    os.kill(pid, signal.Signals[name])


def resume(home: Path, *, trials: int, kills: int) -> bool:
    """Whether a study killed `kills` times ends as the one that was left alone."""
    fake = {
        "exact": {"ttft_ms": 50, "itl_ms": 5},
        "ttft_ms": 0.2,
        "itl_ms": 0.02,
        "rules": [{"if": {"max-num-seqs": [">", 200]}, "then": {"log": "@no_kv", "exit_code": 1}}],
    }
    with all_studies() as studies:
        ends = [_end_of(home / name, studies, fake, trials, kills) for name, kills in (("whole", 0), ("killed", kills))]
    return ends[0] == ends[1] and len(ends[0][0]) == trials


def _end_of(
    folder: Path, studies: Studies, fake: dict[str, Any], trials: int, kills: int
) -> tuple[list[tuple[object, ...]], int, float]:
    """Points and recommendation of a study that was killed so often."""
    folder.mkdir()
    content = fake_study.study(folder, fake=fake, study={"trials": trials}, load={"num_prompts": 4})
    study, results = fake_study.write(folder / "night.yaml", content), folder / "results" / "night"
    kill_again_and_again(studies, study, results, trials=trials, kills=kills, seed=5)
    driver = studies.start(study, results, "--json")
    driver.wait(600.0)
    nothing_left(folder)
    verdict = json.loads(driver.text().strip().splitlines()[-1])
    points: list[tuple[object, ...]] = [
        (one.number, tuple(one.flags.items()), one.status, one.score) for one in read_trials(results)
    ]
    return points, verdict["trial"], verdict["score"]


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
    parser.add_argument("--quick", action="store_true", help="fewer kills of a shorter study")
    asked = parser.parse_args()
    trials, kills = (5, 3) if asked.quick else (20, 25)
    with tempfile.TemporaryDirectory(prefix="faults-") as name, ThreadPoolExecutor(1) as beside:
        home = Path(name)
        equal = beside.submit(resume, home, trials=trials, kills=kills)  # both wait a lot
        rows = Matrix(home).rows()
        equal.result()
    waits = [row.turnaround_s for row in rows if row.turnaround_s is not None]
    summary = {
        "cells": len(rows),
        "right_class_share": statistics.mean(row.right_class for row in rows),
        "right_policy_share": statistics.mean(row.right_policy for row in rows),
        "orphans": sum(row.orphans for row in rows),
        "lost_rows": sum(row.lost_rows for row in rows),
        "wrong_winners": sum(row.wrong_winner for row in rows),
        "turnaround_s_median": statistics.median(waits),
        "resume_equal": equal.result(),
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
