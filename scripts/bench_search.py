"""How many server minutes a search takes until it is within 5 % of the best, on recorded landscapes.

    python scripts/bench_search.py [--landscape DIR ...] [--json FILE] [--plot FILE.svg] [--quick]

A landscape is a study in the store's format, or a packed one, of which each rate is searched by itself, and all rates
together; `sweep/replay/recording.py` names the columns it needs. Default: the one in tests/data/landscape. Each launch
of a search is one of the recorded launches of its point, drawn without reuse, and takes the time that one took; the
budget of a study is what one launch of every point takes. Every search begins with "today's flags": those in the middle
of all that run, so that nobody begins at the best. The best is by the mean of all recorded launches of a point;
a study is within 5 % once the point it would recommend is, and has not found it otherwise.

Keys of --json: `server_minutes_ratio_vs_best_other` is ours by the best other method, medians of each landscape and of
those the median; one that was not found counts as the whole budget. `failed_launch_ratio_vs_best_other`: launches that
failed until then, means, ours by the least of the others that found it in most studies (by one in all of its studies
where that is none). `within_5pct_share`: studies of ours that end there after half the budget. `methods` has the same
of each method, held against the best of the others, and its figures on each landscape.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import search_methods as methods  # noqa: E402
import search_plot  # noqa: E402
from search_world import Landscape, landscapes  # noqa: E402

from sweep.errors import UserError  # noqa: E402

WITHIN = 0.05
DEFAULT = ROOT / "tests" / "data" / "landscape"
SEEDS, QUICK_SEEDS = 30, 1
HALF = 0.5
MINUTES_RATIO, FAILED_RATIO = "server_minutes_ratio_vs_best_other", "failed_launch_ratio_vs_best_other"
GRID = 100  # places of the budget at which regret is noted for the plot


@dataclass(frozen=True, slots=True)
class Run:
    """One search of a landscape. `found_s` is None where it never was within 5 %; `regret` at GRID places of time."""

    found_s: float | None
    failed_until: int
    failed: int
    launches: int
    within_at_half: bool
    regret: tuple[float, ...]

    @classmethod
    def of(cls, found: Landscape, steps: Sequence[methods.Step]) -> Run:
        excesses = [found.excess(step.believed) for step in steps]
        first = next((place for place, excess in enumerate(excesses) if excess <= WITHIN), None)
        ends = [step.spent_s for step in steps]

        def at(spent_s: float) -> float:
            """What is recommended by then; the worst there is before the first launch has ended."""
            done = [excess for end, excess in zip(ends, excesses, strict=True) if end <= spent_s]
            return done[-1] if done else found.excess(None)

        until = len(steps) if first is None else first + 1
        return cls(
            found_s=None if first is None else ends[first],
            failed_until=sum(step.failed for step in steps[:until]),
            failed=sum(step.failed for step in steps),
            launches=len(steps),
            within_at_half=at(HALF * found.budget_s) <= WITHIN,
            regret=tuple(at(place / GRID * found.budget_s) for place in range(GRID + 1)),
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """The studies of one method on one landscape. Minutes of one that never found it are those of the budget."""

    minutes: tuple[float, ...]
    runs: tuple[Run, ...]

    @classmethod
    def of(cls, found: Landscape, runs: Sequence[Run]) -> Figures:
        whole_s = found.budget_s
        return cls(tuple((whole_s if run.found_s is None else run.found_s) / 60 for run in runs), tuple(runs))

    @property
    def found_share(self) -> float:
        return fmean(run.found_s is not None for run in self.runs)

    @property
    def failed_until(self) -> float:
        return fmean(run.failed_until for run in self.runs)

    def summary(self) -> dict[str, float]:
        return {
            "server_minutes_median": median(self.minutes),
            "server_minutes_p90": float(np.percentile(self.minutes, 90)),
            "found_share": self.found_share,
            "within_5pct_share": fmean(run.within_at_half for run in self.runs),
            "failed_launches_until_found": self.failed_until,
            "failed_launches": fmean(run.failed for run in self.runs),
            "launches": fmean(run.launches for run in self.runs),
        }


def bench(
    folders: Sequence[Path], names: Sequence[str], seeds: int, jobs: int, *, quick: bool = False
) -> dict[Landscape, dict[str, Figures]]:
    """Every method on every landscape; if `quick` only on the last of each recording, with half the budget. The same
    whatever `jobs` is.
    """
    found = {(folder, place): one for folder in folders for place, one in enumerate(landscapes(folder))}
    if quick:
        last = {where: one for where, one in found.items() if (where[0], where[1] + 1) not in found}
        found = {where: dataclasses.replace(one, budget_s=HALF * one.budget_s) for where, one in last.items()}
    tasks = [
        (*where, one.budget_s, name, seed) for where, one in found.items() for name in names for seed in range(seeds)
    ]
    results: dict[tuple[Path, int, str], list[Run]] = {}
    with contextlib.ExitStack() as stack:
        play: Callable[..., Iterable[Run]] = map
        if jobs > 1:
            pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
            play = functools.partial(stack.enter_context(pool).map, chunksize=2)
        for (folder, place, _, name, _), run in zip(tasks, play(search, *zip(*tasks, strict=True)), strict=True):
            results.setdefault((folder, place, name), []).append(run)
    return {
        one: {name: Figures.of(one, results[folder, place, name]) for name in names}
        for (folder, place), one in found.items()
    }


@functools.lru_cache(maxsize=4)
def _landscapes(folder: Path) -> list[Landscape]:
    return landscapes(folder)


def search(folder: Path, place: int, budget_s: float, name: str, seed: int) -> Run:
    """One study."""
    found = dataclasses.replace(_landscapes(folder)[place], budget_s=budget_s)
    if name in methods.OURS:
        return Run.of(found, methods.ours(found, seed, methods.OURS[name]))
    return Run.of(found, methods.other(found, seed, methods.OTHERS[name]))


def ratios(name: str, figures: Mapping[str, Figures], seeds: int) -> dict[str, float | None]:
    """Of one method on one landscape: its minutes and its failed launches by those of the best other method."""
    others = [figures[other] for other in methods.OTHERS if other in figures and other != name]
    best = min((median(one.minutes) for one in others), default=None)
    least = min((one.failed_until for one in others if one.found_share > 0.5), default=None)
    return {
        MINUTES_RATIO: None if best is None else median(figures[name].minutes) / best,
        # Where another never failed, one failure in all its studies: leaving such a landscape out would flatter.
        FAILED_RATIO: None if least is None else figures[name].failed_until / max(least, 1 / seeds),
    }


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def of_method(name: str, found: Mapping[Landscape, Mapping[str, Figures]], seeds: int) -> dict[str, Any]:
    """The keys of one method over all landscapes."""
    each = [ratios(name, figures, seeds) for figures in found.values()]
    return {
        **{key: _middle(one[key] for one in each) for key in (MINUTES_RATIO, FAILED_RATIO)},
        "within_5pct_share": fmean(figures[name].summary()["within_5pct_share"] for figures in found.values()),
        "seeds": seeds,
        "landscapes": len(found),
    }


def keys(found: Mapping[Landscape, Mapping[str, Figures]], seeds: int) -> dict[str, Any]:
    """What --json gets."""
    return {
        **of_method("ours", found, seeds),
        "methods": {
            name: of_method(name, found, seeds) | {one.name: figures[name].summary() for one, figures in found.items()}
            for name in next(iter(found.values()))
        },
        "by_landscape": {
            one.name: {
                "points": len(one.points),
                "failing_points": one.failing,
                "points_within_5pct": sum(value <= one.best * (1 + WITHIN) for value in one.truth.values()),
                "budget_minutes": one.budget_s / 60,
                **ratios("ours", figures, seeds),
            }
            for one, figures in found.items()
        },
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--landscape", type=Path, action="append", help="a recording; may be given several times")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="regret against server minutes")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_SEEDS} study of each method, all rates at once, half the budget"
    )
    parser.add_argument("--seeds", type=int, help=f"studies of each method (default {SEEDS})")
    parser.add_argument("--methods", help="only these, separated by commas; always with ours")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    options = parser.parse_args(argv)
    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    every = [*methods.OURS, *methods.OTHERS]
    asked = every if options.methods is None else ["ours", *options.methods.split(",")]
    if unknown := [name for name in asked if name not in every]:
        parser.error(f"no method {', '.join(unknown)}; there are {', '.join(every)}")
    try:
        found = bench(
            options.landscape or [DEFAULT], list(dict.fromkeys(asked)), seeds, options.jobs, quick=options.quick
        )
    except UserError as error:
        parser.error(str(error))
    content = keys(found, seeds)
    show(found, content)
    if options.json is not None:
        options.json.write_text(json.dumps(content, indent=2) + "\n")
    if options.plot is not None:
        curves = {one.name: _curves(one, figures) for one, figures in found.items()}
        options.plot.write_text(search_plot.svg(curves))
    return 0


def _curves(found: Landscape, figures: Mapping[str, Figures]) -> dict[str, list[tuple[float, float]]]:
    """The median regret over minutes."""
    minutes = [place / GRID * found.budget_s / 60 for place in range(GRID + 1)]
    return {
        name: list(zip(minutes, np.median([run.regret for run in one.runs], axis=0).tolist(), strict=True))
        for name, one in figures.items()
    }


def show(found: Mapping[Landscape, Mapping[str, Figures]], content: Mapping[str, Any]) -> None:
    """The tables."""
    console = Console(width=130)
    for one, figures in found.items():
        about = content["by_landscape"][one.name]
        title = (
            f"{one.name} (replayed): {about['points']} points, {about['failing_points']} of them fail, "
            f"{about['points_within_5pct']} within 5 %; budget {about['budget_minutes']:.0f} server minutes"
        )
        table = Table(box=box.SIMPLE, title=title, title_justify="left")
        for head in ("", "minutes to 5 %", "p90", "found", "found by half", "failed until", "failed", "launches"):
            table.add_column(head, justify="right" if head else "left")
        for name, figure in figures.items():
            row = figure.summary()
            table.add_row(
                name,
                f"{row['server_minutes_median']:.1f}",
                f"{row['server_minutes_p90']:.1f}",
                f"{row['found_share']:.0%}",
                f"{row['within_5pct_share']:.0%}",
                f"{row['failed_launches_until_found']:.1f}",
                f"{row['failed_launches']:.1f}",
                f"{row['launches']:.1f}",
            )
        console.print(table)
    for key in (MINUTES_RATIO, FAILED_RATIO, "within_5pct_share"):
        value = content[key]
        console.print(f"{key}: {'not defined' if value is None else f'{value:.2f}'}")


if __name__ == "__main__":
    sys.exit(main())
