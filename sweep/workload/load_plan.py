"""What is sent when, decided before any trial: the same requests at the same times for every trial of a study."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from sweep.errors import DatasetError
from sweep.workload.arrivals import arrival_times
from sweep.workload.selection import Prompt, Selection, SelectionRules

# Arrivals a second; None sends all at once. Of several, the rounds take turns.
Rate = float | None
Rates = Rate | Sequence[Rate]

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

    @classmethod
    def of(cls, prompts: Sequence[Prompt], rules: SelectionRules, *, rate: Rate, burstiness: float, seed: int) -> Round:
        """`prompts` at the times that the load client draws for this rate and seed."""
        times = arrival_times(len(prompts), request_rate=rate, burstiness=burstiness, seed=seed)
        return cls(
            prompts=tuple(prompts),
            arrivals_s=tuple(time - times[0] for time in times),
            lead_s=times[0],
            seed=seed,
            request_rate=rate,
            burstiness=burstiness,
            output_tokens=rules.output_tokens,
            client_format=rules.client_format,
        )

    def at(self, rate: Rate) -> Round:
        """The same prompts and seed at another rate."""
        times = arrival_times(len(self.prompts), request_rate=rate, burstiness=self.burstiness, seed=self.seed)
        arrivals_s = tuple(time - times[0] for time in times)
        return dataclasses.replace(self, arrivals_s=arrivals_s, lead_s=times[0], request_rate=rate)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The whole load of a trial: an optional warm-up, then measured rounds. No prompt occurs twice."""

    warmup: Round | None
    rounds: tuple[Round, ...]

    @property
    def num_prompts(self) -> int:
        """Measured requests of all rounds."""
        return sum(len(one.prompts) for one in self.rounds)

    @property
    def rates(self) -> tuple[Rate, ...]:
        """The request rate of each round."""
        return tuple(one.request_rate for one in self.rounds)

    def at(self, rate: Rate) -> LoadPlan:
        """The same prompts and seeds with every round at this rate; the warm-up stays."""
        return dataclasses.replace(self, rounds=tuple(one.at(rate) for one in self.rounds))

    def shortened(self, most: int) -> LoadPlan:
        """The same with the first `most` requests of each round."""
        rounds = (
            dataclasses.replace(one, prompts=one.prompts[:most], arrivals_s=one.arrivals_s[:most])
            for one in self.rounds
        )
        return dataclasses.replace(self, rounds=tuple(rounds))

    @property
    def longest(self) -> Prompt:
        """The measured prompt with most tokens, output included."""
        prompts = (prompt for one in self.rounds for prompt in one.prompts)
        return max(prompts, key=lambda prompt: prompt.input_tokens + prompt.output_tokens)


def burst(selections: Sequence[Selection], most: int) -> LoadPlan:
    """The worst burst: at most `most` of the longest selected prompts, longest first, all at once, without warm-up."""
    every = {prompt.prompt_id: prompt for selection in selections for prompt in selection.prompts}
    ranked = sorted(every.values(), key=lambda prompt: (-prompt.input_tokens - prompt.output_tokens, prompt.prompt_id))
    rules = selections[0].rules
    return LoadPlan(warmup=None, rounds=(Round.of(ranked[:most], rules, rate=None, burstiness=1.0, seed=0),))


def ladder(
    selection: Selection, rates: Sequence[Rate], *, warmup_prompts: int, num_prompts: int, burstiness: float, seed: int
) -> LoadPlan:
    """A round of `num_prompts` at each of `rates`, for a calibration, which sends some of them in an order of its own.

    The warm-up is as in `plan_load`. The rounds go through the rest of the selection again and again: no prompt occurs
    twice in a round, and in consecutive ones only where the selection is short. A round is smaller where the selection
    is. Raises DatasetError when it holds nothing beside the warm-up.
    """
    prompts = selection.prompts
    warm = _spread(prompts, min(warmup_prompts, len(prompts) - 1)) if prompts else ()
    warm_ids = {prompt.prompt_id for prompt in warm}
    pool = [prompt for prompt in prompts if prompt.prompt_id not in warm_ids]
    if not pool:
        raise DatasetError("holds no prompts to calibrate with", path=selection.path)
    count = min(num_prompts, len(pool))
    base = int.from_bytes(hashlib.sha256(f"calibrate/{seed}".encode()).digest()[:4], "big")

    def one(number: int, rate: Rate) -> Round:
        part = [pool[(number * count + index) % len(pool)] for index in range(count)]
        return Round.of(part, selection.rules, rate=rate, burstiness=burstiness, seed=(base + number) % _SEEDS)

    seed_before = (base - 1) % _SEEDS
    warmup = Round.of(warm, selection.rules, rate=None, burstiness=burstiness, seed=seed_before) if warm else None
    return LoadPlan(warmup, tuple(one(number, rate) for number, rate in enumerate(rates)))


