"""Results of `vllm bench sweep` as a study: stored as ours are, so that `sweep.report` can rank them.

A combination is a trial, its runs are the rounds. Requests are there where the sweep was run with `--save-detailed`;
without them a trial keeps the figures of its runs: rates of all runs together, latencies as the mean over its runs.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sweep.atomic_file import WriteFailed, write_atomically
from sweep.errors import HostError, UserError
from sweep.exchange.params import flag_of
from sweep.exchange.results import Combination
from sweep.flags import printable, render
from sweep.metric_table import LATENCIES, RATES
from sweep.metrics import summarize
from sweep.records import EngineConfig, RequestRecord, RoundRecord
from sweep.redact import Redactor
from sweep.store import Schema, Store, flag_type, read_trials
from sweep.study_folder import StudyFolder
from sweep.trial import Failure, Flag, TrialKind, TrialResult, TrialSpec, TrialStatus

_PERCENTILES = (50.0, 90.0, 95.0, 99.0)
_STATS = ("mean", "median", "std", *(f"p{p:g}" for p in _PERCENTILES))
_METRICS = (*(f"{stat}_{stem}_ms" for stem in LATENCIES for stat in _STATS), *RATES)
_LISTS = ("input_lens", "output_lens", "ttfts", "itls", "errors")


@dataclass(frozen=True, slots=True)
class Imported:
    """A study that was made: its folder, how many trials it has, and how many of them hold their requests."""

    folder: Path
    trials: int
    detailed: int


def store_study(
    combinations: Sequence[Combination], results: Path, name: str, *, baseline: int, source: str
) -> Imported:
    """Make the study `results/name` of combinations of one load. `baseline` is the place of today's flags among them.

    Raises UserError where there is such a study already, or a run's file is no result, and HostError where it cannot be
    written.
    """
    ordered = [combinations[baseline], *(one for place, one in enumerate(combinations) if place != baseline)]
    names = list(dict.fromkeys(flag for one in ordered for flag in one.serve.flags))
    points = [{flag: flag_of(one.serve.flags.get(flag)) for flag in names} for one in ordered]
    trials = [_trial(number, one, points[number]) for number, one in enumerate(ordered)]
    schema = Schema({flag: flag_type(point[flag] for point in points) for flag in names}, _METRICS)
    if not trials[0].metrics:
        raise UserError("today's flags, the first combination, were not measured: choose others with --baseline N")
    with StudyFolder.open(results, name) as held:
        if read_trials(held.path):
            raise UserError(f"{held.path} holds a study already: choose another --name")
        try:
            store = Store(held.path, schema, metadata={"imported_from": source}, redactor=Redactor({}))
            for one in trials:
                store.append(one, engine_summary={})
            text = json.dumps(_settings(name, ordered[0], len(trials), source), indent=2) + "\n"
            write_atomically(held.path / "study.json", text.encode())
        except WriteFailed as error:
            raise HostError(str(error)) from error
        return Imported(held.path, len(trials), sum(bool(one.requests) for one in trials))


def _settings(name: str, first: Combination, trials: int, source: str) -> dict[str, Any]:
    return {"study": {"name": name, "trials": trials}, "imported_from": source, "bench_params": first.bench.flags}


def _trial(number: int, one: Combination, flags: Mapping[str, Flag]) -> TrialResult:
    spec = TrialSpec(number, TrialKind.SEARCH if number else TrialKind.BASELINE, flags)
    model = str(one.runs[0].get("model_id", "MODEL")) if one.runs else "MODEL"
    rounds = tuple(_round(place, run) for place, run in enumerate(one.runs))
    requests = tuple(request for place, run in enumerate(one.runs) for request in _requests(place, run))
    load_s = math.fsum(part.duration_s for part in rounds)
    metrics: dict[str, float | None] | None = None
    remarks = ["imported: the flags of --serve-cmd are not in the results of vllm bench sweep"]
    failure: Failure | None = None
    answered = any(part.completed for part in rounds)
    if answered and requests:
        found = summarize(requests, load_s, percentiles=_PERCENTILES, slo={})
        metrics = {name: found.get(name) for name in _METRICS}
    elif answered:
        metrics = {name: _of_runs(name, one.runs, rounds) for name in _METRICS}
        remarks.append(f"no --save-detailed: latencies are the means over {len(rounds)} runs of each run's own figures")
    else:
        why = one.failure or "no request was answered"
        failure = Failure("other", "load", why, "see the log of vllm bench sweep", False, False, "give_up")
    return TrialResult(
        spec=spec,
        status=TrialStatus.FAILED if metrics is None else TrialStatus.COMPLETE,
        metrics=metrics,
        score=None,
        failure=failure,
        requests=requests,
        engine=(),
        engine_config=EngineConfig(),
        events=(),
        command=printable(["vllm", "serve", model, *render(one.serve.flags)]),
        attempts=1,
        started_wall_s=_began_s(one.runs),
        startup_s=None,
        load_s=load_s if metrics is not None else None,
        total_s=load_s,
        remarks=tuple(remarks),
        rounds=rounds,
    )


def _round(place: int, run: Mapping[str, Any]) -> RoundRecord:
    duration_s, completed = run.get("duration"), run.get("completed")
    if not isinstance(duration_s, (int, float)) or not duration_s > 0 or not isinstance(completed, int):
        raise UserError(
            f"run {place} holds no duration and number of completed requests: no result of vllm bench serve"
        )
    rate = run.get("request_rate")
    prompts = run.get("num_prompts")
    failed = run.get("failed", prompts - completed if isinstance(prompts, int) else 0)
    return RoundRecord(
        attempt=1,
        round=place,
        began_at_s=0.0,
        duration_s=float(duration_s),
        took_s=float(duration_s),
        request_rate_per_s=float(rate) if isinstance(rate, (int, float)) else None,
        prompts=completed + failed,
        completed=completed,
        failed=failed,
        output_tokens=int(run.get("total_output_tokens") or 0),
        p50_ttft_ms=_number(run.get("median_ttft_ms")),
        p95_ttft_ms=_number(run.get("p95_ttft_ms")),
        p50_tpot_ms=_number(run.get("median_tpot_ms")),
        p95_tpot_ms=_number(run.get("p95_tpot_ms")),
        p50_e2el_ms=_number(run.get("median_e2el_ms")),
        p95_e2el_ms=_number(run.get("p95_e2el_ms")),
    )


def _requests(place: int, run: Mapping[str, Any]) -> list[RequestRecord]:
    """The requests of a run; none where it was not made with --save-detailed."""
    if any(not isinstance(run.get(name), list) for name in _LISTS):
        return []
    rows = list(zip(*(run[name] for name in _LISTS), strict=False))
    if {len(run[name]) for name in _LISTS} != {len(rows)}:
        raise UserError(f"run {place} has lists of different lengths: no whole result of vllm bench serve")
    starts = run.get("start_times")
    known = isinstance(starts, list) and len(starts) == len(rows)
    first_s = min(starts, default=0.0) if known and isinstance(starts, list) else 0.0
    found = []
    for index, (asked, tokens, ttft_s, gaps_s, error) in enumerate(rows):
        failed = bool(error) or (ttft_s == 0 and tokens == 0)
        gaps_ms = () if failed else tuple(1000.0 * gap for gap in gaps_s)
        ttft_ms = None if failed else 1000.0 * ttft_s
        found.append(
            RequestRecord(
                round=place,
                index=index,
                prompt_id=f"{index}",
                scheduled_s=None,
                start_s=starts[index] - first_s if known and isinstance(starts, list) else None,
                input_tokens=asked,
                output_tokens=None if failed else tokens,
                asked_output_tokens=None,
                ttft_ms=ttft_ms,
                itl_ms=gaps_ms,
                e2el_ms=None if ttft_ms is None else ttft_ms + math.fsum(gaps_ms),
                error=(str(error) or "failed")[:500] if failed else None,
            )
        )
    return found


def _of_runs(name: str, runs: Sequence[Mapping[str, Any]], rounds: Sequence[RoundRecord]) -> float | None:
    """A metric of several runs without their requests: None where a run has no figure for it."""
    load_s = math.fsum(part.duration_s for part in rounds)
    totals = {
        "request_throughput_per_s": sum(part.completed for part in rounds),
        "output_throughput_tokens_per_s": sum(part.output_tokens for part in rounds),
        "total_throughput_tokens_per_s": sum(
            part.output_tokens + int(run.get("total_input_tokens") or 0) for part, run in zip(rounds, runs, strict=True)
        ),
    }
    if name in totals:
        return totals[name] / load_s
    values = [_number(run.get(name.replace("p50_", "median_") if name.startswith("p50_") else name)) for run in runs]
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def _number(value: Any) -> float | None:
    # A load without an answer has 0.0 in every latency: nothing was measured.
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else None


def _began_s(runs: Sequence[Mapping[str, Any]]) -> float:
    for run in runs:
        try:
            return datetime.strptime(str(run.get("date")), "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    return 0.0
