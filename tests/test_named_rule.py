from __future__ import annotations

import json
from pathlib import Path

import pytest

from sweep.diagnosis import Evidence, NamedRule, diagnose, named_rule
from sweep.diagnosis.named_rule import (
    BlockSizes,
    DevicesAtMost,
    Divides,
    Excluded,
    KvShortage,
    Limit,
    NotBelow,
    OneOf,
    Sizes,
)

OWN = Path(__file__).parent / "diagnosis_cases.jsonl"
SHARED = Path(__file__).parents[1].parent / "shared" / "cases" / "failures.jsonl"

# What the lines of real logs name, by their case.
NAMED: dict[str, NamedRule] = {
    "fc-002": KvShortage(56000, None, None, 43328),
    "fc-004": KvShortage(262144, 24.0, 3.18, 34736),
    "fc-054": Limit(None, at_most=1, refused=1.5),
    "fc-057": NotBelow("max-num-batched-tokens", "max-model-len"),
    "fc-060": DevicesAtMost(1),
    "fc-062": Limit(None, at_least=1, refused=0),
    "fc-064": OneOf("block-size", ("8", "16", "32", "64", "128")),
    "fc-065": Excluded("block-size", "128"),
    "fc-067": Excluded("block-size", "8"),
    "fc-068": Excluded("block-size", "8"),
    "fc-122": BlockSizes((Sizes(multiples_of=(32,)),), 24),
    "own-003": Limit("max-num-seqs", at_most=208, memory=True),
    "own-040": NotBelow("max-num-batched-tokens", "max-num-seqs"),
    "own-041": Divides("tensor-parallel-size", 40, "attention heads"),
    "own-042": Limit("max-model-len", at_most=8192),
    "own-043": OneOf("kv-cache-dtype", ("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")),
    "own-050": BlockSizes((Sizes(multiples_of=(16,)),), None),
    "own-051": BlockSizes((Sizes(multiples_of=(128,)),), None),
    "own-052": Limit("block-size", at_most=32),
    "own-053": OneOf("block-size", ("32", "64")),
    "own-054": OneOf("block-size", ("1", "8", "16", "32", "64", "128", "256")),
    "own-055": Excluded("block-size", None),
    "own-098": DevicesAtMost(4),
    "own-149": OneOf("block-size", ("1", "8", "16", "32", "64", "128")),
    "own-203": Limit("gpu-memory-utilization", below=1.0),
    "own-204": NotBelow("max-num-batched-tokens", "max-num-seqs"),
    "own-205": Divides("tensor-parallel-size", 128, "attention heads"),
    "own-206": OneOf("block-size", ("16", "32", "64")),
    "own-207": BlockSizes((Sizes(multiples_of=(16,)),), None),
    "own-208": BlockSizes((Sizes(multiples_of=(16,)),), None),
    "own-209": Excluded("block-size", "128"),
    "own-232": KvShortage(None, None, -0.41, None),
}
# Of the flags, but naming no rule: what they say is about the very launch.
SILENT = {"fc-007", "fc-009", "fc-061", "own-044", "own-045", "own-046", "own-048", "own-111", "own-147", "own-170"}


def cases() -> dict[str, dict[str, str]]:
    paths = [path for path in (OWN, SHARED) if path.exists()]
    rows = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["id"]: row for row in rows}


CASES = cases()


@pytest.mark.parametrize("name", sorted(NAMED))
def test_a_refusal_names_its_whole_rule(name: str) -> None:
    if name not in CASES:
        pytest.skip(f"{SHARED} is not here")
    case = CASES[name]
    line = diagnose(Evidence(case["phase"], log=case["log"])).line
    assert line is not None
    assert named_rule(line) == NAMED[name]
    assert str(NAMED[name])


def test_other_refusals_name_none() -> None:
    found = {
        name: named_rule(diagnose(Evidence(case["phase"], log=case["log"])).line or "") for name, case in CASES.items()
    }
    of_flags = {"invalid_flags", "unsupported_block_size", "kv_cache_too_small", "startup_oom"}
    wrong = {
        name: rule
        for name, rule in found.items()
        if rule is not None and name not in NAMED and CASES[name]["truth"] not in of_flags
    }
    # A client's own options are refused in the same words; whoever asks knows that it was the client.
    assert {name: rule for name, rule in wrong.items() if CASES[name]["truth"] != "client_error"} == {}
    assert all(found[name] is None for name in SILENT & found.keys())


def test_a_multiple_rules_out_more_than_the_size_that_was_tried() -> None:
    rule = named_rule("ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)]).")
    assert isinstance(rule, BlockSizes)
    assert [size for size in (8, 16, 32, 48, 64, 80, 96, 128) if rule.allows(size)] == [32, 64, 96, 128]
    assert "multiple of 32" in str(rule)


def test_block_sizes_of_several_backends_are_those_that_all_take_or_that_one_divides() -> None:
    rule = named_rule("ValueError: No common block size for 24 (A: [16, 32, 64]; B: [MultipleOf(16)]).")
    assert isinstance(rule, BlockSizes)
    assert [size for size in (8, 16, 24, 32, 48, 64, 128) if rule.allows(size)] == [16, 32, 48, 64, 128]


@pytest.mark.parametrize("line", ["", "a" * 5000, "MultipleOf(32)", "No common block size", "Input should be a number"])
def test_a_line_without_a_rule_has_none(line: str) -> None:
    assert named_rule(line) is None
