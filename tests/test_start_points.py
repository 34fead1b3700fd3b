from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from stored_trials import complete, store

from sweep.checks import check_sampler
from sweep.config import StudyConfig, loads, located
from sweep.errors import ConfigError
from sweep.fingerprint import Fingerprint, take_fingerprint
from sweep.redact import Redactor
from sweep.search_space import SearchSpace
from sweep.start_points import enqueued, usual_points, warm_points
from sweep.trial import Flags, Score, TrialKind, TrialSpec

STUDY = """\
study: {name: night, sampler: tpe}
model: {path: org/model}
search_space:
  parameters:
    max-num-seqs: {type: int, low: 8, high: 64, step: 8}
    gpu-memory-utilization: {type: float, low: 0.5, high: 0.9, step: 0.1}
    max-num-batched-tokens: {type: choice, values: [512, 2048, 8192]}
  constraints:
    - max-num-batched-tokens >= 16 * max-num-seqs
  enqueue:
    - {max-num-seqs: 64, max-num-batched-tokens: 2048}
    - max_num_seqs: 16
      gpu-memory-utilization: 0.9
baseline: {max-num-seqs: 32, gpu-memory-utilization: 0.8, max-num-batched-tokens: 2048}
"""


def study(old: str = "", new: str = "") -> tuple[StudyConfig, SearchSpace]:
    assert old in STUDY
    config = loads(STUDY.replace(old, new), Path("night.yaml"))
    return config, SearchSpace.from_config(config.search_space, config.serve.flags)


def point(seqs: int, share: float, tokens: int) -> Flags:
    return {"max-num-seqs": seqs, "gpu-memory-utilization": share, "max-num-batched-tokens": tokens}


