"""Nodes of several fingerprints: which groups they make, and a study of each under one command."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fake_study
import pytest
from node_facts import FINGERPRINT, WANTED, facts, seen
from reported import night
from test_fleet import FOUR, TestFleet
from typer.testing import CliRunner
from waiting import until

from sweep.check.__main__ import main as check
from sweep.cluster import NodeLook
from sweep.config import load
from sweep.flags import Dialect
from sweep.fleet import Group, choose, groups_of, holds_for, without_devices
from sweep.groups import of_group, run_groups
from sweep.node import faults_of
from sweep.report.__main__ import main as report

CHILD = """
import json, signal, sys, time
group = sys.argv[sys.argv.index("--group") + 1]
if "wait" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print("waits", flush=True)
    signal.pause()
print(json.dumps({"trial": 0}) if "--json" in sys.argv else "trial 0: ok")
print("notice", file=sys.stderr)
sys.exit(1 if group == "b" else 0)
"""


def l40s(name: str) -> NodeLook:
    return changed(seen(name), gpus=("NVIDIA L40S",) * 4)


def cpu_node(cpu_model: str | None) -> NodeLook:
    return dataclasses.replace(changed(seen("a"), gpus=(), cpu_model=cpu_model), faults=())


def changed(one: NodeLook, **changes: Any) -> NodeLook:
    assert one.facts is not None
    return dataclasses.replace(one, facts=dataclasses.replace(one.facts, **changes))


class TestGroups:
    def test_one_for_each_fingerprint_in_the_order_of_names(self) -> None:
        looks = [seen("d", driver="560"), l40s("a"), seen("c"), seen("b"), seen("e", shm_free_gib=0.0)]
        groups, left_out = groups_of(looks, None)
        assert [[one.node.name for one in group.nodes] for group in groups] == [["a"], ["b", "c"], ["d"]]
        assert [group.name.rpartition("-")[0] for group in groups] == ["l40s", "rtx-a6000", "rtx-a6000"]
        assert len({group.name for group in groups}) == 3, "drivers make groups of their own"
        assert list(left_out) == ["e"]
        assert groups[1].describe() == "NVIDIA RTX A6000, driver 570.1, vLLM 0.32.0; nodes b, c"

    def test_its_name_is_that_of_the_fingerprint_and_fits_a_folder(self) -> None:
        (one,), _ = groups_of([seen("a")], None)
        (other,), _ = groups_of([seen("z", gpus=8, hostname="n9")], None)
        assert one.name == other.name, "how many devices and which host make no other group"
        (cpu,), _ = groups_of([cpu_node(cpu_model="Intel(R) Xeon(R) Platinum 8480+ @ 2.0 GHz")], None)
        assert cpu.name.rpartition("-")[0] == "intel-r-xeon-r-platinum"
        (unknown,), _ = groups_of([cpu_node(cpu_model=None)], None)
        assert unknown.name.startswith("nodes-")

    def test_another_vllm_makes_a_group_unless_it_lacks_a_flag_or_tells_nothing(self) -> None:
        any_vllm = dataclasses.replace(WANTED, any_vllm=True)
        assert faults_of("a", facts(vllm="0.31.0"), any_vllm, gpus=4.0) == ()
        (lacks,) = faults_of("a", facts(vllm="0.31.0", unknown_flags=("max-num-seqs",)), any_vllm, gpus=4.0)
        assert lacks.what == "its vLLM has no flag max-num-seqs"
        (silent,) = faults_of("a", facts(vllm=None), any_vllm, gpus=4.0)
        assert silent.what == "its vLLM does not tell its version"

    def test_a_study_of_one_group_takes_its_nodes_and_names_the_others(self) -> None:
        looks = [seen("a"), seen("b"), l40s("c")]
        small = groups_of(looks, None)[0][1]
        choice = choose(looks, FOUR, None, group=small.name)
        assert [one.node.name for one in choice.taking_part] == ["c"], "though the other group is larger"
        assert choice.left_out["a"].startswith("it is of the group rtx-a6000-")
        late = choose([l40s("late")], FOUR, None, like=facts(), group=small.name)
        assert [one.node.name for one in late.taking_part] == ["late"]
        assert choose(looks[:2], FOUR, None, group=small.name).taking_part == ()

    def test_versions_and_flags_are_those_of_the_group(self) -> None:
        own, known = Dialect("0.31.0", None, None), Dialect("0.32.0", None, None)
        fleet = TestFleet().fleet(seen("a", vllm="0.32.0", dialect=own))
        assert fleet.dialect(known) is own
        assert fleet.dialect(Dialect("0.31.0", None, None, "the same")).notice == "the same"
        nameless = without_devices(FINGERPRINT, grouped=True)
        assert nameless.vllm is None
        found = TestFleet().fleet(seen("a")).fingerprint(nameless)
        assert found.vllm == "0.32.0"
        assert without_devices(FINGERPRINT).vllm == "0.32.0"
        assert holds_for(found) == (
            "this verdict is of nodes with NVIDIA RTX A6000, driver 570.1, vLLM 0.32.0, and of no others"
        )
        assert holds_for(FINGERPRINT) == "this verdict is of nodes with laptop, 8 cores, vLLM 0.32.0, and of no others"


class TestDrivers:
    """One driver a group; what stands in for them is a script."""

    def groups(self, *names: str) -> list[Group]:
        return [Group(name, (seen(f"n{name}"),)) for name in names]

    def test_what_they_say_and_what_they_come_to(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        night(tmp_path / "night-a")
        code = run_groups(self.groups("a", "b"), [sys.executable, "-c", CHILD], tmp_path, "night", as_json=False)
        assert code == 1, "the highest of them"
        out, err = capfd.readouterr()
        lines = out.splitlines()
        assert sorted(lines[:2]) == ["a: trial 0: ok", "b: trial 0: ok"]
        assert lines[2].startswith("a (NVIDIA RTX A6000, driver 570.1, vLLM 0.32.0; nodes na): ")
        assert "better" in lines[2]
        assert lines[2].endswith(str(tmp_path / "night-a"))
        assert "no verdict: " in lines[3], "b left no study"
        assert sorted(err.splitlines()) == ["a: notice", "b: notice"]

    def test_objects(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        words = [sys.executable, "-c", CHILD, "--json"]
        assert run_groups(self.groups("a"), words, tmp_path, "night", as_json=True) == 0
        first, last = map(json.loads, capfd.readouterr().out.splitlines())
        assert first == {"group": "a", "trial": 0}
        (verdict,) = last["groups"]
        assert (verdict["group"], verdict["exit_code"]) == ("a", 0)

    def test_a_signal_goes_to_all_of_them(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        said: list[str] = []

        def stop() -> None:
            def waiting() -> bool:
                said.append(capfd.readouterr().out)
                return "".join(said).count("waits") == 2

            until(waiting, "both drivers", 300)
            os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=stop)
        before = signal.getsignal(signal.SIGTERM)
        thread.start()
        code = run_groups(self.groups("a", "b"), [sys.executable, "-c", CHILD, "wait"], tmp_path, "x", as_json=False)
        thread.join()
        assert code == 143
        assert signal.getsignal(signal.SIGTERM) is before


def test_each_group_has_a_study_of_its_own(tmp_path: Path) -> None:
    content = fake_study.study(tmp_path, resources={"group_by": "fingerprint"})
    config = load(fake_study.write(tmp_path / "study.yaml", content))
    one = of_group(config, "l40s-123456")
    assert (one.study.name, one.study.folder) == ("night-l40s-123456", config.study.folder)
    assert one.model_copy(update={"study": config.study}) == config


@pytest.mark.parametrize("command", [report, check])
@pytest.mark.parametrize(
    ("study", "folders", "others"),
    [
        ("night.yaml", "{home}/results/", []),
        ("night", "results/", []),
        ("results/night", "results/", []),
        ("{home}/results/night", "{home}/results/", []),
        ("results", "results/", ["night-2"]),
    ],
)
def test_asked_for_the_whole_study_reports_and_checks_name_the_groups(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: Callable[[Sequence[str]], int],
    study: str,
    folders: str,
    others: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    groups = ["night-l40s-123456", "night-rtx-a6000-3f9c21"]
    content = fake_study.study(tmp_path, resources={"group_by": "fingerprint"})
    fake_study.write(tmp_path / "night.yaml", content)
    for name in (*groups, "night-2"):
        settings = {"study": {"name": name}, "resources": content["resources"] if name in groups else {}}
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "study.json").write_text(json.dumps(settings))
    assert command([study.format(home=tmp_path)]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == ""
    found = ", ".join(folders.format(home=tmp_path) + name for name in sorted([*groups, *others]))
    assert line.endswith(f"; name one of {found}")


@pytest.mark.parametrize("options", [["--group", "a"], ["--group", "a", "--ray-address", "auto"]])
def test_a_group_without_groups_is_refused(tmp_path: Path, options: list[str]) -> None:
    from sweep.tune import app

    path = fake_study.write(tmp_path / "study.yaml", fake_study.study(tmp_path))
    done = CliRunner().invoke(app, [str(path), *options])
    assert done.exit_code == 2
    assert "--group is one of those that resources.group_by makes of a cluster" in done.stderr
