"""What `sweep.report` makes of a record, as values."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from reported import DURATION_S, OWN, alike, append, confirmed, flags, launch, lost, measured, night, request, write
from test_metrics import recorded, requests_of

from sweep.errors import UserError
from sweep.metric_table import LATENCIES, RATES
from sweep.metrics import summarize
from sweep.recommend import Verdict
from sweep.report import Report, Wishes, make_report, open_source
from sweep.store import read_requests
from sweep.study_folder import StudyFolder
from sweep.trial import Flags, TrialKind, TrialSpec, TrialStatus
from sweep.verdict import Outcome


def stepped(steps: int) -> Flags:
    """The flags of trial 1 with less memory."""
    return {**flags(1), "gpu-memory-utilization": round(0.9 - 0.02 * steps, 6)}


def report(folder: Path, **wishes: Any) -> Report:
    return make_report(open_source(str(folder)), Wishes(**wishes))


def places(found: Report) -> list[tuple[int | None, int]]:
    return [(trial.place, trial.number) for trial in found.trials]


class TestRanking:
    def test_the_study_own_objective_ranks_unless_another_is_asked_for(self, tmp_path: Path) -> None:
        found = report(night(tmp_path))
        assert places(found) == [(1, 1), (2, 2), (3, 0), (4, 5), (None, 3), (None, 4)]
        assert (found.recommendation.verdict, found.recommendation.number) == (Verdict.BETTER, 1)
        assert found.recommendation.gain_share == pytest.approx(0.5)
        assert found.own_winner is None
        assert found.asked == 6
        assert found.running is None
        assert found.notes == ()

    def test_other_weights_name_another_winner_beside_the_study_own(self, tmp_path: Path) -> None:
        found = report(night(tmp_path), weights={"p95_tpot_ms": 1.0})
        assert places(found)[:4] == [(1, 2), (2, 0), (3, 1), (4, 5)]
        assert found.recommendation.number == 2
        assert found.own_winner is not None
        assert found.own_winner.number == 1

    def test_a_trial_that_breaks_an_slo_comes_after_all_that_keep_it_by_how_far_it_misses(self, tmp_path: Path) -> None:
        found = report(night(tmp_path), slo={"p95_tpot_ms": 15.0})
        assert places(found)[:4] == [(1, 2), (2, 0), (3, 1), (4, 5)]
        score = found.trials[2].score
        assert score is not None
        assert score.violations == {"p95_tpot_ms": pytest.approx(20 / 15 - 1)}
        assert found.objective.weights == OWN["weights"]

    def test_no_limits_at_all(self, tmp_path: Path) -> None:
        folder = night(tmp_path, {**OWN, "slo": {"p95_tpot_ms": 15.0}})
        assert report(folder).recommendation.number == 2
        assert report(folder, slo={}).recommendation.number == 1

    def test_goodput_counts_by_the_limits_of_now(self, tmp_path: Path) -> None:
        weights = {"goodput_per_s": -1.0}
        found = report(night(tmp_path), weights=weights, slo={"p95_ttft_ms": 95.0, "p99_tpot_ms": 15.0})
        by_number = {trial.number: trial.metrics for trial in found.trials}
        assert by_number[2]["goodput_per_s"] == 20 / DURATION_S
        assert by_number[0]["goodput_per_s"] == by_number[1]["goodput_per_s"] == 0.0

    def test_the_worst_ratio_asks_for_better_in_everything(self, tmp_path: Path) -> None:
        weights = {"p95_ttft_ms": 1.0, "p95_tpot_ms": 1.0}
        worst = report(night(tmp_path), weights=weights, aggregate="worst")
        assert worst.recommendation.number == 2
        assert worst.recommendation.score == pytest.approx(0.9)
        geometric = report(tmp_path, weights=weights, aggregate="geometric")
        by_number = {trial.number: trial.score for trial in geometric.trials if trial.score is not None}
        assert by_number[1].value == pytest.approx(1.0)
        assert by_number[2].value == pytest.approx(0.9)

    def test_why_a_trial_has_no_place(self, tmp_path: Path) -> None:
        folder = write(tmp_path, (measured(0, alike(100.0)), lost(1), measured(2, [request(0, 90.0, tokens=1)] * 20)))
        found = report(folder, weights={"p95_tpot_ms": 1.0})
        assert {trial.number: trial.why_no_place for trial in found.trials} == {
            0: None,
            1: "infeasible: startup_oom",
            2: "p95_tpot_ms is not defined",
        }
        assert report(night(tmp_path / "n")).trials[-1].why_no_place == "disturbed: GPU 0 throttled"


class TestMetrics:
    def test_they_are_those_of_the_requests_whatever_was_stored(self, tmp_path: Path) -> None:
        rng = random.Random(4)

        def some(number: int) -> list[Any]:
            return [
                request(
                    n, None if rng.random() < 0.1 else rng.lognormvariate(4, 1), rng.uniform(1, 50), rng.randint(1, 9)
                )
                for n in range(60 + number)
            ]

        folder = write(tmp_path, [measured(number, some(number)) for number in range(3)])
        names = [f"{stat}_{stem}_ms" for stat in ("mean", "median", "std", "p37.5", "p99.9") for stem in LATENCIES]
        slo = {"p95_ttft_ms": 60.0, "mean_tpot_ms": 25.0}
        found = report(folder, weights=dict.fromkeys(names, 1.0) | dict.fromkeys(RATES, -1.0), slo=slo)
        assert len(found.trials) == 3
        for trial in found.trials:
            stored = read_requests(folder, trial.number)
            ours = summarize(stored, DURATION_S, percentiles=(), slo=slo, extra_names=(*names, *slo))
            assert set(trial.metrics) == {*names, *RATES, *slo}
            assert trial.metrics == {name: pytest.approx(ours[name], rel=1e-12) for name in trial.metrics}
            assert trial.completed == sum(one.error is None for one in stored)
            assert trial.failed_requests == len(stored) - trial.completed > 0

    @pytest.mark.parametrize("name", ["good", "some_failed"])
    def test_a_stored_run_of_the_load_client_has_the_figures_it_printed(self, tmp_path: Path, name: str) -> None:
        result = recorded(name)
        slo = {"p95_ttft_ms": 24.0, "p99_e2el_ms": 77.0}  # what it was given as --goodput ttft:24 e2el:77
        theirs = {key: value for key, value in result.items() if key.endswith("_ms")}
        rates = {
            "request_throughput_per_s": result["request_throughput"],
            "output_throughput_tokens_per_s": result["output_throughput"],
            "total_throughput_tokens_per_s": result["total_token_throughput"],
        }
        if name == "good":
            rates["goodput_per_s"] = result["request_goodput"]
        folder = write(tmp_path, [measured(0, requests_of(result), load_s=result["duration"])])
        found = report(folder, weights=dict.fromkeys(theirs, 1.0) | dict.fromkeys(rates, -1.0), slo=slo)
        assert sum("e2el" in key for key in theirs) == 8
        for key, value in (theirs | rates).items():
            assert found.trials[0].metrics[key] == pytest.approx(value, rel=1e-9), key

    def test_percentiles_of_few_requests_are_flagged_with_the_number_they_need(self, tmp_path: Path) -> None:
        folder = write(tmp_path, (measured(0, alike(100.0, count=200)), measured(1, alike(90.0, count=199))))
        weights = {"p95_ttft_ms": 1.0, "p99_ttft_ms": 1.0, "mean_ttft_ms": 1.0, "p50_ttft_ms": 1.0}
        thin = report(folder, weights=weights).thin
        assert [(one.metric, one.needed, one.completed, one.trials) for one in thin] == [
            ("p95_ttft_ms", 200, 199, (1,)),
            ("p99_ttft_ms", 1000, 199, (0, 1)),
        ]


class TestConfirmation:
    def test_a_winner_that_was_launched_again_is_confirmed_with_its_interval(self, tmp_path: Path) -> None:
        found = report(confirmed(tmp_path))
        assert found.confirmed is not None
        verdict = found.confirmed.verdict
        assert (verdict.outcome, verdict.winner, found.confirmed.recommended) == (Outcome.BETTER, 1, 1)
        assert (found.recommendation.number, found.recommendation.confirmed) == (1, True)
        effect = verdict.effect(1)
        assert effect is not None
        assert 0.4 < effect.score.low < 0.5 < effect.score.high < 0.6
        assert found.recommendation.gain_share == pytest.approx(1 - effect.score.value)
        assert {one.key for one in verdict.shrinkage} == {1, 2}
        assert (found.search_winner.number, found.search_winner.confirmed) == (1, False)
        assert found.recommendation.sentence.endswith(" Whether it survives its worst burst is not known.")
        assert [trial.number for trial in found.trials] == [1, 2, 0, 5, 3, 4]

    def test_other_weights_judge_the_same_launches_anew(self, tmp_path: Path) -> None:
        found = report(confirmed(tmp_path), weights={"p95_tpot_ms": 1.0}, slo={"p99.9_ttft_ms": 200.0})
        assert (found.recommendation.number, found.recommendation.confirmed) == (2, True)
        assert found.own_winner is not None
        assert (found.own_winner.number, found.own_winner.confirmed) == (1, True)

    def test_a_winner_that_was_not_launched_again_stays_unconfirmed(self, tmp_path: Path) -> None:
        found = report(confirmed(tmp_path, of=(0, 1)), weights={"p95_tpot_ms": 1.0})
        assert (found.recommendation.number, found.recommendation.confirmed) == (2, False)
        assert "unconfirmed" in found.recommendation.sentence
        assert found.confirmed is not None
        assert found.confirmed.recommended is None

    def test_luck_of_the_search_that_did_not_hold_keeps_the_flags(self, tmp_path: Path) -> None:
        folder = night(tmp_path)
        append(folder, (launch(10 + 2 * block + n, n, block, 100.0) for block in range(4) for n in (0, 1)))
        found = report(folder)
        assert (found.recommendation.number, found.recommendation.confirmed) == (0, True)
        assert found.recommendation.flags == flags(0)
        assert found.search_winner.number == 1
        assert found.confirmed is not None
        assert found.confirmed.verdict.shrinkage[0].luck == pytest.approx(0.5, abs=0.1)

    def test_a_single_launch_is_no_confirmation(self, tmp_path: Path) -> None:
        folder = night(tmp_path)
        append(folder, (launch(10 + n, n, 0, 50.0 if n else 100.0) for n in (0, 1)))
        found = report(folder)
        assert (found.confirmed, found.recommendation.number, found.recommendation.confirmed) == (None, 1, False)

    def test_launches_that_were_disturbed_do_not_count(self, tmp_path: Path) -> None:
        folder = night(tmp_path)
        launches = [
            launch(10 + 2 * block + n, n, block, 50.0 if n else 100.0, disturbances=("throttled",) if n else ())
            for block in range(3)
            for n in (0, 1)
        ]
        append(folder, launches)
        assert report(folder).confirmed is None

    def test_flags_that_did_not_survive_their_worst_burst_cannot_win(self, tmp_path: Path) -> None:
        folder = confirmed(tmp_path)
        soaks = [lost(30 + n, TrialSpec(30 + n, TrialKind.SOAK, stepped(n))) for n in range(4)]
        append(folder, soaks)
        found = report(folder)
        assert found.recommendation.number == 0
        assert "failed under its worst burst" in found.recommendation.sentence
        assert found.search_winner.number == 2
        by_number = {trial.number: trial.why_no_place for trial in found.trials}
        assert by_number[1] == "its flags did not survive their worst burst"

    def test_a_step_down_that_only_the_confirmation_knows_has_a_command(self, tmp_path: Path) -> None:
        folder = confirmed(tmp_path)
        append(folder, [lost(30, TrialSpec(30, TrialKind.SOAK, flags(1)))])
        survived = TrialSpec(31, TrialKind.SOAK, stepped(1))
        append(folder, [measured(31, alike(1.0), spec=survived, command="vllm serve m --soaked")])
        specs = [TrialSpec(32 + block, TrialKind.CONFIRM, stepped(1), block=block) for block in range(4)]
        append(
            folder, (launch(32 + n, 1, n, 51.0, spec=spec, command="vllm serve m -u") for n, spec in enumerate(specs))
        )
        found = report(folder)
        assert found.winner is None
        assert (found.recommendation.flags, found.recommendation.confirmed) == (stepped(1), True)
        assert found.command is not None
        assert found.command.startswith("vllm serve m -")

    def test_a_damaged_launch_leaves_the_search(self, tmp_path: Path) -> None:
        path = confirmed(tmp_path) / "requests" / "0011.parquet"
        path.write_bytes(path.read_bytes()[:-20])
        found = report(tmp_path)
        assert (found.confirmed, found.recommendation.number, found.recommendation.confirmed) == (None, 1, False)
        assert any("confirmation is left out" in note for note in found.notes)

    def test_a_machine_that_drifted_is_what_later_trials_are_compared_with(self, tmp_path: Path) -> None:
        folder = write(
            tmp_path,
            (
                measured(0, alike(100.0)),
                measured(1, alike(90.0)),
                measured(2, alike(200.0), spec=TrialSpec(2, TrialKind.DRIFT, flags(0))),
                measured(3, alike(120.0)),
            ),
        )
        found = report(folder)
        assert [(trial.number, trial.reference) for trial in found.trials] == [(3, 2), (1, 0), (0, 0)]
        score = found.trials[0].score
        assert score is not None
        assert score.value == pytest.approx(0.6)
        (note,) = found.notes
        assert note.startswith("drift: trial 2 measured today's flags again, 100% worse than trial 0")

    def test_a_censored_trial_is_shown_with_its_reason_and_never_wins(self, tmp_path: Path) -> None:
        censored = measured(1, alike(20.0), status=TrialStatus.CENSORED, stopped_because="the incumbent is better")
        found = report(write(tmp_path, (measured(0, alike(100.0)), censored)))
        assert found.recommendation.number == 0
        assert found.trials[1].why_no_place == "censored: the incumbent is better"
        assert found.trials[1].metrics["p95_ttft_ms"] == pytest.approx(20.0)


class TestFront:
    def test_trials_that_no_other_dominates_by_the_first_metric(self, tmp_path: Path) -> None:
        front = report(night(tmp_path), front=("p95_ttft_ms", "p95_tpot_ms")).front
        assert front is not None
        assert [point.number for point in front.points] == [1, 2]
        assert front.points[0].values == pytest.approx((50.0, 20.0))
        assert front.points[1].values == pytest.approx((90.0, 9.0))
        assert front.dominated == (0, 5)
        assert front.left_out == {4: "disturbed"}

    def test_what_breaks_an_slo_is_not_on_it(self, tmp_path: Path) -> None:
        front = report(night(tmp_path), front=("p95_ttft_ms", "p95_tpot_ms"), slo={"p50_tpot_ms": 15.0}).front
        assert front is not None
        assert [point.number for point in front.points] == [2]
        assert front.left_out[1] == front.left_out[5] == "breaks the SLO on p50_tpot_ms"
        assert front.dominated == (0,)

    def test_a_third_metric_and_one_that_is_wanted_large(self, tmp_path: Path) -> None:
        folder = write(
            tmp_path,
            (
                measured(0, alike(100.0, count=20)),
                measured(1, alike(100.0, count=30)),
                measured(2, alike(120.0, count=40)),
                measured(3, alike(120.0, count=39)),
            ),
        )
        front = report(folder, front=("request_throughput_per_s", "p95_ttft_ms", "p95_tpot_ms")).front
        assert front is not None
        assert [(point.number, point.values[0]) for point in front.points] == [(2, 4.0), (1, 3.0)]
        assert front.dominated == (0, 3)

    def test_equal_trials_stand_side_by_side(self, tmp_path: Path) -> None:
        folder = write(tmp_path, (measured(0, alike(100.0)), measured(1, alike(100.0))))
        front = report(folder, front=("p95_ttft_ms", "p95_tpot_ms")).front
        assert front is not None
        assert [point.number for point in front.points] == [0, 1]

    def test_the_front_that_the_study_searched_for_is_shown_unasked(self, tmp_path: Path) -> None:
        folder = night(tmp_path, {**OWN, "front": ["p95_ttft_ms", "p95_e2el_ms"]})
        found = report(folder)
        assert found.front is not None
        assert found.front.metrics == ("p95_ttft_ms", "p95_e2el_ms")
        assert found.own_winner is None
        other = report(folder, front=("p95_ttft_ms", "p99_itl_ms")).front
        assert other is not None
        assert other.metrics == ("p95_ttft_ms", "p99_itl_ms")

    def test_nothing_feasible_is_an_empty_front(self, tmp_path: Path) -> None:
        front = report(night(tmp_path), front=("p95_ttft_ms", "p95_tpot_ms"), slo={"p95_ttft_ms": 1.0}).front
        assert front is not None
        assert (front.points, front.dominated, set(front.left_out)) == ((), (), {0, 1, 2, 4, 5})


class TestUnfinished:
    def test_a_running_study_is_reported_as_far_as_it_is(self, tmp_path: Path) -> None:
        with StudyFolder.open(tmp_path, "night") as study:
            write(study.path, [measured(0, alike(100.0)), measured(1, alike(90.0))], trials=40)
            found = report(study.path)
            assert found.running is not None
            assert f"process {json.loads((study.path / 'lock').read_text())['pid']}" in found.running
            assert (len(found.trials), found.asked) == (2, 40)
            assert found.recommendation.number == 1

    def test_a_study_whose_driver_was_killed_does_not_run(self, tmp_path: Path) -> None:
        folder = night(tmp_path)
        with StudyFolder.open(tmp_path, "other") as study:
            holder = json.loads((study.path / "lock").read_text())
        (folder / "lock").write_text(json.dumps({**holder, "started_ticks": 1}))
        assert report(folder).running is None

    def test_a_study_of_another_host_is_said_to_be_out_of_sight(self, tmp_path: Path) -> None:
        folder = night(tmp_path)
        (folder / "lock").write_text(json.dumps({"host": "elsewhere", "pid": 7, "since": "2026-01-01T00:00:00+00:00"}))
        found = report(folder)
        assert found.running is None
        assert any("elsewhere" in note and "cannot be seen" in note for note in found.notes)

    def test_nothing_stored(self, tmp_path: Path) -> None:
        found = report(write(tmp_path, ()), front=("p95_ttft_ms", "p95_tpot_ms"))
        assert (found.trials, found.winner, found.recommendation.flags) == ((), None, None)
        assert found.front is not None
        assert found.front.points == ()

    def test_all_failed(self, tmp_path: Path) -> None:
        found = report(write(tmp_path, (lost(0), lost(1))))
        assert found.recommendation.verdict is Verdict.ALL_FAILED
        assert found.winner is None
        assert [trial.failure and trial.failure.failure_class for trial in found.trials] == ["startup_oom"] * 2

    def test_without_a_baseline_there_is_a_front_but_no_verdict(self, tmp_path: Path) -> None:
        folder = write(tmp_path, (lost(0), measured(1, alike(50.0)), measured(2, alike(60.0))))
        found = report(folder, front=("p95_ttft_ms", "p95_tpot_ms"))
        assert found.winner is None
        assert {trial.why_no_place for trial in found.trials[1:]} == {"the baseline has nothing to compare with"}
        assert found.front is not None
        assert [point.number for point in found.front.points] == [1]

    def test_a_trial_whose_requests_are_damaged_costs_itself_alone(self, tmp_path: Path) -> None:
        path = night(tmp_path) / "requests" / "0001.parquet"
        path.write_bytes(path.read_bytes()[:-20])
        found = report(tmp_path)
        assert found.recommendation.number == 2
        assert found.trials[3].why_no_place == "its requests cannot be read"
        assert any("trial 1 " in note and "0001.parquet" in note for note in found.notes)

    @pytest.mark.parametrize(("text", "word"), [(None, "missing"), ("{", "damaged"), ("[]", "damaged")])
    def test_without_its_settings_a_study_is_ranked_by_the_default(
        self, tmp_path: Path, text: str | None, word: str
    ) -> None:
        settings = night(tmp_path) / "study.json"
        settings.unlink() if text is None else settings.write_text(text)
        found = report(tmp_path)
        assert found.asked is None
        assert set(found.objective.weights) > {"p95_ttft_ms", "p95_tpot_ms"}
        assert word in found.notes[0]
        assert report(tmp_path, weights={"p95_ttft_ms": 1.0}).own_winner is None

    def test_settings_of_another_version_are_refused_by_key(self, tmp_path: Path) -> None:
        folder = night(tmp_path, {"aims": {}})
        with pytest.raises(UserError, match=r"study\.json: objective\.aims"):
            open_source(str(folder))
