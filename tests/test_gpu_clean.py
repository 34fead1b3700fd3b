"""The gate before a launch: who is on the device, what is left in its memory, and what a person is told."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_nvml import FakeNvml

from sweep.gpu import Gpus
from sweep.gpu.host import command_of

pytest_plugins = ["fake_nvml"]

ABSENT = 999_999_999  # above every process id Linux gives


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "77"]) as process:
        yield process
        process.kill()


def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)


def test_a_foreign_process_is_named(nvml: FakeNvml, sleeper: subprocess.Popen[bytes]) -> None:
    with Gpus() as gpus:
        baseline = gpus.baseline()
        nvml.write(f"process 1 {sleeper.pid} 20480 0")
        verdict = gpus.wait_until_clean(gpus.devices, baseline, timeout_s=0.1, poll_s=0.05)
        assert not verdict.clean
        assert verdict.waited_s >= 0.1
        assert [state.clean for state in verdict.devices] == [True, False, True, True]
        (process,) = verdict.foreign
        assert (process.pid, process.command, process.memory_gib, process.index) == (
            sleeper.pid,
            "sleep 77",
            20,
            1,
        )
        assert verdict.message == (f"process {sleeper.pid} (sleep 77) holds 20.0 GiB on GPU 1 (after 0 s of waiting)")
        assert verdict.memory_before_gib == pytest.approx(20)
        assert gpus.wait_until_clean([gpus.devices[0]], baseline, timeout_s=0).clean
        own = gpus.wait_until_clean(gpus.devices, baseline, timeout_s=0, own_pids={sleeper.pid})
        assert own.foreign == ()
        assert f"held by our own process {sleeper.pid}" in (own.message or "")


def test_a_process_without_memory_is_enough(nvml: FakeNvml) -> None:
    with Gpus() as gpus:
        baseline = gpus.baseline()
        nvml.write(f"ghost 0 {ABSENT} -1")
        verdict = gpus.wait_until_clean(gpus.devices, baseline, timeout_s=0)
        assert verdict.message == (
            f"process {ABSENT} (not visible from here, perhaps in another container) holds an unknown amount"
            " on GPU 0 (after 0 s of waiting)"
        )
        assert gpus.wait_until_clean(gpus.devices, baseline, timeout_s=0, own_pids=[ABSENT]).clean


def test_memory_that_falls_slowly_is_waited_for(nvml: FakeNvml, sleeper: subprocess.Popen[bytes]) -> None:
    with Gpus() as gpus:
        baseline = gpus.baseline()
        nvml.write(f"process 0 {sleeper.pid} 40960 0.4", f"process 3 {sleeper.pid} 40960 0.4")
        assert gpus.read()[0].memory_used_gib == pytest.approx(40.44, abs=0.01)
        sleeper.kill()
        sleeper.wait()
        verdict = gpus.wait_until_clean(gpus.devices, baseline, timeout_s=20, poll_s=0.02)
        assert verdict.clean
        assert verdict.message is None
        assert 0.2 < verdict.waited_s < 20
        assert verdict.memory_before_gib is not None
        assert verdict.memory_before_gib <= 0.5


def test_memory_that_never_falls_is_said(nvml: FakeNvml, sleeper: subprocess.Popen[bytes]) -> None:
    with Gpus() as gpus:
        baseline = gpus.baseline()
        nvml.write(f"process 2 {sleeper.pid} 12288 -1")
        sleeper.kill()
        sleeper.wait()
        verdict = gpus.wait_until_clean(gpus.devices, baseline, timeout_s=0.1, poll_s=0.05)
        assert verdict.foreign == ()
        assert [state.index for state in verdict.dirty] == [2]
        assert verdict.message == (
            "GPU 2 has 12.0 GiB more in use than its baseline of 0.4 GiB, held by no process the driver names"
            " (after 0 s of waiting)"
        )
        assert verdict.memory_before_gib == pytest.approx(12)
        assert gpus.wait_until_clean(gpus.devices, baseline, timeout_s=0, tolerance_gib=12.1).clean


def test_a_baseline_does_not_count_somebody_elses_job(nvml: FakeNvml) -> None:
    nvml.write(f"ghost 0 {ABSENT} 20480", f"ghost 0 {ABSENT} 1024", f"ghost 1 {ABSENT} -1")
    with Gpus() as gpus:
        # Listed twice, for two contexts: the larger figure is the process's.
        assert gpus.baseline([gpus.devices[0]])[0].used_gib == pytest.approx(1.44, abs=0.01)
        nvml.write(f"ghost 0 {ABSENT} 20480")
        assert gpus.baseline()[0].used_gib == pytest.approx(0.44, abs=0.01)


def test_many_reasons_make_one_bounded_line(nvml: FakeNvml) -> None:
    with Gpus() as gpus:
        baseline = gpus.baseline()
        nvml.write(*(f"ghost {i} {ABSENT + i} 1024" for i in range(4)), f"ghost 0 {ABSENT + 9} 1024")
        message = gpus.wait_until_clean(gpus.devices, baseline, timeout_s=0).message
        assert message is not None
        assert message.count("holds 1.0 GiB") == 4
        assert "; and 1 more (after 0 s" in message


def test_memory_that_cannot_be_read_keeps_a_device_from_being_clean(nvml: FakeNvml) -> None:
    with Gpus() as gpus:
        baseline = gpus.baseline()
        nvml.write("error 0 nvmlDeviceGetMemoryInfo 999")
        verdict = gpus.wait_until_clean(gpus.devices[:1], baseline, timeout_s=0)
        assert not verdict.clean
        assert "Unknown Error" in (verdict.message or "")


@pytest.fixture
def daemon() -> Iterator[subprocess.Popen[bytes]]:
    """What a search by its command takes for the server of MPS."""
    with subprocess.Popen(["/usr/bin/nvidia-cuda-mps-server", "77"], executable="/bin/sleep") as process:
        yield process
        process.kill()


def test_an_mps_server_is_named_and_let_be(nvml: FakeNvml, daemon: subprocess.Popen[bytes]) -> None:
    with Gpus() as gpus:
        baseline = gpus.baseline()
        nvml.write(f"process 1 {daemon.pid} 300 0")
        for timeout_s in (0.0, 5.0):
            verdict = gpus.wait_until_clean(gpus.devices, baseline, timeout_s=timeout_s, poll_s=0.02)
            assert verdict.clean, verdict.message
            assert verdict.foreign == ()
            assert [str(process) for process in verdict.daemons] == [
                f"process {daemon.pid} (/usr/bin/nvidia-cuda-mps-server 77) holds 0.3 GiB on GPU 1"
            ]


def test_an_mps_server_belongs_to_the_resting_device(nvml: FakeNvml, daemon: subprocess.Popen[bytes]) -> None:
    nvml.write(f"process 1 {daemon.pid} 900 0")
    with Gpus() as gpus:
        baseline = gpus.baseline()
        assert baseline[1].used_gib == pytest.approx(1.32, abs=0.01)
        assert gpus.wait_until_clean(gpus.devices, baseline, timeout_s=0, poll_s=0.02).clean


def test_an_mps_server_that_holds_much_or_grows_or_has_a_user_is_in_the_way(
    nvml: FakeNvml, daemon: subprocess.Popen[bytes], sleeper: subprocess.Popen[bytes]
) -> None:
    with Gpus() as gpus:
        baseline = gpus.baseline()
        nvml.write(f"process 1 {daemon.pid} 2048 0")
        much = gpus.wait_until_clean(gpus.devices, baseline, timeout_s=0, poll_s=0.02)
        assert f"process {daemon.pid} (/usr/bin/nvidia-cuda-mps-server 77) holds 2.0 GiB" in (much.message or "")
        nvml.write(f"process 1 {daemon.pid} 200 0", f"process 1 {sleeper.pid} 100 0")
        used = gpus.wait_until_clean(gpus.devices, baseline, timeout_s=0, poll_s=0.02)
        assert [process.pid for process in used.foreign] == [sleeper.pid]
        assert [process.pid for process in used.daemons] == [daemon.pid]
        assert not used.clean
        nvml.write(f"process 1 {daemon.pid} 100 0")
        with ThreadPoolExecutor(1) as beside:
            waiting = beside.submit(gpus.wait_until_clean, gpus.devices, baseline, timeout_s=0, poll_s=0.3)
            time.sleep(0.1)
            nvml.write(f"process 1 {daemon.pid} 180 0")
            assert not waiting.result().clean


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--api-key", "abc123", "--port", "1"], "--api-key [redacted] --port 1"),
        (["--hf-token=abc123"], "--hf-token=[redacted]"),
        (["HF_TOKEN=abc123"], "HF_TOKEN=[redacted]"),
        (["hf_abcdefghijkl0123456789abcd"], "[redacted]"),
        (["https://me:pass@host/x"], "https://me:[redacted]@host/x"),
        (["of-this-environment"], "[redacted]"),
        (["--max-num-batched-tokens", "2048"], "--max-num-batched-tokens 2048"),
        (["--tokenizer", "/models/x", "--key-cache", "4"], "--tokenizer /models/x --key-cache 4"),
    ],
)
def test_commands_are_shown_without_secrets(arguments: list[str], shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "of-this-environment")
    code = "import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-S", "-c", code, *arguments]) as process:
        until(lambda: "time.sleep" in (command_of(process.pid) or ""))
        assert command_of(process.pid) == f"{sys.executable} -S -c {code} {shown}"
        process.kill()
    assert command_of(process.pid) is None
