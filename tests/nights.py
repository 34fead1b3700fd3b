"""A study of the fake in a folder of its own, run through the command, whose servers tell what they were given."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_study
from studies import Studies

from sweep.store import StoredTrial, read_trials

# A server's command that first tells what it was given: environment, words and priority, one file a server.
WITNESS = """
import json, os, sys, time
if "VLLM_API_KEY" in os.environ:
    with open(os.path.join(sys.argv[1], str(os.getpid())), "w") as file:
        json.dump({"env": dict(os.environ), "argv": sys.argv[2:], "nice": os.nice(0)}, file)
    # All but the first wait for one another, to be there at one time.
    patience = 2800
    while 1 < len(os.listdir(sys.argv[1])) < int(os.environ.get("WITNESS_WAIT", "0")) and patience:
        patience -= 1
        time.sleep(0.1)
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclasses.dataclass
class Night:
    """A study in a folder of its own; `run` types the command once more."""

    home: Path
    content: dict[str, Any]

    def __post_init__(self) -> None:
        self.seen.mkdir(parents=True)
        script = self.home / "witness.py"
        script.write_text(WITNESS)
        self.content["serve"]["command"] = [
            sys.executable,
            str(script),
            str(self.seen),
            *self.content["serve"]["command"],
        ]

    @property
    def seen(self) -> Path:
        return self.home / "seen"

    @property
    def folder(self) -> Path:
        return self.home / "results" / "night"

    @property
    def trials(self) -> tuple[StoredTrial, ...]:
        return read_trials(self.folder)

    def servers(self) -> list[dict[str, Any]]:
        """What each server so far was given, in no order."""
        return [json.loads(path.read_text()) for path in self.seen.iterdir()]

    def run(self, *options: str, **extra: str) -> subprocess.CompletedProcess[str]:
        path = fake_study.write(self.home / "study.yaml", self.content)
        done = fake_study.tune(path, *options, timeout_s=240.0, XDG_CACHE_HOME=str(self.home / "cache"), **extra)
        assert "Traceback" not in done.stdout + done.stderr
        assert fake_study.processes_with(str(self.home)) == []
        return done

    def share(self, studies: Studies, *options: str) -> subprocess.CompletedProcess[str]:
        """`run` in a fork on the cluster of all tests: it starts no Ray and imports nothing anew."""
        path = fake_study.write(self.home / "study.yaml", self.content)
        errors = self.home / "errors.txt"
        errors.unlink(missing_ok=True)
        env = {"XDG_CACHE_HOME": str(self.home / "cache")}
        driver = studies.start(path, self.folder, *options, env=env, errors=errors)
        done = subprocess.CompletedProcess(["sweep.tune"], driver.wait(600.0), driver.text(), errors.read_text())
        assert "Traceback" not in done.stdout + done.stderr
        assert fake_study.processes_with(str(self.home)) == []
        return done

    def join(self, address: str, *options: str) -> subprocess.CompletedProcess[str]:
        """`run` on a Ray that is up. It asks for a token; who gives its address has to say so."""
        return self.run("--ray-address", address, *options, RAY_AUTH_MODE="token")
