"""The benchmark of the page, on a study small enough to make in a second."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.mark.night
def test_a_made_study_has_a_whole_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
    bench = importlib.import_module("bench_report")
    folder = tmp_path / "made"
    folder.mkdir()
    bench.make_study(folder, 20, 30)
    monkeypatch.setattr(sys, "argv", ["bench_report.py", "--page", str(folder)])
    assert bench.main() == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"cpu_s", "rss_gib", "html_mib"}
    text = (folder / "report.html").read_text()
    for name in ("plot-confirmation", "plot-costs", "plot-flag-2", "plot-front-1", "plot-parallel", "plot-history"):
        assert f'id="{name}"' in text
    assert "CUDA out of memory" in text
