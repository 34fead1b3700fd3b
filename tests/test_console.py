"""What a person, or a script, sees of a study."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sweep.console import JsonView, LiveView, PlainView, Sources, print_final, print_json, trial_json, verdict_json
from sweep.console.draw import sparkline
from sweep.console.scene import best_so_far
from sweep.gpu import DeviceReading
from sweep.journal import Journal
from sweep.measured import Measured
from sweep.metric_table import metric_at
from sweep.recommend import Recommendation, Verdict, recommend
from sweep.store import StoredTrial
from sweep.trial import Failure, Finished, Phase, TrialKind, TrialSpec, TrialStatus
from sweep.verdict import Interval

COMMAND = "vllm serve model --max-num-seqs 64 --served-model-name toy --chat-template 'a file.jinja'"
OOM = Failure("startup_oom", "startup", "CUDA out of memory.", "Lower it.", False, True, "infeasible", 1)


def stored(number: int, score: float | None = 1.0, failure: Failure | None = None, **facts: Any) -> StoredTrial:
    complete = failure is None
    settings: dict[str, Any] = {
        "number": number,
        "kind": TrialKind.SEARCH if number else TrialKind.BASELINE,
        "flags": {"max-num-seqs": 8 * 2**number, "gpu-memory-utilization": 0.9, "block-size": None},
        "status": TrialStatus.COMPLETE if complete else TrialStatus.INFEASIBLE,
        "metrics": {f"p{p}_{s}_ms": 10.0 * p for p in (95, 99) for s in ("ttft", "tpot", "itl", "e2el")}
        if complete
        else None,
        "score": score if complete else None,
        "feasible": complete or None,
        "violations": {},
        "failure": failure,
        "attempts": 1,
        "command": COMMAND,
        "started_wall_s": 1.0,
        "startup_s": 2.0,
        "load_s": 3.0,
        "total_s": 6.0,
        **facts,
    }
    return StoredTrial(**settings)


def finished(trial: StoredTrial) -> Finished:
    return Finished(trial.number, trial.kind, trial.flags, trial.status, trial.score, trial.violations)


def final(trials: list[StoredTrial], width: int = 180, **facts: Any) -> list[str]:
    """The lines of the final report, in a pipe if nothing is said."""
    out = io.StringIO()
    found = recommend(finished(trial) for trial in trials)
    settings: dict[str, Any] = {
        "command": COMMAND if found.flags is not None else None,
        "best_yaml": "results/night/best.yaml" if found.flags is not None else None,
        "stop_reason": "all trials done",
        "folder": "results/night",
        **facts,
    }
    print_final(Console(file=out, width=width, markup=False, highlight=False), trials, found, **settings)
    return out.getvalue().splitlines()


class TestFinal:
    def test_a_row_for_each_trial_with_flags_latencies_score_and_reason(self) -> None:
        slow: dict[str, Any] = {"violations": {"p95_ttft_ms": 0.5, "p95_tpot_ms": -0.5}}
        lines = final([stored(0), stored(1, 0.8), stored(2, failure=OOM), stored(3, 0.7, **slow)])
        rows = [" ".join(words) for line in lines if (words := line.split()) and words[0][0] in "0123p"]
        assert rows[:4] == [
            "0 8 0.9 - 1.000 baseline, complete",
            "1 * 16 0.9 - 0.800 complete; best, unconfirmed",
            "2 32 0.9 - infeasible; startup_oom in startup",
            "3 64 0.9 - 0.700 complete; SLO broken: p95_ttft_ms",
        ]
        two = ["p95 950 950 950 950", "p99 990 990 990 990"]
        assert rows[4:10] == [f"0 {two[0]}", two[1], f"1 * {two[0]}", two[1], f"3 {two[0]}", two[1]]

    def test_percentiles_have_their_intervals_and_marks_within_80_columns(self) -> None:
        trial = stored(0, thin_percentiles=("p99",))
        names = {f"p{p}_{s}_ms": s for p in (95, 99) for s in ("ttft", "tpot", "itl", "e2el")}
        known = Measured(
            metrics=dict.fromkeys(names, 1.0),
            completed=200,
            failed=0,
            intervals={name: Interval(950.0, 123.4, 12345.0) for name in names if name.startswith("p95")},
            thin=frozenset(name for name in names if name.startswith("p99")),
        )
        lines = final([trial], measured={0: known}, width=80)
        table = [line for line in lines if "950" in line or "990" in line or "(123-12.3k)" in line]
        assert "\n".join(table).count("(123-12.3k)") == 4
        assert " ".join(table[-1].split()) == "p99 ~990 ~990 ~990 ~990"
        assert all(len(line) <= 80 for line in table)
        # Without a look at the requests there is still the mark.
        assert any("~990" in line for line in final([trial]))

    def test_each_rate_has_rows_of_its_own(self) -> None:
        metrics = {metric_at("p95_ttft_ms", rate): 100.0 * rate for rate in (4.0, 8.0)} | {"p95_ttft_ms": 5.0}
        lines = final([stored(0, metrics=metrics)])
        rows = [" ".join(line.split()) for line in lines if "p95" in line]
        assert rows == ["0 * p95@4 400", "p95@8 800"]

    def test_what_limits_the_scores_is_said(self) -> None:
        assert "drift: trial 6 ..." in final([stored(0)], notes=("drift: trial 6 ...",))

    def test_long_names_break_on_a_narrow_terminal(self) -> None:
        lines = final([stored(0)], width=80)
        assert any(line.split()[:2] == ["trial", "seqs"] for line in lines)
        assert not any("gpu-memory-utilization" in line for line in lines)

    def test_the_command_is_one_line_to_paste_and_the_change_is_said(self) -> None:
        lines = final([stored(0), stored(1, 0.8)])
        assert COMMAND in lines
        assert "Changed: max-num-seqs 8 -> 16" in lines
        assert "As a file: vllm serve --config results/night/best.yaml" in lines
        assert any("20.0% better than the baseline" in line for line in lines)

    def test_the_file_comes_with_a_command_only_where_one_is_known_to_read_it(self) -> None:
        trials = [stored(0), stored(1, 0.8)]
        lines = final(trials, reads_yaml=None, best_yaml="my results/best.yaml")
        assert "Its flags as a file: 'my results/best.yaml'" in lines
        assert "--config" not in "\n".join(lines)
        assert "As a file: A=1 vllm serve --config results/night/best.yaml" in final(
            trials, reads_yaml="A=1 vllm serve"
        )

    @pytest.mark.parametrize(("confirmed", "words"), [(True, "best, confirmed"), (False, "best, unconfirmed")])
    def test_the_marked_row_says_how_sure_it_is(self, confirmed: bool, words: str) -> None:
        found = dataclasses.replace(recommend([finished(stored(0)), finished(stored(1, 0.8))]), confirmed=confirmed)
        out = io.StringIO()
        facts: dict[str, Any] = {"command": None, "best_yaml": None, "stop_reason": None, "folder": "f"}
        print_final(Console(file=out, width=180), [stored(0), stored(1, 0.8)], found, **facts)
        (row,) = [line for line in out.getvalue().splitlines() if line.split()[:2] == ["1", "*"] and "complete" in line]
        assert row.rstrip().endswith(words)

    def test_keep_your_flags(self) -> None:
        lines = final([stored(0), stored(1, 1.4)])
        assert any("Keep your flags" in line for line in lines)
        assert not any(line.startswith("Changed") for line in lines)
        assert COMMAND in lines

    def test_everything_failed_shows_causes_and_the_stop_reason_last(self) -> None:
        other = dataclasses.replace(OOM, failure_class="engine_died", line=None)
        lines = final([stored(0, failure=OOM), stored(1, failure=other), stored(2, failure=OOM)], stop_reason="why")
        text = "\n".join(lines)
        assert "Causes of failure" in text
        times = [line.split()[:2] for line in lines if line.strip().startswith(("1 ", "2 ")) and "Lower it." in line]
        assert times == [["2", "startup_oom"], ["1", "engine_died"]]
        assert lines[-1] == "why"
        assert COMMAND not in text

    def test_no_causes_table_where_something_was_measured(self) -> None:
        assert "Causes of failure" not in "\n".join(final([stored(0), stored(1, failure=OOM)]))

    def test_a_remark_of_all_trials_is_said_once(self) -> None:
        lines = final([stored(0, remarks=("few samples", "odd")), stored(1, remarks=("few samples",))])
        assert [line for line in lines if "few samples" in line] == ["all trials: few samples"]
        assert "trial 0: odd" in lines

    def test_words_of_a_log_are_not_taken_for_markup(self) -> None:
        odd = dataclasses.replace(OOM, line="bad [/red] and [bold]", failure_class="other")
        assert any("bad [/red] and [bold]" in line for line in final([stored(0, failure=odd)]))

    def test_nothing_stored_is_still_a_report(self) -> None:
        assert final([], stop_reason="stopped by SIGINT")[-1] == "stopped by SIGINT"


class TestJson:
    def test_one_object_with_flags_metrics_and_cause(self) -> None:
        good, bad = trial_json(stored(1, 0.8)), trial_json(stored(2, failure=OOM))
        assert (good["trial"], good["status"], good["score"], good["failure_class"]) == (1, "complete", 0.8, None)
        assert good["flags"] == {"max-num-seqs": 16, "gpu-memory-utilization": 0.9, "block-size": None}
        assert good["metrics"]["p95_ttft_ms"] == 950.0
        assert (bad["metrics"], bad["failure_class"], bad["failure_line"]) == (
            None,
            "startup_oom",
            "CUDA out of memory.",
        )
        assert good.keys() == bad.keys()

    def test_a_missing_metric_of_an_slo_is_json_too(self, capsys: pytest.CaptureFixture[str]) -> None:
        trial = stored(1, None, violations={"p95_tpot_ms": float("inf"), "p95_ttft_ms": -0.5})
        print_json(trial_json(trial))
        assert json.loads(capsys.readouterr().out)["violations"] == {"p95_tpot_ms": None, "p95_ttft_ms": -0.5}

    def test_the_verdict(self) -> None:
        found = recommend([finished(stored(0)), finished(stored(1, 0.8))])
        verdict = verdict_json(found, study="night", trials=2, command=COMMAND, stop_reason="all trials done")
        assert (verdict["verdict"], verdict["trial"], verdict["confirmed"]) == ("better", 1, False)
        assert verdict["gain_share"] == pytest.approx(0.2)
        assert verdict["command"] == COMMAND
        nothing = Recommendation(Verdict.ALL_FAILED, None, None, None, None, "No trial could be measured.")
        assert verdict_json(nothing, study="n", trials=1, command=None, stop_reason="x")["verdict"] == "all failed"


def journal(folder: Path, number: int) -> Journal:
    return Journal(folder / str(number), number, redact=str)


SPEC = TrialSpec(1, TrialKind.SEARCH, {"max-num-seqs": 16, "block-size": None})


class TestPlainView:
    def test_lines_for_start_phases_and_end(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        view = PlainView(lambda number: tmp_path / str(number))
        trial = journal(tmp_path, 1)
        view.started(SPEC)
        trial.enter(Phase.START)
        view._tick()
        view._tick()  # nothing new: no line
        trial.begin_attempt(2)
        trial.enter(Phase.START)
        view._tick()
        trial.enter(Phase.LOAD, total=60)
        view._tick()
        trial.advance(30)
        view._tick()  # counts would flood a log file
        view.ended(Finished(1, TrialKind.SEARCH, SPEC.flags, TrialStatus.COMPLETE, 0.875, {"p95_ttft_ms": 0.1}))
        trial.enter(Phase.STOP)
        view._tick()  # it has ended
        assert capsys.readouterr().out.splitlines() == [
            "trial 1 search: max-num-seqs=16 block-size=(vLLM)",
            "trial 1 start",
            "trial 1 start (attempt 2)",
            "trial 1 load (attempt 2)",
            "trial 1 done: score 0.875, breaks the SLO on p95_ttft_ms",
        ]

    def test_a_failure_says_its_cause(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        view = PlainView(lambda number: tmp_path / str(number))
        view.started(SPEC)
        view.ended(
            Finished(
                1,
                TrialKind.SEARCH,
                SPEC.flags,
                TrialStatus.INFEASIBLE,
                failure_class="startup_oom",
                failure_line="CUDA out of memory.",
            )
        )
        assert capsys.readouterr().out.splitlines()[-1] == "trial 1 done: infeasible (startup_oom: CUDA out of memory.)"

    def test_json_keeps_notices_off_standard_output(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with JsonView(lambda number: tmp_path / str(number), lambda done: {"trial": done.number}) as view:
            view.started(SPEC)
            view.say("a notice")
            view.ended(Finished(1, TrialKind.SEARCH, SPEC.flags, TrialStatus.COMPLETE, 0.9))
        captured = capsys.readouterr()
        assert captured.out == '{"trial": 1}\n'
        assert captured.err.splitlines() == ["trial 1 search: max-num-seqs=16 block-size=(vLLM)", "a notice"]


class TestLiveView:
    """A terminal of any size while trials run; what is computed and what is drawn."""

    def view(self, folder: Path, width: int = 120, height: int = 40, **sources: Any) -> tuple[LiveView, io.StringIO]:
        out = io.StringIO()
        console = Console(
            file=out, force_terminal=True, width=width, height=height, color_system=None, markup=False, highlight=False
        )
        asked = {"finished": lambda: self.ended(4), "left_s": lambda: (125.0, 60.0), **sources}
        return LiveView(lambda number: folder / str(number), console, trials=6, sources=Sources(**asked)), out

    def ended(self, count: int) -> list[Finished]:
        """Trials that get better and worse again; the third is the best, the last one failed."""
        scores = [1.0, 0.9, 0.7, 0.95, None, 0.8][:count]
        return [
            Finished(
                number,
                TrialKind.SEARCH if number else TrialKind.BASELINE,
                {"max-num-seqs": 8 * number, "block-size": None},
                TrialStatus.COMPLETE if score else TrialStatus.INFEASIBLE,
                score,
                metrics={"p95_ttft_ms": 1000.0 * score, "p95_tpot_ms": 50.0 * score} if score else None,
                failure_class=None if score else "startup_oom",
                failure_line=None if score else "CUDA out of memory",
            )
            for number, score in enumerate(scores)
        ]

    def shown(self, folder: Path, width: int = 120, height: int = 40, **sources: Any) -> str:
        """What a terminal shows while a trial is in the middle of its load, after its first round."""
        view, out = self.view(folder, width, height, **sources)
        view.started(SPEC)
        trial = journal(folder, 1)
        trial.enter(Phase.LOAD, total=200)
        trial.advance(43)
        trial.measured(1234.0, 45.6)
        trial.advance(44)
        view._watched.poll()
        view._console.print(view._render())
        return out.getvalue()

    def test_running_trial_beside_the_incumbent(self, tmp_path: Path) -> None:
        text = self.shown(tmp_path)
        assert "trial 1: load 44/200 for 0 s   max-num-seqs=16 block-size=(vLLM)" in text
        assert "~p95 TTFT/TPOT so far 1,234/45.6 ms; trial 2: 700/35.0; waits for 156 answers" in text
        assert "4 of 6 trials done; about search 2 min 05 s + confirmation 1 min 00 s left, to " in text
        assert "30.0% better than the baseline" in text

    def test_percentiles_of_too_few_requests_are_marked(self, tmp_path: Path) -> None:
        few, enough = self.shown(tmp_path / "few", requests=199), self.shown(tmp_path / "enough", requests=200)
        assert "~p95 TTFT/TPOT " in few.splitlines()[0]
        assert "trial 2: ~700/35.0" in few
        assert "~" not in enough.splitlines()[0]
        assert "trial 2: 700/35.0" in enough

    def test_what_it_waits_for_in_each_phase(self, tmp_path: Path) -> None:
        view, _ = self.view(
            tmp_path, redact=lambda text: text.replace("hunter2", "[redacted]"), startup_timeout_s=900.0
        )

        def waits() -> str:
            view._watched.poll()
            console = Console(file=(out := io.StringIO()), width=200, color_system=None)
            console.print(view._render())
            return next(line for line in out.getvalue().splitlines() if "waits for" in line).strip()

        view.started(SPEC)
        assert waits() == "waits for a worker of Ray"
        trial = journal(tmp_path, 1)
        trial.begin_attempt(1)
        trial.enter(Phase.HOST)
        assert waits().startswith("waits for devices to be free")
        trial.enter(Phase.START)
        (tmp_path / "1" / "server-1.log").write_text("old\n\x1b[36mLoading\x1b[0m shards 3/17 hunter2\a\n\n")
        assert waits() == "waits for its server (at most 900 s): Loading shards 3/17 [redacted]"
        trial.enter(Phase.LOAD, total=5)
        assert waits() == "waits for 5 answers (the load client starts)"
        trial.enter(Phase.STOP)
        assert waits() == "waits for its server to end"

    @pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (200, 60), (80, 6)])
    def test_every_size_holds_the_running_trial_and_the_verdict(self, tmp_path: Path, width: int, height: int) -> None:
        reading = DeviceReading(0.0, 0, memory_used_gib=44.1, sm_clock_mhz=1800.0, temperature_c=71.0,
                                throttle_reasons=("sw power cap",))  # fmt: skip
        view, out = self.view(tmp_path, width, height, finished=lambda: self.ended(6), devices=lambda: (reading,))
        view._devices = (reading,)
        view.started(TrialSpec(1, TrialKind.SEARCH, {f"a-flag-of-some-length-{n}": n for n in range(9)}))
        journal(tmp_path, 1).enter(Phase.LOAD, total=5)
        view._watched.poll()
        view._console.print(view._render())
        lines = out.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        assert len(lines) <= height
        assert any("trial 1: load 0/5" in line for line in lines)
        assert any("GPU 0: 44.1 GiB" in line for line in lines)
        assert any("5 of" in line or "6 of" in line for line in lines)

    def test_the_line_of_the_best_so_far_only_falls(self) -> None:
        assert best_so_far(self.ended(6)) == (1.0, 0.9, 0.7, 0.7, 0.7)
        broken = dataclasses.replace(self.ended(3)[2], violations={"p95_ttft_ms": 0.1})
        assert best_so_far([*self.ended(2), broken]) == (1.0, 0.9)
        assert best_so_far([]) == ()
        assert sparkline((1.0, 0.5, 0.0), 10) == "█▅▁"
        assert sparkline((0.7, 0.7), 10) == "▁▁"
        assert sparkline(tuple(range(100, 0, -1)), 4)[-1] == "▁"
        assert len(sparkline(tuple(range(100)), 4)) == 4
        assert sparkline((), 4) == ""

    def test_a_study_that_just_began(self, tmp_path: Path) -> None:
        view, out = self.view(tmp_path, finished=list, left_s=lambda: None)
        view._console.print(view._render())
        assert out.getvalue().splitlines() == ["Measuring the baseline.", "0 of 6 trials done"]

    def test_view_that_runs_leaves_the_ended_trials_on_the_terminal(self, tmp_path: Path) -> None:
        view, out = self.view(tmp_path, finished=list, left_s=lambda: None)
        with view:
            view.started(SPEC)
            view.ended(Finished(1, TrialKind.SEARCH, SPEC.flags, TrialStatus.COMPLETE, 0.9))
        assert "trial 1: score 0.900   max-num-seqs=16 block-size=(vLLM)" in out.getvalue()
