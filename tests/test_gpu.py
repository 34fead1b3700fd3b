"""`Gpus` through the real `pynvml` and a compiled library, and on a machine without one."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import fake_nvml
import pytest
from fake_nvml import FakeNvml

from sweep.gpu import DeviceMemory, DeviceReading, Gpus
from sweep.gpu.lane import STUCK, Lane

pytest_plugins = ["fake_nvml"]

ABSENT = 999_999_999  # above every process id Linux gives


def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)


def test_a_machine_without_the_library() -> None:
    try:
        ctypes.CDLL(fake_nvml.LIBRARY)
    except OSError:
        pass
    else:
        pytest.skip("this machine has the NVIDIA library")
    with Gpus() as gpus:
        assert not gpus.available
        assert gpus.notice == ("no GPU readings: no NVIDIA driver here (libnvidia-ml.so.1 cannot be loaded)")
        assert gpus.devices == ()
        assert gpus.visible("0") == ()
        assert gpus.read() == ()
        assert gpus.baseline() == ()
        verdict = gpus.wait_until_clean((), (), timeout_s=5)
        assert verdict.clean
        assert verdict.memory_before_gib is None
        assert verdict.message is None
        watch = gpus.watch_xids(())
        assert watch.poll() is None
        watch.close()
    gpus.close()


def test_the_library_is_found_by_name(nvml_library: Path, tmp_path: Path) -> None:
    code = (
        "import json, os; from sweep.gpu import Gpus\n"
        "with Gpus() as gpus:\n"
        "    seen = [device.index for device in gpus.visible(os.environ['CUDA_VISIBLE_DEVICES'])]\n"
        "    print(json.dumps([gpus.notice, [d.name for d in gpus.devices], seen]))"
    )
    fake = FakeNvml(nvml_library, tmp_path / "state")
    fake.write("name 3 NVIDIA T1000")
    environment = {**fake.environment(), "CUDA_VISIBLE_DEVICES": "GPU-a6000002,GPU-a6000000"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    assert json.loads(done.stdout) == [None, ["NVIDIA RTX A6000"] * 3 + ["NVIDIA T1000"], [2, 0]]


@pytest.mark.usefixtures("nvml")
def test_four_idle_cards() -> None:
    with Gpus() as gpus:
        assert gpus.available
        assert gpus.notice is None
        assert [device.index for device in gpus.devices] == [0, 1, 2, 3]
        device = gpus.devices[2]
        assert device.name == "NVIDIA RTX A6000"
        assert device.uuid == "GPU-a6000002-1111-2222-3333-444444444442"
        assert device.memory_total_gib == pytest.approx(47.99, abs=0.01)
        assert (device.driver_version, device.cuda_version, device.mig) == ("550.54.14", "12.4", False)
        before_s = time.monotonic()
        (reading,) = gpus.read([device])
        assert before_s <= reading.monotonic_s <= time.monotonic()
        assert reading.index == 2
        assert reading.memory_used_gib == pytest.approx(450 / 1024)
        assert (reading.utilization_percent, reading.memory_utilization_percent) == (37, 12)
        assert (reading.sm_clock_mhz, reading.memory_clock_mhz) == (1800, 8001)
        assert (reading.power_w, reading.power_limit_w, reading.temperature_c) == (123.456, 300, 61)
        assert reading.throttle_reasons == ()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("error -1 nvmlInitWithFlags 9", "the NVIDIA driver is not loaded"),
        ("error -1 nvmlInitWithFlags 18", "updated while in use"),
        ("error -1 nvmlInitWithFlags 4", "no permission"),
        ("error -1 nvmlInitWithFlags 777", "fake error 777"),
        ("error -1 nvmlDeviceGetCount_v2 999", "Unknown Error"),
        ("devices 0", "it shows no GPU"),
    ],
)
def test_a_driver_that_gives_no_devices(nvml: FakeNvml, script: str, said: str) -> None:
    nvml.write(script)
    with Gpus() as gpus:
        assert not gpus.available
        assert gpus.devices == ()
        assert gpus.notice is not None
        assert said in gpus.notice
        assert "\n" not in gpus.notice


def test_a_library_that_lacks_the_newer_names(tmp_path: Path) -> None:
    newer = (
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetComputeRunningProcesses_v3",
    )
    fake = FakeNvml(fake_nvml.build(tmp_path / "older", missing=newer), tmp_path / "state")
    fake.write("throttle 0 41", f"ghost 0 {ABSENT} 1024")
    with fake.loaded(), Gpus() as gpus:
        reading = gpus.read()[0]
        assert reading.throttle_reasons == ("gpu_idle", "hw_thermal_slowdown")
        assert (reading.temperature_c, reading.power_limit_w) == (60, 290)
        verdict = gpus.wait_until_clean(gpus.devices, gpus.baseline(), timeout_s=0)
        assert [process.pid for process in verdict.foreign] == [ABSENT]
        assert gpus.notice is None


def test_a_library_that_lacks_calls_altogether(tmp_path: Path) -> None:
    gone = (
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetComputeRunningProcesses_v2",
        "nvmlDeviceGetMemoryInfo",
        "nvmlSystemGetCudaDriverVersion_v2",
        "nvmlDeviceGetMigMode",
        "nvmlEventSetCreate",
    )
    fake = FakeNvml(fake_nvml.build(tmp_path / "poor", missing=gone), tmp_path / "state")
    with fake.loaded(), Gpus() as gpus:
        reading = gpus.read()[0]
        assert reading.throttle_reasons is None
        assert reading.memory_used_gib is None
        assert reading.power_w == 123.456
        assert gpus.devices[0].cuda_version is None
        assert gpus.devices[0].memory_total_gib is None
        assert gpus.notice == ("not told by this device or driver and left empty: used memory, throttle reasons")
        # What nobody can tell is no reason not to launch.
        verdict = gpus.wait_until_clean(gpus.devices, gpus.baseline(), timeout_s=0)
        assert verdict.clean
        assert verdict.memory_before_gib is None
        watch = gpus.watch_xids(gpus.devices)
        assert watch.poll() is None
        assert "XID errors cannot be watched" in gpus.notices[0]


def test_a_library_too_old_to_open(tmp_path: Path) -> None:
    fake = FakeNvml(fake_nvml.build(tmp_path / "ancient", missing=("nvmlInitWithFlags",)), tmp_path / "state")
    with fake.loaded(), Gpus() as gpus:
        assert not gpus.available
        assert "too old" in (gpus.notice or "")


def test_an_error_of_one_call_empties_one_field(nvml: FakeNvml) -> None:
    nvml.write("error 1 nvmlDeviceGetPowerUsage 999", "error 1 nvmlDeviceGetClockInfo 3")
    with Gpus() as gpus:
        good, bad = gpus.read()[:2]
        assert (bad.power_w, bad.sm_clock_mhz, bad.memory_clock_mhz) == (None, None, None)
        assert bad.temperature_c == good.temperature_c == 61
        assert good.power_w == 123.456
        assert gpus.notice is not None
        assert "power (NVML says: Unknown Error) (GPU 1)" in gpus.notice
        assert "SM clock (GPU 1)" in gpus.notice


def test_a_card_that_falls_off_the_bus(nvml: FakeNvml) -> None:
    with Gpus() as gpus:
        baseline = gpus.baseline()
        nvml.write("error 1 * 15")
        readings = gpus.read()
        assert readings[1] == DeviceReading(readings[1].monotonic_s, 1)
        assert readings[0].temperature_c == readings[2].temperature_c == 61
        assert gpus.notice == "GPU 1 cannot be read: the GPU is lost; the machine may need a restart"
        verdict = gpus.wait_until_clean(gpus.devices, baseline, timeout_s=0)
        assert [state.index for state in verdict.dirty] == [1]
        assert verdict.message is not None
        assert verdict.message.startswith("GPU 1 cannot be read: the GPU is lost")
        assert gpus.baseline()[1] == DeviceMemory(1, None)
    with Gpus() as gpus:
        assert [device.index for device in gpus.devices] == [0, 2, 3]
        assert [device.index for device in gpus.visible("2,0")] == [2, 0]
        assert "GPU 1 cannot be read" in (gpus.notice or "")


def test_instances_of_a_card_in_mig_mode(nvml: FakeNvml) -> None:
    nvml.write("mig 1 2", "mig 2 0", f"ghost 1 {ABSENT} 1024")
    with Gpus() as gpus:
        labels = ["GPU 0", "GPU 1 MIG 0", "GPU 1 MIG 1", "GPU 2", "GPU 3"]
        assert [device.label for device in gpus.devices] == labels
        second = gpus.devices[2]
        assert (second.mig, second.mig_index, second.gpu_instance_id) == (True, 1, 8)
        assert second.parent_uuid == "GPU-a6000001-1111-2222-3333-444444444441"
        assert second.memory_total_gib == 12
        assert gpus.devices[3].mig
        assert "GPU 1 is in MIG mode: 2 instance(s) stand for the card" in gpus.notices
        assert "GPU 2 is in MIG mode: no instance that we may use" in gpus.notices
        assert gpus.visible(f"MIG-{second.parent_uuid}/8/0") == (second,)
        (reading,) = gpus.read([second])
        assert (reading.label, reading.utilization_percent) == ("GPU 1 MIG 1", None)
        assert reading.memory_used_gib == pytest.approx(1.02, abs=0.01)
        assert reading.temperature_c == 61
        assert "utilization (GPU 1 MIG 0, GPU 1 MIG 1)" in gpus.notices[-1]
        verdict = gpus.wait_until_clean([second], gpus.baseline([second]), timeout_s=0)
        assert "on GPU 1 MIG 1" in (verdict.message or "")


def test_a_call_that_hangs_costs_a_reading_and_no_more(nvml: FakeNvml) -> None:
    with Gpus(call_timeout_s=0.2) as gpus:
        nvml.write("hang 2 nvmlDeviceGetPowerUsage 800")
        readings = gpus.read()
        assert [reading.temperature_c for reading in readings] == [61, 61, None, 61]
        assert gpus.notice == "GPU 2 cannot be read: the driver does not answer; a call into it is stuck"
        verdict = gpus.wait_until_clean(gpus.devices, gpus.baseline(), timeout_s=0)
        assert [state.index for state in verdict.dirty] == [2]
        nvml.write()
        until(lambda: gpus.read()[2].temperature_c == 61)


def test_a_lane_takes_no_work_behind_a_stuck_call() -> None:
    lane, release, ran = Lane("lane-under-test"), threading.Event(), threading.Event()
    assert lane.ask(lambda: 7, 10) == 7
    assert lane.ask(release.wait, 0.01) == STUCK
    assert lane.submit(ran.set) == STUCK
    release.set()
    until(lambda: not lane.stuck)
    assert lane.ask(lambda: 8, 10) == 8
    assert not ran.is_set()
    lane.close()
    until(lambda: not any(thread.name == "lane-under-test" for thread in threading.enumerate()))


def test_closing_beside_a_stuck_call_does_not_touch_the_driver(nvml_library: Path, tmp_path: Path) -> None:
    with FakeNvml(nvml_library, tmp_path / "state").loaded() as nvml:
        gpus = Gpus(call_timeout_s=0.1)
        nvml.write("hang 0 nvmlDeviceGetPowerUsage 300")
        gpus.read()
        gpus.close()
        assert nvml.opened() == 1
        assert gpus.read()[0].temperature_c is None
        until(lambda: not any(thread.name.startswith("nvml-gpu") for thread in threading.enumerate()))
        ctypes.CDLL(str(nvml_library)).nvmlShutdown()


def test_a_driver_that_hangs_at_the_start_is_given_up_and_given_back(nvml: FakeNvml) -> None:
    nvml.write("hang -1 nvmlInitWithFlags 400")
    gpus = Gpus(open_timeout_s=0.1)
    assert gpus.devices == ()
    assert gpus.notice == "no GPU readings: the driver does not answer; a call into it is stuck"
    gpus.close()
    until(lambda: not any(thread.name == "nvml" for thread in threading.enumerate()))
    # The fixture sees that the late initialisation was undone.


def test_opening_twice_and_again(nvml: FakeNvml) -> None:
    nvml.write("devices 2")
    first, second = Gpus(), Gpus()
    assert nvml.opened() == 2
    first.close()
    first.close()
    assert nvml.opened() == 1
    assert len(second.devices) == 2
    assert second.read()[1].temperature_c == 61
    assert not first.available
    assert first.read()[1].temperature_c is None
    assert first.notice == "GPU 0 cannot be read: the GPUs were closed; GPU 1 cannot be read: the GPUs were closed"
    second.close()
    assert nvml.opened() == 0
    nvml.write("devices 4")
    with Gpus() as third:
        assert len(third.devices) == 4
        absent = third.devices[3]
    nvml.write("devices 3")
    with Gpus() as fourth:
        assert fourth.read([absent])[0].temperature_c is None
        assert "it was not there" in (fourth.notice or "")


def test_xid_errors_since_the_watch_began(nvml: FakeNvml) -> None:
    nvml.write("xid 1 0 31")
    with Gpus() as gpus:
        watch = gpus.watch_xids(gpus.devices[:3])
        assert watch.poll() == ()
        nvml.write("xid 1 0 31", "xid 2 2 79", "xid 3 3 48", "xid 4 1 13")
        events = watch.poll()
        assert events is not None
        assert [(event.index, event.xid) for event in events] == [(2, 79), (1, 13)]  # GPU 3 is not watched
        assert watch.poll() == ()
        nvml.write("error -1 nvmlEventSetWait_v2 15")
        assert watch.poll() is None
        assert "XID errors cannot be read: the GPU is lost" in (gpus.notice or "")
        watch.close()
        watch.close()
        assert watch.poll() is None


def test_cards_that_refuse_xid_events(nvml: FakeNvml) -> None:
    nvml.write("error 0 nvmlDeviceRegisterEvents 3")
    with Gpus() as gpus:
        watch = gpus.watch_xids(gpus.devices)
        assert watch.poll() == ()
        assert gpus.notice == "XID errors cannot be watched on GPU 0"
        watch.close()
        nothing = gpus.watch_xids(gpus.devices[:1])
        assert nothing.poll() is None
