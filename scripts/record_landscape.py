"""Record a landscape: every point of a study file's search space on real servers, some of them three times.

    python scripts/record_landscape.py scripts/landscape_cpu.yaml --minutes 90
    python scripts/record_landscape.py scripts/landscape_cpu.yaml --launches 1
    python scripts/record_landscape.py scripts/landscape_cpu.yaml --export tests/data/landscape

Trials run through the runner of `sweep.tune` and land in its store, `RESULTS/NAME`: every request, engine counter and
start-up time, and failed starts as what they are. The order is drawn from the study's seed: the baseline, all other
points, then a third of all points again, and those once more, each time in another order. Typed again, the same command
goes on where it was stopped. The study file's constraints hold here, too: leave out those whose breach is to be seen.

Nothing else should run on the machine meanwhile. `--plan` shows the launches to come and starts none.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from sweep.atomic_file import write_atomically
from sweep.config import StudyConfig, load, located
from sweep.earlier import check_record
from sweep.errors import UserError
from sweep.gpu import Gpus
from sweep.prepare import Prepared, prepare
from sweep.process import end_leftovers
from sweep.runner import run_trial
from sweep.search_space import SearchSpace, flags_key
from sweep.store import Store, StoredTrial, pack, read_trials, set_aside_broken
from sweep.study_folder import StudyFolder
from sweep.trial import Flags, TrialKind, TrialResult, TrialSpec

REPEATED_SHARE, LAUNCHES_OF_REPEATED = 1 / 3, 3
# All but the readings of devices and host.
EXPORTED = ("trials", "rounds", "requests", "engine", "events")


@dataclass(frozen=True, slots=True)
class Design:
    """The launches of a recording in their order. Their flags tell which are done: a space may change its values."""

    launches: tuple[Flags, ...]

    @classmethod
    def of(cls, space: SearchSpace, baseline: Flags, seed: int) -> Design:
        """Every point once, then the repeated ones, in an order that depends on the space and the seed alone."""
        rng = random.Random(f"{seed} landscape")
        rest: list[Flags] = [point for point in space.points() if flags_key(point) != flags_key(baseline)]
        rng.shuffle(rest)
        repeated = [baseline, *rest[: round((len(rest) + 1) * REPEATED_SHARE + 0.5) - 1]]
        rng.shuffle(rest)
        order: list[Flags] = [baseline, *rest]
        for _ in range(LAUNCHES_OF_REPEATED - 1):
            rng.shuffle(repeated)
            order += repeated
        return cls(tuple(order))

    def specs(self, known: Mapping[int, StoredTrial]) -> Iterator[TrialSpec]:
        """The launches that are not stored yet, numbered on from those that are."""
        stored = Counter(flags_key(one.flags) for one in known.values())
        number = max(known, default=-1)
        for flags in self.launches:
            if stored[flags_key(flags)] > 0:
                stored[flags_key(flags)] -= 1
                continue
            number += 1
            kind = TrialKind.SEARCH if number else TrialKind.BASELINE
            baseline = known[0].metrics if number and 0 in known else None
            yield TrialSpec(number, kind, flags, baseline)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="study file; all its parameters need a grid")
    parser.add_argument("--results", type=Path, help="folder of all results, instead of the study file's")
    parser.add_argument("--launches", type=int, help="stop after so many launches")
    parser.add_argument("--minutes", type=float, help="start no launch after so many minutes")
    parser.add_argument("--plan", action="store_true", help="print the launches to come and stop")
    parser.add_argument("--export", type=Path, metavar="DIR", help="write the compact copy of what is recorded there")
    asked = parser.parse_args()
    began_s = time.monotonic()
    try:
        config = load(asked.study)
        results = (asked.results or Path(config.study.results)).expanduser()
        if asked.export is not None:
            command = f"python scripts/record_landscape.py {asked.study.name}"
            export(results / config.study.name, asked.export, asked.study, command)
            return 0
        design = design_of(config, asked.study)
        known = {one.number: one for one in read_trials(results / config.study.name)}
        if asked.plan:
            for spec in design.specs(known):
                say(f"{spec.number:3d} {words(spec.flags)}")
            return 0
        until_s = float("inf") if asked.minutes is None else began_s + 60 * asked.minutes
        record(config, asked.study, results, design, asked.launches, until_s)
    except UserError as error:
        say(f"record_landscape: {error}", sys.stderr)
        return 2
    return 0


def design_of(config: StudyConfig, study: Path) -> Design:
    """Raises ConfigError for a space that has no grid."""
    with located(study):
        space = SearchSpace.from_config(config.search_space, config.serve.flags)
    if space.size() is None:
        raise UserError(f"{study}: give every parameter of search_space a step, or a choice of values, to record it")
    return Design.of(space, config.baseline_flags(), config.study.seed)


def record(
    config: StudyConfig, study: Path, results: Path, design: Design, launches: int | None, until_s: float
) -> None:
    """Run the next launches and store each as it ends. Raises UserError for what a study would be refused for."""
    with Gpus() as gpus, StudyFolder.open(results, config.study.name) as folder:
        prepared = prepare(config, study, folder.path, gpus)
        take_over(prepared, folder)
        store = Store(
            folder.path, prepared.schema, metadata=prepared.fingerprint.as_metadata(), redactor=prepared.redactor
        )
        resting = gpus.baseline(gpus.devices if prepared.setup.uses_gpus else ())
        done = 0
        while launches is None or done < launches:
            known = {one.number: one for one in read_trials(folder.path)}
            to_come = list(design.specs(known))
            if not to_come:
                say(f"all {len(design.launches)} launches are recorded in {folder.path}")
                return
            if time.monotonic() > until_s:
                return
            spec = to_come[0]
            store.check_room()
            outcome = run_trial(spec, prepared.setup, redactor=prepared.redactor, gpus=gpus, resting=resting)
            store.append(outcome.result, engine_summary=outcome.engine_summary, telemetry=outcome.telemetry)
            done += 1
            say(f"{spec.number + 1:3d}, {len(to_come) - 1} to come, {words(spec.flags)}: {told(outcome.result)}")


def take_over(prepared: Prepared, folder: StudyFolder) -> None:
    """Clear up after an earlier run, and refuse what cannot be compared with it; as `sweep.tune` does."""
    end_leftovers(folder.processes, even_owned=True)
    remarks = [*set_aside_broken(folder.path), *check_record(prepared)]
    remarks += folder.adopt(prepared.fingerprint, prepared.config.model_dump(mode="json"), prepared.redactor)
    for line in remarks:
        say(line)


def export(folder: Path, out: Path, study: Path, command: str) -> None:
    """The compact copy: one Parquet file a table, and `recording.json` with the command, the study file's settings and
    the fingerprint. Paths of this machine become names in it. Raises HostError.
    """
    settings = json.loads((folder / "study.json").read_text())
    fingerprint = json.loads((folder / "fingerprint.json").read_text())
    plain = without_paths(str(fingerprint["model"]), folder)
    fingerprint["hostname"] = None
    pack(folder, out, tables=EXPORTED, plain=plain, metadata={"recorded_by": command, "hostname": "not told"})
    launches = read_trials(folder)
    started_s = [one.started_wall_s for one in launches]
    content = {
        "command": command,
        "study_file": study.name,
        "launches": len(launches),
        "configurations": len({flags_key(one.flags) for one in launches}),
        "hours": round((max(started_s) - min(started_s)) / 3600, 2),
        "fingerprint": fingerprint,
        "settings": settings,
    }
    write_atomically(out / "recording.json", plain(json.dumps(content, indent=2) + "\n").encode())
    say(f"{out}: {len(launches)} launches, {sum(path.stat().st_size for path in out.iterdir()) / 1e6:.1f} MB")


def without_paths(model: str, folder: Path) -> Callable[[str], str]:
    """A function that makes names of the paths that say where this was recorded."""
    known = {model: Path(model).name, str(folder.absolute()): folder.name, sys.executable: "python"}
    known |= {sys.prefix: "venv", str(Path.cwd()): ".", str(Path.home()): "~"}

    def plain(text: str) -> str:
        for path, name in known.items():
            text = text.replace(path, name)
        return text

    return plain


def words(flags: Flags) -> str:
    return " ".join(f"{name}={value}" for name, value in flags.items())


def told(result: TrialResult) -> str:
    """How a launch went, in one line."""
    if result.failure is not None:
        return f"{result.status}, {result.failure.failure_class} after {result.total_s:.0f} s"
    rounds = "; ".join(
        f"{one.request_rate_per_s:g}/s: {one.duration_s:.0f} s, TTFT p95 {one.p95_ttft_ms:.0f}, "
        f"TPOT p95 {one.p95_tpot_ms:.0f} ms, running {one.peak_running:.0f}, KV {one.peak_kv_usage_share:.0%}, "
        f"preempted {one.preemptions:.0f}"
        for one in result.rounds
        if None not in (one.request_rate_per_s, one.p95_ttft_ms, one.p95_tpot_ms, one.peak_running)
    )
    more = f" ({'; '.join(result.disturbances)})" if result.disturbances else ""
    return f"{result.status} in {result.total_s:.0f} s, start {result.startup_s:.0f} s; {rounds}{more}"


def say(line: str, where: TextIO | None = None) -> None:
    print(line, file=where or sys.stdout, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
