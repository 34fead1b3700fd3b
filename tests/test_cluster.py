"""Joining a Ray that is up: whoever cannot is told why, in a line."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fake_study
import pytest
from studies import Studies

pytestmark = pytest.mark.night


def refused(folder: Path, address: str, **environment: str) -> str:
    """The line with which a study on that cluster is refused."""
    path = fake_study.write(folder / "study.yaml", fake_study.study(folder))
    done = fake_study.tune(path, "--ray-address", address, timeout_s=400, **environment)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert not list((folder / "results" / "night" / "logs").glob("*/server-*.log"))
    return done.stderr.strip().splitlines()[-1]


def test_cluster_that_cannot_be_joined(studies: Studies, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nothing = f"127.0.0.1:{listener.getsockname()[1]}"
    asks = f"sweep: the Ray cluster at {studies.address} asks for a token: "
    how = "set RAY_AUTH_MODE=token, and its token in RAY_AUTH_TOKEN or ~/.ray/auth_token"
    another = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "not-the-one-of-this-cluster"}
    cases: list[tuple[str, dict[str, str], str]] = [
        (studies.address, {}, f"{asks}{how}"),
        (studies.address, another, f"{asks}the one given here is another; {how}"),
        (studies.address, {"RAY_AUTH_MODE": "token", "HOME": str(tmp_path)}, f"{asks}{how}"),
        (nothing, {}, f"sweep: no Ray cluster at {nothing}: Connection refused"),
        ("somewhere", {}, "sweep: no Ray cluster at somewhere: Invalid address format: somewhere"),
    ]
    with ThreadPoolExecutor(len(cases)) as pool:
        runs = [
            pool.submit(refused, tmp_path / str(number), address, **environment)
            for number, (address, environment, _) in enumerate(cases)
        ]
    assert [run.result() for run in runs] == [line for _, _, line in cases]
