"""Ray clusters of several nodes here: each a Ray of its own, that can be killed and need not see all files."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fake_study import environment
from waiting import until

_HEAD = """
import json, os, sys
from ray._private.node import Node
from ray._private.parameter import RayParams
node = Node(RayParams(num_cpus=1, num_gpus=0, include_dashboard=False, object_store_memory=80 << 20, node_name="head",
    min_worker_port=0, max_worker_port=0, include_log_monitor=False, _system_config=json.loads(sys.argv[1])), head=True,
    shutdown_at_exit=True, spawn_reaper=True)
print(node.gcs_address, flush=True)
sys.stdin.read()
"""
_NODE = """
import os, sys
if sys.argv[3]:
    os.sched_setaffinity(0, {int(sys.argv[3])})
from ray._private.node import Node
from ray._private.parameter import RayParams
for tries_left in (2, 1, 0):  # Ray gives a node half a minute to come up: little where everything runs at once
    try:
        node = Node(RayParams(gcs_address=sys.argv[1], redis_address=sys.argv[1], node_name=sys.argv[2], num_cpus=2,
            num_gpus=0, resources={sys.argv[4]: 1}, object_store_memory=80 << 20, min_worker_port=0, max_worker_port=0,
            node_manager_port=0, include_log_monitor=False, dashboard_agent_listen_port=0), head=False,
            shutdown_at_exit=True, spawn_reaper=False)
        break
    except Exception:
        if not tries_left:
            raise
print(next(info.process.pid for info in node.all_processes["raylet"]), flush=True)
sys.stdin.read()
"""
# A killed node refuses connections and is noticed within some three seconds; one that is merely slow has eighteen.
_QUICK = (
    '{"prestart_worker_first_driver": false, "health_check_period_ms": 500, "health_check_timeout_ms": 3000, '
    '"health_check_failure_threshold": 6, "health_check_initial_delay_ms": 500}'
)


def hides() -> bool:
    """Whether folders can be hidden from a node here: that takes a mount namespace."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


@dataclass(slots=True)
class Cluster:
    """A head that takes no trials, and nodes of one `slot` each, or of what `add` says."""

    head: subprocess.Popen[str]
    address: str
    nodes: dict[str, tuple[subprocess.Popen[str], int]] = field(default_factory=dict)

    def add(
        self,
        *names: str,
        hidden: Mapping[str, Sequence[Path]] | None = None,
        cpu: int | None = None,
        resource: str = "slot",
        within: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start nodes, side by side, and wait until their Ray is up. `hidden`: folders that are empty to a node; `cpu`:
        the only one that they may use; `resource`: what they have one of; `within`: words before their command."""
        last = ["" if cpu is None else str(cpu), resource]
        started = {name: self._start(name, (hidden or {}).get(name, ()), last, within, env or {}) for name in names}
        for name, process in started.items():
            assert process.stdout is not None
            pid = process.stdout.readline().strip()
            assert pid.isdigit(), f"node {name} does not start"
            self.nodes[name] = (process, int(pid))

    def kill(self, name: str) -> None:
        """SIGKILL to a node's raylet: for Ray the node is dead, and whoever it ran is left to itself."""
        process, pid = self.nodes.pop(name)
        os.kill(pid, signal.SIGKILL)
        _end(process)

    def _start(
        self, name: str, hidden: Sequence[Path], last: Sequence[str], within: Sequence[str], env: Mapping[str, str]
    ) -> subprocess.Popen[str]:
        words = [*within, sys.executable, "-c", _NODE, self.address, name, *last]
        if hidden:
            mounts = " && ".join(f"mount -t tmpfs none '{path}'" for path in hidden)
            words = ["unshare", "-m", "sh", "-c", f'{mounts} && exec "$@"', "sh", *words]
        return _popen(words, **env)


def _popen(words: list[str], **extra: str) -> subprocess.Popen[str]:
    env = environment(RAY_USAGE_STATS_ENABLED="0", **extra)
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.wait(300)
    process.stdout.close()


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """A head without nodes; all is ended afterwards."""
    head = _popen([sys.executable, "-c", _HEAD, _QUICK])
    assert head.stdout is not None
    address = head.stdout.readline().strip()
    assert address, "no Ray for the tests"
    made = Cluster(head, address)
    host, _, port = address.rpartition(":")
    try:
        until(lambda: _answers(host, int(port)), "Ray's control service")
        yield made
    finally:
        for process, _ in made.nodes.values():
            _end(process)
        _end(head)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True
