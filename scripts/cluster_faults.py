"""A study on a real cluster of this machine whose nodes fail in every way: what it says, what is left, what is lost.

    python scripts/cluster_faults.py [--json FILE] [--times N]

One study of the fake, told to go on for long; some minutes on two cores. A node joins that keeps failing; another is
cut off the network (in a network namespace, with its link taken down in mid-study); a third one is merely slow (its
Ray stands still for some seconds); then the head dies. The same command goes on at a new cluster. Keys:
`bad_node_named`, `cut_node_noticed_s` (null where there are no network namespaces), `slow_node_kept`,
`head_death_exit_code` (1: what was measured is kept), `head_death_noticed_s`, `kept_said`, `went_on`, `lost_rows`,
`doubled_rows`, `failed_trials`, `orphans`. Of several times: times are medians, counts are sums, and the rest must
hold each time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "scripts")]

import fake_study  # noqa: E402
from clusters import Cluster, cluster  # noqa: E402
from figures import tell  # noqa: E402
from hits import lasting  # noqa: E402
from waiting import until  # noqa: E402

from sweep.store import StoredTrial, read_trials  # noqa: E402
from sweep.trial import SEARCHING, TrialStatus  # noqa: E402

WAIT_S = 300.0
STANDS_STILL_S = 4.0  # a node counts as dead after some three seconds of silence, six times
MORE = 3  # trials after the study went on
# A server's command that works once on a bad node, for its baseline, and then no more.
WORKS_ONCE = """
if [ -n "$VLLM_API_KEY" ] && [ -n "$BAD_NODE" ]; then
    if [ -e "$BAD_NODE" ]; then
        echo "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)."; exit 1
    fi
    : > "$BAD_NODE"
