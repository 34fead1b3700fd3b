"""The search benchmark: what is the best of a recording, what a search is charged, and the figures made of it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
import recordings

from sweep.objective import Objective
from sweep.proposals import sampler_of
from sweep.search_space import Options, flags_key

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import bench_search
import search_methods
from search_world import Landscape, Seen, landscapes, with_seed

KEYS = ("server_minutes_ratio_vs_best_other", "failed_launch_ratio_vs_best_other", "within_5pct_share", "seeds",
        "landscapes")  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Landscape]:
    return landscapes(recordings.write(tmp_path_factory.mktemp("recording") / "recorded"))


def test_a_recording_is_a_landscape_at_each_rate_and_at_all(found: list[Landscape]) -> None:
    assert [one.name for one in found] == ["recorded, 4/s", "recorded, 8/s", "recorded, 4/s and 8/s"]
    for one in found:
        assert (len(one.points), one.failing, len(one.truth)) == (21, 9, 12)
        assert min(one.excess(point) for point in one.points) == 0.0
        assert one.excess(None) == max(one.truth.values()) / one.best - 1
    for one in found:  # nobody begins at the best, nor at the worst
        ranks = sorted(one.truth.values())
        assert ranks.index(one.truth[flags_key(one.baseline)]) in (5, 6, 7)
    both = found[2]
    assert both.budget_s == pytest.approx(9 * 5 + 12 * (32 + 24 / 4 + 24 / 8 + 20))
    slow = {key for key, value in both.truth.items() if value > 1.05 * both.best}
    assert all(dict(key)["max-num-seqs"][1] == 16 for key in both.truth.keys() - slow)


GP = pytest.param("Optuna GP", marks=pytest.mark.night)  # imports torch


@pytest.mark.parametrize("name", [GP if name == "Optuna GP" else name for name in search_methods.OTHERS])
def test_every_search_begins_with_todays_flags_and_keeps_to_the_budget(found: list[Landscape], name: str) -> None:
    short = dataclasses.replace(found[2], budget_s=300.0)
    steps = search_methods.other(short, 1, search_methods.OTHERS[name])
    assert steps[0].believed == short.baseline
    assert steps[-1].spent_s <= short.budget_s
    assert 3 < len(steps) <= 2 * len(short.points)
    assert steps == search_methods.other(short, 1, search_methods.OTHERS[name])


def test_a_sampler_that_only_proposes_what_was_not_recorded_still_searches(found: list[Landscape]) -> None:

    class Stuck(optuna.samplers.RandomSampler):
        """Of the first block size the first steps were not recorded."""

        def sample_independent(self, *asked: Any, **more: Any) -> Any:
            name = more.get("param_name", asked[2] if len(asked) > 2 else "")
            found = super().sample_independent(*asked, **more)
            return 0 if name in ("block-size", "max-num-batched-tokens") else found

    def stuck(one: Landscape, seed: int, seen: list[Seen]) -> search_methods.Proposals:
        return search_methods._optuna(one, seed, seen, Stuck(seed=seed))

    steps = search_methods.other(dataclasses.replace(found[2], budget_s=1e9), 1, stuck)
    assert len(steps) == len(found[2].points)  # each once, and then it ends
    assert min(found[2].excess(step.believed) for step in steps) < 0.05


def test_a_grid_goes_through_every_point_in_order(found: list[Landscape]) -> None:
    proposed = list(search_methods.grid(found[0], 0, []))
    assert [flags_key(found[0].baseline), *map(flags_key, proposed)] != sorted(map(flags_key, found[0].points))
    assert len(proposed) == 20
    assert [point["max-num-seqs"] for point in proposed[:6]] == [4, 4, 16, 16, 64, 64]


def test_auto_tune_goes_down_until_a_server_starts(found: list[Landscape]) -> None:
    steps = search_methods.other(found[2], 0, search_methods.auto_tune)
    assert [step.failed for step in steps[:3]] == [False, False, False]
    assert len(steps) == 2 + 3 * 2


def test_ours_is_the_product_itself(found: list[Landscape]) -> None:
    model = {"sampler": "tpe"}  # the twin's fit takes seconds, see test_made_landscape
    steps = search_methods.ours(found[2], 5, {"study": model})
    unraced = search_methods.ours(
        found[2], 5, {"study": {**model, **search_methods.OURS["ours without racing"]["study"]}}
    )
    assert steps[-1].spent_s <= found[2].budget_s
    assert steps[-1].spent_s < unraced[len(steps) - 1].spent_s or steps == unraced
    assert bench_search.Run.of(found[2], steps).found_s is not None


def test_the_twin_proposes_where_it_can_compute_all_that_is_searched(found: list[Landscape]) -> None:
    assert sampler_of(found[0].prepared) == "tpe"  # the default
    prepared = with_seed(found[0], 1, {"study": {"sampler": "auto"}})
    assert sampler_of(prepared) == "twin"
    foreign = dataclasses.replace(
        prepared.space, parameters=(*prepared.space.parameters, Options("kv-cache-dtype", ("auto", "fp8")))
    )
    assert sampler_of(dataclasses.replace(prepared, space=foreign)) == "tpe"
    fronts = Objective.of(None, {"p95_ttft_ms": 1.0}, {}, front=("p95_ttft_ms", "p95_tpot_ms"))
    front = dataclasses.replace(prepared.setup, objective=fronts)
    assert sampler_of(dataclasses.replace(prepared, setup=front)) == "tpe"
    named = with_seed(found[0], 1, {"study": {"sampler": "grid"}})
    assert sampler_of(named) == "grid"


def test_a_replay_of_vllm_knows_its_rules_and_nothing_of_the_machine(found: list[Landscape]) -> None:
    knowledge = found[0].prepared.knowledge
    assert knowledge.rules
    assert knowledge.nothing is not None


def test_figures(found: list[Landscape]) -> None:
    far, near = found[0].baseline, min(found[0].points, key=found[0].excess)
    step = search_methods.Step
    steps = [step(60.0, False, far), step(65.0, True, far), step(120.0, False, near), step(125.0, True, near)]
    run = bench_search.Run.of(found[0], steps)
    assert (run.found_s, run.failed_until, run.failed, run.launches) == (120.0, 1, 2, 4)
    assert run.within_at_half
    assert run.regret[0] == found[0].excess(None)
    assert run.regret[-1] == 0.0
    never = bench_search.Run.of(found[0], steps[:2])
    figures = bench_search.Figures.of(found[0], [run, never])
    assert figures.minutes == (2.0, found[0].budget_s / 60)
    assert figures.found_share == 0.5
    content = bench_search.keys({found[0]: {"ours": figures, "random": bench_search.Figures.of(found[0], [never])}}, 2)
    assert content["server_minutes_ratio_vs_best_other"] == pytest.approx(
        (2.0 + found[0].budget_s / 60) / 2 / (found[0].budget_s / 60)
    )
    assert content["failed_launch_ratio_vs_best_other"] is None  # the other found it in no study
    assert content["methods"]["random"][found[0].name]["found_share"] == 0.0
    assert content["methods"]["ours"].items() >= {key: content[key] for key in KEYS}.items()
    assert content["methods"]["random"]["server_minutes_ratio_vs_best_other"] is None  # there is no other


def test_another_that_never_failed_is_not_left_out(found: list[Landscape]) -> None:
    one, step = found[0], search_methods.Step
    near = min(one.points, key=one.excess)
    lucky, unlucky = ([step(60.0, failed, None), step(90.0, False, near)] for failed in (False, True))
    good, bad = (bench_search.Figures.of(one, [bench_search.Run.of(one, steps)] * 4) for steps in (lucky, unlucky))
    content = bench_search.keys({one: {"ours": bad, "random": good, "grid": bad}}, 4)
    assert content["failed_launch_ratio_vs_best_other"] == 4.0  # one a study, by one in all four
    assert content["methods"]["random"]["failed_launch_ratio_vs_best_other"] == 0.0
    assert content["methods"]["grid"]["failed_launch_ratio_vs_best_other"] == 4.0
    assert bench_search.keys({one: {"ours": bad}}, 4)["server_minutes_ratio_vs_best_other"] is None


def test_a_plot_has_a_line_a_method() -> None:
    from search_plot import svg

    text = svg({"a < b": {"ours": [(0.0, 0.5), (10.0, 0.0)], "grid": [(0.0, 20.0), (10.0, 0.05)]}})
    assert text.count("<polyline") == 2
    assert "a &lt; b (replayed)" in text


def test_every_method_has_a_colour_of_its_own_and_room_in_the_legend() -> None:
    from search_plot import COLOURS, svg

    names = [*search_methods.OURS, *search_methods.OTHERS]
    assert len(names) <= len(set(COLOURS)) == len(COLOURS)
    text = svg({"one": {name: [(0.0, 0.5), (10.0, 0.0)] for name in names}})
    width = int(text.split('width="', 1)[1].split('"', 1)[0])
    last = float(text.rsplit('<text x="', 1)[1].split('"', 1)[0])
    assert last + 7 * len(names[-1]) <= width
