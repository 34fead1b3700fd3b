"""A trial without a server: vLLM's scheduler in virtual time, at costs that the model's size and the card suggest."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sweep.diagnosis import Policy
from sweep.diagnosis.values import FailureClass
from sweep.records import EngineConfig, EngineSummary, Event, RequestRecord, RoundRecord
from sweep.runner import Measured, RoundReport, TrialOutcome, TrialSetup, measured_result, thin_remarks
from sweep.trial import Failure, Phase, TrialSpec
from sweep.twin import Costs, Engine, Simulation, TwinError, simulate
from sweep.twinning.hardware import Hardware, plain_flags
from sweep.twinning.load import planned
from sweep.workload import Round

WORD = "simulated"

# What launches of one setting differ by, and requests of one launch: standard deviations of logarithms, about those of
# runs on GPUs.
_LAUNCH_SD, _REQUEST_SD = 0.02, 0.01
_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class Simulated:
    """Stands in for servers (see `sweep.runner.StandIn`) of `hardware`. What its steps cost is one draw, by `seed`, of
    what they may; a launch differs from the next by 2 %, a request by 1 %.
    """

    hardware: Hardware
    seed: int

    @property
    def word(self) -> str:
        return WORD

    @property
    def described(self) -> str:
        return f"{WORD} for {self.hardware.described}"

    def run(
        self, spec: TrialSpec, setup: TrialSetup, *, after_round: Callable[[RoundReport], str | None] | None = None
    ) -> TrialOutcome:
        """The trial, at once; it depends on the seed, the trial's number and its flags, on nothing else."""
        setup.log_folder(spec.number).mkdir(parents=True, exist_ok=True)  # where verdicts of races lie
        flags = setup.server_flags(spec.flags)
        tokens = self.hardware.kv_tokens(plain_flags(flags))
        engine = self.hardware.engine(flags)
        rng = np.random.default_rng([self.seed, spec.number])
        costs = self._costs().times(float(np.exp(_LAUNCH_SD * rng.standard_normal())))
        load, why = None, None
        if tokens < engine.block_size:
            why = "weights and activations leave no room for the KV cache"
        else:
            try:
                load = self._load(spec, setup, engine, costs, rng, after_round)
            except TwinError as error:
                why = str(error)
        startup_s = self.hardware.startup_s
        total_s = startup_s + _STOP_S + (sum(one.took_s for one in load.rounds) if load is not None else 0.0)
        result = measured_result(
            spec,
            setup,
            load,
            failure=None if why is None else _failure(why),
            infeasible=why is not None,
            engine_config=_config(engine, tokens),
            events=_events(load, startup_s, total_s),
            command=f"({WORD}, not run)",
            attempts=1,
            started_wall_s=time.time(),
            startup_s=None if load is None else startup_s,
            total_s=total_s,
            remarks=(self.described, *thin_remarks(spec, setup, load)),
            stood_in=WORD,
        )
        return TrialOutcome(result, dataclasses.asdict(_summary(load)), ())

    def _costs(self) -> Costs:
        return self.hardware.costs(seed=self.seed, members=2).members[0]

    def _load(
        self,
        spec: TrialSpec,
        setup: TrialSetup,
        engine: Engine,
        costs: Costs,
        rng: np.random.Generator,
        after_round: Callable[[RoundReport], str | None] | None,
    ) -> Measured:
        plan = setup.plan_for(spec)
        requests: list[tuple[RequestRecord, ...]] = []
        rounds: list[RoundRecord] = []
        began_at_s = self.hardware.startup_s
        for place, one in enumerate(plan.rounds):
            run = simulate(planned(one), engine, costs, max_concurrency=setup.max_concurrency)
            requests.append(_records(run, one, place, rng))
            rounds.append(_round(run, one, place, began_at_s))
            began_at_s += rounds[-1].took_s
            last = place == len(plan.rounds) - 1
            if after_round is not None and not last:
                report = RoundReport(
                    spec.number, place, len(plan.rounds), tuple(requests), tuple(rounds), (), began_at_s
                )
                if (why := after_round(report)) is not None:
                    return Measured(tuple(requests), tuple(rounds), why)
        return Measured(tuple(requests), tuple(rounds))


