"""What a study's time goes into beside vLLM's own start-up and the load, from the `events` of its trials.

    python scripts/bench_overhead.py [--json FILE] [--quick] [--study FOLDER ...]

Runs a study on the fake of vLLM, without --quick one on real servers of the CPU build, too (minutes), and kills servers
under load to see how soon that is noticed. `--study` looks at stored studies instead of running real ones.

The overhead of a trial is the time from its launch to the next one's, less its start-up (launch to ready), its warm-up
and its rounds (first send to last token); so the starts of the load client are overhead. `overhead_share_5min` is the
median overhead as a share of 300 s. `turnaround_s_median`: from the end of one server to the launch of the next.
`death_noticed_s_median`: from the moment a server is gone, under load, to the trial's stopping for it. The first two
are of real servers where there are any, otherwise of the fake; `fake` and `real` hold the parts of both.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "scripts")]

import fake_study  # noqa: E402
from build_toy_model import build  # noqa: E402
from rich.console import Console  # noqa: E402

from sweep.config import load  # noqa: E402
from sweep.errors import UserError  # noqa: E402
from sweep.gpu import Gpus  # noqa: E402
from sweep.prepare import prepare  # noqa: E402
from sweep.records import Event  # noqa: E402
from sweep.redact import Redactor  # noqa: E402
from sweep.runner import run_trial  # noqa: E402
from sweep.store import read_events, read_rounds, read_trials  # noqa: E402
from sweep.trial import TrialKind, TrialSpec, TrialStatus  # noqa: E402
from sweep.vllm_cpu import installed  # noqa: E402

SHARE_OF_S = 300.0
FLAGS = {"max-num-seqs": 64, "gpu-memory-utilization": 0.8}


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of one trial. `turnaround_s` and `overhead_s` are None for the last one, which no launch follows.

    `clients_s`: what the load client's runs took beside their loads. `stop_s`: from the last round to the server's end.
    """

    startup_s: float
    warmup_s: float
    load_s: float
    clients_s: float
    stop_s: float
    turnaround_s: float | None
    overhead_s: float | None


def spent(folder: Path) -> list[Spent]:
    """Where the time of each complete trial of a stored study went. Raises HostError for what cannot be read."""
    stored = [one for one in read_trials(folder) if one.status is TrialStatus.COMPLETE and one.attempts == 1]
    launches = sorted(
        at
        for one in read_trials(folder)
        if (at := _wall(read_events(folder, one.number), "phase", "start")) is not None
    )
    found = []
    for trial in stored:
        events, rounds = read_events(folder, trial.number), read_rounds(folder, trial.number)
        began, warm, loads, stops = (_wall(events, "phase", name) for name in ("start", "warmup", "load", "stop"))
        stopped = _wall(events, "stopped")
        if began is None or loads is None or stops is None or stopped is None or trial.startup_s is None:
            continue
        load_s = sum(one.duration_s for one in rounds)
        warmup_s = 0.0 if warm is None else loads - warm
        following = next((at for at in launches if at > began), None)
        overhead_s = None if following is None else following - began - trial.startup_s - warmup_s - load_s
        found.append(
            Spent(
                startup_s=trial.startup_s,
                warmup_s=warmup_s,
                load_s=load_s,
                clients_s=sum(one.took_s - one.duration_s for one in rounds),
                stop_s=stopped - stops,
                turnaround_s=None if following is None else following - stopped,
                overhead_s=overhead_s,
            )
        )
    return found


def _wall(events: Iterable[Event], kind: str, phase: str | None = None) -> float | None:
    """When the first such event was."""
    return next((one.wall_s for one in events if one.kind == kind and phase in (None, one.phase)), None)


def fake(home: Path, trials: int) -> Path:
    """A study of three rounds a trial on the fake of vLLM, run by `sweep.tune`."""
    content = fake_study.study(home, study={"trials": trials, "racing": False}, load={"rounds": 3})
    return _run(home, content, "night")


