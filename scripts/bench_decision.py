"""How often is the verdict right? Studies whose truth is known: a noisy search, then the confirmation of its best.

    python scripts/bench_decision.py [--json FILE] [--quick] [--noise FILE ...] [--fit STUDY_FOLDER [--alike]]

A search measures each of 60 configurations once. The best 3 are confirmed with the baseline, block by block, until the
stop rule is content. Kinds of studies:

- `A/A`: no configuration is better.
- `10 %`: one is truly 10 % better; found when it is among the best 3, confirmed when the verdict is that it is better.
  The search measures 48 and the best 12 of them again, as `sweep.tune` does by default; `one_look`: 60 once each.
- `outlier`: a configuration whose flags are truly 5 % worse had one launch 40 % better than it is, in the search (half
  of the studies) or in the confirmation.
- `equal outlier`: the same in the confirmation for flags that are equal, which the A/A error lets win now and then.
- `A/A, one candidate` and `10 %, one candidate`: a confirmation of one configuration, as in the demo. After the first
  three blocks its intervals rest on two degrees of freedom, the fewest with which blocks are taken out.

Beside it, what picking the best single observation would have said of the same studies. The keys are those of the first
noise file; `levels` holds all of them.

`--fit` prints the noise file of a stored study in which the same flags were launched again and again, and says how many
launches it rests on; `--alike` takes all of its flags for one setting, as they are in an A/A study.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from decision_world import Noise, World, fit_noise  # noqa: E402
from rich import box  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from sweep.errors import SweepError  # noqa: E402
from sweep.objective import Objective  # noqa: E402
from sweep.verdict import LaunchFigures, Outcome, Verdict, enough, figures_of, finalists, judge  # noqa: E402

OBJECTIVE = Objective({"p95_ttft_ms": 0.4, "p95_tpot_ms": 0.35, "p95_e2el_ms": 0.25}, {})
NAMES = OBJECTIVE.metrics_needed()
NOISES = (ROOT / "scripts" / "noise_vllm_cpu.json", ROOT / "scripts" / "noise_gpu.json")
TRIALS, SECOND_LOOKS, TOP = 60, 12, 3
GOOD = 7  # the configuration that is better, or lucky
RESAMPLES = 40
FULL, QUICK = 400, 20
ONE = ", one candidate"
KINDS = ("A/A", "10 %", "outlier", "equal outlier", f"A/A{ONE}", f"10 %{ONE}")
LUCK = math.log(0.6)


@dataclass(frozen=True, slots=True)
class Night:
    """What became of one study. `truth` and `best_truth` are true scores of the leader and of the single best."""

    kind: str
    found: bool
    found_by_one_look: bool
    outcome: str
    winner: int | None
    truth: float
    covered: bool
    launches: int
    width: float
    best: int
    best_score: float
    best_truth: float


def night(noise: Noise, kind: str, seed: int) -> Night:
    """One study from the search to the verdict."""
    effects = {"10 %": {GOOD: math.log(0.9)}, "outlier": {GOOD: math.log(1.05)}}.get(kind.removesuffix(ONE), {})
    world = World(noise, seed, effects)
    if kind.endswith(ONE):
        return _judged(kind, world, confirm(world, noise, (GOOD,), {}), (True, True), GOOD, 1.0)
    lucky_search = kind == "outlier" and seed % 2 == 1
    lucky_launch = "outlier" in kind and not lucky_search
    once = search(world, range(1, TRIALS + 1), {GOOD: LUCK} if lucky_search else {})
    order = finalists(once, len(once))
    scores = {key: once[key] for key in range(1, TRIALS - SECOND_LOOKS + 1)}
    for key, again in search(world, finalists(scores, SECOND_LOOKS), {}).items():
        scores[key] = [*scores[key], *again]
    top = finalists(scores, TOP)
    found = GOOD in top
    if kind != "A/A" and not found:
        # Missed by the search, confirmed all the same: that tells what each of the two stages can do.
        top = (GOOD, *top[: TOP - 1])
    verdict = confirm(world, noise, top, {GOOD: LUCK} if lucky_launch else {})
    return _judged(kind, world, verdict, (found, GOOD in order[:TOP]), order[0], once[order[0]][0])


def _judged(kind: str, world: World, verdict: Verdict, found: tuple[bool, bool], best: int, best_score: float) -> Night:
    """`found`: whether the search found the good one with second looks, and without."""
    assert verdict.leader is not None  # every launch of this world has all metrics
    truth, score = world.truth(verdict.leader.key), verdict.leader.score
    return Night(
        kind=kind,
        found=found[0],
        found_by_one_look=found[1],
        outcome=verdict.outcome.value,
        winner=verdict.winner,
        truth=truth,
        covered=score.low <= truth <= score.high,
        launches=verdict.launches,
        width=score.width,
        best=best,
        best_score=best_score,
        best_truth=world.truth(best),
    )


def search(world: World, keys: Sequence[int], luck: dict[int, float]) -> dict[int, list[float]]:
    """One measurement of each configuration, scored against one of the baseline."""
    launches = world.block((0, *keys), 0, apart=True, luck=luck)
    metrics = {launch.key: figures_of(launch, NAMES, resamples=0).metrics for launch in launches}
    found = {key: OBJECTIVE.score(values, metrics[0]).value for key, values in metrics.items() if key}
    return {key: [value] for key, value in found.items() if value is not None}


def confirm(world: World, noise: Noise, top: Sequence[int], luck: dict[int, float]) -> Verdict:
    """Blocks of fresh launches until the stop rule ends it; `luck` falls on the second block."""
    figures: list[LaunchFigures] = []
    flags = {key: {"max-num-seqs": key} for key in (0, *top)}
    block = 0
    while True:
        launches = world.block((0, *top), block, luck=luck if block == 1 else None)
        figures += [figures_of(launch, NAMES, resamples=RESAMPLES) for launch in launches]
        block += 1
        if block >= 3:
            verdict = judge(figures, OBJECTIVE, baseline=0, flags=flags)
            if enough(verdict, most=noise.most_launches).stop:
                return verdict


def simulate(noise: Noise, kinds: dict[str, int], pool: ProcessPoolExecutor) -> list[Night]:
    """So many studies of each kind; the same seeds in every run."""
    nights: list[Night] = []
    for place, (kind, studies) in enumerate(kinds.items()):
        seeds = range(1_000_000 * place, 1_000_000 * place + studies)
        began = time.monotonic()
        nights += pool.map(partial(night, noise, kind), seeds, chunksize=5)
        print(f"{noise.name}: {studies} of {kind}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return nights


def summary(nights: Sequence[Night]) -> dict[str, Any]:
    """The keys of one noise level."""
    null, ten, odd, equal, null_one, ten_one = ([n for n in nights if n.kind == kind] for kind in KINDS)
    return {
        "aa_false_better_share": _share(n.outcome == Outcome.BETTER for n in null),
        "aa_studies": len(null),
        "power_10pct": _share(n.found and n.winner == GOOD for n in ten),
        "coverage_95": _share(n.covered for n in ten),
        "lucky_outlier_wins": sum(n.winner == GOOD for n in odd),
        "single_best_false_share": _share(n.best_score < 1 for n in null),
        "lucky_equal_wins_share": _share(n.winner == GOOD for n in equal),
        "found_in_top_3_share": _share(n.found_by_one_look for n in ten),
        "power_10pct_one_look": _share(n.found_by_one_look and n.winner == GOOD for n in ten),
        "found_second_looks_share": _share(n.found for n in ten),
        "power_10pct_if_found": _share(n.winner == GOOD for n in ten),
        "wrong_winner_share": _share(n.winner not in (None, GOOD) for n in ten),
        "coverage_95_aa": _share(n.covered for n in null),
        "single_best_wrong_share": _share(n.best != GOOD for n in ten),
        "single_best_claimed_gain": float(np.mean([1 - n.best_score for n in null])),
        "launches_median": float(np.median([n.launches for n in ten])),
        "launches_p90": float(np.percentile([n.launches for n in ten], 90)),
        "width_median": float(np.median([n.width for n in ten])),
        "aa_false_better_one_candidate": _share(n.outcome == Outcome.BETTER for n in null_one),
        "power_10pct_one_candidate": _share(n.winner == GOOD for n in ten_one),
        "coverage_95_one_candidate": _share(n.covered for n in (*null_one, *ten_one)),
        "launches_median_one_candidate": float(np.median([n.launches for n in ten_one])),
    }


def _share(found: Any) -> float:
    return float(np.mean([bool(one) for one in found]))


def show(levels: dict[str, dict[str, Any]]) -> None:
    """The table: each noise, sweep's verdict beside the best single observation."""
    table = Table(box=box.SIMPLE)
    for title in ("", *(f"{name}: {what}" for name in levels for what in ("sweep", "single best"))):
        table.add_column(title, justify="right" if title else "left")
    rows = {
        'A/A: "better" is claimed': ("aa_false_better_share", "single_best_false_share"),
        "10 %: found and confirmed": ("power_10pct", None),
        "10 %: found by the search": ("found_second_looks_share", None),
        "10 %: ... with one look at each": ("found_in_top_3_share", None),
        "10 %: found with one look and confirmed": ("power_10pct_one_look", None),
        "10 %: confirmed where found": ("power_10pct_if_found", None),
        "10 %: another one recommended": ("wrong_winner_share", "single_best_wrong_share"),
        "10 %: interval holds the truth": ("coverage_95", None),
        "A/A: interval holds the truth": ("coverage_95_aa", None),
        "outlier wins, studies": ("lucky_outlier_wins", None),
        "equal flags with an outlier win": ("lucky_equal_wins_share", None),
        "launches each, median": ("launches_median", None),
        'one candidate, A/A: "better" is claimed': ("aa_false_better_one_candidate", None),
        "one candidate, 10 %: confirmed": ("power_10pct_one_candidate", None),
        "one candidate: interval holds the truth": ("coverage_95_one_candidate", None),
        "one candidate: launches each, median": ("launches_median_one_candidate", None),
    }
    for title, keys in rows.items():
        table.add_row(title, *(_cell(level, key) for level in levels.values() for key in keys))
    Console(width=160).print(table)


