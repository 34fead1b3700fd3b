"""What spoils a round, judged from its record: a late client, one without CPU to spare, hot devices, odd cache hits."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sweep.records import RoundRecord
from sweep.runner.round_checks import client_late, cold_start, unexpected_hits, with_telemetry
from sweep.store import TelemetryRow
from sweep.trial import Phase


def a_round(**changes: Any) -> RoundRecord:
    usual = RoundRecord(1, 0, 10.0, 8.0, 12.0, 4.0, 5, 5, 0, 20)
    return dataclasses.replace(usual, **changes)


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ((0.1, 0.3, 0.25), ""),
        ((0.1, 0.31, 0.5), "31% in round 2, 50% in round 3"),
        ((0.5, 0.0, None), ""),
        ((None, 0.9), ""),
    ],
)
def test_hits_that_no_prompt_explains(shares: tuple[float | None, ...], said: str) -> None:
    rounds = [dataclasses.replace(a_round(), round=number, prefix_hit_share=s) for number, s in enumerate(shares)]
    remarks = unexpected_hits(rounds)
    assert len(remarks) == bool(said)
    assert said in "".join(remarks)


@pytest.mark.parametrize(
    ("tpots_ms", "rates", "said"),
    [
        ((31.0, 17.0, 20.0), (4.0, 4.0, 4.0), "1.7 times"),
        ((25.0, 17.0, 20.0), (4.0, 4.0, 4.0), ""),
        ((148.0, 60.0, 20.0, 70.0), (8.0, 8.0, 4.0, 8.0), "2.3 times"),
        ((148.0, 20.0), (8.0, 4.0), ""),  # another rate is another load
        ((148.0,), (4.0,), ""),
        ((None, 20.0), (4.0, 4.0), ""),
        ((148.0, None), (4.0, 4.0), ""),
        ((), (), ""),
    ],
)
def test_a_server_that_was_still_cold(tpots_ms: tuple[float | None, ...], rates: tuple[float, ...], said: str) -> None:
    rounds = [a_round(p50_tpot_ms=tpot, request_rate_per_s=rate) for tpot, rate in zip(tpots_ms, rates, strict=True)]
    remarks = cold_start(rounds)
    assert len(remarks) == bool(said)
    assert said in "".join(remarks)


@pytest.mark.parametrize(
    ("lag_ms", "ttft_ms", "late"),
    [
        (45.0, 20.0, False),  # the worst that 2 shared cores showed
        (99.0, 20.0, False),
        (101.0, 20.0, True),
        (149.0, 150.0, False),
        (151.0, 150.0, True),
        (249.0, 5000.0, False),
        (251.0, 5000.0, True),
        (251.0, None, True),
        (None, 20.0, False),
    ],
)
def test_how_late_a_client_may_send(lag_ms: float | None, ttft_ms: float | None, late: bool) -> None:
    reason = client_late(a_round(p99_lag_ms=lag_ms, p50_ttft_ms=ttft_ms), 250.0)
    assert (reason is not None) is late
    assert client_late(a_round(p99_lag_ms=60.0, p50_ttft_ms=ttft_ms), 50.0) is not None
    if reason is not None:
        assert f"{lag_ms:.0f} ms late" in reason


def test_a_client_without_cpu_to_spare_is_remarked() -> None:
    def seen(*percents: float) -> list[TelemetryRow]:
        # Before 10 s the client still starts, which takes all of a core; after 18 s the round is over.
        starting = TelemetryRow(9.5, Phase.LOAD, 1, client_cpu_percent=100.0)
        after = TelemetryRow(18.5, Phase.LOAD, 1, client_cpu_percent=100.0)
        rows = [TelemetryRow(11.0 + at, Phase.LOAD, 1, client_cpu_percent=p) for at, p in enumerate(percents)]
        return [starting, *rows, after, TelemetryRow(12.0, Phase.LOAD, 2, client_cpu_percent=100.0)]

    busy, remark = with_telemetry(a_round(), seen(99.0, 98.0, 10.0), None)
    assert busy.client_cpu_percent == pytest.approx(69.0)
    assert remark is not None
    assert "69 %" in remark
    idle, remark = with_telemetry(a_round(), seen(99.0, 3.0, 4.0, 98.0), None)
    assert idle.client_cpu_percent == pytest.approx(51.0)
    assert remark is None
    assert with_telemetry(a_round(), [], None) == (a_round(), None)


def test_a_device_that_is_held_back_spoils_its_round_alone() -> None:
    rows = [
        TelemetryRow(10.5 + at, Phase.LOAD, 1, device=0, throttle_reasons=("hw_thermal_slowdown",)) for at in range(4)
    ]
    hot, _ = with_telemetry(a_round(), rows, None)
    assert hot.disturbed == ("GPU 0: hw thermal slowdown for 4 of 4 samples",)
    assert with_telemetry(a_round(began_at_s=30.0), rows, None)[0].disturbed == ()
