"""The map of an objective over two flags: its page holds nothing that runs but ours, its circles what was measured."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from predicted import flags, trial, write

from sweep.errors import UserError
from sweep.predict.__main__ import main
from sweep.predict.flag_map import FlagMap, Mark, parse_pair
from sweep.predict.map_page import figure, map_page
from sweep.twinning import Basis

FOUND = FlagMap(
    study="a study",
    names=("max-num-seqs", "max-num-batched-tokens"),
    values=((8, 16, None), (256, 512)),
    scores=((1.5, 1.2), (1.0, None), (9.0, 0.9)),
    marks=(Mark(0, (16, 256), 1.0, {}), Mark(3, (12, 384), 1.1, {"block-size": 32}), Mark(4, (640, 256), 1.3, {})),
    baseline=(16, 256),
    settings={"dtype": "bfloat16"},
    objective="weights: {p95_ttft_ms: 1}",
    request_rates_per_s=(4.0,),
    basis=Basis((0, 3), 90),
    distinct=4,
    cautions=(),
)


def spec(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="figure">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_page_shows_scores_and_circles_and_says_what_was_simulated() -> None:
    page = map_page(FOUND)
    heat, full, hollow = spec(page)["data"]
    assert heat["z"] == [[1.5, 1.2], [1.0, None], [2.0, 0.9]], "what is far worse has the colour of 2"
    assert "score 9 (simulated)" in heat["text"][2][0]
    assert (full["x"], full["y"], full["text"]) == ([0.0], [1.0], ["1"]), "one beyond the axis has no place"
    assert (hollow["x"], hollow["y"]) == ([0.5], [0.5]), "between two values of the axis"
    assert "block-size 32" in hollow["hovertext"][0]
    assert "Simulated, not measured: only the circles were measured" in page


def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing_from_a_study() -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    bad = replace(
        FOUND,
        study=evil,
        settings={"dtype": evil},
        objective=evil,
        cautions=(evil,),
        marks=(Mark(0, (16, 256), 1.0, {"x": evil}),),
    )
    page = map_page(bad)
    assert "<script>alert" not in page
    assert "<img" not in page
    assert page.count("<script") == 3
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'' in page
    own = page.replace(page[page.index("<script>") : page.index('<script type="application/json"')], "")
    assert not re.search(r"<[^>]*\s(?:src|href)\s*=", own)
    hover = spec(page)["data"][2]["hovertext"][0]
    assert "<script" not in hover, "nor as a tag that plotly would read"


def test_plotly_takes_the_figure() -> None:
    graph = pytest.importorskip("plotly.graph_objects")
    drawn = graph.Figure(figure(FOUND))
    assert [trace.type for trace in drawn.data] == ["heatmap", "scatter", "scatter"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-num-seqs", "not two flags"),
        ("max-num-seqs,max_num_seqs", "not two flags"),
        ("max-num-seqs,", "not two flags"),
        ("a,b,c", "not two flags"),
        ("max-num-seqs,kv-cache-dtype", "kv-cache-dtype changes cannot be computed"),
    ],
)
def test_what_is_no_pair_of_flags_is_refused(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_pair(text)


def test_two_flags_are_spelt_as_one_likes() -> None:
    assert parse_pair("--max-num-seqs, max_num_batched_tokens") == ("max-num-seqs", "max-num-batched-tokens")


@pytest.mark.night  # numba compiles for half a minute
def test_the_command_writes_a_page_from_a_stored_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write(
        tmp_path / "night", [trial(0, flags(8), requests=16), trial(1, flags(4, 512), requests=16)], gpus=["a card"]
    )
    content = json.loads((study / "study.json").read_text())
    content["search_space"] = {
        "parameters": {
            "max-num-seqs": {"type": "choice", "values": [2, 4, 8, 600]},
            "max-num-batched-tokens": {"type": "choice", "values": [512, 2048]},
        },
        "constraints": ["max-num-batched-tokens >= max-num-seqs"],
    }
    (study / "study.json").write_text(json.dumps(content))
    page = tmp_path / "map.html"
    words = [str(study), "--map", "max-num-seqs,max-num-batched-tokens"]
    assert main([*words, "--out", str(page)]) == 0
    assert str(page) in capsys.readouterr().out
    heat, full, _ = spec(page.read_text())["data"]
    rows = heat["z"]
    assert [len(rows), len(rows[0])] == [4, 2]
    assert rows[3][0] is None, "a constraint of the study forbids it"
    assert rows[2][1] == pytest.approx(1.0), "the baseline is its own measure"
    assert rows[0][1] > rows[2][1], "few seats queue"
    assert len(full["x"]) == 2
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["simulated"], len(found["measured"])) == (True, 2)
    for more in (["--max-rate"], ["--slo", "p95_ttft_ms=5"], ["--json", "--out", "x"], ["--out", str(tmp_path)]):
        assert main([*words, *more]) == 2
    assert "sweep.predict: " in capsys.readouterr().err
