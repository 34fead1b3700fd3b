"""Secrets are hidden wherever they stand, and what is no secret is left as it is."""

from __future__ import annotations

import base64
import json
import pickle
import shlex
from pathlib import Path
from urllib.parse import quote

import pytest

from sweep.redact import REDACTED, Redactor, is_secret_name

NOBODY = Redactor({})
SECRET = "Zx81-quiet-Lantern"


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD",
     "PGPASSWORD", "CLIENT_SECRET", "TOKEN", "AWS_ACCESS_KEY_ID", "api_key", "WANDB_APIKEY",
     "SWEEP_WEBHOOK", "SLACK_WEBHOOK_URL"],
)  # fmt: skip
def test_values_under_telling_names_are_hidden_everywhere(name: str) -> None:
    assert is_secret_name(name)
    redactor = Redactor({name: SECRET})
    for text in (SECRET, f"error: {SECRET}, again {SECRET}", f"x{SECRET}x", f"['{SECRET}']"):
        assert SECRET not in redactor.text(text)
        assert REDACTED in redactor.text(text)


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "PWD",
        "MONKEY",
        "TOKENIZERS_PARALLELISM",
        "KEYBOARD",
        "PAD_TOKEN",
        "MAX_TOKENS",
        "output_tokens",
        "SSH_AUTH_SOCK",
        "WEBHOOK_TIMEOUT_S",
        "webhook_env",
    ],
)
def test_other_names_hold_no_secret(name: str) -> None:
    assert not is_secret_name(name)
    assert Redactor({name: SECRET}).text(f"{name}={SECRET}") == f"{name}={SECRET}"


@pytest.mark.parametrize("spell", [json.dumps, lambda text: quote(text, safe=""), shlex.quote, repr])
def test_escaped_spellings_are_hidden_too(spell: object) -> None:
    assert callable(spell)
    secret = "a\"b'c/d e%f$"
    assert "c/d" not in Redactor({"A_KEY": secret}).text(f"sent {spell(secret)} to it").replace("c%2Fd", "c/d")


def test_each_line_of_a_key_file_is_hidden() -> None:
    lines = ["-----BEGIN KEY-----", "MIIEvQIBADANBgkqhkiG9w0B", "AQEFAASCBKcwggSjAgEAAoIB", "-----END KEY-----"]
    redactor = Redactor({"TLS_KEY": "\n".join(lines)})
    assert redactor.text(f"bad line {lines[1]}") == f"bad line {REDACTED}"
    assert redactor.text("-----BEGIN KEY-----") == "-----BEGIN KEY-----"


@pytest.mark.parametrize(
    ("value", "text"), [("abc", "abcdef abc"), ("131072", "--max-num-batched-tokens 131072"), ("", "x")]
)
def test_short_and_plain_values_are_not_replaced_blindly(value: str, text: str) -> None:
    assert Redactor({"SOME_TOKEN": value}).text(text) == text


def test_a_short_value_is_hidden_where_its_name_stands() -> None:
    assert Redactor({"SOME_KEY": "abc"}).text("env SOME_KEY=abc vllm serve") == f"env SOME_KEY={REDACTED} vllm serve"


def test_a_secret_that_is_a_plain_word_is_hidden_as_a_word_only() -> None:
    redactor = Redactor({"DB_PASSWORD": "default"})
    assert redactor.text("using default, not defaults") == f"using {REDACTED}, not defaults"


def test_a_secret_that_begins_with_another_is_hidden_whole() -> None:
    assert Redactor({"A_KEY": "secret1", "B_KEY": "secret1-longer"}).text("secret1-longer") == REDACTED