def _records(run: Simulation, one: Round, place: int, rng: np.random.Generator) -> tuple[RequestRecord, ...]:
    """Rows as of a client, each request off by its own noise; `prompt_id` is that of the prompt."""
    found = []
    factors = np.exp(_REQUEST_SD * rng.standard_normal(len(one.prompts)))
    for record, prompt, factor in zip(run.records(place), one.prompts, factors.tolist(), strict=True):
        gaps = tuple(gap * factor for gap in record.itl_ms)
        ttft_ms = (record.ttft_ms or 0.0) * factor
        found.append(
            RequestRecord(
                round=place,
                index=record.index,
                prompt_id=prompt.prompt_id,
                scheduled_s=record.scheduled_s,
                start_s=record.start_s,
                input_tokens=record.input_tokens,
                output_tokens=record.output_tokens,
                asked_output_tokens=record.asked_output_tokens,
                ttft_ms=ttft_ms,
                itl_ms=gaps,
                e2el_ms=ttft_ms + sum(gaps),
                error=None,
            )
        )
    return tuple(found)


def _round(run: Simulation, one: Round, place: int, began_at_s: float) -> RoundRecord:
    engine = run.engine
    return RoundRecord(
        attempt=1,
        round=place,
        began_at_s=began_at_s,
        duration_s=run.duration_s,
        took_s=run.duration_s,
        request_rate_per_s=one.request_rate,
        prompts=len(one.prompts),
        completed=len(one.prompts),
        failed=0,
        output_tokens=len(run.token_s),
        prefix_cache_reset=True,
        prefix_hit_share=engine.prefix_hit_share,
        preemptions=engine.preemptions,
        peak_running=engine.peak_running,
        peak_waiting=engine.peak_waiting,
        peak_kv_usage_share=engine.peak_kv_usage_share,
        mean_queue_time_ms=engine.mean_queue_time_ms,
    )


def _summary(load: Measured | None) -> EngineSummary:
    """What the engine saw over all rounds."""
    rounds = () if load is None else load.rounds

    def most(name: str) -> float | None:
        return max((value for one in rounds if (value := getattr(one, name)) is not None), default=None)

    waits = [one.mean_queue_time_ms for one in rounds if one.mean_queue_time_ms is not None]
    return EngineSummary(
        preemptions=sum(one.preemptions or 0.0 for one in rounds) if rounds else None,
        prefix_hit_share=most("prefix_hit_share"),
        peak_running=most("peak_running"),
        peak_waiting=most("peak_waiting"),
        peak_kv_usage_share=most("peak_kv_usage_share"),
        mean_queue_time_ms=sum(waits) / len(waits) if waits else None,
    )


def _config(engine: Engine, tokens: int) -> EngineConfig:
    return EngineConfig(
        block_size=engine.block_size,
        gpu_blocks=max(tokens // engine.block_size, 1),
        kv_tokens=tokens,
        enable_prefix_caching=engine.prefix_caching,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
    )


def _failure(line: str) -> Failure:
    return Failure(
        failure_class=str(FailureClass.KV_CACHE_TOO_SMALL),
        phase="startup",
        line=f"{line} ({WORD})",
        advice="raise gpu-memory-utilization, lower max-model-len or max-num-seqs, or spread the weights",
        retryable=False,
        informative_for_search=True,
        policy=str(Policy.INFEASIBLE),
    )


def _events(load: Measured | None, startup_s: float, total_s: float) -> tuple[Event, ...]:
    steps = [(0.0, Phase.START)]
    if load is not None:
        steps += [(startup_s, Phase.READY), (load.rounds[0].began_at_s, Phase.LOAD)]
    steps.append((total_s, Phase.STOP))
    wall_s = time.time()
    return tuple(Event(1, at_s, wall_s, "phase", str(phase), WORD) for at_s, phase in steps)
