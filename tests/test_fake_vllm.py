"""The fake behaves as the real vLLM where other tests lean on it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_client
import fake_vllm
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sweep import vllm_cpu
from sweep.server import Launch, VllmServer, child_environment, new_api_key, reserve_port

FAKE = (sys.executable, str(Path(__file__).with_name("fake_vllm.py")))


@dataclass
class Bench:
    """A fake server that runs, and a way to load it."""

    folder: Path
    server: VllmServer

    def load(self, *more: str, client: tuple[str, ...] = (*FAKE, "bench", "serve"), **fake: Any) -> dict[str, Any]:
        """Run the client on ten prompts; its result file as a dict, {} if there is none."""
        path = self.folder / "result.json"
        path.unlink(missing_ok=True)
        words = (
            "--backend", "openai", "--endpoint", "/v1/completions", "--host", "127.0.0.1",
            "--port", str(self.server.launch.port), "--model", "/models/toy", "--served-model-name", "toy",
            "--dataset-name", "custom", "--dataset-path", str(self.folder / "prompts.jsonl"),
            "--custom-output-len", "-1", "--disable-shuffle", "--num-prompts", "10",
            "--save-result", "--save-detailed", "--ignore-eos",
            "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99", "--disable-tqdm",
            "--result-dir", str(self.folder), "--result-filename", path.name, "--seed", "3",
        )  # fmt: skip
        env = {**self.server.launch.env, "FAKE_VLLM": json.dumps({"client": fake})}
        done = subprocess.run(
            [*client, *words, *more], env=env, capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == fake.get("exit_code", 0), done.stderr
        result: dict[str, Any] = json.loads(path.read_text() or "{}") if path.exists() else {}
        return result


@pytest.fixture
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    fake = getattr(request, "param", {})
    with reserve_port() as port:
        key = new_api_key()
        env = child_environment(os.environ, visible_devices=None, extra={"FAKE_VLLM": json.dumps(fake)}, api_key=key)
        rows = [{"prompt": f"{number} words and more", "output_tokens": 3 + number} for number in range(10)]
        (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        server = VllmServer.start(
            Launch(
                argv=(*FAKE, "serve", "/models/toy", "--port", str(port.port), "--served-model-name", "toy"),
                env=env,
                log_path=tmp_path / "log",
                record_path=tmp_path / "records" / "0.json",
                host="127.0.0.1",
                port=port.port,
                served_name="toy",
                api_key=key,
                startup_timeout_s=300,
                stop_timeout_s=1,
            )
        )
        try:
            server.wait_ready()
            yield Bench(tmp_path, server)
        finally:
            server.stop(grace_s=0)


def test_result_of_a_load(bench: Bench) -> None:
    result = bench.load("--request-rate", "200")
    assert (result["completed"], result["failed"], result["request_rate"]) == (10, 0, 200.0)
    assert result["output_lens"] == list(range(3, 13))
    assert [len(gaps) for gaps in result["itls"]] == list(range(2, 12))
    for first, gaps, whole in zip(result["ttfts"], result["itls"], result["latencies"], strict=True):
        assert first > 0
        assert whole == pytest.approx(first + sum(gaps))
    assert result["p50_ttft_ms"] == pytest.approx(float(np.percentile(result["ttfts"], 50)) * 1000)
    assert result["total_output_tokens"] == 75
    assert bench.load()["request_rate"] == "inf"


# `vllm bench serve` for completions, whose result is kept apart, and then as it is told: one import of vLLM for both.
CLIENT_TWICE = """
import os, shutil, sys
from sweep import vllm_cpu
vllm_cpu.adapt()
from vllm.entrypoints.cli.main import main
kept, *words = sys.argv[1:]
chat = words.index("openai-chat") - 1
for one in (words[:chat] + words[chat + 4:], words):
    sys.argv[:] = ["vllm", "bench", "serve", *one]
    main()
    if one is not words:
        shutil.move(os.path.join(one[one.index("--result-dir") + 1], one[one.index("--result-filename") + 1]), kept)
