"""The loads of a study: which prompts are sent to search and which to confirm, and what to say about them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sweep.config import LoadSection
from sweep.knee import LADDER
from sweep.metric_table import parse_metric, rate_text
from sweep.metrics import samples_needed
from sweep.objective import Objective
from sweep.workload import (
    Conversations,
    LoadPlan,
    Selection,
    SelectionRules,
    Split,
    burst,
    confirmation_plans,
    ladder,
    plan_load,
    select,
    window_warning,
)

# Prompts to draw the blocks from: so many loads' worth, where the file holds them. Counting tokens takes time.
_POOL_LOADS = 3
_LONGEST_BURST = 1024
# Requests of a round of the calibration. 100 leave five beyond a p95, enough to tell whether it has doubled. Fewer than
# three batches would be answered at once, and again, with nothing ever left to wait.
_LADDER_PROMPTS, _LADDER_BATCHES, _LADDER_MOST = 100, 3, 400
# Steps of the ladder are four apart at first: with five times the prompts, rounds that follow each other share none.
_LADDER_POOL = 5


@dataclass(frozen=True, slots=True)
class Loads:
    """`plan` is the load of the search; `confirmation` one load a block, empty where nothing is held out. `calibration`
    is a ladder of rates, None where the study asks for no calibration.
    """

    plan: LoadPlan
    confirmation: tuple[LoadPlan, ...]
    selections: tuple[Selection, ...]
    soak: LoadPlan | None = None
    calibration: LoadPlan | None = None


def make_loads(
    load: LoadSection,
    conversations: Conversations,
    rules: SelectionRules,
    count_tokens: Callable[[str], int],
    *,
    seed: int,
    blocks: int,
    batch: int | None = None,
) -> Loads:
    """Choose the prompts and decide what is sent when. `blocks`: how often a confirmation launches each configuration,
    each time with a load of its own; 0 where nothing is confirmed, held-out prompts stay unread then. `batch`: most
    requests that the baseline runs at once, where its flags say.

    Raises DatasetError when either part of the file holds too few usable prompts for one load.
    """
    needed = load.num_prompts + load.warmup_prompts
    rungs = ladder_prompts(batch) if load.calibrate else 0
    chosen = functools.partial(select, conversations, rules, count_tokens, needed=needed, seed=seed)
    wanted = load.warmup_prompts + _LADDER_POOL * rungs
    pool = chosen(wanted=wanted, split=Split(load.held_out_share, "tuning"))
    # What else is sent does not depend on whether the load is calibrated.
    tuning = dataclasses.replace(pool, prompts=pool.prompts[:needed])
    plan = plan_load(
        tuning,
        warmup_prompts=load.warmup_prompts,
        num_prompts=load.num_prompts,
        rounds=load.rounds,
        request_rate=load.rates,
        burstiness=load.burstiness,
        seed=seed,
    )
    calibration = None
    if load.calibrate:
        sizes = {"warmup_prompts": load.warmup_prompts, "num_prompts": rungs}
        calibration = ladder(pool, LADDER, **sizes, burstiness=load.burstiness, seed=seed)
    if not (blocks and load.held_out_share):
        return Loads(plan, (), (pool,), calibration=calibration)
    held_out = chosen(wanted=_POOL_LOADS * needed, split=Split(load.held_out_share, "held_out"))
    confirmation = confirmation_plans(
        held_out,
        blocks=blocks,
        warmup_prompts=load.warmup_prompts,
        num_prompts=load.num_prompts,
        rounds=load.rounds,
        request_rate=load.rates,
        burstiness=load.burstiness,
        seed=seed,
    )
    return Loads(plan, confirmation, (pool, held_out), burst((tuning, held_out), _LONGEST_BURST), calibration)


def ladder_prompts(batch: int | None) -> int:
    """Requests of a round of the calibration. `batch`: most requests that run at once, None where that is not known."""
    return min(max(_LADDER_PROMPTS, _LADDER_BATCHES * (batch or 0)), _LADDER_MOST)


def load_notices(load: LoadSection, plan: LoadPlan, objective: Objective, max_model_lens: Sequence[int]) -> list[str]:
    """Lines for the person: a window far above the load, and whether the prompts carry the objective's percentiles."""
    notices = []
    window = max(max_model_lens, default=None)
    if window is not None and (warning := window_warning(plan, window)) is not None:
        notices.append(f"warning: {warning}")
    found = {metric.percentile for metric in map(parse_metric, objective.metrics_needed())}
    # Each request rate has percentiles of its own.
    rates = len(load.rates)
    needed = {
        percentile: rates * samples_needed(percentile) for percentile in sorted(p for p in found if p is not None)
    }
    count = len(plan.rounds)
    rounds = f"{count} rounds" if count > 1 else "1 round"
    if rates > 1:
        rounds += f" that take turns at request rates {', '.join(map(rate_text, load.rates))}"
    sent = f"a trial measures {load.num_prompts:,} requests in {rounds}, after {load.warmup_prompts} of warm-up"
    if not needed:
        notices.append(f"prompts: {sent}")
        return notices
    wanted = ", ".join(f"{count:,} for p{percentile:g}" for percentile, count in needed.items())
    each = f"; each of {rates} rates is judged by its own" if rates > 1 else ""
    notices.append(f"prompts: {sent}; the objective needs {max(needed.values()):,} ({wanted}{each})")
    for percentile, count in needed.items():
        if load.num_prompts < count:
            notices.append(
                f"warning: the objective uses p{percentile:g}, which {load.num_prompts} prompts do not carry; "
                f"load.num_prompts of {count} and more do"
            )
    return notices
