"""What the benchmark of the twin reads of recordings, packed or not."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import recordings as made

from sweep.store import pack

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import bench_twin
import twin_recording

FAILING = {**made.BASELINE, "gpu-memory-utilization": 0.3}
LAUNCHES = (made.BASELINE, FAILING, {**made.BASELINE, "max-num-seqs": 64}, made.BASELINE)


def test_a_packed_recording_is_read_as_the_folder_it_was_made_of(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "several" / "night", LAUNCHES)
    pack(folder, tmp_path / "packed" / "night")
    (plain,) = twin_recording.recordings(folder)
    assert [twin_recording.recordings(tmp_path / "several")[0].name, plain.name] == ["night", "night"]
    for packed in (
        *twin_recording.recordings(tmp_path / "packed"),
        *twin_recording.recordings(tmp_path / "packed/night"),
    ):
        assert [one.flags for one in packed.launches] == [one.flags for one in plain.launches]
        for mine, theirs in zip(packed.launches, plain.launches, strict=True):
            assert [one.engine for one in mine.rounds] == [one.engine for one in theirs.rounds]
            for one, other in zip(mine.rounds, theirs.rounds, strict=True):
                # A packed time is whole microseconds, one of several gaps as well.
                assert one.latencies() == pytest.approx(other.latencies(), abs=made.OUTPUT * 1e-6)
                assert np.array_equal(one.load.output_tokens, other.load.output_tokens)


def test_launches_that_failed_are_not_in_it(tmp_path: Path) -> None:
    (found,) = twin_recording.recordings(made.write(tmp_path / "night", LAUNCHES))
    assert [dict(one.flags)["max-num-seqs"] for one in found.launches] == ["4", "64", "4"]
    assert {dict(one.flags)["gpu-memory-utilization"] for one in found.launches} == {"0.6"}
    assert {len(one.rounds) for one in found.launches} == {len(made.RATES)}


def test_the_recording_in_the_repository_is_the_default() -> None:
    (found,) = twin_recording.recordings(bench_twin.RECORDING)
    settings = [one.flags for one in found.launches]
    assert (len(found.launches), len(set(settings))) == (44, 26)
    assert sorted({settings.count(one) for one in settings}) == [1, 3]


@pytest.mark.parametrize("content", ["nothing", "no launch that was complete"])
def test_a_folder_that_holds_nothing_is_one_line(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content != "nothing":
        made.write(tmp_path / "night", [FAILING])
    with pytest.raises(SystemExit) as ended:
        bench_twin.main(["--recording", str(tmp_path)])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"--recording {tmp_path}: no study with a complete launch there" in said.splitlines()[-1]


def test_tables_that_cannot_be_read_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trials.parquet").write_bytes(b"not a table")
    with pytest.raises(SystemExit) as ended:
        bench_twin.main(["--recording", str(tmp_path)])
    assert ended.value.code == 2
    assert "trials.parquet" in capsys.readouterr().err