def test_extra_secrets_are_hidden() -> None:
    assert Redactor({}, [SECRET]).text(f"[{SECRET}]") == f"[{REDACTED}]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vllm serve m --api-key abc --port 1", f"vllm serve m --api-key {REDACTED} --port 1"),
        ("--api-key=abc", f"--api-key={REDACTED}"),
        ("--hf-token 'a b' --x", f"--hf-token '{REDACTED}' --x"),
        ("--hf_token x", f"--hf_token {REDACTED}"),
        ("--hf-token --port 1", "--hf-token --port 1"),
        ("['serve', '--api-key', 'abc', '--port', '1']", f"['serve', '--api-key', '{REDACTED}', '--port', '1']"),
        ("{'api_key': ['abc'], 'port': 1}", f"{{'api_key': ['{REDACTED}'], 'port': 1}}"),
        ('{"hf_token": "abc", "n": 1}', f'{{"hf_token": "{REDACTED}", "n": 1}}'),
        ("'hf_token': None, 'x': 1", "'hf_token': None, 'x': 1"),
        ("HF_TOKEN=abc vllm", f"HF_TOKEN={REDACTED} vllm"),
        ("SWEEP_WEBHOOK=https://hooks.example/T0/B1 x", f"SWEEP_WEBHOOK={REDACTED} x"),
        ("docker run -e MY_SECRET='a b' x", f"docker run -e MY_SECRET='{REDACTED}' x"),
        ("Authorization: Bearer abc.def-1", f"Authorization: Bearer {REDACTED}"),
        ("https://me:pa55@host/x", f"https://me:{REDACTED}@host/x"),
        ("token hf_abcDEFghiJKLmnoPQRstuVWXyz is bad", f"token {REDACTED} is bad"),
        ("hf_abc123def456", REDACTED),
        ("key=sk-proj-abcdef123456", f"key={REDACTED}"),
    ],
)  # fmt: skip
def test_secrets_are_known_by_their_place_or_shape(text: str, expected: str) -> None:
    assert NOBODY.text(text) == expected
    assert NOBODY.text(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve Qwen/Qwen2.5-7B --max-num-batched-tokens 8192 --tokenizer-mode auto",
        "hf_transfer is not installed",
        "HF_HUB_ENABLE_HF_TRANSFER=1 hf_overrides={}",
        "disk-usage-threshold-2 task-0123456789abcdef",
        "prefix cache hits: 5 tokens, tokens=12, key_cache=torch.float16, max_tokens=5",
        "File 'x.py', line 3, in __getitem__ return self.key[token]",
        "EngineCore failed: KeyError: 'model.layers.0.self_attn.k_proj.weight'",
        "http://127.0.0.1:8000/v1/models",
        "GPU KV cache size: 380,000 tokens",
        "{'eos_token': '<|im_end|>', 'pad_token_id': 151643}",
        "bearers of news",
        "non-default args: {'max_num_batched_tokens': 8192, 'max_tokens': [5], 'output_tokens': 7}",
        "MAX_NUM_BATCHED_TOKENS=8192",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert NOBODY.text(text) == text


def test_argv_hides_words_after_secret_flags_and_keeps_their_number() -> None:
    words = ("vllm", "serve", "m", "--api-key", "one", "two words", "--hf-token=abc", "--port", "1", "-O3")
    hidden = NOBODY.argv(words)
    assert hidden == (
        "vllm", "serve", "m", "--api-key", REDACTED, REDACTED, f"--hf-token={REDACTED}", "--port", "1", "-O3",
    )  # fmt: skip


def test_an_environment_keeps_its_names() -> None:
    env = {"HF_TOKEN": "ab", "PATH": "/bin", "EMPTY_KEY": "", "OPTIONS": "--api-key abc"}
    assert Redactor(env).environment(env) == {
        "HF_TOKEN": REDACTED,
        "PATH": "/bin",
        "EMPTY_KEY": "",
        "OPTIONS": f"--api-key {REDACTED}",
    }


def test_a_tree_is_redacted_to_its_leaves() -> None:
    tree = {
        "serve": {"flags": {"api-key": ["a", "b"], "port": 1}, "env": {"HF_TOKEN": "x"}},
        "words": ("--hf-token=x",),
    }
    assert NOBODY.tree(tree) == {
        "serve": {"flags": {"api-key": REDACTED, "port": 1}, "env": {"HF_TOKEN": REDACTED}},
        "words": [f"--hf-token={REDACTED}"],
    }


def test_redacting_again_changes_nothing() -> None:
    redactor = Redactor({"A_KEY": SECRET, "B_TOKEN": "redacted"})
    once = redactor.text(f"--api-key {SECRET} A_KEY={SECRET} 'api_key': '{SECRET}' Bearer {SECRET} sk-abcdef123456789")
    assert redactor.text(once) == once
    assert SECRET not in once


def test_a_redactor_travels_and_does_not_print_its_secrets() -> None:
    redactor = pickle.loads(pickle.dumps(Redactor({"A_KEY": SECRET})))
    assert redactor.text(SECRET) == REDACTED
    assert SECRET not in repr(redactor)
    assert base64.b64encode(SECRET.encode()).decode() not in repr(redactor)


def test_a_log_of_somebody_else_is_cleaned(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"start\nargs: api_key=sesame-open-4711\n\xff\xfe odd bytes\n")
    Redactor({"FOO_API_KEY": "sesame-open-4711"}).file(log)
    assert log.read_bytes() == b"start\nargs: api_key=[redacted]\n\xff\xfe odd bytes\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["server.log"]
    Redactor({}).file(tmp_path / "absent.log")


def test_a_log_is_cleaned_on_a_full_disk_too(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("args: api_key=sesame-open-4711\n")
    (tmp_path / "server.log.clean").symlink_to("/dev/full")
    Redactor({"FOO_API_KEY": "sesame-open-4711"}).file(log)
    assert log.read_text() == "args: api_key=[redacted]\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["server.log"]


def test_a_long_log_is_cleaned_line_by_line(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    secret = b"sesame-open-4711"
    bar = b"\r".join(b"%d%% |####| " % done for done in range(100))
    log.write_bytes(b"plain\r\n" * 1000 + bar + b"\rlast " + secret + b"\r\nend without one")
    Redactor({"FOO_API_KEY": secret.decode()}).file(log)
    assert log.read_bytes() == b"plain\r\n" * 1000 + bar + b"\rlast [redacted]\r\nend without one"
