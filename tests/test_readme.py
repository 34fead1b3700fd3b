"""README.md and docs/ say what the code does."""

from __future__ import annotations

import dataclasses
import re
import runpy
import shlex
from pathlib import Path

import duckdb
import pytest
import reported
from stored_trials import complete, failed

from sweep.diagnosis.__main__ import main as diagnosis
from sweep.exchange.__main__ import main as exchange
from sweep.guide import PassedOver, Refusal
from sweep.redact import Redactor
from sweep.report.__main__ import main as report
from sweep.store import PassedStore, Schema, Store
from sweep.trial import Score

ROOT = Path(__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
README = PAGES["README.md"]


def test_tables_are_those_of_the_code() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "readme_tables.py"))
    for page in made["TABLES"]:
        assert made["with_tables"](page, PAGES[page]) == PAGES[page], "run python scripts/readme_tables.py"


def test_it_is_no_longer_than_one_reads() -> None:
    assert len(README.splitlines()) < 500, "move reference material to docs/"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", PAGES[page])
    for link in links:
        assert link.startswith("https://") or (ROOT / page).parent.joinpath(link).exists(), link
    if page != "README.md":
        assert f"]({page})" in README, f"README does not lead to {page}"


def commands() -> list[str]:
    blocks = [block for text in PAGES.values() for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)]
    return [line.split("  #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("command", commands())
def test_commands_name_what_is_there(command: str) -> None:
    words = shlex.split(command)
    for word in words:
        if word.startswith(("scripts/", "search_spaces/")):
            assert (ROOT / word).exists(), f"{command}: no {word}"
    if "-m" in words and words[words.index("-m") + 1].startswith("sweep."):
        module = words[words.index("-m") + 1].replace(".", "/")
        assert (ROOT / f"{module}.py").exists() or (ROOT / module / "__main__.py").exists(), command


# Commands that take minutes, a GPU or the network: the test or script that runs the same words.
ELSEWHERE = {
    "scripts/demo": "scripts/demo",
    "scripts/test": "scripts/test",
    "pip install '.[gpu]'": "scripts/environment.sh",
    "cp search_spaces/a6000x4_qwen32b.yaml night.yaml": "tests/test_search_spaces.py",
    "python -m sweep.tune night.yaml --dry-run": "tests/test_tune_mistakes.py",
    "python -m sweep.tune night.yaml --time-budget 10h": "tests/test_deadline.py",
    "python -m sweep.tune night.yaml --json": "tests/test_tune.py",
    "python -m sweep.check night.yaml": "tests/test_check.py",
    "python -m sweep.check night.yaml --json --time-budget 1h": "tests/test_check.py",
    "python -m sweep.predict results/cpu-demo --set max-num-seqs=64 --request-rate 6": "tests/test_predict_command.py",
    "python -m sweep.predict results/cpu-demo --max-rate --slo p95_ttft_ms=2000": "tests/test_predict_command.py",
    "python -m sweep.predict results/cpu-demo --map max-num-seqs,max-num-batched-tokens": "tests/test_predict_map.py",
    "python -m sweep.report results/cpu-demo --watch": "tests/test_report_watch.py",
    "python -m sweep.doctor night.yaml --ray-address auto": "tests/test_cluster_study.py",
    "python -m sweep.tune night.yaml --ray-address auto --time-budget 10h": "tests/test_tune_mistakes.py",
    "ray job submit --working-dir . -- python -m sweep.tune night.yaml --ray-address auto": "tests/test_cluster.py",
    "optuna-dashboard cpu-demo.journal": "tests/test_exchange.py",
    "tensorboard --logdir results/cpu-demo/ray": "tests/test_tune.py",
}
RUN = {"sweep.report": report, "sweep.exchange": exchange, "sweep.diagnosis": diagnosis}


@pytest.mark.parametrize("command", commands())
def test_every_command_is_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if command in ELSEWHERE:
        place = ROOT / ELSEWHERE[command]
        assert place.exists()
        if command.startswith("tensorboard"):
            return  # not one of our dependencies: the files that it reads are read there
        ours = command.rpartition(" -- ")[2]  # what another tool is given to run
        for option in [word.strip("-") for word in shlex.split(ours) if word.startswith("--")]:
            read = place.read_text()
            assert option in read or option.replace("-", "_") in read, f"nothing runs {option} in {place.name}"
        return
    monkeypatch.chdir(tmp_path)
    reported.night(tmp_path / "results" / "cpu-demo")
    sweep = tmp_path / "sweep-results" / "SERVE--max_num_seqs=8"
    sweep.mkdir(parents=True)
    (sweep / "run=0.json").write_text('{"duration": 9, "completed": 5, "num_prompts": 5, "max_num_seqs": 8}')
    (tmp_path / "serve.json").write_text('[{"max_num_seqs": 8}, {"max_num_seqs": 64}]')
    (tmp_path / "bench.json").write_text('[{"num_prompts": 60}]')
    (tmp_path / "server.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    words = shlex.split(command.partition(" > ")[0])
    assert words[:2] == ["python", "-m"], f"{command}: nothing runs it"
    assert RUN[words[2]](words[3:]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out


def test_modules_of_the_layout_exist() -> None:
    layout = README.split("## How it works")[1]
    named = set(re.findall(r"`(sweep/[a-z_/]+)`", layout))
    assert named, "the layout names no module"
    for name in named:
        assert (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file(), name


def queries() -> list[str]:
    blocks = re.findall(r"```sql\n(.*?)```", README, re.DOTALL)
    return [query for block in blocks for query in block.split(";") if query.strip()]


def test_queries_run_on_a_study(tmp_path: Path) -> None:
    """In DuckDB, on tables with the demo's flags: one trial measured, one failed."""
    columns = ("max-num-seqs", "max-num-batched-tokens")
    metrics = ("p95_ttft_ms", "p95_tpot_ms")
    store = Store(tmp_path, Schema(dict.fromkeys(columns, int), metrics), metadata={}, redactor=Redactor({}))
    flags = dict.fromkeys(columns, 8)
    summary = {"peak_running": 8.0, "peak_waiting": 2.0, "preemptions": 0.0}
    for made in (complete(0, dict(flags)), failed(1)):
        spec = dataclasses.replace(made.spec, flags=flags)
        measured = None if made.metrics is None else dict.fromkeys(metrics, 50.0)
        score = None if made.score is None else Score(1.0)
        store.append(dataclasses.replace(made, spec=spec, metrics=measured, score=score), engine_summary=summary)
    refusal = Refusal("no room", "kv_cache", 0.98, audit=True)
    passed = PassedStore(tmp_path, Schema(dict.fromkeys(columns, int), metrics), metadata={}, redactor=Redactor({}))
    passed.append(PassedOver(1, flags, refusal))
    found = [
        duckdb.connect().execute(query.replace("results/cpu-demo", str(tmp_path))).fetchall() for query in queries()
    ]
    assert [len(rows) for rows in found] == [1, 1, 1, 1]
    assert found[0][0][:3] == (0, 1.0, 8)
    assert found[1][0][-1] == 3
    assert found[2][0][-1] == 1
    assert found[3] == [("kv_cache", 1, 1)]
