"""What a line says, freed from what wraps it.

`RuntimeError: Worker failed with error 'CUDA out of memory.', please check ...` says "CUDA out of memory.": rules match
at the beginning of a message, so each wrapper is taken off and the stages are kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sweep.diagnosis.lines import Line

_RAISED = re.compile(r"((?:[A-Za-z_]\w*\.)*)([A-Z]\w*)(?:\(([A-Z]\w*)\))?(?:: ?(.*))?$")
_EXCEPTION_NAME = re.compile(r"Error|Exception$|Interrupt$|Exit$|^Empty$")
_WRAPPERS = tuple(
    re.compile(pattern)
    for pattern in (
        r"Worker failed with error ['\"](?P<inner>.*?)['\"], please check",
        r"Exception in worker \S+ while processing method \w+: (?P<inner>.*?)(?:, Traceback .*)?$",
        r"EngineCore hit an exception: (?P<inner>.+)$",
        r"Call to \w+ method failed: (?P<inner>.+)$",
        r"Engine loop is not running\..* original error: (?P<inner>.+?)\.?$",
        r"(?P<name>[A-Z]\w*(?:Error|Exception))\((?P<quote>['\"])(?P<inner>.*)(?P=quote),?\)$",
        r"\w*Warning: (?P<inner>.+)$",
        r"Value error, (?P<inner>.+)$",
        r"Error \d+: (?P<inner>.+)$",
        r"Initial test run failed .*? Error: (?P<inner>.+)$",
        r"what\(\): +(?P<inner>.+)$",
        r"(?:Error|Exception|Failed|Unexpected)[\w' ]{0,50}: (?P<inner>(?:\w+\.)*\w*(?:Error|Exception): .+)$",
    )
)
_DEEPEST = 6


@dataclass(frozen=True, slots=True)
class Message:
    """A line with its text in stages of unwrapping (the first is the whole) and the exceptions named on the way."""

    line: Line
    texts: tuple[str, ...]
    raised: tuple[str, ...]


def unwrap(line: Line) -> Message:
    """Take off exception names and known wrappers, outermost first."""
    texts, raised = [line.text], []
    for _ in range(_DEEPEST):
        text = texts[-1]
        match = _RAISED.match(text)
        # an exception is called so, or has the dotted name of a class: torch._inductor.exc.TritonMissing
        if match is not None and (_EXCEPTION_NAME.search(match[2]) or (match[1] and match[4])):
            raised += [name for name in (match[2], match[3]) if name]
            if not match[4]:
                break
            texts.append(match[4])
            continue
        inner = next((found for wrapper in _WRAPPERS if (found := wrapper.match(text)) is not None), None)
        if inner is None:
            break
        if name := inner.groupdict().get("name"):
            raised.append(name)
        elif text.startswith("Value error, "):
            raised.append("ValueError")
        texts.append(inner["inner"])
    return Message(line, tuple(texts), tuple(raised))