"""


@pytest.mark.vllm
def test_real_client_writes_the_same_file(bench: Bench, tokenizer: Path, tmp_path: Path) -> None:
    if vllm_cpu.installed() is None:
        pytest.skip("no vLLM is installed")
    kept = tmp_path / "kept.json"
    both = (sys.executable, "-c", CLIENT_TWICE, str(kept))
    chat = ("--backend", "openai-chat", "--endpoint", "/v1/chat/completions")
    more = ("--tokenizer", str(tokenizer), "--skip-chat-template", "--request-rate", "100")
    second = bench.load(*more, *chat, client=both)
    for backend, real in (((), json.loads(kept.read_text())), (chat, second)):
        fake = bench.load(*more, *backend)
        assert {name: type(value) for name, value in fake.items()} == {
            name: type(value) for name, value in real.items()
        }
        for name in ("completed", "failed", "input_lens", "output_lens", "errors", "generated_texts", "num_prompts"):
            assert fake[name] == real[name]
        assert [len(gaps) for gaps in fake["itls"]] == [len(gaps) for gaps in real["itls"]]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A tokenizer of a few words, for the real client."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    model = {"type": "WordLevel", "vocab": {"<unk>": 0, "words": 1, "and": 2}, "unk_token": "<unk>"}
    pieces: dict[str, Any] = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    pieces |= {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(pieces))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
@pytest.mark.parametrize("burstiness", [1.0, 0.4])
def test_arrivals_are_those_of_the_real_client(seed: int, burstiness: float) -> None:
    rate, count = 4.0, 500
    np.random.seed(seed)
    times = np.cumsum([np.random.gamma(burstiness, 1.0 / (rate * burstiness)) for _ in range(count)])
    flags = {"request-rate": rate, "burstiness": burstiness, "seed": seed}
    assert fake_client.arrivals_s(flags, count) == pytest.approx(times * (count / rate) / times[-1], rel=1e-12)


@pytest.mark.parametrize("bench", [{"die_at_request": 6, "die_code": 9}], indirect=True)
def test_server_that_dies_under_load_fools_the_client(bench: Bench) -> None:
    result = bench.load("--max-concurrency", "1")
    assert (result["completed"], result["failed"]) == (5, 5)
    assert bench.server.process.wait(300) == 9


@pytest.mark.parametrize("bench", [{"engine_dies_at": 1}], indirect=True)
def test_engine_that_dies_after_the_first_token_fools_the_client(bench: Bench) -> None:
    result = bench.load("--max-concurrency", "1")
    # The first stream has its one token; later ones are refused, as by vLLM.
    assert (result["completed"], result["failed"]) == (1, 9)
    assert not bench.server.healthy()


@pytest.mark.parametrize("bench", [{"one_token_from": 1}], indirect=True)
def test_streams_of_one_token_look_splendid(bench: Bench) -> None:
    result = bench.load()
    assert (result["completed"], result["failed"]) == (10, 0)
    assert set(result["errors"]) == {""}
    assert not bench.server.healthy()


@pytest.mark.parametrize("bench", [{"all_500": True}], indirect=True)
def test_all_refused_is_no_error_of_the_client(bench: Bench) -> None:
    result = bench.load()
    assert (result["completed"], result["failed"], result["p99_ttft_ms"]) == (0, 10, 0.0)


@pytest.mark.parametrize("bench", [{"die_mid_stream": 4}], indirect=True)
def test_stream_that_is_cut(bench: Bench) -> None:
    result = bench.load("--max-concurrency", "1")
    assert result["completed"] == 3
    assert result["errors"][3] != ""


def test_client_that_fails(bench: Bench) -> None:
    assert bench.load(result="none") == {}
    assert bench.load(result="empty") == {}
    assert bench.load(exit_code=3) == {}
    assert math.isnan(bench.load(result="nan")["p99_ttft_ms"])
    assert bench.load(result="negative")["ttfts"] == [-3.1] * 10
    assert "failed" not in bench.load(result="no_failed")


def test_metrics_can_be_parsed(bench: Bench) -> None:
    text = bench.server.metrics_text() or ""
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["vllm:generation_tokens"].samples[0].value == 1.0
    assert families["vllm:cache_config_info"].samples[0].labels["block_size"] == "16"
    assert families["vllm:request_queue_time_seconds"].type == "histogram"


def config(monkeypatch: pytest.MonkeyPatch, flags: str, **fake: Any) -> dict[str, Any]:
    monkeypatch.setenv("FAKE_VLLM", json.dumps(fake))
    return fake_vllm.read_config(fake_vllm.parse_flags(flags.split()))


def test_rules_follow_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [
        {"if": {"max-num-seqs": [">", 64]}, "then": {"exit_code": 1}},
        {"if": {"enable-prefix-caching": False}, "then": {"ttft_ms": 9}},
    ]
    assert config(monkeypatch, "m --max-num-seqs 65", rules=rules)["exit_code"] == 1
    assert "exit_code" not in config(monkeypatch, "m --max-num-seqs 64", rules=rules)
    assert "exit_code" not in config(monkeypatch, "m", rules=rules)
    assert config(monkeypatch, "m --no-enable-prefix-caching", rules=rules)["ttft_ms"] == 9


def test_first_launches_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = {"fail_first_launches": 2, "exit_code": 4, "state": str(tmp_path / "state")}
    codes = [config(monkeypatch, "m", **fake).get("exit_code") for _ in range(4)]
    assert codes == [4, 4, None, None]


def test_landscape_has_its_best_where_it_says() -> None:
    fake = {"landscape": {"both": {"max-num-seqs": {"best": 64, "weight": 0.5, "log": True}}}}
    factors = [fake_vllm.factor(fake, {"max-num-seqs": seqs}, "itl") for seqs in (16, 64, 256)]
    assert factors == [3.0, 1.0, 3.0]
    noisy = {"landscape": {"noise": 0.1}, "seed": 1}
    assert fake_vllm.factor(noisy, {"port": 1}, "itl") == fake_vllm.factor(noisy, {"port": 2}, "itl") != 1.0
    assert fake_vllm.factor(noisy, {"block-size": 2}, "itl") != fake_vllm.factor(noisy, {"block-size": 4}, "itl")


def command(*words: str, fake: str = "{}") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "FAKE_VLLM": fake}
    return subprocess.run([*FAKE, *words], env=env, capture_output=True, text=True, timeout=200, check=False)


def test_help_and_version() -> None:
    assert command("--version").stdout == "0.32.0\n"
    assert "--max-num-seqs" not in command("serve", "--help").stdout
    text = command("serve", "--help=all").stdout
    assert "--enable-prefix-caching, --no-enable-prefix-caching" in text
    assert "--save-detailed" in command("bench", "serve", "--help").stdout


def test_unknown_flag_is_refused_on_request() -> None:
    done = command("serve", "m", "--max-num-seq", "4", fake='{"refuse_unknown_flags": true}')
    assert done.returncode == 2
    assert "unrecognized arguments: --max-num-seq" in done.stdout


@pytest.mark.parametrize("bench", [{"exact": {"ttft_ms": 50, "itl_ms": 5}}], indirect=True)
def test_exact_latencies_are_the_same_in_every_run(bench: Bench) -> None:
    clockless = [{k: v for k, v in bench.load().items() if k != "date"} for _ in range(2)]
    assert clockless[0] == clockless[1]
    assert set(clockless[0]["ttfts"]) == {0.05}
    assert clockless[0]["p50_itl_ms"] == pytest.approx(5.0)
