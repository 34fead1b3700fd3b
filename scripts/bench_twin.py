"""How near the twin comes to real runs, and how long it takes.

    python scripts/bench_twin.py [--json FILE] [--quick] [--gpu-runs DIR] [--recording DIR ...]

`--gpu-runs` (default ../shared/data/gpu_runs) holds a folder a run with two files; every folder that has both is taken:

- `requests.jsonl`, one object a request: `input_toks`, `output_toks`, `arrival_time` (any clock), and on the engine's
  clock `queued_ts`, `first_token_ts`, `last_token_ts`, all in seconds. The clocks are aligned so that the request that
  reached the engine fastest took no time to; TTFT and E2EL count from `arrival_time`.
- `meta.json`: `engine_kwargs` with `max_num_seqs` and `max_num_batched_tokens`; where known `kv_cache` with
  `num_gpu_blocks`, `block_size`, `enable_prefix_caching`, and `resolved_config.scheduler_config` with
  `enable_chunked_prefill`, `async_scheduling`, `scheduler_reserve_full_isl`. Where not known: KV cache for all,
  vLLM's defaults.

`--recording` (default: the one in tests/data/landscape) is a study's folder under `results`, packed or not, or a folder
of such, of real vLLM on CPU, recorded with nothing else running: its complete trials and their requests, as this
project's store writes them. Each round of a trial is held against one of the same number; trials of equal flags are
repeats.

Keys: `gpu_run_error_max` and `gpu_holdout_error_median` (p50, p95, p99 of TTFT, TPOT, E2EL; fitted on the run, and on
the first third of its requests and held against the rest), `cpu_error_over_pair_difference`,
`cpu_error_vs_means_from_3`, `interval_coverage_90`, `sim_s_1000x200`, `space_minutes_2000x3`; null where there is
nothing to tell it from.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from twin_recording import QUICK, Recording, recordings, score  # noqa: E402

from sweep.errors import UserError  # noqa: E402
from sweep.twin import Costs, Engine, Load, Observation, fit, simulate  # noqa: E402
from sweep.twin.observation import FAMILIES, PERCENTILES  # noqa: E402

RECORDING = ROOT / "tests" / "data" / "landscape"
GPU_RUNS = ROOT.parent / "shared" / "data" / "gpu_runs"
# An 8B model on one large card, roughly; what a step costs does not change how long it takes to simulate.
COSTS = Costs(0.008, 2.5e-5, 1e-5, 5e-9, 1e-10, 0.01)


def read_gpu_run(folder: Path) -> tuple[Load, Engine, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Load, settings, TTFT and E2EL of one run, in order of arrival."""
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines() if line.strip()]
    rows.sort(key=lambda row: row["arrival_time"])
    arrival, queued, first, last = (
        np.array([row[name] for row in rows], np.float64)
        for name in ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
    )
    arrival = arrival - arrival[0]
    queued, first, last = queued - rows[0]["queued_ts"], first - rows[0]["queued_ts"], last - rows[0]["queued_ts"]
    arrival += (queued - arrival).min()
    begin = arrival[0]
    load = Load.of(
        arrival - begin, [row["input_toks"] for row in rows], np.array([row["output_toks"] for row in rows], np.int64)
    )
    return load, _gpu_engine(json.loads((folder / "meta.json").read_text())), first - arrival, last - arrival


def _gpu_engine(meta: dict[str, Any]) -> Engine:
    given, cache = meta["engine_kwargs"], meta.get("kv_cache") or {}
    resolved = (meta.get("resolved_config") or {}).get("scheduler_config") or {}
    blocks = cache.get("num_gpu_blocks")
    return Engine(
        max_num_seqs=given["max_num_seqs"],
        max_num_batched_tokens=given["max_num_batched_tokens"],
        kv_blocks=None if blocks is None else blocks - 1,
        block_size=cache.get("block_size") or 16,
        prefix_caching=cache.get("enable_prefix_caching", True),
        chunked_prefill=resolved.get("enable_chunked_prefill", True),
        whole_prompt=resolved.get("scheduler_reserve_full_isl", True),
        asynchronous=resolved.get("async_scheduling", True),
        replicas=given.get("data_parallel_size") or 1,
    )


def bench_gpu_run(folder: Path) -> dict[str, Any]:
    """Errors of one run, fitted on it and on its first third."""
    load, engine, ttft_s, e2el_s = read_gpu_run(folder)
    whole = Observation.of(load, engine, ttft_s, e2el_s)
    started = time.perf_counter()
    fitted = fit([whole])
    fit_s = time.perf_counter() - started
    simulation = simulate(load, fitted.engine(engine), fitted.costs)
    gaps = whole.request_gaps(simulation)[FAMILIES.index("e2el")]
    third = len(load) // 3
    early = fit([Observation.of(load, engine, ttft_s, e2el_s, first=third)])
    rest = Observation(load, engine, ttft_s, e2el_s, np.arange(len(load)) >= third)
    return {
        "run": folder.name,
        "fit_s": round(fit_s, 2),
        "simulations": fitted.simulations,
        "sharing": fitted.sharing,
        "costs": dict(zip(("a", "b", "c", "d", "e", "offset"), fitted.costs.array().tolist(), strict=True)),
        "errors": _table(whole.percentile_gaps(simulation)),
        "holdout_errors": _table(rest.percentile_gaps(simulate(load, early.engine(engine), early.costs))),
        "e2el_request_median": float(np.nanmedian(np.abs(np.expm1(gaps)))),
        "e2el_correlation": float(np.corrcoef(simulation.e2el_s, e2el_s)[0, 1]),
        "preemptions": simulation.engine.preemptions,
    }


