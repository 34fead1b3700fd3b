"""What a result holds for: model, machine, versions and load, from the study's fingerprint."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from sweep.fingerprint import Fingerprint

_LOAD = ("dataset", "num_prompts", "rounds", "output_tokens", "request_rate", "max_concurrency", "burstiness")


def measured_on(folder: Path) -> tuple[tuple[str, str], ...]:
    """(name, text) of what is known; empty where the fingerprint is missing or damaged."""
    try:
        found = Fingerprint.from_json((folder / "fingerprint.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return ()
    cards = Counter(found.gpus or ())
    machine = ", ".join(f"{count} x {name}" for name, count in cards.items())
    if not machine and found.cpu_model is not None:
        machine = found.cpu_model if found.cpu_cores is None else f"{found.cpu_model}, {found.cpu_cores} cores"
    load = dict(found.load or ())
    rate = found.request_rate_per_s
    facts = (
        ("model", found.model),
        ("vLLM", found.vllm),
        ("GPUs" if cards else "CPU", machine or None),
        ("driver", found.driver),
        ("load", ", ".join(f"{name} {load[name]}" for name in _LOAD if load.get(name, "null") != "null") or None),
        ("request rate that auto came to", None if rate is None else f"{rate:.4g}/s"),
        ("fixed flags", ", ".join(f"{name} {value}" for name, value in found.fixed_flags or ()) or None),
    )
    return tuple((name, text) for name, text in facts if text)
