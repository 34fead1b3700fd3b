"""The ends of logs that a page shows."""

from __future__ import annotations

from pathlib import Path

from rich_night import HOSTILE, rich_night

from sweep.redact import Redactor
from sweep.report.facts.log_tail import log_tails


def test_the_end_of_the_last_attempts_logs_without_colours_and_secrets(tmp_path: Path) -> None:
    (log,) = log_tails(rich_night(tmp_path), 40, Redactor({}).text)
    assert log.path == "logs/0040/server-1.log"
    assert log.lines[:3] == ("started", HOSTILE, "red")
    assert log.lines[3] == "HF_TOKEN=[redacted]"
    assert not log.cut


def test_long_logs_lines_and_progress_bars_are_cut(tmp_path: Path) -> None:
    place = tmp_path / "logs" / "0007"
    place.mkdir(parents=True)
    (place / "server-1.log").write_text("an earlier attempt\n")
    text = "x" * 100_000 + "\n" + "".join(f"line {n}\n" for n in range(5_000)) + "10%\r50%\r100%\r\n" + "y" * 5_000
    (place / "server-2.log").write_bytes(text.encode() + b"\xff\xfe\x00")
    (place / "client-2.log").write_text("done\n")
    server, client = log_tails(tmp_path, 7, str)
    assert server.path == "logs/0007/server-2.log"
    assert server.cut
    assert len(server.lines) == 25
    assert server.lines[-2] == "100%"
    assert server.lines[-3] == "line 4999"
    assert len(server.lines[-1]) < 400
    assert client.lines == ("done",)
    assert log_tails(tmp_path, 8, str) == ()


def test_what_processes_count_on_their_way_out_does_not_hide_what_they_said(tmp_path: Path) -> None:
    place = tmp_path / "logs" / "0001"
    place.mkdir(parents=True)
    leaks = "nanobind: leaked 30 types!\n" + ' - leaked type "triton.x"\n' * 30 + " - ... skipped remainder\n"
    (place / "server-1.log").write_text("ValueError: no room\nINFO: shut down\n" + leaks)
    (log,) = log_tails(tmp_path, 1, str)
    assert (log.lines, log.left_out, log.cut) == (("ValueError: no room", "INFO: shut down"), 32, False)
