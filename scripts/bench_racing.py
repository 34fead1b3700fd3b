"""How much load time racing saves, and how often it stops the trial that would have won.

    python scripts/bench_racing.py [--json FILE] [--quick] [--requests FILE]

Every study is played twice on the same launches: once to the end, once with each trial raced. `winner_stopped_share`
is the share of studies whose winner of the full night was stopped in the other; `best_stopped_share` the same for the
truly best point, which no night knows (not counting one that was certain to miss an SLO). The studies take turns
through presets and SLOs, half of them with the noise of a GPU machine, half with that of two shared CPU cores, both
read from the noise files beside this script. Two more rows: the same rule on machines that scatter three times as much
as is known of any, and what a Wilcoxon test over requests does (p < 0.1, the default of Optuna's WilcoxonPruner).
--requests takes the lengths of recorded requests (JSON lines with `input_toks`, `output_toks`).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import racing_world as world  # noqa: E402
from racing_night import Night, Regime, Size, Tally  # noqa: E402

from sweep.objective import PRESETS, Objective  # noqa: E402
from sweep.racing import CPU_NOISE, GPU_NOISE  # noqa: E402

OBJECTIVES = (
    Objective(PRESETS["balanced"], {}),
    Objective(PRESETS["responsive"], {}),
    Objective(PRESETS["balanced"], {"p95_ttft_ms": 1500.0, "p95_tpot_ms": 60.0}),
    Objective(PRESETS["fluent"], {}),
    Objective(PRESETS["complete"], {"p99_ttft_ms": 3000.0}, "geometric"),
)


def bench(size: Size, lengths: world.Numbers | None, jobs: int) -> tuple[dict[str, Tally], Tally]:
    """Tallies by row, and of the rank test on the studies of the first two. The same whatever `jobs` is."""
    gpu, cpu = (world.read_scatter(ROOT / "scripts" / f"noise_{name}.json") for name in ("gpu", "vllm_cpu"))
    regimes = (
        (Regime("GPU machine", GPU_NOISE, gpu, (0.7, 1.5)), size.studies // 2),
        (Regime("shared CPU", CPU_NOISE, cpu, (0.7, 1.5)), size.studies - size.studies // 2),
        (Regime("GPU, three times its noise", GPU_NOISE, gpu, (3.0, 3.0)), max(1, size.studies // 5)),
    )
    tasks = [
        (1000 * place + study, size, regime, OBJECTIVES[study % len(OBJECTIVES)], lengths)
        for place, (regime, studies) in enumerate(regimes)
        for study in range(studies)
    ]
    rows, rank_test = {regime.name: Tally() for regime, _ in regimes}, Tally()
    with contextlib.ExitStack() as stack:
        play: Callable[..., Iterable[tuple[Tally, Tally]]] = map
        if jobs > 1:
            pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
            play = functools.partial(stack.enter_context(pool).map, chunksize=5)
        for task, (raced, ranked) in zip(tasks, play(_play, *zip(*tasks, strict=True)), strict=True):
            rows[task[2].name].add(raced)
            if task[2] is not regimes[2][0]:
                rank_test.add(ranked)
    return rows, rank_test


def _play(
    seed: int, size: Size, regime: Regime, objective: Objective, lengths: world.Numbers | None
) -> tuple[Tally, Tally]:
    night = Night(seed, size, regime, objective, lengths)
    return night.raced(), night.wilcoxon()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="200 smaller studies")
    parser.add_argument("--requests", type=Path)
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--studies", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    size = Size(200, 10, 100) if options.quick else Size(300, 30, 200)
    if options.studies is not None:
        size = Size(options.studies, size.trials, size.requests)
    lengths = None if options.requests is None else world.read_lengths(options.requests)
    rows, rank_test = bench(size, lengths, options.jobs)
    every = Tally()
    for tally in list(rows.values())[:2]:
        every.add(tally)
    _print({**rows, "all of the first two": every, "the same, Wilcoxon over requests": rank_test})
    if options.json is not None:
        content: dict[str, object] = {
            **every.summary(),
            "stopped_by": dict(every.rules),
            "by_noise": {name: tally.summary() for name, tally in rows.items()},
            "wilcoxon": rank_test.summary(),
        }
        options.json.write_text(json.dumps(content, indent=2) + "\n")
    return 0


def _print(rows: Mapping[str, Tally]) -> None:
    table = Table(box=box.SIMPLE)
    for title in ("", "studies", "load time saved", "winner stopped", "truly best stopped", "winner > 2 % worse"):
        table.add_column(title, justify="left" if not title else "right")
    for name, tally in rows.items():
        found = tally.summary()
        shares = [found[key] for key in ("winner_stopped_share", "best_stopped_share", "worse_winner_share")]
        table.add_row(
            name,
            str(tally.studies),
            f"{found['load_time_saved_share']:.0%}",
            *(f"{share:.1%}" for share in shares),
        )
    console = Console()
    console.print(table)
    for name, tally in rows.items():
        if tally.rules:
            stopped = ", ".join(f"{count} {rule}" for rule, count in tally.rules.most_common())
            console.print(f"{name}: stopped by {stopped}")


if __name__ == "__main__":
    sys.exit(main())
