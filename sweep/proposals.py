"""Who proposes the trials of a study, with everything that stands between a proposal and its launch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence

from sweep.atomic_file import WriteFailed
from sweep.equivalence import Capacity, EngineClasses, Rules
from sweep.gate import Gatekeeper, Learned, Sums, learn
from sweep.guide import Guides, PassedOver
from sweep.memory import Unknown
from sweep.prepare import Prepared
from sweep.racing import CPU_NOISE, GPU_NOISE
from sweep.recommend import Recommendation, Verdict, nearest_to_today, recommend
from sweep.searcher.proposer import Proposer
from sweep.searcher.samplers import MODELS, Recipe
from sweep.start_points import BATCHED, SEQS, UTILIZATION, StartPoint, usual_points
from sweep.store import PassedStore, read_passed
from sweep.trial import Finished, Flag, Flags
from sweep.twinning.computed import COMPUTED


def make_proposer(prepared: Prepared, models: Mapping[str, Recipe] = MODELS) -> tuple[Proposer, EngineClasses | None]:
    """The proposer of a study, which knows what earlier runs passed over but has heard of no trial yet; and who knows
    which points share a measurement, None where each is measured."""
    config, objective = prepared.config, prepared.setup.objective
    gate = _gate(prepared)
    classes = _classes(prepared, gate)
    passed = read_passed(prepared.setup.folder)
    proposer = Proposer(
        prepared.space,
        seed=config.study.seed,
        sampler=sampler_of(prepared),
        slo_names=tuple(objective.limits),
        front=len(objective.front),
        first=[point.flags for point in first_points(prepared)],
        guide=Guides(gate, classes),
        on_passed_over=_keeper(prepared, passed),
        models=models,
    )
    for point in passed:
        proposer.recall(point)
    return proposer, classes


def sampler_of(prepared: Prepared) -> str:
    """Who proposes: of `auto` the twin, where it can compute all that is searched and one score is looked for."""
    name = prepared.config.study.sampler
    if name != "auto":
        return name
    foreign = any(one.name not in COMPUTED and one.size != 1 for one in prepared.space.parameters)
    return "tpe" if foreign or prepared.setup.objective.front else "twin"


def first_points(prepared: Prepared) -> tuple[StartPoint, ...]:
    """The points that come first, in their order: a person's, an earlier study's best, the usual ones."""
    learned = learn(Sums(prepared.knowledge), ())
    baseline = prepared.config.baseline_flags()

    def starts(flags: Flags) -> float | None:
        found = learned.forecast(flags)
        return None if isinstance(found, Unknown) else found.starts

    defaults = _defaults(learned, baseline)
    usual = usual_points(prepared.space, baseline, prepared.config.study.trials, defaults=defaults, starts=starts)
    return (*prepared.first, *usual)


def _defaults(learned: Learned, baseline: Flags) -> Mapping[str, Flag]:
    """What vLLM makes of searched flags that are left to it on this device; nothing where that is not known."""
    found = learned.sums.of(dict.fromkeys(baseline))
    if isinstance(found, Unknown):
        return {}
    launch, _ = found
    return {UTILIZATION: launch.utilization, SEQS: launch.seqs, BATCHED: launch.batched_tokens}


def _gate(prepared: Prepared) -> Gatekeeper | None:
    study = prepared.config.study
    if not study.gate:
        return None
    return Gatekeeper(prepared.knowledge, seed=study.seed, audit_share=study.audit_share)


def _classes(prepared: Prepared, gate: Gatekeeper | None) -> EngineClasses | None:
    if not prepared.config.study.equivalence:
        return None

    def capacity(number: int, flags: Flags) -> float | None:
        found = None if gate is None else gate.learned(number).forecast(flags)
        return None if found is None or isinstance(found, Unknown) else found.kv_tokens_low

    rules = equivalence_rules(prepared, capacity)
    return EngineClasses(prepared.space, prepared.config.baseline_flags(), rules)


def equivalence_rules(prepared: Prepared, capacity: Capacity | None = None) -> Rules:
    """What proofs of a study rest on, and the noise that repeats are held against."""
    noise = GPU_NOISE if prepared.setup.uses_gpus else CPU_NOISE
    rounds = max(1, len(prepared.setup.plan.rounds))
    return Rules(prepared.config.serve.flags, math.sqrt(noise.server_sd**2 + noise.round_sd**2 / rounds), capacity)


def best_of_search(prepared: Prepared, known: Mapping[int, Finished]) -> Recommendation:
    """What the search alone says, of equivalent winners the one nearest to today's flags."""
    found = recommend(known.values())
    if not prepared.config.study.equivalence or found.verdict is not Verdict.BETTER:
        return found
    baseline = prepared.config.baseline_flags()
    classes = EngineClasses(prepared.space, baseline, equivalence_rules(prepared))
    for one in known.values():
        classes.hear(one)
    return nearest_to_today(found, baseline, classes.preferred)


def _keeper(prepared: Prepared, known: Sequence[PassedOver]) -> Callable[[PassedOver], None]:
    """Stores each point that is passed over."""
    store = PassedStore(
        prepared.setup.folder,
        prepared.schema,
        metadata=prepared.fingerprint.as_metadata(),
        redactor=prepared.redactor,
        known=known,
    )

    def keep(passed: PassedOver) -> None:
        if not prepared.setup.folder.is_dir():
            return  # a study in this process alone, which stores nothing
        # A disk that is full is the next trial's to find: it asks before its launch, and stops the study with a word.
        with contextlib.suppress(WriteFailed):
            store.append(passed)

    return keep
