"""A recording that nobody recorded: the shape of a real one, for tests and for a first look at a search.

    python scripts/made_landscape.py DIR [--study scripts/landscape_cpu.yaml] [--seed 1]

The points, repeats and order are those that `record_landscape.py` would launch. What a launch gives comes from vLLM's
scheduler in virtual time, so plateaus, cliffs and queues lie where such limits put them; then everything that the twin
does not know is laid over it: prompts read in large steps cost more, so do many seats, and a launch differs from the
next by some percent at every request. Starts that fail do so by the rules of vLLM, in its words. `--seed` draws what
steps cost. Nothing of it is measured, and its fingerprint says so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from record_landscape import design_of  # noqa: E402

from sweep.config import StudyConfig, load  # noqa: E402
from sweep.records import EngineConfig, RequestRecord, RoundRecord  # noqa: E402
from sweep.redact import Redactor  # noqa: E402
from sweep.store import Schema, Store  # noqa: E402
from sweep.trial import Failure, Flags, TrialKind, TrialResult, TrialSpec, TrialStatus  # noqa: E402
from sweep.twin import Costs, Engine, Load, Simulation, simulate  # noqa: E402

UTILIZATION, SEQS, BATCHED, BLOCK = "gpu-memory-utilization", "max-num-seqs", "max-num-batched-tokens", "block-size"
# Tokens of KV cache for each share of the memory, and what the process takes of it first: as on the CPU.
_TOKENS_A_SHARE, _TAKEN_SHARE = 662_000, 0.0332
_LONGEST_TOKENS = 2048  # max-model-len: one such request must find room
_START_S, _ROUND_S, _STOP_S, _REFUSED_S = 58.0, 18.0, 20.0, 33.0
# Standard deviations of logarithms: what launches differ by in all of their steps, and what single requests do.
_LAUNCH_SD, _REQUEST_SD = 0.06, 0.08
# A step of 2 cores: itself, a token read, a request that decodes, and a token of context; the way to the engine.
_COSTS = Costs(14e-3, 1.9e-3, 3.0e-3, 3e-6, 1e-8, 0.02)
_SPREAD = 0.25  # of `seed`
_WORDS = {
    "kv_cache_too_small": "ValueError: No available memory for the cache blocks. Try increasing "
    "`gpu_memory_utilization` when initializing the engine.",
    "unsupported_block_size": "ValueError: Block size must be a multiple of 32.",
    "invalid_flags": "Value error, max_num_batched_tokens ({batched}) must be greater than or equal to max_num_seqs "
    "({seqs}).",
}


@dataclass(frozen=True, slots=True)
class World:
    """What is true of every launch: the load of each rate, and what steps cost."""

    loads: Mapping[float, Load]
    costs: Costs

    @classmethod
    def of(cls, config: StudyConfig, seed: int) -> World:
        """Prompts of some hundred tokens, arrivals at random; costs near those of a CPU."""
        rng = np.random.default_rng([seed, 0])
        rates = [rate for rate in config.load.rates if rate is not None]
        count = config.load.num_prompts // len(rates)
        loads = {}
        for rate in rates:
            prompts = np.clip(np.exp(rng.normal(4.6, 1.1, count)), 8, 1024).astype(np.int64)
            arrivals = np.cumsum(rng.exponential(1 / rate, count)) - 1 / rate
            loads[rate] = Load.of(
                np.maximum.accumulate(np.maximum(arrivals, 0)), prompts, config.load.output_tokens or 16
            )
        logs = np.log(_COSTS.array()) + _SPREAD * rng.standard_normal(6)
        return cls(loads, Costs.of(np.exp(logs)))

    def costs_of(self, flags: Flags, rng: np.random.Generator) -> Costs:
        """What the twin takes for one and the same: reading in large steps, and many seats."""
        seqs, batched = number(flags[SEQS]), number(flags[BATCHED])
        own = dataclasses.replace(
            self.costs,
            prefill_token_s=self.costs.prefill_token_s * (1 + 0.04 * math.log2(max(batched / 256, 0.5))),
            decode_request_s=self.costs.decode_request_s * (1 + 0.05 * math.log2(max(seqs / 8, 0.5))),
        )
        return own.times(math.exp(_LAUNCH_SD * rng.standard_normal()))


def number(value: object) -> float:
    """A flag that is searched, which is a number here."""
    assert isinstance(value, (int, float))
    return float(value)


def kv_tokens(flags: Flags) -> int:
    """Tokens of KV cache, in whole blocks; below 0 where the process has no room."""
    block = int(number(flags[BLOCK]))
    return int(_TOKENS_A_SHARE * (number(flags[UTILIZATION]) - _TAKEN_SHARE)) // block * block


def failure(flags: Flags) -> Failure | None:
    """Why a start is refused."""
    if number(flags[BATCHED]) < number(flags[SEQS]):
        kind = "invalid_flags"
    elif number(flags[BLOCK]) % 32:
        kind = "unsupported_block_size"
    elif kv_tokens(flags) < _LONGEST_TOKENS:
        kind = "kv_cache_too_small"
    else:
        return None
    line = _WORDS[kind].format(batched=flags[BATCHED], seqs=flags[SEQS])
    return Failure(kind, "startup", line, "take another value", False, True, "infeasible", 1)


def launch(spec: TrialSpec, world: World, seed: int) -> tuple[TrialResult, dict[str, float | None]]:
    """One launch, and what the engine's counters would have said of it."""
    rng = np.random.default_rng([seed, 1, spec.number])
    refused = failure(spec.flags)
    requests: list[RequestRecord] = []
    rounds: list[RoundRecord] = []
    runs: list[Simulation] = []
    config = EngineConfig()
    if refused is None:
        tokens, block = kv_tokens(spec.flags), int(number(spec.flags[BLOCK]))
        config = EngineConfig(
            block_size=block,
            gpu_blocks=tokens // block,
            kv_tokens=tokens,
            gpu_memory_utilization=number(spec.flags[UTILIZATION]),
            enable_prefix_caching=True,
            max_num_batched_tokens=int(number(spec.flags[BATCHED])),
            max_num_seqs=int(number(spec.flags[SEQS])),
        )
        engine, costs = Engine.of(spec.flags, config, asynchronous=False), world.costs_of(spec.flags, rng)
        for place, (rate, load_) in enumerate(world.loads.items()):
            runs.append(simulate(load_, engine, costs))
            requests += [_noisy(one, rng) for one in runs[-1].records(place)]
            rounds.append(_round(runs[-1], place, rate, _START_S + 20.0 * (place + 1)))
    started_s = _START_S * math.exp(0.08 * rng.standard_normal())
    refused_s = _REFUSED_S * math.exp(0.2 * rng.standard_normal())
    result = TrialResult(
        spec=spec,
        status=TrialStatus.COMPLETE if refused is None else TrialStatus.INFEASIBLE,
        metrics=None if refused else {"p95_ttft_ms": 1.0},
        score=None,
        failure=refused,
        requests=tuple(requests),
        engine=(),
        engine_config=config,
        events=(),
        command="(made, not run)",
        attempts=1,
        started_wall_s=1_767_225_600.0 + 150.0 * spec.number,
        startup_s=None if refused else started_s,
        load_s=None if refused else sum(one.duration_s for one in rounds),
        total_s=refused_s if refused else started_s + _STOP_S + sum(one.took_s for one in rounds),
        rounds=tuple(rounds),
        round_scores=(None,) * len(rounds),
    )
    return result, {} if refused else _summary(runs)


