"""Write the small ShareGPT-format file that ships with the package: made-up words, real lengths.

    python scripts/make_demo_dataset.py [OUT.json]

Nothing of it was written by a person or a model: words are strung from syllables, sentences from words, by a seeded
generator, so the file may be shipped and the same bytes come out anywhere. What is real are the lengths: prompts and
replies follow the quantiles below, measured in characters on 17,400 conversations of ShareGPT V3 (unfiltered, cleaned).
"""

from __future__ import annotations

import bisect
import itertools
import json
import random
import re
import sys
from pathlib import Path

SEED = 20261101
CONVERSATIONS = 1000
WORDS = 14_000
DEFAULT_OUT = Path(__file__).parents[1] / "sweep" / "data" / "demo_sharegpt.json"

# Share of conversations that are at most so many characters long, with straight lines between. Measured lengths reach
# from 0 to 394,465 characters: cut here, for an empty prompt is no prompt and one giant would be most of the file.
SHARES = (0.0, *(step / 20 for step in range(1, 20)), 0.975, 0.99, 1.0)
PROMPT_CHARS = (
    *(8, 30, 44, 59, 75, 96, 125, 171, 255, 388, 599, 886, 1154, 1401, 1637, 1911, 2228, 2668, 3183, 4099),
    *(6504, 9765, 12000),
)
REPLY_CHARS = (
    *(8, 17, 34, 52, 72, 99, 135, 188, 276, 413, 562, 729, 906, 1078, 1238, 1420, 1619, 1870, 2219, 2826),
    *(3268, 3725, 4500),
)

_ONSETS = re.findall(r"\w+", "b br c cl d dr f fl g h k l m n p pl pr qu r s sh sl st t th tr v w")
_VOWELS = re.findall(r"\w+", "a a e e e i i o o u ai ea ee ou")
_CODAS = ["", "", "", "", "n", "r", "l", "s", "m", "nd"]
_ENDINGS = ["", "", "", "s", "ed", "ing", "er", "ly", "ness", "ation"]


class Writer:
    """Text of made-up words. Only `random()` is drawn from: its stream is the same in every Python version."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        words: dict[str, None] = {}
        while len(words) < WORDS:
            words[self._new_word(len(words))] = None
        self._words = list(words)
        # Frequencies by rank as in natural text (Zipf), flattened at the top.
        self._cumulative = list(itertools.accumulate(1.0 / (rank + 8) for rank in range(WORDS)))

    def lengths(self, quantiles: tuple[int, ...]) -> list[int]:
        """A length for each conversation: evenly spaced shares of the distribution with these `quantiles`, shuffled."""
        shares = ((index + 0.5) / CONVERSATIONS for index in range(CONVERSATIONS))
        return sorted((_at(share, quantiles) for share in shares), key=lambda _: self._random.random())

    def text(self, length: int, end: str) -> str:
        """Exactly `length` characters of sentences, some in paragraphs or numbered, the last one closed with `end`."""
        listed = length > 300 and self._random.random() < 0.35
        parts: list[str] = []
        size = 0
        for number in itertools.count(1):
            sentence = self._sentence()
            if listed and number > 1:
                sentence = f"\n{number - 1}. {sentence}"
            elif number > 1:
                sentence = ("\n\n" if self._random.random() < 0.15 else " ") + sentence
            parts.append(sentence)
            size += len(sentence)
            if size >= length:
                break
        return "".join(parts)[: length - 1].rstrip(" \n.,?").ljust(length - 1, ".") + end

    def _sentence(self) -> str:
        count = 4 + int(self._random.random() * 14)
        comma = 2 + int(self._random.random() * 12)
        words = [self._word() for _ in range(count)]
        if comma < count - 1:
            words[comma] += ","
        return " ".join(words).capitalize() + "."

    def _word(self) -> str:
        return self._words[bisect.bisect(self._cumulative, self._random.random() * self._cumulative[-1])]

    def _new_word(self, rank: int) -> str:
        # Frequent words are short.
        syllables = 1 + int(self._random.random() * (1.2 if rank < 150 else 2.4))
        stem = "".join(self._pick(_ONSETS) + self._pick(_VOWELS) + self._pick(_CODAS) for _ in range(syllables))
        return stem if rank < 150 else stem + self._pick(_ENDINGS)

    def _pick(self, choices: list[str]) -> str:
        return choices[int(self._random.random() * len(choices))]


def dataset() -> bytes:
    """The file: a JSON list, one conversation a line."""
    writer = Writer(SEED)
    lengths = zip(writer.lengths(PROMPT_CHARS), writer.lengths(REPLY_CHARS), strict=True)
    rows = []
    for number, (prompt_chars, reply_chars) in enumerate(lengths):
        prompt, reply = writer.text(prompt_chars, "?"), writer.text(reply_chars, ".")
        turns = [{"from": "human", "value": prompt}, {"from": "gpt", "value": reply}]
        rows.append(json.dumps({"id": f"demo_{number:04d}", "conversations": turns}))
    return ("[\n" + ",\n".join(rows) + "\n]\n").encode("ascii")


def _at(share: float, quantiles: tuple[int, ...]) -> int:
    upper = bisect.bisect_right(SHARES, share)
    low, high = quantiles[upper - 1], quantiles[upper]
    return low + round((high - low) * (share - SHARES[upper - 1]) / (SHARES[upper] - SHARES[upper - 1]))


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_OUT
    out.write_bytes(dataset())
    print(f"{out}: {CONVERSATIONS} conversations, {out.stat().st_size:,} bytes")