def _table(gaps: np.ndarray[Any, Any]) -> dict[str, float]:
    return {
        f"p{rank:g}_{family}": round(float(math.expm1(gaps[i, j])), 5)
        for i, family in enumerate(FAMILIES)
        for j, rank in enumerate(PERCENTILES)
        if math.isfinite(gaps[i, j])
    }


def sim_s_1000x200() -> float:
    """Seconds for 1,000 requests of 200 tokens, 256 of them at once, on one core: the best of five, compiled before."""
    load = Load.of(np.zeros(1000), np.random.default_rng(0).integers(20, 800, 1000), 200)
    engine = Engine(max_num_seqs=256, kv_blocks=24_000)
    times = []
    for _ in range(6):
        started = time.perf_counter()
        simulate(load, engine, COSTS, max_concurrency=256)
        times.append(time.perf_counter() - started)
    return min(times[1:])


def space_minutes_2000x3(points: int, workers: int = 2) -> float:
    """Minutes for 2,000 settings x 3 arrival seeds of 300 requests on `workers` cores, from `points` of them."""
    with ProcessPoolExecutor(workers) as pool:
        # Let every worker load what is compiled before the clock runs.
        list(pool.map(_one_point, range(workers * 2)))
        started = time.perf_counter()
        list(pool.map(_one_point, range(points), chunksize=8))
        taken = time.perf_counter() - started
    return taken / points * 2000 / 60.0


def _one_point(number: int) -> float:
    rng = np.random.default_rng(number)
    engine = Engine(
        max_num_seqs=int(rng.integers(1, 33)) * 8,
        max_num_batched_tokens=int(rng.integers(1, 33)) * 256,
        kv_blocks=int(rng.uniform(20_000, 400_000)) // 16,
        block_size=16,
    )
    total = 0.0
    for seed in range(3):
        own = np.random.default_rng(seed)
        inputs = np.ceil(own.lognormal(5.0, 1.2, 300).clip(4, 1024)).astype(np.int64)
        outputs = np.ceil(own.lognormal(5.0, 1.0, 300).clip(4, 1024)).astype(np.int64)
        load = Load.of(np.cumsum(own.exponential(0.1, 300)), inputs, outputs)
        total += float(simulate(load, engine, COSTS).ttft_s.mean())
    return total


def bench_gpu(folder: Path) -> tuple[dict[str, float | None], list[dict[str, Any]]]:
    """The keys of the GPU runs, and the details."""
    found = sorted(path.parent for path in folder.glob("*/requests.jsonl") if (path.parent / "meta.json").exists())
    if not found:
        print(f"no GPU runs in {folder}: their keys are null")
        return {"gpu_run_error_max": None, "gpu_holdout_error_median": None}, []
    rows = [bench_gpu_run(run) for run in found]
    errors = [abs(error) for row in rows for error in row["errors"].values()]
    held = [abs(error) for row in rows for error in row["holdout_errors"].values()]
    return {"gpu_run_error_max": max(errors), "gpu_holdout_error_median": float(np.median(held))}, rows


def bench_cpu(found: Sequence[Recording], *, quick: bool) -> tuple[dict[str, float | None], dict[str, Any]]:
    """The keys of recordings on CPU, and the details."""
    return score(found, 2, QUICK, members=8) if quick else score(found, 20)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the keys and the details go")
    parser.add_argument("--quick", action="store_true", help="fewer draws and a part of the space, under a minute")
    parser.add_argument("--gpu-runs", type=Path, default=GPU_RUNS)
    parser.add_argument("--recording", type=Path, action="append", help="may be given several times")
    options = parser.parse_args(argv)
    found: list[Recording] = []
    for folder in options.recording or [RECORDING]:
        try:
            studies = recordings(folder)
        except UserError as mistake:
            parser.error(str(mistake))
        if not studies:
            parser.error(f"--recording {folder}: no study with a complete launch there, packed or not")
        found += studies

    gpu, rows = bench_gpu(options.gpu_runs)
    for row in rows:
        print(f"{row['run']}: fit {row['fit_s']} s, {row['simulations']} simulations")
        for name, error in row["errors"].items():
            print(f"  {name:9} {error:+8.2%}   first third, held against the rest {row['holdout_errors'][name]:+8.2%}")
        print(f"  E2EL by request: median {row['e2el_request_median']:.2%}, correlation {row['e2el_correlation']:.4f}")
    cpu, details = bench_cpu(found, quick=options.quick)
    keys: dict[str, float | None] = {
        **gpu,
        **cpu,
        "sim_s_1000x200": sim_s_1000x200(),
        "space_minutes_2000x3": space_minutes_2000x3(60 if options.quick else 2000),
    }
    for name, value in keys.items():
        print(f"{name:32} {'null' if value is None else format(value, '.4g')}")
    if options.json is not None:
        options.json.write_text(json.dumps({**keys, "gpu_runs": rows, "cpu": details}, indent=2) + "\n")


if __name__ == "__main__":
    main()
