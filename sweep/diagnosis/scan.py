"""One pass over a log: the best match of each weight, and what surrounds it. Memory is bounded, whatever the size."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from sweep.diagnosis import rules_client, rules_engine, rules_flags, rules_host, rules_memory
from sweep.diagnosis.frames import FRAME, Stage, infer, raised_by_library, stage_of_frames
from sweep.diagnosis.lines import Line, candidates, parse
from sweep.diagnosis.message import Message, unwrap
from sweep.diagnosis.notes import Notes
from sweep.diagnosis.rule import UNDER_LOAD, Rule, Tier
from sweep.diagnosis.values import FailureClass, Phase

# Client rules stand before those of the host (the same sentence means another thing in the client's phase), and those
# of the engine too (a full /dev/shm before a full disk).
RULES: tuple[Rule, ...] = tuple(
    sorted(
        rules_memory.RULES + rules_flags.RULES + rules_client.RULES + rules_engine.RULES + rules_host.RULES,
        key=lambda rule: rule.tier,
    )
)

_SPEECH = re.compile(
    r"(?:Received|Added|Finished|Aborted) request|Dumping (?:input data|scheduler output)|non-default args"
    r"|Generated response|prompt(?: is)?: "
)
_WITHOUT_DIGITS = str.maketrans("", "", "0123456789")
_DIGITS_MATTER = ("Xid", "code", "Errno", "HTTP", " Error", "requests:", "efore", "%|", "throughput")
_MOST_SPEAKERS = 128
_MOST_FRAMES = 60
_MOST_DULL = 20_000


@cache
def _rules(phase: Phase, quiet: bool) -> tuple[Rule, ...]:
    return tuple(rule for rule in RULES if rule.applies(phase, quiet))


@dataclass(frozen=True, slots=True)
class Match:
    """A line that a rule knows, with the circumstances it was found in."""

    rule: Rule
    text: str
    phase: Phase
    stage: Stage | None
    serving: bool
    previous: str


@dataclass(slots=True)
class _Speaker:
    """What one process said last: the frames of its traceback, and the line before."""

    frames: list[str] = field(default_factory=list)
    previous: str = ""
    ignored: bool = False  # below "Exception ignored in": printed by a destructor, not raised


@dataclass(slots=True)
class Scan:
    """What a log tells. `phase` None: inferred line by line."""

    phase: Phase | None
    best: dict[Tier, Match] = field(default_factory=dict)
    notes: Notes = field(default_factory=Notes)
    first_error: str | None = None
    _speakers: dict[str, _Speaker] = field(default_factory=dict)
    _guess: _Speaker | None = None  # whose last exception is the best of tier GENERAL

    def read(self, log: Path | str | Iterable[str] | None) -> None:
        """Go through a log once; lines that differ only in digits from one that said nothing are skipped."""
        dull: set[str] = set()
        state = self._state()
        for raw in candidates(log):
            if Tier.ROOT in self.best and "efore" not in raw:
                continue  # the first cause is found; only a reading of the memory before the launch could still matter
            shape = "" if any(word in raw for word in _DIGITS_MATTER) else raw.translate(_WITHOUT_DIGITS)
            if shape in dull:
                continue
            told = self.take(parse(raw))
            if self._state() != state or len(dull) >= _MOST_DULL:
                dull.clear()
                state = self._state()
            elif shape and not told:
                dull.add(shape)

    def take(self, line: Line) -> bool:
        """One line, in the order of the log. Whether it said anything."""
        self.notes.take(line.text)
        if not line.text or "throughput: " in line.text or _SPEECH.match(line.text):
            return False
        speaker = self._speaker(line)
        if frame := FRAME.match(line.text):
            speaker.frames.append(f"{frame[1]} {frame[2] or ''}")
            del speaker.frames[:-_MOST_FRAMES]
            return True
        if line.text.startswith(("Traceback (most recent call last)", "Exception ignored in")):
            speaker.frames.clear()
            speaker.ignored = speaker.ignored or line.text.startswith("Exception ignored in")
            return True
        if line.text.startswith("During handling of the above exception") and self._guess is speaker:
            del self.best[Tier.GENERAL]  # it was caught: what came of it says more
            self._guess = None
            return True
        message = unwrap(line)
        if message.raised == (line.text,) and speaker.previous.startswith("assert "):
            message = unwrap(replace(line, text=f"{line.text}: {speaker.previous}"))  # it says no more than its code
        if message.raised and speaker.ignored:
            speaker.ignored = False
            return True
        told = self._judge(message, speaker)
        if message.raised:
            speaker.frames.clear()
        if not line.quiet and line.text.strip("^~ "):  # not the marks below a line of code
            speaker.previous = line.text
        return told

    def _judge(self, message: Message, speaker: _Speaker) -> bool:
        line = message.line
        phase = self._phase(line)
        rule = next((rule for rule in _rules(phase, line.quiet) if rule.hits(message)), None)
        if rule is not None and rule.raised is not None and raised_by_library(speaker.frames):
            rule = None  # it speaks like a check of flags, but is none
        if rule is None:
            rule = infer(message, speaker.frames, phase)
        if rule is not None and not self._believed(rule, phase):
            rule = None
        if rule is None and self.first_error is None and line.level in ("ERROR", "CRITICAL"):
            self.first_error = line.text
        if rule is not None and rule.tier not in self.best:
            stage = stage_of_frames(speaker.frames) or self.notes.stage
            self.best[rule.tier] = Match(rule, line.text, phase, stage, self.notes.serving, speaker.previous)
            if rule.tier is Tier.GENERAL:
                self._guess = speaker
        elif message.raised and self._guess is speaker:
            self._guess = None
        return rule is not None or bool(message.raised)

    def _believed(self, rule: Rule, phase: Phase) -> bool:
        """A server that stops complains about much: then a cause must have a name, in a teardown be the machine's."""
        if phase is Phase.TEARDOWN:
            return rule.host or rule.failure_class is FailureClass.DRIVER_ERROR
        stopped = self.notes.stopping and (self.notes.serving or phase in UNDER_LOAD)
        return not stopped or rule.tier in (Tier.ROOT, Tier.SYMPTOM, Tier.COUNT)

    def _speaker(self, line: Line) -> _Speaker:
        name = f"{line.source} {line.speaker}"
        if name not in self._speakers and len(self._speakers) >= _MOST_SPEAKERS:
            del self._speakers[next(iter(self._speakers))]
        return self._speakers.setdefault(name, _Speaker())

    def _state(self) -> tuple[bool, ...]:
        """What the meaning of a line depends on."""
        return self.notes.serving, self.notes.client, self.notes.stopping

    def _phase(self, line: Line) -> Phase:
        if line.source == "client" and self.phase in (None, Phase.LOAD, Phase.CLIENT):
            return Phase.CLIENT
        if line.source == "server" and self.phase is Phase.CLIENT:
            return Phase.LOAD
        if self.phase is not None:
            return self.phase
        if self.notes.client:
            return Phase.CLIENT
        return Phase.LOAD if self.notes.serving else Phase.STARTUP
