"""Who is told that a study ended, and that nothing of it can fail or hang a study."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import fake_study
import produced
import pytest
from waiting import until

from sweep.config import NotifySection, load
from sweep.ending import finish
from sweep.errors import ConfigError
from sweep.notify import ENDED, STOPPED, check_notify, notify
from sweep.recommend import Recommendation, Verdict
from sweep.study import StudyOutcome

VERDICT = {
    "study": "night",
    "sentence": "Trial 3 is 12 % better.",
    "verdict": "better",
    "stop_reason": "all trials done",
}


class Hook(BaseHTTPRequestHandler):
    """A webhook that keeps what it was sent, and can be slow or refuse."""

    heard: ClassVar[list[tuple[dict[str, str], dict[str, Any]]]] = []
    status, wait_s = 200, 0.0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).heard.append((dict(self.headers), json.loads(body)))
        time.sleep(type(self).wait_s)
        self.send_response(type(self).status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the standard library's
        pass


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hook]]:
    kind = type("Hook", (Hook,), {"heard": [], "status": 200, "wait_s": 0.0})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("SWEEP_HOOK", f"http://127.0.0.1:{server.server_port}/secret-path")
    monkeypatch.setenv("SWEEP_HOOK_TOKEN", "hush")
    yield kind
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_command_gets_the_verdict(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    code = "import json, os, sys; json.dump([json.load(sys.stdin), dict(os.environ)], open(sys.argv[1], 'w'))"
    section = NotifySection(command=(sys.executable, "-c", code, str(told)))
    assert notify(section, STOPPED, VERDICT) == ()
    said, env = json.loads(told.read_text())
    assert said == {"event": "stopped", **VERDICT}
    assert (env["SWEEP_EVENT"], env["SWEEP_STUDY"], env["SWEEP_SENTENCE"]) == ("stopped", "night", VERDICT["sentence"])


def test_what_goes_wrong_with_a_command_is_one_line(tmp_path: Path) -> None:
    failing = NotifySection(command=(sys.executable, "-c", "import sys; sys.exit('no\\nsuch host')"))
    (line,) = notify(failing, ENDED, VERDICT)
    assert line.endswith("ended with exit code 1: no such host")
    gone = NotifySection(command=(str(tmp_path / "gone"),))
    assert notify(gone, ENDED, VERDICT) == (f"notify: {tmp_path / 'gone'} cannot be run: No such file or directory",)


def test_a_command_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    mark = f"--mark-{tmp_path.name}"
    script = f"sleep 60 {mark} 2>/dev/null & python3 -c 'import time; time.sleep(60)' {mark}; wait"
    began_s = time.monotonic()
    (line,) = notify(NotifySection(command=("/bin/sh", "-c", script), timeout_s=0.3), ENDED, VERDICT)
    assert "took longer than 0.3 s and was ended" in line
    assert time.monotonic() - began_s < 10
    until(lambda: not fake_study.processes_with(mark), "its children to end", 10.0)


def test_a_webhook_gets_the_same_and_a_text(hook: type[Hook]) -> None:
    section = NotifySection(webhook_env="SWEEP_HOOK", token_env="SWEEP_HOOK_TOKEN")
    assert notify(section, ENDED, VERDICT) == ()
    ((headers, said),) = hook.heard
    assert headers["Authorization"] == "Bearer hush"
    assert said["text"] == said["content"] == "night: Trial 3 is 12 % better. (all trials done)"
    assert {**VERDICT, "event": "ended"}.items() <= said.items()


def test_a_webhook_that_refuses_hangs_or_is_gone_says_nothing_secret(
    hook: type[Hook], monkeypatch: pytest.MonkeyPatch
) -> None:
    section = NotifySection(webhook_env="SWEEP_HOOK")
    hook.status = 404
    lines = [*notify(section, ENDED, VERDICT)]
    hook.wait_s = 0.5
    lines += notify(NotifySection(webhook_env="SWEEP_HOOK", timeout_s=0.1), ENDED, VERDICT)
    monkeypatch.setenv("SWEEP_HOOK", "http://127.0.0.1:9/secret-path")
    lines += notify(section, ENDED, VERDICT)
    assert lines[0] == "notify: the webhook of SWEEP_HOOK: answered 404"
    assert "SWEEP_HOOK" in lines[1]
    assert lines[2] == "notify: the webhook of SWEEP_HOOK: ConnectError"
    assert "secret-path" not in "".join(lines)


def test_nobody_is_told_where_nobody_is_named() -> None:
    assert notify(NotifySection(), ENDED, VERDICT) == ()


def test_what_cannot_work_is_refused_before_anything_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWEEP_HOOK", raising=False)
    for section, said in (
        (NotifySection(webhook_env="SWEEP_HOOK"), "notify.webhook_env: the environment variable SWEEP_HOOK is not set"),
        (NotifySection(command=("no-such-program",)), "notify.command: 'no-such-program' is no program"),
        (NotifySection(token_env="PATH"), "notify.token_env: is for a webhook"),
        (NotifySection(webhook_env="PATH"), "notify.webhook_env: PATH holds no http(s) address"),
    ):
        with pytest.raises(ConfigError) as caught:
            check_notify(section)
        assert said in str(caught.value)
    address = "https://hooks.example/T000/secret"
    path = fake_study.write(tmp_path / "s.yaml", fake_study.study(tmp_path, notify={"webhook_env": address}))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert "notify.webhook_env: must be the name of an environment variable" in str(caught.value)
    assert address not in str(caught.value)


@pytest.mark.parametrize(("event", "said"), [(None, "failed"), (STOPPED, "stopped")])
def test_a_study_tells_when_it_ends_and_when_it_is_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], event: str | None, said: str
) -> None:
    code = "import json, sys; json.dump(json.load(sys.stdin), open(sys.argv[1], 'w')); sys.exit('oops')"
    told = tmp_path / "told.json"
    prepared = produced.study(tmp_path, notify={"command": [sys.executable, "-c", code, str(told)]})
    nothing = Recommendation(Verdict.NOTHING_YET, None, None, None, None, "Nothing measured yet.")
    outcome = StudyOutcome((), nothing, None, None, None, "stopped by SIGTERM", True)
    assert finish(prepared, outcome, as_json=False, event=event, shown=False) == 1  # its own, not the command's
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.strip().endswith("ended with exit code 1: oops")
    found = json.loads(told.read_text())
    assert (found["event"], found["study"], found["stop_reason"]) == (said, "night", "stopped by SIGTERM")
