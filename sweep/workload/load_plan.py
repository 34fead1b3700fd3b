"""What is sent when, decided before any trial: the same requests at the same times for every trial of a study."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sweep.errors import DatasetError
from sweep.workload.arrivals import arrival_times
from sweep.workload.selection import Prompt, Selection

_SEEDS = 2**32
_FAR_ABOVE = 4.0


@dataclass(frozen=True, slots=True)
class Round:
    """One run of the load client: `prompts[i]` is its i-th request, sent `arrivals_s[i]` after the first.

    `lead_s` passes between the client's start of the load and the first request. `seed` is the client's `--seed`, which
    decides the arrivals. `output_tokens` is the one length of all requests, None when each prompt has its own.
    `request_rate` None is unlimited: all at once.
    """

    prompts: tuple[Prompt, ...]
    arrivals_s: tuple[float, ...]
    lead_s: float
    seed: int
    request_rate: float | None
    burstiness: float
    output_tokens: int | None
    client_format: Literal["sharegpt", "custom"]

    @property
    def last_send_s(self) -> float:
        """Seconds from the client's start of the load to its last request."""
        return self.lead_s + self.arrivals_s[-1]


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The whole load of a trial: an optional warm-up, then measured rounds. No prompt occurs twice."""

    warmup: Round | None
    rounds: tuple[Round, ...]

    @property
    def longest(self) -> Prompt:
        """The measured prompt with most tokens, output included."""
        prompts = (prompt for one in self.rounds for prompt in one.prompts)
        return max(prompts, key=lambda prompt: prompt.input_tokens + prompt.output_tokens)


def plan_load(
    selection: Selection,
    *,
    warmup_prompts: int,
    num_prompts: int,
    rounds: int = 1,
    request_rate: float | None = None,
    burstiness: float = 1.0,
    seed: int,
) -> LoadPlan:
    """The load of a trial from `warmup_prompts + rounds * num_prompts` selected prompts.

    Warm-up prompts are taken at evenly spaced ranks of total length, so that they are short, median and long and the
    measured rest keeps the distribution of the selection; they go out all at once, shortest first, for the warm-up to
    meet the batch sizes of the load. Round r is seeded with `seed + r` (modulo 2^32, numpy's range); the warm-up with
    the seed before. Raises DatasetError when the selection is smaller than that.
    """
    needed = warmup_prompts + rounds * num_prompts
    if len(selection.prompts) < needed:
        raise DatasetError(
            f"{needed:,} prompts are needed ({warmup_prompts:,} warm-up, {rounds} x {num_prompts:,} measured), "
            f"{len(selection.prompts):,} were selected",
            path=selection.path,
        )
    prompts = selection.prompts[:needed]
    warm = _spread(prompts, warmup_prompts)
    warm_ids = {prompt.prompt_id for prompt in warm}
    measured = [prompt for prompt in prompts if prompt.prompt_id not in warm_ids]

    def one(part: tuple[Prompt, ...], number: int, rate: float | None) -> Round:
        round_seed = (seed + number) % _SEEDS
        times = arrival_times(len(part), request_rate=rate, burstiness=burstiness, seed=round_seed)
        return Round(
            prompts=part,
            arrivals_s=tuple(time - times[0] for time in times),
            lead_s=times[0],
            seed=round_seed,
            request_rate=rate,
            burstiness=burstiness,
            output_tokens=selection.rules.output_tokens,
            client_format=selection.rules.client_format,
        )

    parts = [tuple(measured[start : start + num_prompts]) for start in range(0, rounds * num_prompts, num_prompts)]
    return LoadPlan(
        warmup=one(warm, -1, None) if warm else None,
        rounds=tuple(one(part, number, request_rate) for number, part in enumerate(parts)),
    )


def window_warning(plan: LoadPlan, max_model_len: int) -> str | None:
    """What to tell a user whose `max_model_len` is more than 4 times the longest request; None when it is not."""
    longest = plan.longest
    total = longest.input_tokens + longest.output_tokens
    if max_model_len <= _FAR_ABOVE * total:
        return None
    remedy = (
        "the load client's ShareGPT reader drops prompts over 1,024 tokens: set load.max_prompt_tokens higher, or use "
        "load.dataset: custom with your own long prompts"
        if plan.rounds[0].client_format == "sharegpt"
        else "raise load.max_prompt_tokens or add longer prompts"
    )
    return (
        f"max-model-len is {max_model_len:,}, but the longest request of this load has {total:,} tokens (prompt "
        f"{longest.input_tokens:,}, output {longest.output_tokens:,}): long documents are never tested, other flags "
        f"may be best for them; {remedy}, or lower max-model-len to what you serve"
    )


def _spread(prompts: tuple[Prompt, ...], count: int) -> tuple[Prompt, ...]:
    """`count` prompts at the middle of as many equal shares of the total lengths, shortest first."""
    ranked = sorted(prompts, key=lambda prompt: (prompt.input_tokens + prompt.output_tokens, prompt.prompt_id))
    return tuple(ranked[(2 * index + 1) * len(ranked) // (2 * count)] for index in range(count))
