"""From the record of launches to what a gate knows, and from flags to a refusal: pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sweep.diagnosis import FailureClass, named_rule
from sweep.diagnosis.named_rule import KvShortage
from sweep.gate.knowledge import Knowledge
from sweep.gate.monotone import Order
from sweep.gate.rules import Rule, Values, enforced, taught_by
from sweep.gate.sums import Sums
from sweep.guide import Refusal
from sweep.memory import (
    GIB,
    Belief,
    Ceiling,
    Device,
    Forecast,
    Launch,
    Model,
    Observation,
    Parts,
    Unknown,
)
from sweep.trial import Finished, Flags, TrialStatus

# From this probability of failing on a candidate is not launched: one in forty refused wrongly, at most.
CONFIDENCE = 0.975
# A rule that vLLM itself states. It may be read wrongly, or hold for other launches than thought.
_STATED = 0.99
# What follows from one failed start by order alone: only a first start, which compiles, has less memory than the next.
_ORDERED = 0.98

_TEACHING = (
    FailureClass.INVALID_FLAGS,
    FailureClass.UNSUPPORTED_BLOCK_SIZE,
    FailureClass.KV_CACHE_TOO_SMALL,
    FailureClass.STARTUP_OOM,
)
_RAN_OUT = (FailureClass.STARTUP_OOM, FailureClass.LOAD_OOM)
_TOO_LITTLE = (FailureClass.KV_CACHE_TOO_SMALL, FailureClass.WEIGHTS_OOM)


@dataclass(frozen=True, slots=True)
class Learned:
    """What is known after some launches. `belief` and `ceiling` are None where memory is not known at all."""

    sums: Sums
    belief: Belief | None
    ceiling: Ceiling | None
    rules: tuple[Rule, ...] = ()
    disproved: frozenset[str] = frozenset()
    started: frozenset[tuple[int, int]] = frozenset()
    order: Order = field(default_factory=Order)

    @property
    def knowledge(self) -> Knowledge:
        """What all of it rests on."""
        return self.sums.knowledge

    @property
    def nothing_of_memory(self) -> str | None:
        """Why memory is no ground for a refusal; None where it is one."""
        if self.knowledge.nothing is not None:
            return self.knowledge.nothing
        return None if self.belief is None else self.belief.misfit

    def refusal(self, flags: Flags, confidence: float = CONFIDENCE) -> Refusal | None:
        """Why a launch with these searched flags would fail, with at least this confidence; None where it may work."""
        whole = {**self.knowledge.fixed, **flags}
        for rule in self._rules(whole):
            if confidence <= _STATED and rule.broken_by(whole):
                return Refusal(str(rule), rule.word, _STATED)
        if (found := self._of_memory(flags, confidence)) is not None or confidence > _ORDERED:
            return found
        edge = self.order.beyond(flags)
        return None if edge is None else Refusal(str(edge), edge.rule, _ORDERED)

    def forecast(self, flags: Flags) -> Forecast | Unknown:
        """What a launch with these searched flags is expected to come to, by memory alone."""
        return self._forecast(flags, warm=False)

    def after(self, ended: Finished) -> Learned:
        """What is known after one more launch."""
        whole = {**self.knowledge.fixed, **ended.flags}
        if _served(ended):
            return self._after_start(ended, whole)
        if ended.status is not TrialStatus.INFEASIBLE or ended.failure_class is None:
            return self
        return self._after_refusal(ended, whole)

    def _rules(self, whole: Values) -> Iterable[Rule]:
        knowledge = self.knowledge
        heads = knowledge.model.heads if isinstance(knowledge.model, Model) else None
        known = enforced(whole, heads) if knowledge.rules else ()
        return (rule for rule in (*known, *self.rules) if str(rule.named) not in self.disproved)

    def _of_memory(self, flags: Flags, confidence: float) -> Refusal | None:
        """The better of both cases counts: a cold start, and one that finds everything compiled."""
        forecast = self._forecast(flags, warm=True)
        if isinstance(forecast, Unknown) or self.ceiling is None:
            return None
        short, out = 1 - forecast.starts, 1 - self.ceiling.survives(forecast.parts.budget_bytes)
        if max(short, out) < confidence:
            return None
        if short >= out:
            return Refusal(_shortage(forecast), "kv_cache", short)
        budget, most = forecast.parts.budget_bytes / GIB, self.ceiling.mean_bytes / GIB
        reason = f"fills {budget:.1f} GiB of a device, and launches survive up to about {most:.1f} GiB"
        return Refusal(reason, "device_memory", out)

    def _forecast(self, flags: Flags, *, warm: bool) -> Forecast | Unknown:
        found = self.sums.of(flags)
        if isinstance(found, Unknown) or self.belief is None:
            return found if isinstance(found, Unknown) else Unknown(self.nothing_of_memory or "")
        launch, parts = found
        cold = not warm and _pair(launch) not in self.started
        forecast = self.belief.forecast(parts, cold=cold)
        return Unknown(self.belief.misfit or "") if forecast is None else forecast

    def _after_start(self, ended: Finished, whole: Values) -> Learned:
        broken = {str(rule.named) for rule in self._rules(whole) if rule.broken_by(whole)}
        learned = replace(self, disproved=self.disproved | broken, order=self.order.after(ended, ready=True))
        found = self.sums.of(ended.flags)
        if isinstance(found, Unknown) or self.belief is None or self.ceiling is None:
            return learned
        launch, parts = found
        tokens = None if ended.engine_config is None else ended.engine_config.kv_tokens
        seen = Observation(
            parts,
            cold=_pair(launch) not in self.started,
            kv_bytes=None if tokens is None else tokens * parts.bytes_per_token,
        )
        survived = ended.status is not TrialStatus.INFEASIBLE
        ceiling = self.ceiling
        if survived or ended.failure_class in _RAN_OUT:
            ceiling = ceiling.learn(parts.budget_bytes, survived=survived)
        started = self.started | {_pair(launch)}
        return replace(learned, belief=self.belief.learn(seen), ceiling=ceiling, started=started)

    def _after_refusal(self, ended: Finished, whole: Values) -> Learned:
        learned, shortage = replace(self, order=self.order.after(ended, ready=False)), None
        if ended.failure_class in _TEACHING and ended.failure_line:
            named = named_rule(ended.failure_line)
            shortage = named if isinstance(named, KvShortage) else None
            rule = None if named is None else taught_by(named, whole, ended.number)
            if rule is not None:
                learned = replace(learned, rules=(*self.rules, rule))
        found = self.sums.of(ended.flags)
        if isinstance(found, Unknown) or self.belief is None or self.ceiling is None:
            return learned
        launch, parts = found
        cold = _pair(launch) not in self.started
        if shortage is not None or ended.failure_class in _TOO_LITTLE:
            left = None if shortage is None else _left(shortage, parts)
            seen = Observation(parts, cold=cold, kv_bytes=left, enough=False)
            return replace(learned, belief=self.belief.learn(seen))
        if ended.failure_class in _RAN_OUT:
            return replace(learned, ceiling=self.ceiling.learn(parts.budget_bytes, survived=False))
        return learned


def learn(sums: Sums, record: Iterable[Finished]) -> Learned:
    """What is known after the launches of `record`, taken in the order of their numbers."""
    device = sums.knowledge.device
    learned = Learned(sums, None, None)
    if sums.knowledge.nothing is None and isinstance(device, Device):
        learned = Learned(sums, Belief.prior(device), Ceiling.prior(device))
    for ended in sorted(record, key=lambda one: one.number):
        learned = learned.after(ended)
    return learned


def failed_by_its_flags(ended: Finished) -> bool:
    """Whether a launch came to what a gate means by failing: its flags cannot work."""
    return ended.status is TrialStatus.INFEASIBLE


def _served(ended: Finished) -> bool:
    """Whether the server got ready: it was measured, or died under load."""
    return ended.status in (TrialStatus.COMPLETE, TrialStatus.CENSORED) or (
        ended.status is TrialStatus.INFEASIBLE and ended.failure_class == FailureClass.LOAD_OOM
    )


def _pair(launch: Launch) -> tuple[int, int]:
    """What the compile cache is kept by."""
    return launch.batched_tokens, launch.seqs


def _left(shortage: KvShortage, parts: Parts) -> float | None:
    """The KV cache that was there, where the line tells it."""
    if shortage.available_gib is not None:
        return shortage.available_gib * GIB
    return None if shortage.longest_tokens is None else shortage.longest_tokens * parts.bytes_per_token


def _shortage(forecast: Forecast) -> str:
    """The sum in one line, in GiB a device."""
    parts = forecast.parts
    other = parts.activation_bytes + parts.graph_bytes + parts.fixed_bytes
    request = "one block" if parts.longest_tokens is None else f"one request of {parts.longest_tokens:,} tokens"
    room = forecast.kv_tokens_high * parts.bytes_per_token / GIB
    return (
        f"{request} needs {parts.needed_bytes / GIB:.2f} GiB of KV cache a device, and at most {room:.2f} GiB are left "
        f"of {parts.budget_bytes / GIB:.1f} GiB after {parts.weight_bytes / GIB:.1f} GiB of weights and about "
        f"{other / GIB:.1f} GiB for the work"
    )
