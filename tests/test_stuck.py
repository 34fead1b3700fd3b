"""A server's process that hangs in the kernel and that nothing can end, in a whole study."""

from __future__ import annotations

import sys
from pathlib import Path

import fake_study
import pytest
from fake_nvml import FakeNvml, build, compiler
from hung_disk import hung_disk
from waiting import alive, json_file, until

from sweep.store import read_trials

pytestmark = pytest.mark.night

# On device 0 a child of the server hangs for good, as an engine in a driver.
HANGS = """
import json, os, sys
if "VLLM_API_KEY" in os.environ and os.environ["CUDA_VISIBLE_DEVICES"] == "0" and os.fork() == 0:
    with open(sys.argv[2], "w") as file:
        json.dump(os.getpid(), file)
    open(os.path.join(sys.argv[1], "anything"))
    os._exit(0)
os.execv(sys.argv[3], sys.argv[3:])
"""


def test_its_device_is_taken_out_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip("no C compiler to build the NVML library")
    fake = FakeNvml(build(tmp_path / "nvml"), tmp_path / "state")
    environment = {"LD_LIBRARY_PATH": str(fake.library.parent), "FAKE_NVML_STATE": str(fake.script)}
    script, disk, pid_file = tmp_path / "hangs.py", tmp_path / "disk", tmp_path / "pid"
    script.write_text(HANGS)
    content = fake_study.study(tmp_path, study={"trials": 2}, resources={"gpus": 1, "concurrent_trials": 1})
    words = [sys.executable, str(script), str(disk), str(pid_file), *content["serve"]["command"]]
    content["serve"] |= {"command": words, "stop_timeout_s": 0.5}
    path = fake_study.write(tmp_path / "study.yaml", content)
    try:
        with hung_disk(disk):
            # Two Rays are started one after the other, each with a worker that imports everything; the rest is 10 s.
            done = fake_study.tune(path, timeout_s=600, **environment)
            stuck = json_file(pid_file)
            assert alive([stuck])
    except OSError as error:
        pytest.skip(f"no file system that hangs: {error}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"trial 0: processes {stuck} survived SIGKILL" in done.stdout
    assert "GPU 0 stays busy and is taken out of the study; left: 1, 2, 3" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    trials = read_trials(tmp_path / "results" / "night")
    assert [(trial.number, str(trial.status), trial.attempts) for trial in trials] == [
        (0, "complete", 1),
        (1, "complete", 1),
    ]
    until(lambda: not alive([stuck]), "the end of what hung")
