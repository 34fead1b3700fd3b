"""The words of `LoadFailed.reason`, and what each means."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

REASONS: Mapping[str, str] = MappingProxyType(
    {
        "client_exit": "the load client ended with an error of its own",
        "timeout_load": "the load, or one of its requests, took longer than its limit",
        "no_progress": "no request was finished for as long as one may take",
        "server_died": "the server was gone before the load was over",
        "result_missing": "the load client wrote no result file",
        "result_malformed": "the result file is no result of a load, or contradicts itself",
        "implausible_latency": "a completed request has a latency that is zero, negative or not a number",
        "success_rate": "too many requests failed",
        "incomplete_outputs": "too many streams ended before the tokens that were asked for",
        "requests_differ": "what was sent is not what was planned",
    }
)
