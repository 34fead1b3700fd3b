"""What a night on somebody's machine must not do: tell secrets, open itself to the network, leave its folder."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import fake_study
import pytest
from fake_study import FAKE
from studies import Studies
from waiting import until

from sweep import supervisor
from sweep.config import load
from sweep.errors import ConfigError

SECRETS = {
    "HF_TOKEN": "hf_notarealtokenbutlongenough",
    "COMPANY_API_KEY": "c0ffee-c0ffee-c0ffee",
    "REGISTRY_TOKEN": "registry-pass-word-1",
    "DEPLOY_KEY": "deploy-key-of-the-night",
}
# The fake prints what a careless library prints, and a line with the key that only this trial has.
WRAPPER = f"""
import os, sys
names = {[*SECRETS, "VLLM_API_KEY", "OPENAI_API_KEY"]!r}
print("environment:", dict((name, os.environ.get(name)) for name in names), flush=True)
print("just the values:", *(os.environ.get(name) for name in names), flush=True)
os.execv(sys.executable, [sys.executable, {FAKE!r}, *sys.argv[1:]])
"""


@dataclass(frozen=True)
class Seen:
    """What was to be seen of a study: its folder, its terminal, its processes while they ran, the keys it used."""

    folder: Path
    output: str
    commands: tuple[str, ...]
    listening: tuple[tuple[str, str], ...]
    keys: frozenset[str]
    environments: tuple[dict[str, str], ...]
    of_ray: tuple[tuple[Path, bytes], ...]


@pytest.fixture(scope="module")
def seen(studies: Studies, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """A study of two trials under a tight umask, one of which fails, watched in the load."""
    home = tmp_path_factory.mktemp("secure")
    (home / "wrapper.py").write_text(WRAPPER)
    words = [sys.executable, str(home / "wrapper.py")]
    content = fake_study.study(
        home,
        fake={
            "itl_ms": 150,
            "landscape": {},
            "rules": [{"if": {"max-num-seqs": ["!=", 8]}, "then": {"log": "@no_kv", "exit_code": 1}}],
        },
        study={"trials": 2},
        load={"num_prompts": 4, "command": [*words, "bench", "serve"]},
    )
    content["serve"]["command"] = [*words, "serve"]
    content["serve"]["env"]["STUDY_TOKEN"] = "token-from-the-study-file"
    study = fake_study.write(home / "night.yaml", content)
    driver = studies.start(study, home / "results" / "night", local=True, env=SECRETS, umask=0o077)
    driver.reach(0, "load")
    until(lambda: any("bench serve" in one for one in fake_study.processes_with(str(home))), "the client")
    commands = tuple(fake_study.processes_with(str(home)))
    (record,) = (json.loads(p.read_bytes()) for p in (home / "results/night/processes").glob("*-server.json"))
    everyone = supervisor.everyone()
    ours = supervisor.descendants({record["owner"][0]}, everyone)
    found = tuple(environment for pid in ours if (environment := environ(pid)))
    # Ray's own processes, the command and its workers too.
    listening = tuple(
        (Path(f"/proc/{pid}/comm").read_text().strip(), line)
        for pid in (driver.pid, *supervisor.descendants({driver.pid}, everyone))
        for line in listeners(pid)
    )
    # What Ray keeps of a study is gone at its end; until then, and after a kill, it lies there.
    rays = tuple(stored(home / "results" / "night" / "ray"))
    assert driver.wait() == 0, driver.text()
    keys = frozenset(value for one in found for name in ("VLLM_API_KEY", "OPENAI_API_KEY") if (value := one.get(name)))
    return Seen(home / "results" / "night", driver.text(), commands, listening, keys, found, rays)


def environ(pid: int) -> dict[str, str]:
    """The environment a process was started with."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)


def listeners(pid: int) -> Iterator[str]:
    """Addresses (hexadecimal, as the kernel prints them) on which a process listens for TCP."""
    try:
        sockets = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
        tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    except OSError:
        return
    for line in (line.split() for table in tables for line in table.splitlines()[1:]):
        if line[3] == "0A" and f"socket:[{line[9]}]" in sockets:
            yield line[1].split(":")[0]


def stored(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path, path.read_bytes()


@pytest.mark.night
def test_keys_of_trials_are_in_no_command_log_or_table(seen: Seen) -> None:
    assert len(seen.keys) == 1  # one key for server and client; this is what was looked for
    (key,) = seen.keys
    assert len(key) > 20
    assert any("bench serve" in one for one in seen.commands)
    assert not [one for one in seen.commands if key in one]
    assert not [path for path, content in stored(seen.folder) if key.encode() in content]
    assert key not in seen.output


@pytest.mark.night
def test_secrets_of_the_environment_are_stored_nowhere(seen: Seen) -> None:
    assert any(one.get("HF_TOKEN") == SECRETS["HF_TOKEN"] for one in seen.environments)  # the server needs it
    logs = [content for path, content in stored(seen.folder) if path.name.startswith("server-")]
    assert len(logs) == 2
    assert all(b"just the values: [redacted]" in content for content in logs)
    for secret in (*SECRETS.values(), "token-from-the-study-file"):
        assert not [path for path, content in stored(seen.folder) if secret.encode() in content], secret
        assert secret not in seen.output
        hidden = (secret.encode(), secret.encode().hex().encode())
        assert not [path for path, content in seen.of_ray if any(one in content for one in hidden)], secret
    assert any(path.name == "tuner.pkl" for path, _ in seen.of_ray)


@pytest.mark.night
def test_servers_listen_on_loopback_only(seen: Seen) -> None:
    assert len(seen.listening) > 3
    loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
    assert [one for one in seen.listening if one[1] not in loopback] == []


@pytest.mark.night
def test_files_are_as_private_as_the_umask_says(seen: Seen) -> None:
    open_to_others = [
        path for path in seen.folder.rglob("*") if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    assert not open_to_others


@pytest.mark.night
def test_remote_code_is_never_trusted_by_us(seen: Seen) -> None:
    assert not [one for one in seen.commands if "trust-remote-code" in one or "trust_remote_code" in one]


@pytest.mark.parametrize("name", ["../away", "/tmp/away", "a/../../away", ".hidden", "..", "a b", "x" * 101])
def test_study_names_cannot_leave_the_results_folder(tmp_path: Path, name: str) -> None:
    study = fake_study.write(tmp_path / "night.yaml", fake_study.study(tmp_path, study={"name": name}))
    with pytest.raises(ConfigError, match="name"):
        load(study)


def test_study_file_is_read_without_making_objects(tmp_path: Path) -> None:
    study = tmp_path / "night.yaml"
    study.write_text("study: !!python/object/apply:os.system ['touch made']\n")
    with pytest.raises(ConfigError):
        load(study)
    assert not (tmp_path / "made").exists()
