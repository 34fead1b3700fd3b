"""The client's result file: read, checked against itself and against the plan, turned into requests.

The client ends with exit code 0 whatever happened (seen with 0.32.0: every answer a 500, two survivors of a dead
server, streams that end after a token), and an interrupted one leaves anything. So nothing is taken on trust.
"""

from __future__ import annotations

import collections
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from sweep.errors import LoadFailed
from sweep.loadgen.command import LoadJob
from sweep.metric_table import LATENCIES
from sweep.records import RequestRecord
from sweep.workload import Round

_ERROR_CHARS = 500
# With --ignore-eos a stream has exactly the tokens asked for. Where the server sent no count the client makes one from
# the text, which may be off by a few.
_FULL_SHARE = 0.95
_ORDER_FROM = 20  # requests from which on the order of prompt lengths says something
_TEMPLATE_TOKENS = 1024  # generous room for a chat template around a prompt
_FIGURE = re.compile(rf"^(mean|median|std|p[\d.]+)_({'|'.join(LATENCIES)})_ms$")
_RATE_NAMES = {
    "request_throughput": "request_throughput_per_s",
    "output_throughput": "output_throughput_tokens_per_s",
    "total_token_throughput": "total_throughput_tokens_per_s",
    "request_goodput": "goodput_per_s",
}


