"""Ports and environment of a trial."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sweep.errors import HostError
from sweep.server import child_environment, new_api_key, port_free, reserve_port
from sweep.server import ports as ports_module

ROOT = Path(__file__).parents[1]
GREEDY = """
import sys
from pathlib import Path
from sweep.server import reserve_port
held = [reserve_port(folder=Path(sys.argv[1])) for _ in range(12)]
print([one.port for one in held], flush=True)
sys.stdin.read()
"""


def test_no_two_processes_get_the_same_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # All of them choose from few ports, so that they would collide.
    monkeypatch.setattr(ports_module, "_LOWEST", 21_000)
    monkeypatch.setattr(ports_module, "_HIGHEST", 21_040)
    script = f"import sweep.server.ports as p; p._LOWEST, p._HIGHEST = 21000, 21040\n{GREEDY}"
    others = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        for _ in range(2)
    ]
    mine = [reserve_port(folder=tmp_path) for _ in range(12)]
    taken = [one.port for one in mine]
    for other in others:
        assert other.stdout is not None
        taken += json.loads(other.stdout.readline())
    assert len(taken) == len(set(taken)) == 36
    for one in mine:
        one.release()
        one.release()
    for other in others:
        other.communicate()
    assert not list(tmp_path.iterdir()) or len(list(tmp_path.iterdir())) <= 24  # the killed leave files, no locks
    with reserve_port(folder=tmp_path) as again:
        assert again.port in range(21_000, 21_041)


def test_port_lies_outside_the_ephemeral_range() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    with reserve_port() as reservation:
        assert not low <= reservation.port <= high


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_port_with_a_listener_is_not_free(address: str) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as vLLM's
        listener.bind((address, 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not port_free("127.0.0.1", port)
        assert not port_free("0.0.0.0", port)
    assert port_free("127.0.0.1", port)


def test_connections_that_linger_do_not_count() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        served, _ = listener.accept()
        served.close()  # closed first by the server: its side goes to TIME_WAIT
        assert client.recv(1) == b""
        client.close()
    assert port_free("127.0.0.1", port)


def test_lock_folder_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    (tmp_path / "target").mkdir()
    (tmp_path / f"sweep-ports-{os.getuid()}").symlink_to(tmp_path / "target")
    with pytest.raises(HostError, match="belongs to somebody else"):
        reserve_port()


def environment(base: dict[str, str], *, visible: str | None = None, **extra: str) -> dict[str, str]:
    return child_environment(base, visible_devices=visible, extra=extra, api_key="k")


def test_users_own_variables_stay() -> None:
    base = {"HF_TOKEN": "hf", "PYTHONPATH": "/mine", "LD_LIBRARY_PATH": "/cuda", "OMP_NUM_THREADS": "8"}
    assert base.items() <= environment(base).items()


def test_threads_of_ray_go_and_those_of_the_study_stay() -> None:
    worker = {"OMP_NUM_THREADS": "1", "RAY_JOB_ID": "1"}
    assert "OMP_NUM_THREADS" not in environment(worker)
    assert environment(worker, OMP_NUM_THREADS="4")["OMP_NUM_THREADS"] == "4"


@pytest.mark.parametrize(("visible", "expected"), [(None, "0,1"), ("3", "3"), ("", "")])
def test_visible_devices(visible: str | None, expected: str) -> None:
    assert environment({"CUDA_VISIBLE_DEVICES": "0,1"}, visible=visible)["CUDA_VISIBLE_DEVICES"] == expected


def test_no_devices_are_made_up() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in environment({})


def test_key_of_the_trial_wins_over_the_users() -> None:
    env = environment({"VLLM_API_KEY": "users", "OPENAI_API_KEY": "users"}, VLLM_API_KEY="of the study")
    assert env["VLLM_API_KEY"] == env["OPENAI_API_KEY"] == "k"


def test_key_is_random() -> None:
    assert new_api_key() != new_api_key()
    assert len(new_api_key()) > 30


def test_proxy_is_kept_for_downloads_but_not_for_loopback() -> None:
    assert "no_proxy" not in environment({})
    env = environment({"HTTPS_PROXY": "http://proxy:3128", "no_proxy": "intranet"})
    assert env["HTTPS_PROXY"] == "http://proxy:3128"
    assert env["no_proxy"].split(",") == ["intranet", "127.0.0.1", "localhost", "::1"]
    assert "127.0.0.1" in env["NO_PROXY"].split(",")
