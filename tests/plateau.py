"""A study in which a flag makes no difference, and candidates were refused, checked and known already."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from reported import OWN, alike, lost, measured

from sweep.guide import PassedOver, Refusal, Same
from sweep.records import EngineConfig, EngineSummary
from sweep.redact import Redactor
from sweep.store import PassedStore, Schema, Store
from sweep.trial import Flags, TrialKind, TrialSpec

SEEN = EngineSummary(
    preemptions=0.0,
    prefix_hit_share=0.0,
    peak_running=20.0,
    peak_kv_usage_share=0.1,
    largest_step_tokens=1024.0,
    peak_in_flight=24.0,
    peak_in_flight_tokens=9_000.0,
    longest_prompt_tokens=900.0,
    load_tokens=90_000.0,
)
SCHEMA = Schema({"max-num-seqs": int, "block-size": int}, ("p95_ttft_ms",))
WHY = "KV cache of <b>0.4 GiB</b> for 1.2 GiB"


def flags(seqs: int, block: int = 16) -> Flags:
    return {"max-num-seqs": seqs, "block-size": block}


def plateau(folder: Path, *, refused: int = 3) -> Path:
    """Trials 0 to 3 with 24 requests at once: 0 and 1 are the same to the engine. 4 checked a refusal and failed,
    5 checked one and worked. `refused` candidates came up before trial 3, and one before trial 2 that is as trial 0."""
    store = Store(folder, SCHEMA, metadata={}, redactor=Redactor({}), reserve_bytes=0)
    summary = dataclasses.asdict(SEEN)
    points = {0: (256, 100.0), 1: (64, 99.0), 2: (16, 140.0), 3: (32, 98.0), 5: (48, 101.0)}
    for number, (seqs, ttft_ms) in points.items():
        kind = TrialKind.SEARCH if number else TrialKind.BASELINE
        whole = measured(
            number,
            alike(ttft_ms),
            spec=TrialSpec(number, kind, flags(seqs)),
            engine_config=EngineConfig(block_size=16, kv_tokens=100_000),
            metrics={"p95_ttft_ms": ttft_ms},
        )
        store.append(whole, engine_summary=summary)
    store.append(lost(4, TrialSpec(4, TrialKind.SEARCH, flags(16, 7))), engine_summary={})
    kept = PassedStore(folder, SCHEMA, metadata={}, redactor=Redactor({}))
    for place in range(refused):
        kept.append(PassedOver(3, flags(16, 1_000 + place), refusal=Refusal(WHY, "kv_cache", 0.98)))
    kept.append(PassedOver(3, flags(16, 1_000), refusal=Refusal(WHY, "kv_cache", 0.99)))  # came up twice
    kept.append(PassedOver(4, flags(16, 7), refusal=Refusal("no such block", "block_size", 0.99, audit=True)))
    kept.append(PassedOver(5, flags(48), refusal=Refusal("too many", "batched", 0.98, audit=True)))
    kept.append(PassedOver(9, flags(16, 9), refusal=Refusal("not ended", "batched", 0.98, audit=True)))
    kept.append(PassedOver(2, flags(128), same=Same(0)))
    kept.append(PassedOver(1, flags(64), same=Same(0, audit=True)))
    (folder / "study.json").write_text(json.dumps({"study": {"trials": 6}, "objective": dict(OWN)}))
    (folder / "fingerprint.json").write_text(json.dumps({"model": "m", "vllm": "0.32.0", "gpus": ["A6000"]}))
    return folder
