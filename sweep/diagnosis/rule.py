"""How a rule is written down: an anchored sentence, what it means, and how much it weighs against others."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, IntEnum, auto

from sweep.diagnosis.message import Message
from sweep.diagnosis.values import FailureClass, Phase


class Tier(IntEnum):
    """Weight of a match: the lowest tier wins wherever it stands in the log, within a tier the first line does."""

    ROOT = auto()  # names a cause
    CONSEQUENCE = auto()  # may be a cause, is usually what other ranks see of one
    GENERAL = auto()  # an error whose cause is inferred from its kind or from the code that raised it
    REASON = auto()  # what our own checks saw from outside
    WORKER_WRAPPER = auto()  # "a worker died, see above"
    ENGINE_WRAPPER = auto()  # "the engine died, see above"
    SYMPTOM = auto()  # what the load client or one request saw
    COUNT = auto()  # requests failed, the client does not say why
    REMARK = auto()  # nothing failed, or no more than a hint


class Kind(Enum):
    """Families whose class depends on more than the sentence; `resolve` decides."""

    PLAIN = auto()
    OUT_OF_MEMORY = auto()
    WEIGHTS = auto()  # out of memory, said by the loader itself
    FREE_MEMORY = auto()  # the check before anything is loaded
    KV_CACHE = auto()
    ATTENTION = auto()  # no attention backend takes the configuration
    FIELD = auto()  # a validation error below the name of its field
    CLIENT_TIMEOUT = auto()


_INSIDE = re.compile(r"Engine|Worker")  # processes that cannot see what the load client sees


@dataclass(frozen=True, slots=True)
class Rule:
    """One family of messages.

    `pattern` is matched at the beginning of a message (after "SomeError: " and what wraps it), or anywhere in the line
    with `anywhere`. `load_class` replaces `failure_class` once the server serves. `retryable` and `informative` replace
    what is usual for the class. `quiet_too` lets INFO and WARNING lines match. `source` asks for a tag of the line and
    `raised` for an exception of one of these names.
    """

    pattern: re.Pattern[str]
    failure_class: FailureClass
    advice: str
    tier: Tier = Tier.ROOT
    kind: Kind = Kind.PLAIN
    phases: frozenset[Phase] | None = None
    load_class: FailureClass | None = None
    retryable: bool | None = None
    informative: bool | None = None
    host: bool = False
    at_once: bool | None = None
    harmless: bool = False
    anywhere: bool = False
    quiet_too: bool = False
    source: str = ""
    raised: frozenset[str] | None = None

    def applies(self, phase: Phase, quiet: bool) -> bool:
        """Whether lines of this phase (and, if quiet, below ERROR) are looked at."""
        return (self.quiet_too or not quiet) and (self.phases is None or phase in self.phases)

    def hits(self, message: Message) -> bool:
        """Whether a message of a phase this rule applies to belongs to its family."""
        if self.raised is not None and self.raised.isdisjoint(message.raised):
            return False
        if self.source and self.source != message.line.source:
            return False
        if self.anywhere:
            found = self.pattern.search(message.line.text) is not None
        else:
            match = self.pattern.match
            found = any(match(text) is not None for text in message.texts)
        return found and not (self.tier is Tier.SYMPTOM and _INSIDE.search(message.line.speaker))

    def class_in(self, phase: Phase) -> FailureClass:
        """The class, given where the line stands."""
        serving = phase in (Phase.LOAD, Phase.CLIENT)
        return self.load_class if self.load_class is not None and serving else self.failure_class


STARTING = frozenset({Phase.STARTUP, Phase.HOST})
CLIENT_SIDE = frozenset({Phase.CLIENT, Phase.DATASET})
UNDER_LOAD = frozenset({Phase.LOAD, Phase.CLIENT})


def sentence(*alternatives: str) -> re.Pattern[str]:
    """One pattern of several beginnings of a message."""
    return re.compile("|".join(f"(?:{text})" for text in alternatives))
