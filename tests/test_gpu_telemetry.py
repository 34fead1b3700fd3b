"""The sampler: rows of devices and host, its cost and its bounds."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from fake_nvml import FakeNvml

from sweep.gpu import Gpus, TelemetrySampler, disturbing
from sweep.gpu.host import HostClock
from sweep.gpu.values import throttle_names

pytest_plugins = ["fake_nvml"]


def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.005)


def test_a_throttled_load_is_told(nvml: FakeNvml) -> None:
    with Gpus() as gpus, TelemetrySampler(gpus, gpus.devices[1:3], interval_s=0.02) as sampler:
        until(lambda: sampler.telemetry.samples >= 3)
        nvml.write("throttle 2 48", "throttle 3 40", "xid 1 1 63")
        until(lambda: bool(sampler.telemetry.xids))
        seen = sampler.telemetry.samples
        until(lambda: sampler.telemetry.samples >= seen + 3)
        nvml.write("xid 1 1 63")
        told = sampler.stop()
    assert told.samples == len(told.host) == len(told.devices) // 2
    assert [reading.index for reading in told.devices[:4]] == [1, 2, 1, 2]
    rows = [reading for reading in told.devices if reading.index == 2]
    assert [row.monotonic_s for row in rows] == sorted({row.monotonic_s for row in rows})
    hot = sum("hw_thermal_slowdown" in (row.throttle_reasons or ()) for row in rows)
    assert 3 <= hot < len(rows)
    assert [(event.index, event.xid) for event in told.xids or ()] == [(1, 63)]
    assert 0 < told.cost_max_s <= told.cost_s
    assert told.cost_per_sample_s == pytest.approx(told.cost_s / told.samples)


def test_a_card_lost_under_load_leaves_empty_rows(nvml: FakeNvml) -> None:
    with Gpus() as gpus, TelemetrySampler(gpus, gpus.devices[:1], interval_s=0.02) as sampler:
        until(lambda: sampler.telemetry.samples >= 2)
        nvml.write("error 0 * 15")
        until(lambda: sampler.telemetry.devices[-1].temperature_c is None)
        told = sampler.stop()
        assert told.devices[0].temperature_c == 61
        assert told.devices[-1].throttle_reasons is None
        assert gpus.notice == "GPU 0 cannot be read: the GPU is lost; the machine may need a restart"


def test_a_stuck_driver_does_not_stop_the_sampler(nvml: FakeNvml) -> None:
    with Gpus(call_timeout_s=0.1) as gpus, TelemetrySampler(gpus, gpus.devices, interval_s=0.02) as sampler:
        until(lambda: sampler.telemetry.samples >= 1)
        nvml.write("hang 3 nvmlDeviceGetClockInfo 250")
        until(lambda: sampler.telemetry.devices[-1].temperature_c is None)
        nvml.write()
        until(lambda: sampler.telemetry.devices[-1].temperature_c == 61)
        assert sampler.stop().devices[-2].temperature_c == 61


def test_memory_is_bounded_and_no_throttling_is_lost(nvml: FakeNvml) -> None:
    nvml.write("throttle 0 20")
    with Gpus() as gpus, TelemetrySampler(gpus, gpus.devices[:1], interval_s=0.002, max_samples=4) as sampler:
        until(lambda: sampler.telemetry.samples >= 1)
        nvml.write("throttle 0 4")
        until(lambda: sampler.telemetry.samples >= 12)
        told = sampler.stop()
    assert len(told.devices) == len(told.host) <= 4
    assert told.samples >= 12
    assert told.devices[0].throttle_reasons == ("sw_thermal_slowdown", "sw_power_cap")
    assert told.devices[-1].throttle_reasons == ("sw_power_cap",)


def test_a_machine_without_gpus_has_host_rows() -> None:
    with Gpus() as gpus, TelemetrySampler(gpus, (), interval_s=0.03) as sampler:
        until(lambda: sampler.telemetry.samples >= 3)
        told = sampler.stop()
    assert told.devices == ()
    assert told.xids is None
    assert len(told.host) == told.samples
    assert all(row.ram_available_gib is not None and row.ram_available_gib > 0 for row in told.host)
    known = [row.cpu_percent for row in told.host if row.cpu_percent is not None]
    assert known
    assert all(0 <= percent <= 100 for percent in known)
    assert all(row.client_cpu_percent_of_core is None for row in told.host)


def test_a_sampler_runs_once_and_can_be_stopped_early() -> None:
    with Gpus() as gpus:
        idle = TelemetrySampler(gpus, ())
        assert idle.stop() == idle.stop()
        assert idle.stop().cost_per_sample_s is None
        with TelemetrySampler(gpus, (), interval_s=60) as sampler, pytest.raises(RuntimeError, match="once"):
            sampler.start()
        assert sampler.stop().samples <= 1
        with pytest.raises(ValueError, match="interval"):
            TelemetrySampler(gpus, (), interval_s=0)


def test_the_load_clients_share_of_a_core() -> None:
    code = "import sys\nfor _ in sys.stdin: sum(range(10_000_000))"
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, bufsize=0) as client:
        pids = [client.pid]
        clock = HostClock(lambda: pids)
        assert clock.read().client_cpu_percent_of_core is None  # nothing to compare with yet
        time.sleep(0.05)
        idle = clock.read().client_cpu_percent_of_core
        assert idle is not None
        assert client.stdin is not None
        client.stdin.write(b"go\n")
        until(lambda: (clock.read().client_cpu_percent_of_core or 0) > 0)
        pids.append(999_999_999)  # one that is gone does not hide the other
        time.sleep(0.05)
        busy = clock.read().client_cpu_percent_of_core
        assert busy is not None
        client.kill()
    time.sleep(0.02)
    assert clock.read().client_cpu_percent_of_core is None


def test_throttle_bits_have_names() -> None:
    assert throttle_names(0) == ()
    assert throttle_names(0x1 | 0x4 | 0x80) == ("gpu_idle", "sw_power_cap", "hw_power_brake")
    assert throttle_names(0x20 | 0x2000) == ("sw_thermal_slowdown", "bit_0x2000")


@pytest.mark.parametrize(
    ("bits", "disturbs"),
    [
        (0x01, False),
        (0x02, False),
        (0x04, False),
        (0x07, False),
        (0x08, True),
        (0x10, False),
        (0x20, True),
        (0x40, True),
        (0x41, True),
        (0x80, True),
        (0x100, False),
    ],
)
def test_what_disturbs(bits: int, disturbs: bool) -> None:
    assert disturbing(throttle_names(bits)) is disturbs


def test_unknown_throttling_is_not_a_disturbance() -> None:
    assert disturbing(None) is False
