"""The processes of a trial while it runs, found by their records."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from waiting import until

from sweep import supervisor
from sweep.server import port_free

SECONDS = 300.0


@dataclass(frozen=True)
class Running:
    """The processes of the trial that runs, by their roles, and the server's port."""

    worker: int
    supervisor: int
    server: int
    engine: int
    client: int | None
    everybody: Mapping[int, int]  # id -> start time
    port: int

    @classmethod
    def of(cls, results: Path, phase: str, timeout_s: float = SECONDS) -> Running:
        """Read from the records and the process table, once all of `phase` are there."""
        records = results / "processes"

        def look() -> Running | None:
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError, StopIteration):
                server = json.loads(next(records.glob("*-server.json")).read_bytes())
                living = supervisor.everyone()
                below = supervisor.descendants({server["supervisor"][0]}, living)
                engine = next(iter(below - {server["child"][0]}))
                client = None
                if phase == "load":
                    record = json.loads(next(records.glob("*-client.json")).read_bytes())
                    client = record["child"][0]
                    below |= supervisor.descendants({record["supervisor"][0]}, living) | {record["supervisor"][0]}
                words = Path(f"/proc/{server['child'][0]}/cmdline").read_text().split("\0")
                ours = {pid: living[pid].started for pid in below | {server["supervisor"][0]}}
                port = int(words[words.index("--port") + 1])
                child = server["child"][0]
                return cls(server["owner"][0], server["supervisor"][0], child, engine, client, ours, port)
            return None

        found = until(look, f"the processes of a trial in {phase}", timeout_s)
        assert isinstance(found, cls)
        return found

    def gone(self) -> None:
        """All of them are gone, and the port is free, in time."""

        def alive() -> list[int]:
            now = supervisor.everyone()
            return [pid for pid, started in self.everybody.items() if pid in now and now[pid].started == started]

        until(lambda: not alive(), f"the end of {alive()}", SECONDS)
        until(lambda: port_free("127.0.0.1", self.port), f"port {self.port} to be free", SECONDS)