fi
exec "$@"
"""


@dataclass(slots=True)
class Driver:
    """The command, and what it said so far."""

    process: subprocess.Popen[str]
    output: Path

    def said(self, words: str) -> bool:
        """Whether it said this, or is over."""
        return words in self.output.read_text() or self.process.poll() is not None


def once(home: Path) -> dict[str, float | None]:
    """The whole of it in a folder of its own."""
    content = fake_study.study(
        home,
        fake=lasting("load"),
        load={"num_prompts": 4, "warmup_prompts": 1},
        resources={"cpus": 0.5, "custom": {"slot": 1}, "wait_for_nodes": "5m"},
    )
    content["serve"]["command"] = ["sh", "-c", WORKS_ONCE, "sh", *content["serve"]["command"]]
    path, results = fake_study.write(home / "study.yaml", content), home / "results" / "night"
    keys: dict[str, float | None] = {}
    with _link() as link, cluster() as nodes:
        nodes.add("good", "slow")
        if link is not None:
            nodes.add("cut", within=["ip", "netns", "exec", link])
        with _driver(path, nodes, home / "first.txt", 300) as driver:
            until(lambda: driver.process.poll() is not None or _stored(results), "the baseline", WAIT_S)
            nodes.add("bad", env={"BAD_NODE": str(home / "bad-node")})
            if link is not None:
                until(lambda: driver.process.poll() is not None or _by(results, "cut"), "a trial of node cut", WAIT_S)
                _ip("link", "set", f"{link}a", "down")
                cut_s = time.monotonic()
            _stand_still(nodes)
            keys["cut_node_noticed_s"] = None
            if link is not None:
                until(lambda: driver.said("node cut is gone"), "the cut node to be gone", WAIT_S)
                keys["cut_node_noticed_s"] = time.monotonic() - cut_s
            until(lambda: driver.said("node bad is left out"), "the bad node to be left out", WAIT_S)
            keys["bad_node_named"] = float("node bad is left out: 2 trials in a row" in driver.output.read_text())
            keys["slow_node_kept"] = float("node slow" not in driver.output.read_text())
            nodes.head.kill()
            died_s = time.monotonic()
            keys["head_death_exit_code"] = float(driver.process.wait(WAIT_S))
            keys["head_death_noticed_s"] = time.monotonic() - died_s
            keys["kept_said"] = float("everything measured is kept" in driver.output.read_text())
    before = read_trials(results)
    with cluster() as nodes:
        nodes.add("fresh")
        with _driver(path, nodes, home / "second.txt", _searched(before) + MORE) as driver:
            code = driver.process.wait(WAIT_S)
            if code:
                print(driver.output.read_text())
    until(lambda: not fake_study.processes_with(str(home / "model")), "an end of all servers", 60)
    trials = read_trials(results)
    keys["went_on"] = float(code == 0 and "going on: " in (home / "second.txt").read_text())
    gone = {one.number for one in before} - {one.number for one in trials}
    keys["lost_rows"] = float(_searched(before) + MORE - _searched(trials) + len(gone))
    keys["doubled_rows"] = float(len(trials) - len({one.number for one in trials}))
    keys["failed_trials"] = float(sum(one.status is not TrialStatus.COMPLETE for one in trials))
    keys["orphans"] = float(len(fake_study.processes_with(str(home / "model"))))
    return keys


def _searched(trials: Sequence[StoredTrial]) -> int:
    return sum(one.kind in SEARCHING for one in trials)


def _stored(results: Path) -> bool:
    return (results / "trials").is_dir() and bool(read_trials(results))


def _by(results: Path, node: str) -> bool:
    return any(one.node == node and one.kind in SEARCHING for one in read_trials(results))


def _stand_still(nodes: Cluster) -> None:
    """What a node does that swaps, or whose network is busy."""
    _, raylet = nodes.nodes["slow"]
    os.kill(raylet, signal.SIGSTOP)
    time.sleep(STANDS_STILL_S)
    os.kill(raylet, signal.SIGCONT)


@contextlib.contextmanager
def _driver(path: Path, nodes: Cluster, output: Path, trials: int) -> Iterator[Driver]:
    words = [sys.executable, "-m", "sweep.tune", str(path), "--ray-address", nodes.address, "--trials", str(trials)]
    with output.open("w") as file:
        process = _started(words, file)
        try:
            yield Driver(process, output)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(WAIT_S)


def _started(words: Sequence[str], file: IO[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(words, env=fake_study.environment(), stdout=file, stderr=subprocess.STDOUT, text=True)


@contextlib.contextmanager
def _link() -> Iterator[str | None]:
    """A network namespace that reaches this machine by one link, whose end here is called NAMEa; None where there are
    none."""
    name = f"swp{os.getpid() % 10**6}"
    # Of a documentation network, which nothing else uses.
    here, there = "198.51.100.1", "198.51.100.2"
    steps = [
        ("netns", "add", name),
        ("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name),
        ("addr", "add", f"{here}/30", "dev", f"{name}a"),
        ("link", "set", f"{name}a", "up"),
        ("-n", name, "addr", "add", f"{there}/30", "dev", f"{name}b"),
        ("-n", name, "link", "set", f"{name}b", "up"),
        ("-n", name, "link", "set", "lo", "up"),
        ("-n", name, "route", "add", "default", "via", here),
    ]
    possible = shutil.which("ip") is not None and all(_ip(*words) for words in steps)
    try:
        yield name if possible else None
    finally:
        if shutil.which("ip") is not None:
            _ip("link", "del", f"{name}a")
            _ip("netns", "del", name)


def _ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0


def _together(runs: Sequence[dict[str, float | None]]) -> dict[str, float | None]:
    keys: dict[str, float | None] = {}
    for name in runs[0]:
        values = [value for one in runs if (value := one[name]) is not None]
        if not values:
            keys[name] = None
        elif name.endswith("_s"):
            keys[name] = statistics.median(values)
        elif name in ("lost_rows", "doubled_rows", "failed_trials", "orphans"):
            keys[name] = sum(values)
        else:
            keys[name] = min(values)
    return keys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--times", type=int, default=1, metavar="N")
    given = parser.parse_args()
    began_s = time.monotonic()
    runs = []
    for _ in range(given.times):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(once(Path(folder)))
    tell({**_together(runs), "took_s": time.monotonic() - began_s}, given.json)


if __name__ == "__main__":
    main()