def real(home: Path, trials: int) -> Path:
    """The same on the installed vLLM, with a toy model."""
    build(home / "toy")
    content = {
        "study": {
            "name": "real",
            "trials": trials,
            "sampler": "random",
            "racing": False,
            "results": str(home / "results"),
        },
        "model": {"path": str(home / "toy"), "served_name": "toy"},
        "serve": {
            "flags": {"max-model-len": 2048, "enforce-eager": True, "dtype": "bfloat16", "block-size": 32},
            "env": {"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
            "startup_timeout_s": 300,
        },
        "search_space": {"parameters": {"max-num-seqs": {"type": "choice", "values": [8, 16, 32, 64]}}},
        "load": {"output_tokens": 16, "num_prompts": 60, "rounds": 3, "held_out_share": 0, "request_rate": 4},
        "baseline": {"max-num-seqs": 32},
        "confirm": {"candidates": 0, "drift": False, "second_looks": 0},
        "resources": {"gpus": 0},
    }
    content["serve"]["flags"]["gpu-memory-utilization"] = 0.1  # type: ignore[index]
    return _run(home, content, "real")


def _run(home: Path, content: dict[str, Any], name: str) -> Path:
    path = fake_study.write(home / f"{name}.yaml", content)
    done = fake_study.tune(path, timeout_s=1800)
    folder = home / "results" / name
    if not read_trials(folder):
        raise SystemExit(f"the study left nothing: {done.stderr[-500:]}")
    return folder


def deaths(home: Path, count: int) -> list[float]:
    """Seconds from a server's death under load to the trial's stopping for it, on the fake."""
    path = fake_study.write(home / "deaths.yaml", fake_study.study(home, load={"num_prompts": 60, "request_rate": 40}))
    found = []
    with Gpus() as gpus:
        setup = prepare(load(path), path, home / "results" / "deaths", gpus).setup
        for number in range(count):
            env = {"FAKE_VLLM": json.dumps({"ttft_ms": 2, "itl_ms": 0.2, "seed": 1, "die_at_request": 10})}
            one = dataclasses.replace(setup, server_env=env, client_env=env, max_retries=0)
            outcome = run_trial(TrialSpec(number, TrialKind.BASELINE, FLAGS), one, redactor=Redactor({}), gpus=gpus)
            gone = (one.log_folder(number) / "server-1.log").stat().st_mtime
            noticed = _wall(outcome.result.events, "phase", "stop")
            if outcome.result.failure is not None and noticed is not None:
                found.append(noticed - gone)
    return found


def summary(trials: Sequence[Spent]) -> dict[str, float | None]:
    """Medians of the parts, and the two keys."""
    parts: dict[str, float | None] = {}
    for name in Spent.__dataclass_fields__:
        values = [value for one in trials if (value := asdict(one)[name]) is not None]
        parts[f"{name}_median"] = median(values) if values else None
    overhead_s = parts["overhead_s_median"]
    return {
        "overhead_share_5min": None if overhead_s is None else overhead_s / SHARE_OF_S,
        **parts,
        "trials": len(trials),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="the fake alone")
    parser.add_argument("--study", type=Path, action="append", help="a stored study of real servers to look at")
    options = parser.parse_args(argv)
    home = Path(tempfile.mkdtemp(prefix="sweep-overhead-"))
    try:
        (home / "real").mkdir()
        found = {"fake": summary(spent(fake(home, 5 if options.quick else 9)))}
        if options.study:
            found["real"] = summary([one for folder in options.study for one in spent(folder)])
        elif not options.quick and installed() is not None:
            found["real"] = summary(spent(real(home / "real", 4)))
        noticed = deaths(home, 3 if options.quick else 10)
    except UserError as error:
        parser.error(str(error))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    told = found.get("real", found["fake"])
    content: dict[str, Any] = {
        "overhead_share_5min": told["overhead_share_5min"],
        "turnaround_s_median": told["turnaround_s_median"],
        "death_noticed_s_median": median(noticed) if noticed else None,
        "measured_on": "real" if "real" in found else "fake",
        **found,
    }
    console = Console(soft_wrap=True, highlight=False)
    for name, parts in found.items():
        console.print(f"{name} servers, {parts['trials']:g} trials, medians in seconds:")
        for part in Spent.__dataclass_fields__:
            value = parts[f"{part}_median"]
            console.print(f"  {part.removesuffix('_s'):12} {'-' if value is None else format(value, '.2f')}")
    for key in ("overhead_share_5min", "turnaround_s_median", "death_noticed_s_median"):
        console.print(f"{key}: {content[key] if content[key] is None else format(content[key], '.3f')}")
    if options.json is not None:
        options.json.write_text(json.dumps(content, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