def _cell(level: dict[str, Any], key: str | None) -> str:
    value = None if key is None else level[key]
    if key is None or value is None:
        return ""
    return f"{value:g}" if key.startswith(("lucky_outlier", "launches")) else f"{100 * value:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go")
    parser.add_argument("--quick", action="store_true", help="few studies: under 50 s on 2 cores")
    parser.add_argument("--noise", type=Path, nargs="+", default=list(NOISES), metavar="FILE")
    parser.add_argument("--fit", type=Path, metavar="STUDY_FOLDER", help="print the noise of a stored study")
    parser.add_argument("--alike", action="store_true", help="with --fit: an A/A study, whose flags all do the same")
    parser.add_argument("--studies", type=int, help="how many A/A studies; fewer of those with an outlier")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if options.fit is not None:
        try:
            print(fit_noise(options.fit, alike=options.alike).dump(), end="")
        except (ValueError, SweepError) as error:
            sys.exit(f"bench_decision: {error}")
        return
    studies = options.studies or (QUICK if options.quick else FULL)
    kinds = dict(zip(KINDS, (studies, studies, studies // 2, studies // 4, studies, studies), strict=True))
    began = time.monotonic()
    levels: dict[str, dict[str, Any]] = {}
    with ProcessPoolExecutor(options.workers) as pool:
        for path in options.noise:
            noise = Noise.load(path)
            levels[noise.name] = summary(simulate(noise, kinds, pool))
            first = next(iter(levels.values()))
            result = {**first, "levels": levels, "quick": options.quick, "wall_s": round(time.monotonic() - began, 1)}
            if options.json is not None:  # after each level: one takes half an hour
                options.json.write_text(json.dumps(result, indent=2) + "\n")
    show(levels)


if __name__ == "__main__":
    main()
