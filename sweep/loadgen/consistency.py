"""Whether a result agrees with itself, with the client's own figures, and with the clock on the wall.

`result_file` finds what the client leaves when something breaks; this finds what no working client could write:
another unit, another file, a clock that jumped.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from sweep.errors import LoadFailed
from sweep.loadgen.command import LoadJob
from sweep.records import RequestRecord

_SHARE, _SLACK_S = 0.1, 1.0
# A token count made from the text may differ from the one asked for by a few.
_TOKENS_SHARE, _TOKENS = 0.05, 4
_LATE_S = 5.0


def check_consistency(
    job: LoadJob,
    requests: Sequence[RequestRecord],
    duration_s: float,
    figures: Mapping[str, float | None],
    took_s: float,
) -> None:
    """Raise LoadFailed unless `requests` can have been measured in a client run of `took_s` seconds.

    Checked: TTFT plus all gaps is E2EL; streams have gaps; no more tokens than asked for; no request longer than the
    run, which lasted from the first send to the last token; sends near their plan; the client's own means are ours.
    """
    done = [request for request in requests if request.error is None]
    for request in done:
        _check_request(request, took_s)
    if any((r.asked_output_tokens or 0) > 2 for r in done) and not any(gap > 0 for r in done for gap in r.itl_ms):
        raise _wrong("implausible_latency", "no request has a gap between two tokens")
    _check_duration(done, duration_s, took_s)
    _check_sends(job, done)
    if len(done) == len(requests):
        _check_means(done, figures)


def _check_request(request: RequestRecord, took_s: float) -> None:
    ttft_ms, e2el_ms = request.ttft_ms or 0.0, request.e2el_ms or 0.0
    parts_ms = ttft_ms + math.fsum(request.itl_ms)
    if request.itl_ms and not math.isclose(parts_ms, e2el_ms, rel_tol=_SHARE, abs_tol=_SLACK_S * 1000.0 * _SHARE):
        raise _wrong(
            "result_malformed",
            f"request {request.index} took {e2el_ms:.0f} ms, but its TTFT and gaps add up to {parts_ms:.0f} ms",
        )
    if e2el_ms / 1000.0 > took_s + _SLACK_S:
        raise _wrong(
            "result_malformed", f"request {request.index} took {e2el_ms / 1000.0:.1f} s of a run of {took_s:.1f} s"
        )
    asked, got = request.asked_output_tokens, request.output_tokens
    if asked is not None and got is not None and got > asked * (1 + _TOKENS_SHARE) + _TOKENS:
        raise _wrong("result_malformed", f"request {request.index} has {got} tokens, but asked for {asked}")


def _check_duration(done: Sequence[RequestRecord], duration_s: float, took_s: float) -> None:
    ends = [r.start_s + r.e2el_ms / 1000.0 for r in done if r.start_s is not None and r.e2el_ms is not None]
    starts = [r.start_s for r in done if r.start_s is not None]
    least_s = max(ends) - min(starts) if ends else 0.0
    if not least_s - _SLACK_S <= duration_s * (1 + _SHARE) or duration_s > took_s + _SLACK_S:
        raise _wrong(
            "result_malformed",
            f"the duration is {duration_s:.3f} s, but requests cover {least_s:.3f} s of a run of {took_s:.1f} s",
        )


def _check_sends(job: LoadJob, done: Sequence[RequestRecord]) -> None:
    lags_s = [lag_ms / 1000.0 for r in done if (lag_ms := r.lag_ms) is not None]
    if job.max_concurrency is None and lags_s and statistics.median(lags_s) > _LATE_S:
        raise _wrong("requests_differ", f"half of the requests left {statistics.median(lags_s):.1f} s late and more")


def _check_means(done: Sequence[RequestRecord], figures: Mapping[str, float | None]) -> None:
    ours = {
        "mean_ttft_ms": statistics.fmean(r.ttft_ms or 0.0 for r in done),
        "mean_e2el_ms": statistics.fmean(r.e2el_ms or 0.0 for r in done),
    }
    for name, own in ours.items():
        theirs = figures.get(name)
        if theirs is not None and not math.isclose(own, theirs, rel_tol=_SHARE):
            raise _wrong("result_malformed", f"{name} is {theirs:.2f}, but the requests make it {own:.2f}")


def _wrong(reason: str, message: str) -> LoadFailed:
    return LoadFailed(reason, message, exit_code=0)