class _Result(BaseModel):
    """The part of the file that is used. 0.10.1 has no `failed`, `latencies` and `start_times`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    duration: Annotated[FiniteFloat, Field(gt=0)]
    completed: Annotated[int, Field(ge=0)]
    failed: int | None = None
    input_lens: tuple[int, ...]
    output_lens: tuple[int, ...]
    ttfts: tuple[float, ...]
    itls: tuple[tuple[float, ...], ...]
    errors: tuple[str | None, ...]
    latencies: tuple[float, ...] | None = None
    start_times: tuple[FiniteFloat, ...] | None = None

    def failed_at(self, index: int) -> bool:
        """Whether the client counted that request as failed: the file has no such flag, so by what it leaves."""
        silent = self.ttfts[index] == 0 and self.output_lens[index] == 0  # an error answer without a reason phrase
        return bool(self.errors[index]) or silent

    def e2el_s(self, index: int) -> float:
        """Send to last token. The sum is what the client itself would have stored."""
        return self.latencies[index] if self.latencies else self.ttfts[index] + math.fsum(self.itls[index])


def read_result(job: LoadJob) -> tuple[tuple[RequestRecord, ...], float, dict[str, float | None]]:
    """Requests in the planned order, duration in seconds and the client's own figures, if all checks are passed.

    A request that ended short of its tokens (under `--ignore-eos`, or without any) is a failed one here, although the
    client counts it as completed. Times are seconds since the first planned send: the client's clock has no common zero
    with ours, so it is set such that the request that left most punctually left on time.
    Raises LoadFailed with a reason of REASONS.
    """
    raw = _load(job.result_path)
    result = _parse(raw)
    _check_shape(result, len(job.plan.prompts))
    _check_latencies(result)
    requests = _requests(result, job)
    _check_success(result, requests, job)
    _check_lengths(requests, job)
    _check_order(requests, job.plan)
    return requests, result.duration, _figures(raw, requests)


def _load(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise LoadFailed("result_missing", f"the load client ended without writing {path.name}", exit_code=0) from None
    try:
        raw = json.loads(text)
    except ValueError as error:
        what = "is empty" if not text.strip() else f"is no JSON ({error})"
        raise _malformed(f"{path.name} {what}") from None
    if not isinstance(raw, dict):
        raise _malformed(f"{path.name} holds no JSON object")
    return raw


def _parse(raw: dict[str, Any]) -> _Result:
    try:
        return _Result.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _malformed(f"{place}: {first['msg']} ({error.error_count()} such faults)") from None


def _check_shape(result: _Result, planned: int) -> None:
    lists = {name: getattr(result, name) for name in ("input_lens", "output_lens", "ttfts", "itls", "errors")}
    lists |= {"latencies": result.latencies, "start_times": result.start_times}
    sizes = {name: len(values) for name, values in lists.items() if values is not None}
    if len(set(sizes.values())) > 1:
        raise _malformed("lists of different lengths: " + ", ".join(f"{name} {size}" for name, size in sizes.items()))
    if sizes["ttfts"] != planned:
        raise LoadFailed(
            "requests_differ", f"{planned} requests were planned, the result has {sizes['ttfts']}", exit_code=0
        )
    failed = sum(result.failed_at(index) for index in range(planned))
    if result.completed != planned - failed or result.failed not in (None, failed):
        raise _malformed(
            f"completed {result.completed} and failed {result.failed}, but {failed} of {planned} requests failed"
        )


def _check_latencies(result: _Result) -> None:
    for index, ttft in enumerate(result.ttfts):
        if result.failed_at(index):
            continue
        e2el = result.e2el_s(index)
        tpot = e2el - ttft if result.output_lens[index] > 1 else math.inf
        gaps = result.itls[index]
        good = 0 < ttft <= e2el < math.inf and tpot > 0 and all(0 <= gap < math.inf for gap in gaps)
        if not good:
            raise LoadFailed(
                "implausible_latency",
                f"request {index} counts as completed with TTFT {ttft:g} s, E2EL {e2el:g} s, "
                f"{result.output_lens[index]} tokens",
                exit_code=0,
            )


def _requests(result: _Result, job: LoadJob) -> tuple[RequestRecord, ...]:
    starts = result.start_times
    arrivals = job.plan.arrivals_s
    zero = None if starts is None else min(start - arrival for start, arrival in zip(starts, arrivals, strict=True))
    return tuple(
        _request(result, job, index, None if starts is None or zero is None else starts[index] - zero)
        for index in range(len(arrivals))
    )


def _request(result: _Result, job: LoadJob, index: int, start_s: float | None) -> RequestRecord:
    prompt = job.plan.prompts[index]
    tokens = result.output_lens[index]
    if result.failed_at(index):
        error: str | None = _last_line(result.errors[index] or "") or "no answer"
    elif tokens < (prompt.output_tokens * _FULL_SHARE if job.ignore_eos else 1):
        error = f"stream ended after {tokens} of {prompt.output_tokens} tokens"
    else:
        error = None
    return RequestRecord(
        round=job.number,
        index=index,
        prompt_id=prompt.prompt_id,
        scheduled_s=job.plan.arrivals_s[index],
        start_s=start_s,
        input_tokens=result.input_lens[index],
        output_tokens=None if result.failed_at(index) else tokens,
        asked_output_tokens=prompt.output_tokens,
        ttft_ms=None if error else result.ttfts[index] * 1000.0,
        itl_ms=() if error else tuple(gap * 1000.0 for gap in result.itls[index]),
        e2el_ms=None if error else result.e2el_s(index) * 1000.0,
        error=error,
    )


def _check_success(result: _Result, requests: Sequence[RequestRecord], job: LoadJob) -> None:
    floor = round(job.min_success_share * len(requests), 6)  # 59/60 of 60 are 59, not the 59.000000000000007 of floats
    for reason, good in (
        ("success_rate", result.completed),
        ("incomplete_outputs", sum(request.error is None for request in requests)),
    ):
        if good < floor or good == 0:
            errors = collections.Counter(request.error for request in requests if request.error is not None)
            error, times = errors.most_common(1)[0]
            raise LoadFailed(
                reason,
                f"{good} of {len(requests)} requests succeeded, {job.min_success_share:.1%} are needed; most often "
                f"({times} x): {error}",
                exit_code=0,
            )


def _check_lengths(requests: Sequence[RequestRecord], job: LoadJob) -> None:
    """An engine that dies after the first token of each stream leaves splendid numbers."""
    done = [request for request in requests if request.error is None and (request.asked_output_tokens or 0) > 1]
    stubs = sum((request.output_tokens or 0) <= 1 for request in done)
    if not job.ignore_eos and stubs * 2 > len(done):
        raise LoadFailed(
            "incomplete_outputs", f"{stubs} of {len(done)} streams ended after their first token", exit_code=0
        )


def _check_order(requests: Sequence[RequestRecord], plan: Round) -> None:
    """Prompt lengths as the server counted them must follow the planned ones.

    They need not be equal: a chat template adds to each, and another tokenizer may have been asked.
    """
    pairs = [
        (prompt.input_tokens, request.input_tokens)
        for prompt, request in zip(plan.prompts, requests, strict=True)
        if request.error is None and request.input_tokens is not None
    ]
    planned, sent = np.array(pairs, dtype=float).T
    middle, limit = float(np.median(planned)), float(np.median(sent))
    if not middle / 4 <= limit <= middle * 4 + _TEMPLATE_TOKENS:
        raise LoadFailed(
            "requests_differ", f"the median prompt has {limit:.0f} tokens, planned were {middle:.0f}", exit_code=0
        )
    if len(pairs) < _ORDER_FROM or np.std(planned) == 0:
        return
    if np.std(sent) == 0 or float(np.corrcoef(planned, sent)[0, 1]) < 0.5:
        raise LoadFailed("requests_differ", "prompts were not sent in the planned order", exit_code=0)


def _figures(raw: Mapping[str, Any], requests: Sequence[RequestRecord]) -> dict[str, float | None]:
    """The client's figures by our names. Where requests define one, it must be a positive number."""
    done = [request for request in requests if request.error is None]
    defined = {
        "ttft": bool(done),
        "e2el": bool(done),
        "tpot": any((request.output_tokens or 0) > 1 for request in done),
        "itl": any(request.itl_ms for request in done),
    }
    figures: dict[str, float | None] = {}
    for name, value in raw.items():
        if (match := _FIGURE.match(name)) is not None:
            stat, stem = match.groups()
            number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
            if defined[stem] and not (0 < number < math.inf or (stat == "std" and number == 0)):
                raise LoadFailed("implausible_latency", f"{name} is {value!r} in the result file", exit_code=0)
            figures[name] = float(number) if defined[stem] else None
        elif (rate := _RATE_NAMES.get(name)) is not None:
            figures[rate] = float(value) if isinstance(value, int | float) else None
    return figures


def _last_line(error: str) -> str:
    """Of a traceback the line that says what happened."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return lines[-1][:_ERROR_CHARS] if lines else ""


def _malformed(message: str) -> LoadFailed:
    return LoadFailed("result_malformed", message, exit_code=0)
