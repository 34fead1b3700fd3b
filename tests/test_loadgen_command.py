"""The load client's command: everything said, in the spelling of each version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from load_jobs import FAKE, NEW, OLD, a_job

from sweep.errors import FlagError
from sweep.flags import CommandHelp, parse_help, printable
from sweep.loadgen import check_load_flags, client_argv


def options(argv: tuple[str, ...]) -> dict[str, str]:
    """Values by flag; a flag given twice is an error."""
    found: dict[str, str] = {}
    for index, word in enumerate(argv):
        if word.startswith("--"):
            assert word not in found, f"{word} twice"
            following = argv[index + 1 : index + 2]
            found[word] = following[0] if following and not following[0].startswith("--") else ""
    return found


def test_the_command_says_everything(tmp_path: Path) -> None:
    argv = client_argv(a_job(tmp_path, max_concurrency=4, percentiles=(50.0, 99.9)))
    assert argv[:4] == (*FAKE, "bench", "serve")
    said = options(argv)
    assert (said["--model"], said["--served-model-name"], said["--tokenizer"]) == (
        "/models/toy",
        "served",
        "/models/tokens",
    )
    assert (said["--backend"], said["--endpoint"]) == ("openai-chat", "/v1/chat/completions")
    assert said["--base-url"] == "http://127.0.0.1:9"
    assert said["--max-concurrency"] == "4"
    assert said["--percentile-metrics"] == "ttft,tpot,itl,e2el"
    assert said["--metric-percentiles"] == "50,99.9"
    # The client's own test request and warm-up would send the first measured prompt ahead of the load.
    assert (said["--ready-check-timeout-sec"], said["--num-warmups"]) == ("0", "0")
    assert {"--ignore-eos", "--save-result", "--save-detailed", "--num-prompts"} <= set(said)
    assert (said["--result-dir"], said["--result-filename"]) == (str(tmp_path), "round-0.result.json")
    assert "--trust-remote-code" not in said
    assert "secret" not in printable(argv)


def test_ignore_eos_is_a_choice(tmp_path: Path) -> None:
    assert "--ignore-eos" not in client_argv(a_job(tmp_path, ignore_eos=False))
    assert "--max-concurrency" not in client_argv(a_job(tmp_path))


def test_an_old_client_is_spoken_to_in_its_words(tmp_path: Path) -> None:
    said = options(client_argv(a_job(tmp_path, help=OLD)))
    assert said["--endpoint-type"] == "openai-chat"
    assert not {"--backend", "--num-warmups", "--ready-check-timeout-sec"} & set(said)
    assert {"--model", "--served-model-name", "--tokenizer"} <= set(said)


def test_an_unknown_client_is_taken_for_a_recent_one(tmp_path: Path) -> None:
    said = options(client_argv(a_job(tmp_path, help=None)))
    assert said["--backend"] == "openai-chat"
    assert "--ready-check-timeout-sec" not in said


def test_zero_is_not_said_where_it_means_give_up_at_once(tmp_path: Path) -> None:
    text = "  --ready-check-timeout-sec READY_CHECK_TIMEOUT_SEC\n      Maximum time to wait (default: 600)\n"
    assert "--ready-check-timeout-sec" not in client_argv(a_job(tmp_path, help=parse_help(text)))


@pytest.mark.parametrize(
    ("help_", "flags", "spelled", "endpoint"),
    [
        (NEW, {"backend": "openai"}, ("--backend", "openai"), "/v1/completions"),
        (NEW, {"endpoint_type": "vllm"}, ("--backend", "vllm"), "/v1/completions"),
        (OLD, {"backend": "openai"}, ("--endpoint-type", "openai"), "/v1/completions"),
        (NEW, {"endpoint": "/v2/chat/completions"}, ("--backend", "openai-chat"), "/v2/chat/completions"),
    ],
)
def test_the_user_may_choose_the_endpoint(
    tmp_path: Path, help_: CommandHelp, flags: dict[str, Any], spelled: tuple[str, str], endpoint: str
) -> None:
    said = options(client_argv(a_job(tmp_path, help=help_, flags=flags)))
    assert said[spelled[0]] == spelled[1]
    assert said["--endpoint"] == endpoint
    assert len({"--backend", "--endpoint-type"} & set(said)) == 1


def test_further_flags_are_passed_on(tmp_path: Path) -> None:
    flags = {"temperature": 0.0, "trust_remote_code": True, "goodput": ["ttft:500", "e2el:9000"]}
    argv = client_argv(a_job(tmp_path, flags=flags))
    assert "--temperature 0 --trust-remote-code --goodput ttft:500 e2el:9000" in printable(argv)


@pytest.mark.parametrize("name", ["model", "num_prompts", "--seed", "result-dir", "num-warmups", "output-len", "host"])
def test_what_the_study_decides_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FlagError, match=rf"^load\.flags\.{name}: '{name}' cannot be set here; use "):
        client_argv(a_job(tmp_path, flags={name: 1}))
    check_load_flags({"temperature": 0, "goodput": "ttft:1", "extra-body": {}}, what="load.flags")


def test_an_unknown_backend_needs_an_endpoint(tmp_path: Path) -> None:
    with pytest.raises(FlagError, match=r"^load\.flags\.backend: .* needs an 'endpoint'"):
        client_argv(a_job(tmp_path, flags={"backend": "odd"}))
    with pytest.raises(FlagError, match=r"^load\.flags\.endpoint-type: .* needs an 'endpoint'"):
        check_load_flags({"endpoint_type": "odd"}, what="load.flags")
    check_load_flags({"backend": "odd", "endpoint": "/x"}, what="load.flags")


def test_the_key_is_not_shown(tmp_path: Path) -> None:
    assert "secret" not in repr(a_job(tmp_path))
