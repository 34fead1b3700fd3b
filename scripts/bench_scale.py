"""How a study grows: trials a minute for 1, 4, 16 and 64 at once, and after 10,000 trials; and a node that dies.

    python scripts/bench_scale.py [--json FILE] [--quick]

Trials are virtual (see `scale_world`): the driver's own work is real and timed, Ray's is measured in a study of real
Ray Tune trials that do nothing. `efficiency_16` is the throughput of 16 trials at once of 60 s each against 16 times
that of one; `trials_per_minute_N` are of trials of 5 s. `regret_N` is how far the best true score of 60 trials is
from the optimum when N run at once, the mean over seeds. `driver_rss_gib_10000` adds up what the record of 10,000
trials takes and what Ray keeps of each. `orphans` and `lost_rows` are of a real study of the fake on a cluster of
three nodes, one of which is killed under load.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "scripts")]

import fake_study  # noqa: E402
from clusters import cluster  # noqa: E402
from figures import tell  # noqa: E402
from hits import lasting  # noqa: E402
from scale_world import BEST, long_night, night, ray_cost  # noqa: E402
from waiting import until  # noqa: E402

from sweep.journal import read_progress  # noqa: E402
from sweep.store import read_trials  # noqa: E402

TRIALS = 6


def virtual(ray_s: float, *, quick: bool) -> dict[str, float]:
    """What the driver can keep busy."""
    trials = 96 if quick else 400
    keys: dict[str, float] = {}
    for concurrent in (1, 4, 16, 64):
        whole = night(trials, concurrent, 5.0, seed=1, ray_s=ray_s)
        keys[f"trials_per_minute_{concurrent}"] = whole.per_minute
        keys[f"driver_busy_share_{concurrent}"] = whole.driver_s / whole.virtual_s
    # The first trial runs alone, the last ones leave room: over many trials neither counts.
    count = 161 if quick else 641
    one, many = night(count, 1, 60.0, seed=1, ray_s=ray_s), night(count, 16, 60.0, seed=1, ray_s=ray_s)
    keys["efficiency_16"] = many.per_minute / one.per_minute / 16
    for concurrent in (1, 4, 16):
        seeds = range(3 if quick else 20)
        found = [night(60, concurrent, 60.0, seed=seed).best for seed in seeds]
        keys[f"regret_{concurrent}"] = statistics.fmean(found) / BEST - 1.0
    return keys


def faults(home: Path) -> dict[str, float]:
    """A real study on real nodes, one of which dies under load."""
    content = fake_study.study(
        home,
        fake=lasting("load"),
        study={"trials": TRIALS},
        load={"num_prompts": 4, "warmup_prompts": 1},
        resources={"cpus": 0.5, "custom": {"slot": 1}},
        confirm={"candidates": 0, "drift": False},
    )
    path, results = fake_study.write(home / "study.yaml", content), home / "results" / "night"
    with cluster() as nodes:
        nodes.add("one", "two")
        words = [sys.executable, "-m", "sweep.tune", str(path), "--ray-address", nodes.address]
        driver = subprocess.Popen(
            words, env=fake_study.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

        def loaded() -> str:
            """The node that is to be killed: that of a trial of the search which has begun its load."""
            for trial in (2, 3):
                now = read_progress(results / "logs" / f"{trial:04d}")
                if now is not None and now.phase == "load":
                    return "two"
            return ""

        until(lambda: driver.poll() is not None or loaded(), "a load on a node", 120)
        nodes.kill("two")
        text, _ = driver.communicate(timeout=180)
        time.sleep(1.0)
        orphans = len(fake_study.processes_with(str(home / "model")))
    trials = read_trials(results)
    if driver.returncode != 0:
        print(text)
    wanted = sum(one.kind in ("baseline", "search") for one in trials)
    return {"orphans": float(orphans), "lost_rows": float(TRIALS - wanted)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    began_s = time.monotonic()
    suggest_ms, rss = long_night(10_000, 3 if given.quick else 15)
    ray_s, ray_gib = ray_cost(80 if given.quick else 600, 2)
    keys = {"suggest_ms_at_10000": suggest_ms, "driver_rss_gib_10000": rss + 10_000 * ray_gib}
    keys |= {"ray_ms_per_trial": ray_s * 1000.0} | virtual(ray_s, quick=given.quick)
    with tempfile.TemporaryDirectory() as folder:
        keys |= faults(Path(folder))
    tell({**keys, "took_s": time.monotonic() - began_s}, given.json)


if __name__ == "__main__":
    main()
