"""What a page shows, as values: each on records whose answer is known."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from reported import alike, append, confirmed, flags, launch, measured, night, request, write
from rich_night import HOSTILE, engine, rich_night, telemetry

from sweep.metrics import RequestColumns
from sweep.records import RoundRecord
from sweep.report import Wishes, open_source
from sweep.report.facts import Facts, Sheet
from sweep.report.facts.clouds import clouds_of, parallel_of
from sweep.report.facts.curves import SHARES, curves_of
from sweep.report.facts.flags import FlagFacts, flag_facts
from sweep.report.facts.history import State, state_of
from sweep.report.facts.timeline import MOST_POINTS, timeline_of
from sweep.report.page import facts_of, sheet_reader
from sweep.trial import Finished, Flag, TrialKind, TrialStatus


def facts(folder: Path) -> Facts:
    return facts_of(open_source(str(folder)))


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return facts(rich_night(tmp_path_factory.mktemp("rich")))


def sheet(found: Facts, number: int) -> Sheet:
    return next(one for one in found.sheets if one.number == number)


def trial(number: int, score: float | None, values: Mapping[str, Flag], **changes: object) -> Finished:
    kind = TrialKind.SEARCH if number else TrialKind.BASELINE
    status = TrialStatus.INFEASIBLE if score is None else TrialStatus.COMPLETE
    whole = Finished(number, kind, values, status, score)
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


class TestCurves:
    def test_they_are_the_quantiles_of_the_requests(self) -> None:
        columns = RequestColumns.of([request(place, float(place + 1)) for place in range(101)])
        found = curves_of(columns)
        assert set(found) == {"ttft", "tpot", "itl", "e2el"}
        assert found["ttft"].count == 101
        assert found["ttft"].values_ms == pytest.approx([1 + 100 * share for share in SHARES])
        assert found["itl"].count == 202
        assert found["tpot"].values_ms == pytest.approx([10.0] * len(SHARES))

    def test_a_latency_that_nothing_defines_has_none(self) -> None:
        single = [request(place, 5.0, tokens=1) for place in range(3)]
        assert set(curves_of(RequestColumns.of(single))) == {"ttft", "e2el"}
        assert curves_of(RequestColumns.of([])) == {}


class TestTimeline:
    ROUNDS = (RoundRecord(1, 0, 44.0, 10.0, 12.0, None, 20, 20, 0, 60),)

    def test_tracks_are_of_the_load_alone_on_a_common_time(self) -> None:
        found = timeline_of(engine(), telemetry(), self.ROUNDS)
        assert found is not None
        tracks = {track.name: track.values for track in found.tracks}
        assert all(len(values) == len(found.at_s) == 13 for values in tracks.values())
        assert 42.0 < found.at_s[0] < found.at_s[-1] < 54.0
        assert max(value for value in tracks["running"] if value is not None) == 4.0  # 99 was before the load
        assert [tracks["preemptions"][0], tracks["preemptions"][-1]] == [0.0, 3.0]
        assert set(tracks["temperature"]) == {70.0}
        assert set(tracks["power"]) == {225.0}
        assert min(value for value in tracks["SM clock"] if value is not None) == 900.0
        assert found.rounds == ((44.0, 54.0),)

    def test_throttling_is_marked_where_it_begins_with_its_device(self) -> None:
        found = timeline_of(engine(), telemetry(), ())
        assert found is not None
        (mark,) = found.throttles
        assert (mark.at_s, mark.device, mark.reasons, mark.disturbing) == (
            46.0,
            "GPU 1",
            ("hw_thermal_slowdown",),
            True,
        )

    def test_points_are_bounded_and_a_peak_survives(self) -> None:
        rows = [
            dataclasses.replace(engine()[1], at_s=42.0 + s, waiting=777.0 if s == 5_001 else 1.0) for s in range(9999)
        ]
        found = timeline_of(rows, (), ())
        assert found is not None
        assert len(found.at_s) == MOST_POINTS
        waiting = next(track for track in found.tracks if track.name == "waiting")
        assert max(value or 0.0 for value in waiting.values) == 777.0
        assert "SM clock" not in {track.name for track in found.tracks}

    def test_nothing_read_is_no_timeline_and_one_reading_is_one_point(self) -> None:
        assert timeline_of((), (), ()) is None
        one = timeline_of(engine()[1:2], (), ())
        assert one is not None
        assert len(one.at_s) == 1


class TestTime:
    def test_a_trial_divides_into_its_phases(self, rich: Facts) -> None:
        spans = sheet(rich, 40).spans
        assert (spans.waiting_s, spans.startup_s, spans.load_s, spans.other_s, spans.lost_s) == (5, 35, 13, 7, 0)

    def test_attempts_before_the_last_and_failed_trials_are_lost(self, rich: Facts) -> None:
        assert sheet(rich, 42).spans.lost_s == 90.0
        assert sheet(rich, 42).spans.load_s == 13.0
        assert sheet(rich, 43).spans.lost_s == 60.0

    def test_the_table_adds_up_and_knows_the_time_between_trials(self, tmp_path: Path) -> None:
        both = [measured(n, alike(10.0), started_wall_s=1000.0 + 100 * n, total_s=60.0) for n in (0, 1)]
        times = facts(write(tmp_path, both)).times
        assert times is not None
        assert (times.total_s, times.wall_s) == (160.0, 160.0)
        assert sum(row.seconds for row in times.rows) == times.total_s
        assert sum(row.share for row in times.rows) == pytest.approx(1.0)
        assert {row.what: row.seconds for row in times.rows}["between trials"] == 40.0

    def test_trials_side_by_side_count_each(self, tmp_path: Path) -> None:
        both = [measured(n, alike(10.0), started_wall_s=1000.0 + 10 * n, total_s=60.0) for n in (0, 1)]
        times = facts(write(tmp_path, both)).times
        assert times is not None
        assert (times.total_s, times.wall_s) == (120.0, 70.0)


class TestHistory:
    def test_the_best_so_far_never_rises_and_leaves_out_what_cannot_win(self, tmp_path: Path) -> None:
        found = facts(night(tmp_path)).history
        assert [one.number for one in found] == [0, 1, 2, 3, 4, 5]
        assert [one.score for one in found] == pytest.approx([1.0, 0.5, 0.9, None, 0.4, 2.0])
        assert [one.best for one in found] == pytest.approx([1.0, 0.5, 0.5, 0.5, 0.5, 0.5])
        assert [one.state for one in found][3:5] == [State.FAILED, State.DISTURBED]

    def test_a_trial_that_keeps_the_slos_is_better_than_any_that_does_not(self, tmp_path: Path) -> None:
        source = open_source(str(night(tmp_path)))
        found = facts_of(source, Wishes(slo={"p95_tpot_ms": 15.0})).history
        assert [one.best for one in found][:3] == pytest.approx([1.0, 1.0, 0.9])
        assert found[1].state is State.BREAKS

    def test_launches_of_the_confirmation_are_scored_against_their_blocks_baseline(self, tmp_path: Path) -> None:
        found = facts(confirmed(tmp_path))
        launches = [one for one in found.history if one.kind is TrialKind.CONFIRM]
        assert len(launches) == 12
        assert all(one.best is None for one in launches)
        by_trial = {key: [one.score or 0 for one in launches if (one.number - 10) % 3 == key] for key in (0, 1, 2)}
        assert by_trial[0] == [1.0] * 4
        assert all(0.4 < score < 0.6 for score in by_trial[1])
        rows = {row.key: row for row in found.confirmation}
        assert rows[1].launch_scores == tuple(by_trial[1])
        assert rows[0].score is None
        assert [row.key for row in found.confirmation][:2] == [0, 1]
        assert [row.key for row in found.confirmation if row.recommended] == [1]
        assert rows[1].search_score == pytest.approx(0.5)

    def test_a_state_for_every_end(self) -> None:
        assert state_of(trial(1, None, {}, status=TrialStatus.FAILED)) is State.FAILED
        assert state_of(trial(1, 0.9, {}, status=TrialStatus.CENSORED)) is State.CENSORED
        assert state_of(trial(1, 0.9, {}, violations={"p95_ttft_ms": 0.1})) is State.BREAKS
        assert state_of(trial(0, 1.0, {}, disturbed=True)) is State.KEPT  # the baseline counts all the same


class TestFlags:
    def test_means_have_intervals_from_three_trials_on(self) -> None:
        scores = [(1, 8, 0.8), (2, 8, 1.0), (3, 8, 1.2), (4, 16, 0.5), (5, 16, 0.6)]
        (found,) = flag_facts({n: trial(n, score, {"seqs": value, "same": 1}) for n, value, score in scores})
        assert (found.name, found.numeric) == ("seqs", True)
        first, second = found.levels
        assert (first.low, first.measured, second.measured) == (8, 3, 2)
        assert first.mean is not None
        # Student's t of 2 degrees of freedom at 97.5 % is 4.303.
        assert first.mean.value == pytest.approx(1.0)
        assert first.mean.high - first.mean.value == pytest.approx(4.303 * 0.2 / math.sqrt(3), rel=1e-3)
        assert second.mean is None

    def test_neighbouring_values_that_only_fail_are_one_region(self) -> None:
        values: list[tuple[Flag, float | None]] = [
            (0.5, 1.0),
            (0.9, None),
            (0.92, None),
            (0.92, None),
            (0.95, 0.9),
            (0.97, None),
        ]
        known = {n: trial(n + 1, score, {"mem": value}) for n, (value, score) in enumerate(values)}
        (found,) = flag_facts(known)
        assert [(one.low, one.high, one.trials) for one in found.failed_regions] == [(0.9, 0.92, 3), (0.97, 0.97, 1)]
        assert [level.failed for level in found.levels] == [0, 1, 2, 0, 1]

    def test_a_failure_that_is_not_the_flags_fault_makes_no_region(self) -> None:
        lost = trial(2, None, {"mem": 0.9}, status=TrialStatus.FAILED)
        (found,) = flag_facts({1: trial(1, 1.0, {"mem": 0.5}), 2: lost})
        assert found.failed_regions == ()

    def test_many_numbers_are_grouped_and_none_is_lost(self) -> None:
        known = {n: trial(n, 1.0 + n / 100, {"mem": n / 100}) for n in range(1, 41)}
        (found,) = flag_facts(known)
        assert len(found.levels) == 8
        assert sum(level.measured for level in found.levels) == 40
        assert all(
            a.high < b.low  # type: ignore[operator]
            for a, b in zip(found.levels, found.levels[1:], strict=False)
        )

    def test_words_and_what_is_left_to_vllm_are_values_of_their_own(self) -> None:
        values: list[Flag] = ["auto", None, 1, True]
        (found,) = flag_facts({n: trial(n, 1.0, {"flag": value}) for n, value in enumerate(values, start=1)})
        assert not found.numeric
        assert len(found.levels) == 4


class TestCosts:
    def test_a_confirmed_winner_has_intervals_from_server_to_server(self, tmp_path: Path) -> None:
        costs = facts(confirmed(tmp_path)).costs
        assert costs is not None
        assert (costs.of, costs.confirmed) == (1, True)
        changes = {one.name: one for one in costs.changes}
        ttft, tpot = changes["p95_ttft_ms"], changes["p95_tpot_ms"]
        assert ttft.ratio_interval is not None
        assert ttft.ratio_interval.low < ttft.ratio < ttft.ratio_interval.high < 1
        assert (ttft.better, tpot.better) == (True, False)
        assert ttft.thin  # of launches of a few requests each
        assert (ttft.limit, ttft.keeps) == (None, None)
        assert "output_throughput_tokens_per_s" in changes

    def test_an_unconfirmed_one_has_no_interval_of_the_change(self, tmp_path: Path) -> None:
        found = facts_of(open_source(str(night(tmp_path))), Wishes(slo={"p95_ttft_ms": 60.0, "p95_tpot_ms": 30.0}))
        assert found.costs is not None
        assert not found.costs.confirmed
        ttft = next(one for one in found.costs.changes if one.name == "p95_ttft_ms")
        assert (ttft.baseline, ttft.winner, ttft.ratio) == (100.0, 50.0, 0.5)
        assert (ttft.ratio_interval, ttft.better, ttft.thin) == (None, None, True)
        assert (ttft.limit, ttft.keeps) == (60.0, True)

    def test_keep_your_flags_costs_nothing(self, tmp_path: Path) -> None:
        found = facts(write(tmp_path, (measured(0, alike(50.0)), measured(1, alike(90.0)))))
        assert found.costs is None
        assert found.report.changed == ()


class TestClouds:
    def test_the_front_is_what_no_other_beats_in_both(self, tmp_path: Path) -> None:
        first, second = facts(night(tmp_path)).clouds
        assert first.metrics == ("p95_ttft_ms", "p95_tpot_ms")
        assert [point.number for point in first.front] == [1, 2]  # 4 is disturbed, 0 and 5 are beaten
        assert {point.number for point in first.points} == {0, 1, 2, 4, 5}
        assert second.metrics == ("p95_e2el_ms", "output_throughput_tokens_per_s")

    def test_a_front_that_the_study_searched_for_has_its_own(self, tmp_path: Path) -> None:
        own = facts_of(open_source(str(night(tmp_path))), Wishes(front=("p50_ttft_ms", "p95_tpot_ms")))
        assert [cloud.metrics for cloud in own.clouds][-1] == ("p50_ttft_ms", "p95_tpot_ms")

    def test_places_on_parallel_axes_lie_between_0_and_1(self, tmp_path: Path) -> None:
        found = facts(night(tmp_path)).parallel
        assert found is not None
        names = [axis.name for axis in found.axes]
        assert names == ["max-num-seqs", "block-size", "gpu-memory-utilization", "p95_ttft_ms", "score"]
        lines = {line.number: line for line in found.lines}
        assert all(place is None or 0 <= place <= 1 for line in found.lines for place in line.places)
        assert (lines[0].places[0], lines[5].places[0]) == (0.0, 1.0)
        assert lines[3].places[-1] is None
        assert (lines[3].third, lines[4].third, lines[5].third) == (None, 0, 2)

    def test_words_null_and_decades_have_places(self, rich: Facts) -> None:
        known = {
            1: trial(1, 1.0, {"dtype": "auto", "n": 1, "k": None}),
            2: trial(2, 0.9, {"dtype": HOSTILE, "n": 10, "k": 5}),
            3: trial(3, 0.8, {"dtype": "auto", "n": 100, "k": 7}),
        }
        blank = {n: dataclasses.replace(rich.sheets[0], number=n, metrics={}) for n in known}
        found = parallel_of(known, blank, ())
        assert found is not None
        assert [line.places[1] for line in found.lines] == pytest.approx([0.0, 0.5, 1.0])
        assert found.lines[0].places[2] == 0.0 < (found.lines[1].places[2] or 0.0)
        assert {text for _, text in found.axes[0].ticks} == {"auto", HOSTILE}
        assert clouds_of(known, blank, ()) == ()
        assert parallel_of({1: known[1]}, blank, ()) is None


class TestTroubles:
    def test_causes_are_counted_and_named_with_their_trials(self, rich: Facts) -> None:
        first, second = rich.troubles
        assert (first.failure_class, first.trials, first.line) == ("startup_oom", (3, 43), "CUDA out of memory")
        assert second.trials == (41,)
        assert [(one.number, one.reasons) for one in rich.disturbed] == [(4, ("GPU 0 throttled",))]


class TestWhatCannotBeRead:
    def test_a_damaged_table_leaves_a_note_and_the_rest(self, tmp_path: Path) -> None:
        folder = night(tmp_path)
        (folder / "engine" / "0001.parquet").write_bytes(b"PAR1 no more")
        found = facts(folder)
        assert sheet(found, 1).timeline is None
        assert sheet(found, 1).curves
        assert any(note.startswith("trial 1: ") and "damaged" in note for note in found.report.notes)

    def test_a_study_of_nothing_has_empty_facts(self, tmp_path: Path) -> None:
        found = facts(write(tmp_path, ()))
        assert (found.sheets, found.history, found.flags, found.clouds, found.troubles) == ((), (), (), (), ())
        assert (found.costs, found.parallel, found.times, found.now) == (None, None, None, None)

    def test_an_unreadable_fingerprint_says_nothing(self, tmp_path: Path) -> None:
        folder = night(tmp_path)
        (folder / "fingerprint.json").write_text("[1]")
        assert facts(folder).measured_on == ()


class TestReading:
    def test_a_sheet_is_read_again_only_when_its_trial_changed(self, tmp_path: Path) -> None:
        source = open_source(str(night(tmp_path)))
        reader = sheet_reader(source)
        first = facts_of(source, reader=reader).sheets
        again = facts_of(source, reader=reader).sheets
        assert all(a is b for a, b in zip(first, again, strict=True))
        append(tmp_path, (measured(6, alike(70.0)),))
        more = facts_of(open_source(str(tmp_path)), reader=reader).sheets
        assert more[0] is first[0]
        assert more[-1].number == 6

    def test_other_limits_are_other_sheets(self, tmp_path: Path) -> None:
        source = open_source(str(night(tmp_path)))
        reader = sheet_reader(source)
        assert "goodput_per_s" not in facts_of(source, reader=reader).sheets[0].metrics
        with_slo = facts_of(source, Wishes(slo={"p95_ttft_ms": 60.0}), reader)
        assert with_slo.sheets[0].metrics["goodput_per_s"] == 0.0


def test_the_soak_and_the_calibration_are_no_part_of_the_history(tmp_path: Path) -> None:
    spec = dataclasses.replace(launch(30, 1, 0, 50.0).spec, kind=TrialKind.SOAK)
    folder = confirmed(tmp_path)
    append(folder, (launch(30, 1, 0, 50.0, spec=spec),))
    found = facts(folder)
    assert 30 not in {one.number for one in found.history}
    assert sheet(found, 30).kind is TrialKind.SOAK


def test_values_of_flags_are_those_of_the_trials(tmp_path: Path) -> None:
    found: tuple[FlagFacts, ...] = facts(night(tmp_path)).flags
    assert [one.name for one in found] == ["max-num-seqs"]
    assert [point.value for point in found[0].points] == [flags(n)["max-num-seqs"] for n in range(6)]
    assert np.isfinite([point.score for point in found[0].points if point.score is not None]).all()
