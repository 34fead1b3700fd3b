"""Which of the nodes that were looked at take part: trials of one study are compared, so the nodes must be alike."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweep.cluster import Needs, NodeLook
from sweep.errors import HostError
from sweep.node import NodeFacts, comparable

_GROUP_LETTERS, _GROUP_DIGITS = 24, 6


@dataclass(frozen=True, slots=True)
class Choice:
    """`taking_part` by name, and why each other node does not: a fault, another fingerprint, other devices."""

    taking_part: tuple[NodeLook, ...]
    left_out: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes of one fingerprint. `name` follows from the fingerprint alone, so that it is the same every night."""

    name: str
    nodes: tuple[NodeLook, ...]

    def describe(self) -> str:
        """What the nodes have in common, and which they are."""
        (first, *_), names = [one.facts for one in self.nodes], ", ".join(one.node.name for one in self.nodes)
        assert first is not None  # only a node that answered is of a group
        kinds = " and ".join(dict.fromkeys(first.gpus)) or f"{first.cpu_model or 'CPU'}, {first.cpu_cores} cores"
        driver = f", driver {first.driver}" if first.gpus else ""
        return f"{kinds}{driver}, vLLM {first.vllm or 'not known'}; nodes {names}"


def choose(
    looks: Sequence[NodeLook],
    needs: Needs,
    accelerator: str | None,
    like: NodeFacts | None = None,
    group: str | None = None,
) -> Choice:
    """The largest group of fit nodes of one fingerprint, by the trials it holds at once, then by its first name.

    `like`: what the nodes that take part already have, for a node that joins later. `group`: the name of the group that
    takes part, whichever is the largest.
    """
    groups, out = _sorted_out(looks, accelerator)
    if group is not None:
        chosen = next((groups.pop(key) for key in tuple(groups) if group_name(key) == group), [])
    elif like is not None:
        chosen = groups.pop(comparable(like), [])
    else:
        room = {key: sum(needs.fits(one.node.have) for one in nodes) for key, nodes in groups.items()}
        best = max(groups, key=lambda key: room[key], default=None)  # the first of equals, by name
        chosen = [] if best is None else groups.pop(best)
    reference = like if like is not None or not chosen else chosen[0].facts
    for key, nodes in groups.items():
        for one in nodes:
            apart = f"of another fingerprint: {_difference(one.facts, reference)}"
            out[one.node.name] = apart if group is None else f"it is of the group {group_name(key)}"
    return Choice(tuple(chosen), out)


def groups_of(looks: Sequence[NodeLook], accelerator: str | None) -> tuple[tuple[Group, ...], Mapping[str, str]]:
    """All groups of fit nodes of one fingerprint, and why each other node is of none."""
    groups, out = _sorted_out(looks, accelerator)
    return tuple(Group(group_name(key), tuple(nodes)) for key, nodes in groups.items()), out


def group_name(key: tuple[str, ...]) -> str:
    """A name of a group for people and folders, of what `comparable` says of its nodes: `rtx-a6000-3f9c21`."""
    device = re.sub(r"[^a-z0-9]+", "-", key[2].lower().removeprefix("nvidia ")).strip("-")
    digest = hashlib.sha256("\0".join(key).encode()).hexdigest()[:_GROUP_DIGITS]
    return f"{device[:_GROUP_LETTERS].strip('-') or 'nodes'}-{digest}"


def _sorted_out(
    looks: Sequence[NodeLook], accelerator: str | None
) -> tuple[dict[tuple[str, ...], list[NodeLook]], dict[str, str]]:
    """Fit nodes by fingerprint, in the order of their names, and why each other node is not fit."""
    groups: dict[tuple[str, ...], list[NodeLook]] = {}
    out: dict[str, str] = {}
    for one in sorted(looks, key=lambda one: one.node.name):
        if one.faults or one.facts is None:
            more = f" (and {len(one.faults) - 1} more)" if len(one.faults) > 1 else ""
            out[one.node.name] = f"{one.faults[0].what}; {one.faults[0].mend}{more}"
        elif accelerator is not None and not has_accelerator(one, accelerator):
            names = ", ".join(sorted(set(one.facts.gpus))) or "none"
            out[one.node.name] = f"resources.accelerator is {accelerator}, its devices are {names}"
        else:
            groups.setdefault(comparable(one.facts), []).append(one)
    return groups, out


def has_accelerator(one: NodeLook, accelerator: str) -> bool:
    """Whether all devices of a node have that text in their name, or Ray says so of the node; case does not matter."""
    names = () if one.facts is None else one.facts.gpus
    wanted = accelerator.lower()
    if names:
        return all(wanted in name.lower() for name in names)
    kinds = [name.partition(":")[2].lower() for name in one.node.have if name.startswith("accelerator_type:")]
    return any(wanted in kind for kind in kinds)


def check_accelerator(accelerator: str | None, names: Sequence[str]) -> None:
    """Refuse a study whose devices are to be others than those of this machine. Raises HostError."""
    if accelerator is not None and not (names and all(accelerator.lower() in name.lower() for name in names)):
        there = ", ".join(dict.fromkeys(names)) or "none"
        raise HostError(
            f"resources.accelerator is {accelerator}, the devices of this machine are {there}; "
            "correct it, or join a cluster that has them with --ray-address"
        )


def _difference(facts: NodeFacts | None, reference: NodeFacts | None) -> str:
    if facts is None or reference is None:
        return "not known"
    pairs = [
        ("vLLM", facts.vllm, reference.vllm),
        ("driver", facts.driver, reference.driver),
        ("GPUs", ", ".join(sorted(set(facts.gpus))) or None, ", ".join(sorted(set(reference.gpus))) or None),
        ("model", (facts.model_sha256 or "")[:12], (reference.model_sha256 or "")[:12]),
        ("CPU", facts.cpu_model, reference.cpu_model),
        ("CPU cores", facts.cpu_cores, reference.cpu_cores),
    ]
    return ", ".join(
        f"{what} {own or 'none'} instead of {other or 'none'}" for what, own, other in pairs if own != other
    )