def plan_load(
    selection: Selection,
    *,
    warmup_prompts: int,
    num_prompts: int,
    rounds: int = 1,
    request_rate: Rates = None,
    burstiness: float = 1.0,
    seed: int,
) -> LoadPlan:
    """The load of a trial: `warmup_prompts` selected prompts, and `num_prompts` more split evenly over `rounds`.

    Several request rates get `rounds` rounds each and take turns. The first rounds take the remainder. Warm-up prompts
    are taken at evenly spaced ranks of total length, so that they are short, median and long and the measured rest
    keeps the distribution of the selection; they go out all at once, shortest first, for the warm-up to meet the batch
    sizes of the load. Round r is seeded with `seed + r` (modulo 2^32, numpy's range); the warm-up with the seed before.
    Raises DatasetError when the selection is smaller than that,
    ValueError for more rounds than prompts.
    """
    rates = tuple(request_rate) if isinstance(request_rate, Sequence) else (request_rate,)
    rounds *= len(rates)
    if not 1 <= rounds <= num_prompts:
        raise ValueError(f"{num_prompts} prompts cannot make {rounds} rounds")
    needed = warmup_prompts + num_prompts
    if len(selection.prompts) < needed:
        raise DatasetError(
            f"{needed:,} prompts are needed ({warmup_prompts:,} warm-up, {num_prompts:,} measured), "
            f"{len(selection.prompts):,} were selected",
            path=selection.path,
        )
    prompts = selection.prompts[:needed]
    warm = _spread(prompts, warmup_prompts)
    warm_ids = {prompt.prompt_id for prompt in warm}
    measured = [prompt for prompt in prompts if prompt.prompt_id not in warm_ids]

    def one(part: tuple[Prompt, ...], number: int, rate: Rate) -> Round:
        round_seed = (seed + number) % _SEEDS
        return Round.of(part, selection.rules, rate=rate, burstiness=burstiness, seed=round_seed)

    share, rest = divmod(num_prompts, rounds)
    starts = [number * share + min(number, rest) for number in range(rounds + 1)]
    parts = [tuple(measured[start:end]) for start, end in pairwise(starts)]
    return LoadPlan(
        warmup=one(warm, -1, None) if warm else None,
        rounds=tuple(one(part, number, rates[number % len(rates)]) for number, part in enumerate(parts)),
    )


def confirmation_plans(
    selection: Selection,
    *,
    blocks: int,
    warmup_prompts: int,
    num_prompts: int,
    rounds: int = 1,
    request_rate: Rates = None,
    burstiness: float = 1.0,
    seed: int,
) -> tuple[LoadPlan, ...]:
    """One load for each block of a confirmation, from a selection of held-out prompts; all else as `plan_load`.

    Every launch within a block gets the same load, and each block one of its own: its prompts are drawn from the whole
    selection, by a seed that no round of the search has. Within a load no prompt occurs twice; blocks may share some.
    Raises DatasetError when the selection is smaller than one load.
    """
    plans = []
    for block in range(blocks):
        block_seed = int.from_bytes(hashlib.sha256(f"confirm/{seed}/{block}".encode()).digest()[:4], "big")
        prompts = list(selection.prompts)
        random.Random(block_seed).shuffle(prompts)
        plans.append(
            plan_load(
                dataclasses.replace(selection, prompts=tuple(prompts)),
                warmup_prompts=warmup_prompts,
                num_prompts=num_prompts,
                rounds=rounds,
                request_rate=request_rate,
                burstiness=burstiness,
                seed=block_seed,
            )
        )
    return tuple(plans)


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