def test_points_of_a_person_come_first_and_take_the_rest_from_the_baseline() -> None:
    assert [one.flags for one in enqueued(*study())] == [point(64, 0.8, 2048), point(16, 0.9, 2048)]
    assert enqueued(*study(STUDY[STUDY.index("  enqueue:") : STUDY.index("baseline:")], "  enqueue:\n")) == ()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("{max-num-seqs: 64,", "{max-num-seqs: 65,", "11: search_space.enqueue.0.max-num-seqs: max-num-seqs 65 "),
        ("max_num_seqs: 16", "max_num_seq: 16", "12: search_space.enqueue.1.max_num_seq: is not under search_space"),
        ("max-num-batched-tokens: 2048}\n    -", "max-num-batched-tokens: 512}\n    -", "11: search_space.enqueue.0: "),
        ("gpu-memory-utilization: 0.8", "gpu-memory-utilization: 0.3", "the baseline's, outside the search space"),
        ("max_num_seqs: 16", "max_num_seqs: null", "max-num-seqs null (outside the search space): give one of 8 to 64"),
    ],
)
def test_a_point_outside_the_space_is_refused_with_its_line(old: str, new: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "night.yaml"
    path.write_text(STUDY.replace(old, new))
    with pytest.raises(ConfigError) as caught, located(path):
        enqueued(*study(old, new))
    text = str(caught.value)
    assert words in text
    assert "\n" not in text
    assert text.startswith(f"{path}:")


def fingerprint(**changes: object) -> Fingerprint:
    taken = take_fingerprint(
        vllm="0.32.0",
        torch=None,
        model="org/model",
        tokenizer="org/model",
        server_command=("vllm", "serve"),
        fixed_flags={},
        server_env={},
        load={},
        dataset_sha256="0" * 64,
        redactor=Redactor({}),
        gpus=["RTX A6000"],
        driver="570.1",
        cuda="12.8",
    )
    return dataclasses.replace(taken, **changes)  # type: ignore[arg-type]


def earlier(folder: Path, scores: dict[int, tuple[float | None, Flags]]) -> Path:
    writer = store(folder)
    for number, (score, flags) in scores.items():
        made = complete(number, dict(flags))
        kind = TrialKind.SEARCH if number else TrialKind.BASELINE
        score_ = None if score is None else Score(abs(score), violations={"p95_ttft_ms": 0.5 if score < 0 else -0.5})
        writer.append(dataclasses.replace(made, spec=TrialSpec(number, kind, flags), score=score_, disturbances=()),
                      engine_summary={})  # fmt: skip
    (folder / "fingerprint.json").write_text(fingerprint().as_json())
    return folder


def test_an_earlier_study_gives_its_best_as_first_points_and_no_measurement(tmp_path: Path) -> None:
    _, space = study()
    baseline = point(32, 0.8, 2048)
    other = earlier(
        tmp_path / "other",
        {
            0: (1.0, {"max-num-seqs": 32, "gpu-memory-utilization": 0.8}),
            1: (-0.5, {"max-num-seqs": 8, "gpu-memory-utilization": 0.8}),  # breaks an SLO
            2: (0.8, {"max-num-seqs": 64, "gpu-memory-utilization": 0.9, "max-model-len": "4096"}),
            3: (0.7, {"max-num-seqs": 99, "gpu-memory-utilization": 0.8}),  # outside
            4: (None, {"max-num-seqs": 16, "gpu-memory-utilization": 0.5}),
        },
    )
    points, line = warm_points(other, space, baseline, fingerprint())
    assert [one.flags for one in points] == [point(64, 0.9, 2048), baseline]
    assert points[0].why == "number 2 of other"
    assert "a prior, none of its measurements counts (1 more lie outside this search space)" in line


def test_a_point_that_an_earlier_study_measured_again_is_one_point_with_its_mean(tmp_path: Path) -> None:
    """The last trials of a search measure its best once more: three looks at one point are no three points."""
    _, space = study()
    seats: dict[int, Flags] = {n: {"max-num-seqs": n, "gpu-memory-utilization": 0.8} for n in (16, 24, 40, 64)}
    other = earlier(
        tmp_path / "other",
        {
            0: (1.0, seats[40]),
            1: (0.5, seats[64]),  # luck, as its second look shows
            2: (0.6, seats[16]),
            3: (0.7, seats[24]),
            4: (1.3, seats[64]),
            5: (0.62, seats[16]),
            6: (0.61, seats[16]),
        },
    )
    points, line = warm_points(other, space, point(32, 0.8, 2048), fingerprint())
    assert [one.flags["max-num-seqs"] for one in points] == [16, 24, 64]
    assert "outside" not in line


def test_an_earlier_study_of_something_else_is_refused(tmp_path: Path) -> None:
    _, space = study()
    with pytest.raises(ConfigError, match=r"study\.warm_start: .* holds no study"):
        warm_points(tmp_path, space, {}, fingerprint())
    other = earlier(tmp_path / "other", {0: (None, {"max-num-seqs": 8})})
    with pytest.raises(ConfigError, match="has no measured trial"):
        warm_points(other, space, {}, fingerprint())
    for change, words in ({"gpus": ("H100",)}, "another GPUs"), ({"model": "org/other"}, "another model"):
        with pytest.raises(ConfigError, match=words):
            warm_points(other, space, {}, fingerprint(**change))


def test_defaults_and_safe_corners_in_a_search_that_has_room_for_them() -> None:
    _, space = study()
    baseline = point(32, 0.8, 2048)
    defaults = {"max-num-seqs": 256, "max-num-batched-tokens": 2048, "gpu-memory-utilization": 0.92}

    def starts(flags: Flags) -> float | None:
        return 0.5 if flags["max-num-batched-tokens"] == 8192 else 0.999

    found = usual_points(space, baseline, 40, defaults=defaults, starts=starts)
    # The smallest steps break the constraint at 64 sequences, the largest may not fit.
    assert [one.flags for one in found] == [point(64, 0.9, 2048)]
    every = usual_points(space, baseline, 40, defaults={}, starts=lambda _: 1.0)
    assert [one.flags for one in every] == [point(64, 0.9, 8192)]
    assert usual_points(space, baseline, 40, defaults={}, starts=lambda _: None) == ()
    assert usual_points(space, baseline, 19, defaults=defaults, starts=lambda _: 1.0) == ()


@pytest.mark.parametrize(
    ("sampler", "old", "new", "words"),
    [
        ("nsga2", "", "", "nsga2 looks for a front"),
        ("cmaes", "baseline:", "objective: {front: [p95_ttft_ms, p95_tpot_ms]}\nbaseline:", "cmaes follows one score"),
        ("cmaes", "values: [512, 2048, 8192]", "values: [512, 2048, null]", "max-num-batched-tokens is a choice or"),
        ("cmaes", "step: 8}", "or_null: true}", "max-num-seqs is a choice or may be null"),
        ("grid", "high: 0.9, step: 0.1}", "high: 0.9}", "gpu-memory-utilization has none"),
    ],
)
def test_a_sampler_that_does_not_fit_is_refused(sampler: str, old: str, new: str, words: str) -> None:
    config, space = study("sampler: tpe", f"sampler: {sampler}")
    text = STUDY.replace("sampler: tpe", f"sampler: {sampler}").replace(old, new) if old else None
    if text is not None:
        config = loads(text, Path("night.yaml"))
        space = SearchSpace.from_config(config.search_space, config.serve.flags)
    with pytest.raises(ConfigError, match=words):
        check_sampler(config, space)


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid", "cmaes"])
def test_a_sampler_that_fits_is_taken(sampler: str) -> None:
    check_sampler(*study("sampler: tpe", f"sampler: {sampler}"))
