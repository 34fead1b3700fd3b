"""What is recorded of a study's surroundings, and which of it makes trials incomparable."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweep.errors import HostError
from sweep.fingerprint import Fingerprint, hash_file, hash_model, installed_version, take_fingerprint
from sweep.redact import REDACTED, Redactor


def make_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"num_hidden_layers": 2}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"0" * 1000)
    (folder / "README.md").write_text("about")
    return folder


def take(model: Path | str = "no/such-model", **changes: Any) -> Fingerprint:
    given: dict[str, Any] = {
        "vllm": "0.32.0", "torch": "2.9.0", "model": str(model), "tokenizer": str(model),
        "server_command": ("vllm", "serve"), "fixed_flags": {"max-model-len": 65536, "hf-overrides": {"b": 1, "a": 2}},
        "server_env": {"VLLM_ATTENTION_BACKEND": "FLASH_ATTN"}, "load": {"request_rate": 8.0, "output_tokens": 1024},
        "dataset_sha256": "ab" * 32, "redactor": Redactor({}), "gpus": ("RTX A6000 48.0 GiB",) * 4, "driver": "570.1",
    }  # fmt: skip
    return take_fingerprint(**{**given, **changes})


def test_the_same_surroundings_do_not_differ(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m")
    found = take(model).differences(take(model))
    assert (found.incomparable, found.remarks) == ((), ())


def test_the_host_is_recorded() -> None:
    found = take()
    assert found.hostname == os.uname().nodename
    assert found.kernel == os.uname().release
    assert found.cpu_cores == len(os.sched_getaffinity(0))
    assert found.ram_gib is not None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vllm": "0.33.0"}, ("vLLM version: was 0.32.0, is now 0.33.0",)),
        ({"driver": "580.2"}, ("GPU driver: was 570.1, is now 580.2",)),
        ({"gpus": ("RTX 4090 24.0 GiB",)}, ("GPUs: was RTX A6000 48.0 GiB RTX A6000", "is now RTX 4090 24.0 GiB")),
        ({"gpus": ()}, ("GPUs: was", "is now none")),
        ({"model": "other/model"}, ("model: was no/such-model, is now other/model",)),
        ({"dataset_sha256": "cd" * 32}, ("content of the prompt file: changed (sha256 abababababab, now cdcd",)),
        ({"server_command": ("numactl", "vllm")}, ("server command: was vllm serve, is now numactl vllm",)),
        (
            {"fixed_flags": {"max-model-len": 32768, "hf-overrides": {"a": 2, "b": 1}}},
            ("fixed flag max-model-len: was 65536, is now 32768",),
        ),
        (
            {"fixed_flags": {"max-model-len": 65536, "dtype": "auto"}},
            ('fixed flag dtype: is new, "auto"', "fixed flag hf-overrides: was"),
        ),
        ({"load": {"request_rate": 8.0, "output_tokens": 512}}, ("load setting output_tokens: was 1024, is now 512",)),
        ({"load": {"request_rate": float("inf"), "output_tokens": 1024}}, ("request_rate: was 8.0, is now Infinity",)),
        ({"server_env": {}}, ("server environment VLLM_ATTENTION_BACKEND: was", "is gone")),
    ],
)
def test_what_makes_trials_incomparable_is_named(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    found = take().differences(take(**changes))
    assert found.incomparable
    for word in words:
        assert word in "; ".join(found.incomparable)


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("hostname", "b", "host: was"),
        ("kernel", "1.2", "kernel"),
        ("torch", "3", "torch version"),
        ("cuda", "13.0", ""),
    ],
)
def test_other_hosts_and_kernels_are_a_remark(name: str, value: str, word: str) -> None:
    first = take(cuda="12.8")
    changes: dict[str, Any] = {name: value}
    found = first.differences(dataclasses.replace(first, **changes))
    assert found.incomparable == ()
    assert len(found.remarks) == 1
    assert word in found.remarks[0]


def test_the_cpu_counts_where_it_is_the_device() -> None:
    with_gpu, without = take(), take(gpus=(), driver=None)
    assert with_gpu.differences(dataclasses.replace(with_gpu, cpu_cores=1000)).incomparable == ()
    assert without.differences(dataclasses.replace(without, cpu_cores=1000)).incomparable != ()


def test_what_is_not_known_is_no_difference_and_is_filled_in(tmp_path: Path) -> None:
    before, after = take(driver=None, gpus=None), take(make_model(tmp_path / "m"), vllm=None)
    after = dataclasses.replace(after, model=before.model, tokenizer=before.tokenizer)
    assert before.differences(after).incomparable == ()
    both = before.completed_from(after)
    assert (both.vllm, both.driver, both.model_sha256) == ("0.32.0", "570.1", after.model_sha256)


def test_json_goes_round_and_tolerates_other_versions() -> None:
    found = take()
    assert Fingerprint.from_json(found.as_json()) == found
    content = json.loads(found.as_json())
    del content["cuda"], content["ram_gib"]
    other = Fingerprint.from_json(json.dumps({**content, "from_the_future": 1}))
    assert (other.cuda, other.ram_gib, other.fixed_flags) == (None, None, found.fixed_flags)
    for text in ("[]", "", "{"):
        with pytest.raises(ValueError, match=r"."):
            Fingerprint.from_json(text)


def test_metadata_is_flat_text_of_what_is_known() -> None:
    notes = take(cuda=None).as_metadata()
    assert notes["vllm"] == "0.32.0"
    assert notes["gpus"] == json.dumps(["RTX A6000 48.0 GiB"] * 4)
    assert json.loads(notes["fixed_flags"])["max-model-len"] == "65536"
    assert "cuda" not in notes
    assert all(isinstance(value, str) for value in notes.values())


def test_no_secret_is_recorded() -> None:
    found = take(
        server_command=("docker", "run", "-e", "HF_TOKEN=s3cret-one", "vllm"),
        fixed_flags={"hf-token": "s3cret-two", "x": "s3cret-four"},
        server_env={"HF_TOKEN": "s3cret-three"},
        redactor=Redactor({}, ["s3cret-four"]),
    )
    assert "s3cret" not in found.as_json() + str(found.as_metadata())
    assert REDACTED in found.as_json()


SECRET = "s3cret-of-the-shell"


@pytest.mark.parametrize(
    "changes",
    [
        {"server_env": {"PROXY": f"http://{SECRET}@host/"}},
        {"fixed_flags": {"max-model-len": 65536, "x": SECRET}},
        {"server_command": ("docker", "run", "-e", f"A={SECRET}", "vllm")},
        {"load": {"headers": [SECRET]}},
    ],
)
def test_a_secret_that_another_shell_does_not_know_is_no_difference(changes: dict[str, Any]) -> None:
    hidden, shown = take(**changes, redactor=Redactor({"MY_TOKEN": SECRET})), take(**changes)
    assert hidden != shown
    for one, other in ((hidden, shown), (shown, hidden), (hidden, hidden)):
        assert one.differences(other).incomparable == ()
    assert SECRET not in hidden.completed_from(shown).as_json()


def test_what_stands_around_a_secret_still_counts() -> None:
    known = Redactor({"MY_TOKEN": SECRET})
    hidden = take(server_env={"PROXY": f"http://{SECRET}@host/"}, redactor=known)
    for other in ({"PROXY": f"http://{SECRET}@elsewhere/"}, {"PROXY": "http://@host/"}, {"OTHER": "1"}, {}):
        assert hidden.differences(take(server_env=other)).incomparable


# Hashes


def test_a_file_of_any_size_is_hashed(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    content = b"0123456789" * 700_000
    path.write_bytes(content)
    assert hash_file(path) == hashlib.sha256(content).hexdigest()
    with pytest.raises(HostError, match="No such file"):
        hash_file(tmp_path / "missing")


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda folder: (folder / "config.json").write_text("{}"), True),
        (lambda folder: (folder / "tokenizer.json").write_text("[]"), True),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"0" * 1001), True),
        (lambda folder: (folder / "model.safetensors.index.json").write_text("{}"), True),
        (lambda folder: (folder / "README.md").write_text("something else"), False),
        (lambda folder: os.utime(folder / "config.json", (1, 1)), False),
    ],
)
def test_a_model_is_known_by_config_tokenizer_and_sizes(
    tmp_path: Path, change: Callable[[Path], object], differs: bool
) -> None:
    folder = make_model(tmp_path / "m")
    before = hash_model(str(folder))
    change(folder)
    assert (hash_model(str(folder)) != before) is differs


def test_a_hub_id_is_looked_up_in_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert hash_model("Org/Model-1") is None
    snapshot = make_model(tmp_path / "models--Org--Model-1" / "snapshots" / "abc123")
    (tmp_path / "models--Org--Model-1" / "refs").mkdir()
    (tmp_path / "models--Org--Model-1" / "refs" / "main").write_text("abc123")
    assert hash_model("Org/Model-1") == hash_model(str(snapshot))


def test_a_single_file_model_has_a_hash(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    before = hash_model(str(path))
    path.write_bytes(b"GGUF+")
    assert before is not None
    assert hash_model(str(path)) != before


def test_the_first_installed_of_several_names_counts() -> None:
    assert installed_version("no-such-distribution", "pytest") == pytest.__version__
    assert installed_version("no-such-distribution") is None
