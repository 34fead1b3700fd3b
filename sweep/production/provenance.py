"""Where the flags of a file come from, and what they hold for."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sweep.fingerprint import Fingerprint
from sweep.recommend import Recommendation
from sweep.store import StoredTrial
from sweep.workload import LoadPlan

_KEY = "sweep.vllm/"


@dataclass(frozen=True, slots=True)
class Provenance:
    """Why these flags. `what` says which ones they are, `interval` is None where nothing was confirmed, `limits` are
    what the verdict holds for, one line each. `measured` is the UTC day of the last launch.
    """

    what: str
    study: str
    verdict: str
    interval: str | None
    fingerprint: str
    measured: str
    limits: tuple[str, ...]

    def lines(self) -> tuple[str, ...]:
        """For the head of a file, each without line breaks."""
        found = [
            self.what,
            f"Study: {self.study}; last measured {self.measured}; fingerprint {self.fingerprint}",
            f"Verdict: {self.verdict}",
        ]
        if self.interval is not None:
            found.append(f"Interval: {self.interval}")
        found += ["It holds for what was measured, and is not known to hold for anything else:"]
        found += [f"  {limit}" for limit in self.limits]
        found.append("After a change of any of these: python -m sweep.check STUDY.yaml")
        return tuple(" ".join(line.splitlines()) for line in found)

    def annotations(self) -> dict[str, str]:
        """The same as annotations of an object."""
        found = {
            "what": self.what,
            "study": self.study,
            "verdict": self.verdict,
            "interval": self.interval or "none: not confirmed",
            "fingerprint": self.fingerprint,
            "measured": self.measured,
            "holds-for": "; ".join(self.limits),
        }
        return {_KEY + name: value for name, value in found.items()}


def provenance(
    what: str,
    study: str,
    recommendation: Recommendation,
    fingerprint: Fingerprint,
    plan: LoadPlan,
    trials: Sequence[StoredTrial],
) -> Provenance:
    """The provenance of one set of files of a study whose load is `plan`."""
    ended_s = max((one.started_wall_s + one.total_s for one in trials), default=0.0)
    low, high = recommendation.gain_low_share, recommendation.gain_high_share
    return Provenance(
        what=what,
        study=study,
        verdict=recommendation.sentence,
        interval=None if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f} % better (95 %)",
        fingerprint=hashlib.sha256(fingerprint.as_json().encode()).hexdigest()[:12],
        measured=f"{datetime.fromtimestamp(ended_s, UTC):%Y-%m-%d}",
        limits=limits(fingerprint, plan),
    )


def limits(fingerprint: Fingerprint, plan: LoadPlan) -> tuple[str, ...]:
    """What was measured, one line each: model, devices, driver, vLLM, load."""
    files = "" if fingerprint.model_sha256 is None else f" (files {fingerprint.model_sha256[:12]})"
    found = [f"model {fingerprint.model or 'not known'}{files}"]
    if fingerprint.gpus:
        found.append(", ".join(f"{count} x {name}" for name, count in Counter(fingerprint.gpus).items()))
        found.append(f"driver {fingerprint.driver or 'not known'}, CUDA {fingerprint.cuda or 'not known'}")
    else:
        found.append(f"no GPU; CPU {fingerprint.cpu_model or 'not known'}, {fingerprint.cpu_cores} cores")
    found.append(f"vLLM {fingerprint.vllm or 'not known'}")
    if fingerprint.pin_cpus:
        found.append("servers with CPUs of their own (resources.pin_cpus), which these files do not set")
    found.append(f"load: {load_text(plan)}")
    return tuple(found)


def load_text(plan: LoadPlan) -> str:
    """The load of a trial in a few words."""
    prompts = [prompt for one in plan.rounds for prompt in one.prompts]
    rates = dict.fromkeys("all at once" if rate is None else f"{rate:g} requests/s" for rate in plan.rates)
    asked = sum(prompt.input_tokens for prompt in prompts) / len(prompts)
    answered = sum(prompt.output_tokens for prompt in prompts) / len(prompts)
    return (
        f"{len(prompts)} prompts, {' and '.join(rates)}, {asked:.0f} tokens in and {answered:.0f} out at the mean, "
        f"in {len(plan.rounds)} rounds"
    )
