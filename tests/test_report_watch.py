"""`--watch`: one page on this machine, made anew as files arrive, at a bounded cost."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import fake_study
import pytest
from reported import alike, append, measured, night

from sweep.errors import UserError
from sweep.report.__main__ import main
from sweep.report.watch import HOST, LivePage, _Server, fingerprint


class Clock:
    """A clock that stands still, and a build that takes as long as it is told."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.takes_s = 2.0
        self.built: list[str] = []

    def __call__(self) -> float:
        return self.now_s

    def build(self, version: str) -> str:
        self.built.append(version)
        self.now_s += self.takes_s
        return f"<p>page {len(self.built)}</p>"


def live(folder: Path, clock: Clock) -> LivePage:
    return LivePage(folder, clock.build, clock)


class TestBuilding:
    def test_a_page_is_built_once_for_one_state(self, tmp_path: Path) -> None:
        clock = Clock()
        page = live(night(tmp_path), clock)
        assert page.page() == page.page() == b"<p>page 1</p>"
        clock.now_s += 10_000
        assert page.page() == b"<p>page 1</p>"
        assert page.version() == clock.built[0]

    def test_a_new_trial_makes_a_new_page_but_not_before_the_cost_allows(self, tmp_path: Path) -> None:
        clock = Clock()
        page = live(night(tmp_path), clock)
        page.page()
        append(tmp_path, (measured(6, alike(70.0)),))
        clock.now_s += 19.0  # building took 2 s: a tenth of a core is 20 s apart
        assert page.version() == clock.built[0]
        assert page.page() == b"<p>page 1</p>"
        clock.now_s += 1.5
        assert page.version() != clock.built[0]
        assert page.page() == b"<p>page 2</p>"

    def test_phases_of_the_running_trial_count_and_its_answers_do_not(self, tmp_path: Path) -> None:
        folder = night(tmp_path)
        place = folder / "logs" / "0006"
        place.mkdir(parents=True)
        (place / "events.jsonl").write_text("{}\n")
        before = fingerprint(folder)
        (place / "progress.json").write_text("{}")
        assert fingerprint(folder) == before
        (place / "events.jsonl").write_text("{}\n{}\n")
        assert fingerprint(folder) != before

    def test_a_record_that_cannot_be_read_is_said_on_the_page(self, tmp_path: Path) -> None:
        def build(_: str) -> str:
            raise UserError("<b>damaged</b>")

        content = LivePage(night(tmp_path), build).page()
        assert b"&lt;b&gt;damaged" in content


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    server = _Server((HOST, 0), live(night(tmp_path), Clock()))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def get(port: int, path: str, host: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=300)
    connection.request("GET", path, headers={"Host": host or f"{HOST}:{port}"})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


class TestServing:
    def test_the_page_and_its_version(self, port: int) -> None:
        status, content = get(port, "/")
        assert (status, content) == (200, b"<p>page 1</p>")
        status, version = get(port, "/version")
        assert status == 200
        assert re.fullmatch(rb"[0-9a-f]{16}", version)

    def test_no_other_file_and_no_other_name(self, port: int) -> None:
        assert get(port, "/../study.json")[0] == 404
        assert get(port, "/study.json")[0] == 404
        assert get(port, "/", host=f"evil.example:{port}")[0] == 421
        assert get(port, "/", host=f"localhost:{port}")[0] == 200

    def test_a_port_that_is_taken_is_a_mistake_in_one_line(
        self, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([str(tmp_path), "--watch", "--port", str(port)]) == 2
        assert capsys.readouterr().err == f"sweep.report: --port {port}: Address already in use\n"


def test_it_prints_its_address_serves_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "sweep.report", str(night(tmp_path)), "--watch"]
    with subprocess.Popen(
        words, env=fake_study.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", line)[1])  # type: ignore[index]
        status, content = get(port, "/")
        assert status == 200
        assert b"connect-src &#x27;self&#x27;" in content
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, "", "")