def _noisy(one: RequestRecord, rng: np.random.Generator) -> RequestRecord:
    assert one.ttft_ms is not None
    first = one.ttft_ms * math.exp(_REQUEST_SD * rng.standard_normal())
    gaps = tuple((np.array(one.itl_ms) * np.exp(_REQUEST_SD * rng.standard_normal(len(one.itl_ms)))).tolist())
    values = {field.name: getattr(one, field.name) for field in dataclasses.fields(RequestRecord)}
    return RequestRecord(**{**values, "ttft_ms": first, "itl_ms": gaps, "e2el_ms": first + sum(gaps)})


def _round(run: Simulation, place: int, rate: float, began_at_s: float) -> RoundRecord:
    seen = run.engine
    return RoundRecord(
        attempt=1,
        round=place,
        began_at_s=began_at_s,
        duration_s=run.duration_s,
        took_s=run.duration_s + _ROUND_S,
        request_rate_per_s=rate,
        prompts=len(run.load),
        completed=len(run.load),
        failed=0,
        output_tokens=len(run.token_s),
        prefix_hit_share=0.0,
        preemptions=seen.preemptions,
        peak_running=seen.peak_running,
        peak_waiting=seen.peak_waiting,
        peak_kv_usage_share=seen.peak_kv_usage_share,
        mean_queue_time_ms=seen.mean_queue_time_ms,
    )


def _summary(runs: list[Simulation]) -> dict[str, float | None]:
    every = [run.engine for run in runs]
    lengths = np.concatenate([run.load.input_tokens + run.load.output_tokens for run in runs])
    return {
        "preemptions": sum(one.preemptions or 0.0 for one in every),
        "prefix_hit_share": 0.0,
        "peak_running": max(one.peak_running or 0.0 for one in every),
        "peak_waiting": max(one.peak_waiting or 0.0 for one in every),
        "peak_kv_usage_share": max(one.peak_kv_usage_share or 0.0 for one in every),
        "peak_in_flight": max((one.peak_running or 0.0) + (one.peak_waiting or 0.0) for one in every),
        "longest_prompt_tokens": float(max(int(run.load.input_tokens.max()) for run in runs)),
        "load_tokens": float(lengths.sum()),
    }


def make(study: Path, out: Path, seed: int) -> Path:
    """The whole recording of a study file in the folder `out`, which must not exist yet."""
    config = load(study)
    design, world = design_of(config, study), World.of(config, seed)
    flags = {name: type(value) for name, value in design.launches[0].items()}
    schema = Schema(flags=flags, metrics=("p95_ttft_ms",))
    store = Store(out, schema, metadata={"vllm": "0.32.0"}, redactor=Redactor({}), reserve_bytes=0)
    for number_, flags_ in enumerate(design.launches):
        spec = TrialSpec(number_, TrialKind.SEARCH if number_ else TrialKind.BASELINE, flags_)
        result, summary = launch(spec, world, seed)
        store.append(result, engine_summary=summary)
    (out / "fingerprint.json").write_text(json.dumps({"vllm": "0.32.0", "model": "made, not recorded", "gpus": []}))
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--study", type=Path, default=ROOT / "scripts" / "landscape_cpu.yaml")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    make(asked.study, asked.out, asked.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
