"""What spoils a measurement: how long a card must be held back, what is usual on a machine, whose an XID is."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fake_study
import pytest
from fake_nvml import FakeNvml

from sweep.config import load
from sweep.gpu import DeviceReading, Gpus, TelemetrySampler, XidEvent, judge, usual_throttling
from sweep.journal import read_progress
from sweep.prepare import Prepared, prepare
from sweep.redact import Redactor
from sweep.runner import TrialOutcome, run_trial, usual_of
from sweep.store import Store
from sweep.trial import TrialKind, TrialSpec

pytest_plugins = ["fake_nvml"]

HOT = "hw_thermal_slowdown"


def reading(index: int, *reasons: str) -> DeviceReading:
    return DeviceReading(0.0, index, throttle_reasons=reasons)


def samples(pattern: str, reason: str = HOT) -> list[DeviceReading]:
    """One reading of card 0 a character: `x` is held back, `.` is not, `?` did not answer."""
    return [DeviceReading(0.0, 0) if one == "?" else reading(0, *[reason] * (one == "x")) for one in pattern]


@pytest.mark.parametrize(
    ("pattern", "disturbed"),
    [
        ("x", False),  # one sample is no episode, however short the load
        ("....x....", False),
        ("xx" + "." * 98, False),
        ("x." * 50, True),
        ("x..x......", True),
        ("xxx" + "." * 997, True),  # three seconds in a row, whatever the length
        ("xx?x" + "." * 997, True),  # a sample without an answer ends no episode
        ("xx.xx" + "." * 95, False),
        ("xx.xx.x" + "." * 93, True),
        ("." * 60, False),
        ("", False),
    ],
)
def test_an_episode_or_a_share_disturbs_and_a_glitch_does_not(pattern: str, disturbed: bool) -> None:
    assert bool(judge(samples(pattern)).disturbances) is disturbed
    assert bool(usual_throttling(samples(pattern))) is disturbed


@pytest.mark.parametrize("reason", ["hw_slowdown", "sw_thermal_slowdown", HOT, "hw_power_brake"])
def test_the_rule_is_one_for_heat_power_and_hardware(reason: str) -> None:
    name = reason.replace("_", " ")
    assert judge(samples("xxx....", reason)).disturbances == (f"GPU 0: {name} for 3 of 7 samples",)
    assert judge(samples("..x....", reason)).disturbances == ()


def test_a_cap_on_power_in_software_is_how_a_card_runs() -> None:
    assert judge(samples("xxxxxx", "sw_power_cap")).disturbances == ()


def test_a_machine_that_throttles_in_its_baseline_does_not_disturb_every_trial() -> None:
    usual = usual_throttling(samples("xxxx......"))
    assert usual == {HOT: 0.4}
    same = judge(samples("xxx......."), usual=usual)
    assert same.disturbances == ()
    assert same.remarks == ("GPU 0: hw thermal slowdown for 3 of 10 samples; usual on this machine: in the baseline "
                            "for 40%",)  # fmt: skip
    worse = judge(samples("xxxxx....."), usual=usual)
    assert worse.disturbances == ("GPU 0: hw thermal slowdown for 5 of 10 samples, in the baseline for 40%",)
    # Another reason than that of the baseline is judged as if there were none.
    assert judge(samples("xxx.......", "hw_power_brake"), usual=usual).disturbances != ()


def test_a_trial_that_was_held_back_less_than_the_baseline_is_remarked() -> None:
    found = judge(samples("." * 20), usual={HOT: 0.4})
    assert found.disturbances == ()
    assert found.remarks == (
        "hw thermal slowdown for 0% of the samples, in the baseline for 40%: some of the difference may be the "
        "machine's",
    )
    assert judge([], usual={HOT: 0.4}).remarks == ()  # nothing was sampled


def test_the_usual_is_that_of_the_device_that_had_most() -> None:
    both = [one for _ in range(4) for one in (reading(0, HOT), reading(1))] + [reading(1, HOT)] * 3
    assert usual_throttling(both) == {HOT: 1.0}


def test_findings_are_counted_by_device_and_reason() -> None:
    readings = [
        *[reading(2, HOT, "hw_slowdown")] * 3,
        *[reading(2, "hw_slowdown")] * 3,
        reading(2, "sw_power_cap", "gpu_idle"),
        *[reading(0, "hw_power_brake", "sw_thermal_slowdown")] * 2,
        DeviceReading(0.0, 2),  # did not answer
        *[DeviceReading(0.0, 1, mig_index=3, throttle_reasons=("sw_thermal_slowdown",))] * 2,
        reading(3),
    ]
    assert judge(readings).disturbances == (
        "GPU 0: hw power brake for 2 of 2 samples",
        "GPU 0: sw thermal slowdown for 2 of 2 samples",
        "GPU 1 MIG 3: sw thermal slowdown for 2 of 2 samples",
        "GPU 2: hw slowdown for 3 of 7 samples",
        "GPU 2: hw thermal slowdown for 3 of 7 samples",
    )


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68])
def test_errors_that_a_program_causes_are_the_trials_own(xid: int) -> None:
    found = judge((), [XidEvent(0.0, 1, xid)])
    assert found.disturbances == ()
    assert found.remarks == (f"GPU 1: XID error {xid}, an error that the program on the card causes: this trial's own",)


@pytest.mark.parametrize("xid", [48, 63, 74, 79, 94, 119])
def test_errors_of_the_hardware_disturb(xid: int) -> None:
    events = [XidEvent(0.0, None, xid), XidEvent(1.0, 2, xid), XidEvent(2.0, 2, xid)]
    found = judge((), events)
    assert found.disturbances == (f"a GPU: XID error {xid}", f"GPU 2: XID error {xid}, 2 times")
    assert found.remarks == ()


def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.005)


def test_a_sampled_load(nvml: FakeNvml) -> None:
    with Gpus() as gpus, TelemetrySampler(gpus, gpus.devices[:2], interval_s=0.02) as sampler:

        def more(count: int) -> None:
            seen = sampler.telemetry.samples
            until(lambda: sampler.telemetry.samples >= seen + count)

        more(3)
        nvml.write("throttle 1 40", "xid 1 0 31", "xid 2 0 79")
        more(5)
        nvml.write("throttle 1 4", "xid 1 0 31", "xid 2 0 79")
        more(2)
        told = sampler.stop()
    found = judge(told.devices, told.xids or ())
    hot = sum(HOT in (row.throttle_reasons or ()) for row in told.devices)
    assert hot >= 4
    assert found.disturbances == (
        f"GPU 1: hw thermal slowdown for {hot} of {told.samples} samples",
        "GPU 0: XID error 79",
    )
    assert found.remarks == ("GPU 0: XID error 31, an error that the program on the card causes: this trial's own",)


def run(prepared: Prepared, number: int) -> TrialOutcome:
    """A trial on card 1 whose load takes two samples at least; the baseline is stored."""
    env = {"FAKE_VLLM": json.dumps({"ttft_ms": 2, "itl_ms": 700})}
    setup = dataclasses.replace(prepared.setup, server_env=env, client_env=env, uses_gpus=True, retry_wait_s=0.0)
    kind = TrialKind.SEARCH if number else TrialKind.BASELINE
    spec = TrialSpec(number, kind, {"max-num-seqs": 64, "gpu-memory-utilization": 0.8})
    with Gpus() as gpus:
        usual = usual_of(setup.folder) if number else None
        return run_trial(spec, setup, redactor=Redactor({}), gpus=gpus, usual=usual)


@pytest.mark.night
def test_a_hot_machine_through_a_baseline_and_a_trial(
    nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    content = fake_study.study(tmp_path, load={"num_prompts": 4, "warmup_prompts": 0})
    path = fake_study.write(tmp_path / "study.yaml", content)
    with Gpus() as gpus:
        prepared = prepare(load(path), path, tmp_path / "results" / "night", gpus)
    nvml.write("throttle 1 20")
    baseline = run(prepared, 0)
    assert baseline.result.attempts == 2  # disturbed, and still when it was repeated
    assert len(baseline.result.disturbances) == 1
    assert baseline.result.disturbances[0].startswith("GPU 1: sw thermal slowdown for ")
    store = Store(prepared.setup.folder, prepared.schema, metadata={}, redactor=Redactor({}), reserve_bytes=0)
    store.append(baseline.result, engine_summary={}, telemetry=baseline.telemetry)
    assert usual_of(prepared.setup.folder) == {"sw_thermal_slowdown": 1.0}
    assert usual_of(tmp_path) == {}
    with ThreadPoolExecutor(1) as beside:
        shot = beside.submit(run, prepared, 1)
        aim_at_load(prepared.setup.folder)
        nvml.write("throttle 1 20", "xid 1 1 45")
        trial = shot.result()
    assert trial.result.attempts == 1
    assert trial.result.disturbances == ()
    about = [remark for remark in trial.result.remarks if remark.startswith("GPU 1: ")]
    assert about[0].endswith("; usual on this machine: in the baseline for 100%")
    assert about[1].startswith("GPU 1: XID error 45, ")
    assert [event.detail for event in trial.result.events if event.kind == "device"] == about


def aim_at_load(folder: Path) -> None:
    """Wait until trial 1 is loaded; the fake's servers have no engine process, so look at the journal only."""

    def there() -> bool:
        now = read_progress(folder / "logs" / "0001")
        return now is not None and now.phase == "load"

    until(there, 120.0)
