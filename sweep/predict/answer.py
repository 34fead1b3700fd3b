"""From a stored study and a question to an answer: learn the costs, make the engine, send it the load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sweep.errors import UserError
from sweep.metrics import summarize_columns
from sweep.predict.capacity import Limits, can_hold, capacity, limits_of
from sweep.predict.settings import merged
from sweep.predict.values import LEVEL, Answer, Capacity, Nearest, Question
from sweep.report.source import Source
from sweep.search_space import canonical
from sweep.store import read_request_columns, read_requests, read_rounds
from sweep.trial import Flag, Flags
from sweep.twin import Costs, Engine, Interval, Prediction, TwinError, predict, simulate
from sweep.twinning.basis import Learnt, learn, nearest_first
from sweep.twinning.load import SentRound, at_rate, own_rounds
from sweep.twinning.record import Launch, Record, read_record
from sweep.twinning.target import Target, target_of

PERCENTILES = (50.0, 95.0, 99.0)
THROUGHPUT = "output_throughput_tokens_per_s"
METRICS = (*(f"p{rank:g}_{stem}_ms" for stem in ("ttft", "tpot", "e2el") for rank in PERCENTILES), THROUGHPUT)

_ANY_COSTS = Costs(0.02, 1e-4, 1e-4, 0.0, 0.0, 0.0)

# The costs of a step as a person would name them.
_IN_WORDS: Mapping[str, str] = {
    "step_s": "a step itself",
    "prefill_token_s": "a prompt token",
    "decode_request_s": "a request being answered",
    "context_token_s": "the length of its context",
    "attention_s": "attention within prompts",
    "offset_s": "the way to the engine",
}


def answer(source: Source, question: Question) -> Answer:
    """What the twin makes of the setting and load in question. Takes seconds; the same for the same record.

    Raises UserError for flags, metrics and rates that cannot be, and where the record does not tell enough.
    """
    limits = _limits(source, question)
    record = read_record(source.folder, source.trials)
    flags = merged(record.baseline, record.fixed, question.changes)
    target = target_of(flags, record)
    near = nearest_first(record, target)
    own = _own_rounds(record, next((launch for launch in near if launch.own_load), near[0]))
    rounds = own
    if question.request_rate_per_s is not None:
        rounds = at_rate(own, question.request_rate_per_s, burstiness=record.burstiness, seed=record.seed)
    _schedule(
        record, target.engine, rounds, _ANY_COSTS
    )  # what cannot run at all is refused before the seconds are spent
    learnt = learn(record, near)
    others, obstacles = _others(record, target, rounds, learnt.calibration.costs)
    prediction, more = _predicted(record, target, learnt, rounds, others)
    cautions = [*target.cautions, *obstacles, *more]
    carried = None if limits is None else _capacity(record, target, others, learnt, own, limits)
    if carried is not None and (highest := carried.expected_per_s) is not None:
        fastest = learnt.fastest_per_s
        if highest > fastest * 1.05:
            cautions.append(f"no trial was sent more than {fastest:.3g} requests/s: the highest rate lies beyond")
    return Answer(
        study=source.study,
        folder=str(source.folder),
        running=source.running,
        flags=flags,
        changed=tuple(name for name, value in question.changes.items() if _differ(record, name, value)),
        own_load=question.request_rate_per_s is None,
        request_rates_per_s=_rates(rounds),
        requests=sum(len(one.load) for one in rounds),
        metrics={name: prediction.metrics[name] for name in METRICS if name in prediction.metrics},
        saturated=prediction.saturated,
        nearest=_nearest(record, near[0], flags),
        basis=learnt.basis,
        kv_tokens=target.kv_tokens,
        capacity=carried,
        cautions=tuple(cautions),
        notes=(*source.notes, *record.notes),
    )


def _differ(record: Record, name: str, value: Flag) -> bool:
    return canonical({**record.fixed, **record.baseline}.get(name)) != canonical(value)


def _limits(source: Source, question: Question) -> Limits | None:
    """The limits to keep; checked before anything is computed."""
    if question.request_rate_per_s is not None and not 0.0 < question.request_rate_per_s < float("inf"):
        raise UserError("--request-rate: must be a number above 0")
    if not question.max_rate:
        if question.slo:
            raise UserError("--slo: goes with --max-rate, the highest rate that keeps it")
        return None
    if question.slo:
        return limits_of(question.slo)
    own = {} if source.objective is None else {k: v for k, v in source.objective.slo.items() if can_hold(k)}
    if not own:
        raise UserError("--max-rate: needs --slo beside it, such as --slo p95_ttft_ms=500; the study has no such limit")
    return limits_of(own)


def _own_rounds(record: Record, launch: Launch) -> tuple[SentRound, ...]:
    number = launch.trial.number
    return own_rounds(read_requests(record.folder, number), read_rounds(record.folder, number))


def _rates(rounds: Sequence[SentRound]) -> tuple[float | None, ...]:
    return tuple(dict.fromkeys(one.request_rate_per_s for one in rounds))


def _predicted(
    record: Record, target: Target, learnt: Learnt, rounds: Sequence[SentRound], others: Sequence[Engine]
) -> tuple[Prediction, list[str]]:
    """The prediction, its intervals wide enough for the engines that the launch may turn out to be."""
    loads = [one.load for one in rounds]

    def run(engine: Engine) -> Prediction:
        return predict(
            learnt.calibration,
            loads,
            engine,
            max_concurrency=record.max_concurrency,
            percentiles=PERCENTILES,
            level=LEVEL,
        )

    expected = run(target.engine)
    cautions = [_in_words(text) for text in expected.cautions]
    costs = learnt.calibration.costs
    schedule = _schedule(record, target.engine, rounds, costs)
    unlike = [run(engine) for engine in others if _schedule(record, engine, rounds, costs) != schedule]
    if unlike:
        cautions.append("the KV cache is scarce here, and what it holds an estimate: the intervals take both ends in")
    widened = {}
    for name, interval in expected.metrics.items():
        known = [interval, *(one.metrics[name] for one in unlike if name in one.metrics)]
        low, high = min(one.low for one in known), max(one.high for one in known)
        widened[name] = Interval(low, interval.expected, high)
    return replace(expected, metrics=widened), cautions


def _others(
    record: Record, target: Target, rounds: Sequence[SentRound], costs: Costs
) -> tuple[list[Engine], list[str]]:
    """The engines with the least and the most KV cache that the launch may have, where that is an estimate."""
    tokens = target.kv_tokens
    if tokens is None or tokens.low == tokens.high:
        return [], []
    found, cautions = [], []
    for engine in (target.with_kv_tokens(tokens.low), target.with_kv_tokens(tokens.high)):
        try:
            _schedule(record, engine, rounds, costs)
        except TwinError as error:
            cautions.append(f"if it gets the least KV cache it may get, {error}")
        else:
            found.append(engine)
    return found, cautions


def _schedule(record: Record, engine: Engine, rounds: Sequence[SentRound], costs: Costs) -> tuple[int, ...]:
    """Equal for two engines that do the same step by step."""
    runs = (simulate(one.load, engine, costs, max_concurrency=record.max_concurrency) for one in rounds)
    return tuple(run.schedule for run in runs)


def _in_words(caution: str) -> str:
    for name, words in _IN_WORDS.items():
        caution = caution.replace(name, words)
    return caution


def _capacity(
    record: Record,
    target: Target,
    others: Sequence[Engine],
    learnt: Learnt,
    own: Sequence[SentRound],
    limits: Limits,
) -> Capacity:
    rates = [rate for rate in _rates(own) if rate is not None]
    if rates:
        start = sum(rates) / len(rates)
    else:
        burst = simulate(own[0].load, target.engine, learnt.calibration.costs, max_concurrency=record.max_concurrency)
        start = len(burst.load) / burst.duration_s
    return capacity(
        learnt.calibration,
        [target.engine, *others],
        own,
        limits,
        start_per_s=start,
        max_concurrency=record.max_concurrency,
        burstiness=record.burstiness,
        seed=record.seed,
    )


def _nearest(record: Record, launch: Launch, flags: Flags) -> Nearest:
    trial = launch.trial
    columns = read_request_columns(record.folder, trial.number, gaps=False)
    rates = {one.request_rate_per_s: None for one in read_rounds(record.folder, trial.number)}
    return Nearest(
        number=trial.number,
        kind=trial.kind,
        changes={
            name: (launch.flags.get(name), flags.get(name))
            for name in {**launch.flags, **flags}
            if canonical(launch.flags.get(name)) != canonical(flags.get(name))
        },
        metrics=summarize_columns(columns, trial.load_s, METRICS, slo={}),
        completed=columns.completed,
        request_rates_per_s=tuple(rates),
    )
