"""What the doctor found, as a table with one line a fault below it, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from sweep.cluster import NodeLook
from sweep.fleet import Group
from sweep.node import Fault, NodeFacts

_DASH = "-"


@dataclass(frozen=True, slots=True)
class Findings:
    """`looks`: the nodes that were looked at, with their faults. `idle`: nodes that take no trials, and why.
    `others`: faults of the whole, or of all nodes of a cluster. `groups`: those that `resources.group_by` makes.
    """

    looks: tuple[NodeLook, ...]
    idle: Mapping[str, str]
    others: tuple[Fault, ...]
    groups: tuple[Group, ...] = ()

    @property
    def faults(self) -> tuple[Fault, ...]:
        """All faults, each once."""
        every = [fault for one in self.looks for fault in one.faults]
        return tuple(dict.fromkeys([*every, *self.others]))


def print_findings(console: Console, findings: Findings) -> None:
    """The table, the nodes that take no trials, a line for each fault, and a last line that says how it stands."""
    if findings.looks:
        console.print(_table(findings.looks))
    for group in findings.groups:
        console.print(f"group {group.name}: {group.describe()}", soft_wrap=True)
    for name, why in findings.idle.items():
        console.print(f"{name} takes no trials: {why}", soft_wrap=True)
    for fault in findings.faults:
        console.print(fault.line(), soft_wrap=True)
    count = len(findings.faults)
    fit = sum(not one.faults for one in findings.looks)
    if count:
        console.print(f"{count} to be mended" + (f"; {fit} of {len(findings.looks)} nodes are fit" if fit else ""))
    else:
        console.print("fit for this study" if fit == 1 else f"{fit} nodes are fit for this study")


def _table(looks: tuple[NodeLook, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("node", "vLLM", "GPUs", "driver", "model", "results", "disk", "/dev/shm", "files", "clock", ""):
        table.add_column(name)
    for one in looks:
        cells = [_DASH] * 9 if one.facts is None else _cells(one.facts, one)
        table.add_row(one.node.name, *cells, "ok" if not one.faults else f"{len(one.faults)} to mend")
    return table


def _cells(facts: NodeFacts, one: NodeLook) -> list[str]:
    return [
        facts.vllm or _DASH,
        _counted(facts.gpus),
        facts.driver or _DASH,
        (facts.model_sha256 or _DASH)[:12],
        _results(facts, one),
        _gib(facts.disk_free_gib),
        _gib(facts.shm_free_gib),
        "no limit" if facts.files < 0 else str(facts.files),
        _DASH if one.skew_s is None else f"{one.skew_s:+.2f} s",
    ]


def _results(facts: NodeFacts, one: NodeLook) -> str:
    if one.node.here:
        return "here"
    return "shared" if facts.shared else "sent to the driver"


def _counted(names: tuple[str, ...]) -> str:
    kinds = dict.fromkeys(names)
    return ", ".join(f"{names.count(kind)} x {kind}" for kind in kinds) or "none"


def _gib(value: float | None) -> str:
    return _DASH if value is None else f"{value:.1f} GiB"


def as_json(findings: Findings) -> dict[str, Any]:
    """The same with every fact: `nodes`, `idle`, `groups`, `faults` and `fit`."""
    return {
        "fit": not findings.faults,
        "nodes": [_node(one) for one in findings.looks],
        "idle": dict(findings.idle),
        "groups": {group.name: [one.node.name for one in group.nodes] for group in findings.groups},
        "faults": [asdict(fault) for fault in findings.faults],
    }


def _node(one: NodeLook) -> dict[str, Any]:
    every = {} if one.facts is None else asdict(one.facts)
    facts = {name: value for name, value in every.items() if name not in ("resting", "dialect")} or None
    return {"name": one.node.name, "id": one.node.id, "here": one.node.here, "skew_s": one.skew_s, "facts": facts}
