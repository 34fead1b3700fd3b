"""A program that owns one supervised process and dies as the test wants. Arguments: one JSON object.

Prints the ids of command and supervisor as JSON when the command runs, then waits. `fork` leaves a forked child behind
that holds all of its pipes open.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from sweep.process import SupervisedProcess


def main() -> None:
    job = json.loads(sys.argv[1])
    process = SupervisedProcess.start(
        job["argv"],
        env={**os.environ, **job["env"]},
        log_path=Path(job["folder"], "log"),
        record_path=Path(job["folder"], "records", "0.json"),
        stop_timeout_s=job["stop_timeout_s"],
    )
    forked = os.fork() if job.get("fork") else None
    if forked != 0:
        print(json.dumps({"command": process.pid, "supervisor": process.supervisor_pid, "forked": forked}), flush=True)
    time.sleep(120)


if __name__ == "__main__":
    main()
