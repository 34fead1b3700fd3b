"""The server module against the executable fake: ready means ready, and only ours is ever ready."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import alive, json_file, until

from sweep.errors import HostNotReady, ServerDied, ServerNotReady
from sweep.server import (
    Launch,
    PortReservation,
    VllmServer,
    child_environment,
    new_api_key,
    port_free,
    reserve_port,
)

FAKE = (sys.executable, str(Path(__file__).with_name("fake_vllm.py")), "serve", "/models/toy")


@pytest.fixture
def port() -> Iterator[PortReservation]:
    with reserve_port() as reservation:
        yield reservation


Start = Callable[..., VllmServer]


@pytest.fixture
def start(tmp_path: Path, port: PortReservation) -> Iterator[Start]:
    """Start a fake server with the given behaviour; stopped, with all it started, at the end."""
    servers: list[VllmServer] = []

    def run(fake: dict[str, Any], *, timeout_s: float = 300.0, served: str = "toy", **changes: Any) -> VllmServer:
        key = new_api_key()
        number = changes.get("port", port.port)
        # A proxy that leads nowhere must never be asked.
        base = {**os.environ, "http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
        launch = Launch(
            argv=(*FAKE, "--host", "127.0.0.1", "--port", str(number), "--served-model-name", "toy"),
            env=child_environment(base, visible_devices=None, extra={"FAKE_VLLM": json.dumps(fake)}, api_key=key),
            log_path=tmp_path / f"{len(servers)}.log",
            record_path=tmp_path / "records" / f"{len(servers)}.json",
            host="127.0.0.1",
            port=number,
            served_name=served,
            api_key=key,
            startup_timeout_s=timeout_s,
            stop_timeout_s=1.0,
        )
        servers.append(VllmServer.start(replace(launch, **changes)))
        return servers[-1]

    yield run
    for server in servers:
        server.stop(grace_s=0)


def give_up_in(server: VllmServer, seconds: float) -> float:
    """Give a server that many seconds more, however long its start took on a busy machine; returns its new timeout."""
    timeout_s = time.monotonic() - server.started_at + seconds
    server.launch = replace(server.launch, startup_timeout_s=timeout_s)
    return timeout_s


def listens(server: VllmServer) -> bool:
    return not port_free(server.launch.host, server.launch.port)


def test_one_life(tmp_path: Path, port: PortReservation, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    server = start({"start_delay_s": 0.3, "dump_argv": str(tmp_path / "argv")})
    waited: list[float] = []
    startup_s = server.wait_ready(waited.append)
    assert 0.3 < startup_s < 20
    assert waited
    assert waited == sorted(waited)
    assert server.healthy()
    assert server.exit_code() is None
    assert server.complete("Say something", 3, timeout_s=300)
    metrics = server.metrics_text() or ""
    # The completion of wait_ready and ours: 1 and 3 tokens.
    assert 'vllm:generation_tokens_total{engine="0",model_name="toy"} 4.0' in metrics.splitlines()
    report = server.stop()
    assert (report.exit_code, report.killed, report.left) == (0, False, ())
    assert port_free("127.0.0.1", port.port)
    assert not server.healthy()
    assert server.metrics_text() is None
    assert not server.complete("Anybody?", 1, timeout_s=1)
    assert server.stop() == report
    public = (tmp_path / "argv").read_text() + (tmp_path / "0.log").read_text() + repr(server.launch)
    assert server.launch.api_key not in public


def test_chat_stands_in_where_completions_are_absent(start: Start) -> None:
    server = start({"absent": ["/v1/completions"]})
    server.wait_ready()
    assert server.complete("Hello", 2, timeout_s=300)


def test_the_prefix_cache_is_emptied_once_its_blocks_are_free(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    server = start({"reset_refused": 3})
    server.wait_ready()

    def hits_of_two() -> float:
        for _ in range(2):
            assert server.complete("The same words again", 1, timeout_s=300)
        return float(re.findall(r"^vllm:prefix_cache_hits_total.* (\S+)$", server.metrics_text() or "", re.M)[0])

    once = hits_of_two()
    assert once > 0
    assert "still held" in (server.reset_prefix_cache(timeout_s=0.0) or "")
    assert server.reset_prefix_cache() is None
    assert hits_of_two() == 2 * once  # the first of these two found nothing


def test_a_server_that_does_not_empty_its_prefix_cache_says_so(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_SERVER_DEV_MODE", raising=False)
    server = start({})
    server.wait_ready()
    assert server.reset_prefix_cache() == "/reset_prefix_cache answers 404"
    server.stop()
    assert "fails" in (server.reset_prefix_cache() or "")


@pytest.mark.parametrize(
    ("fake", "code"),
    [
        ({"exit_code": 7, "log": "@oom_start", "start_delay_s": 0.2}, 7),
        ({"exit_signal": 9, "start_delay_s": 0.2}, -9),
        ({"exit_code": 0}, 0),
    ],
)
def test_start_that_dies(start: Start, fake: dict[str, Any], code: int) -> None:
    server = start(fake, timeout_s=600)
    with pytest.raises(ServerDied) as caught:
        server.wait_ready()
    assert (caught.value.exit_code, caught.value.ready) == (code, False)
    assert server.stop().exit_code == code


NEVER_READY: list[tuple[dict[str, Any], str, str]] = [
    ({"never_healthy": True}, "toy", "/health on port [0-9]+ answers 503"),
    ({"no_listen": True}, "toy", "no answer on port [0-9]+: ConnectError"),
    ({"engine_dead": True}, "toy", "/v1/completions answers 500"),
    ({"api_key": "of another trial"}, "toy", "refuses this trial's key"),
    ({"api_key": None}, "toy", "answers without a key"),
    ({"stop_after": 0}, "toy", "answers without a token"),
    ({"absent": ["/v1/completions", "/v1/chat/completions"]}, "toy", "neither /v1/completions nor /v1/chat"),
    ({"absent": ["/v1/models"]}, "toy", "/v1/models on port [0-9]+ answers 404"),
    ({}, "another", r"serves \['toy'\], not 'another'"),
]


@pytest.mark.night
def test_alive_but_never_ready(start: Start) -> None:
    """All at once, because each takes its whole time."""

    def why(server: VllmServer) -> str:
        timeout_s = give_up_in(server, 1.5)
        with pytest.raises(ServerNotReady) as caught:
            server.wait_ready()
        assert caught.value.waited_s >= timeout_s
        assert server.exit_code() is None
        return caught.value.last

    with ExitStack() as ports, ThreadPoolExecutor(len(NEVER_READY)) as pool:
        servers = [
            start(fake, served=served, port=ports.enter_context(reserve_port()).port) for fake, served, _ in NEVER_READY
        ]
        for server, (fake, _, _) in zip(servers, NEVER_READY, strict=True):
            if "no_listen" not in fake:
                until(partial(listens, server), "a listener")
        for seen, (_, _, expected) in zip(pool.map(why, servers), NEVER_READY, strict=True):
            assert re.search(expected, seen), seen


def test_port_that_a_stale_server_has(start: Start) -> None:
    stale = start({})
    stale.wait_ready()
    with pytest.raises(HostNotReady, match="taken by another process"):
        start({})


def test_stale_server_that_comes_in_between(start: Start) -> None:
    """Ours sleeps at its start; a foreign one takes the port meanwhile, answers all, and is not taken for ours."""
    ours = start({"start_delay_s": 60})
    foreign = start({})
    foreign.wait_ready()
    give_up_in(ours, 1.0)
    with pytest.raises(ServerNotReady, match="refuses this trial's key"):
        ours.wait_ready()
    assert foreign.healthy()
    headers = {"Authorization": f"Bearer {ours.launch.api_key}"}
    assert httpx.get(f"{ours.base_url}/v1/models", headers=headers, trust_env=False).status_code == 401


def test_death_is_noticed_while_a_foreign_listener_does_not_answer(start: Start, port: PortReservation) -> None:
    server = start({"start_delay_s": 1.0, "exit_code": 5}, timeout_s=600)
    with socket.create_server(("127.0.0.1", port.port)):
        with pytest.raises(ServerDied) as caught:
            server.wait_ready()
        assert caught.value.exit_code == 5


def test_interrupt_while_waiting(start: Start) -> None:
    server = start({"no_listen": True}, timeout_s=600)

    def interrupt(waited_s: float) -> None:
        if waited_s > 0.2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        server.wait_ready(interrupt)
    assert server.stop().left == ()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_remains_of_a_tree_with_a_stubborn_engine(
    tmp_path: Path, port: PortReservation, start: Start, number: signal.Signals
) -> None:
    """A server that is killed leaves an engine which holds the device, while the port looks free."""
    engine = {"count": 2, "setsid": True, "ignore_sigterm": True, "pid_file": str(tmp_path / "pids")}
    server = start({"grandchild": engine})
    server.wait_ready()
    pids = [server.process.pid, *json_file(tmp_path / "pids")]
    os.kill(server.process.pid, number)
    until(lambda: server.exit_code() is not None, "its end to be known", 3)
    report = server.stop(grace_s=0)
    assert report.left == ()
    assert report.killed
    assert not alive(pids)
    assert port_free("127.0.0.1", port.port)


def test_engine_that_dies_later(start: Start) -> None:
    server = start({"engine_dies_at": 1, "itl_ms": 1})
    server.wait_ready()
    body = {"model": "toy", "prompt": "Hello", "max_tokens": 5, "stream": True}
    headers = {"Authorization": f"Bearer {server.launch.api_key}"}
    answer = httpx.post(f"{server.base_url}/v1/completions", json=body, headers=headers, trust_env=False)
    assert answer.status_code == 200
    assert answer.text.count('"text"') == 1
    assert '"error"' in answer.text
    assert not server.healthy()
    assert server.exit_code() is None
    assert not server.complete("Hello", 1, timeout_s=5)


def test_what_a_server_started_in_a_ray_worker_sees(tmp_path: Path, start: Start) -> None:
    worker = {
        **os.environ,
        "RAY_ADDRESS": "192.0.2.1:6379",
        "RAY_JOB_ID": "01000000",
        "RAY_RAYLET_PID": "17",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "2,3",
        "PYTHONBREAKPOINT": "ray.util.rpdb.set_trace",
    }
    env = child_environment(worker, visible_devices="2,3", extra={}, api_key="key")
    fake = {"dump_env": str(tmp_path / "env"), "exit_code": 1}
    server = start({}, env={**env, "FAKE_VLLM": json.dumps(fake)})
    with pytest.raises(ServerDied):
        server.wait_ready()
    seen = json_file(tmp_path / "env")
    assert not [name for name in seen if name.startswith("RAY_")]
    assert "OMP_NUM_THREADS" not in seen
    assert "PYTHONBREAKPOINT" not in seen
    assert seen["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert seen["VLLM_API_KEY"] == "key"


def test_time_of_start_counts_from_the_launch(start: Start) -> None:
    server = start({"no_listen": True}, timeout_s=0.5)
    time.sleep(0.6)
    with pytest.raises(ServerNotReady):
        server.wait_ready()
