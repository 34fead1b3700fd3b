"""Which conversations may be sent, by the load client's own filters, and a seeded choice of them."""

from __future__ import annotations

import enum
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from sweep.errors import DatasetError
from sweep.workload.exchanges import Conversations, Exchange
from sweep.workload.split import Split

CLIENT_MIN_TOKENS = 4
CLIENT_MAX_PROMPT_TOKENS = 1024
CLIENT_MAX_TOTAL_TOKENS = 2048
"""Limits of the ShareGPT sampler of `vllm bench serve` (`is_valid_sequence`; the same in 0.10.1 and 0.32.0)."""


class Reason(enum.StrEnum):
    """Why a row is not used; the first that applies."""

    NOT_UNICODE = "not_unicode"
    PROMPT_TOO_SHORT = "prompt_too_short"
    PROMPT_TOO_LONG = "prompt_too_long"
    OUTPUT_TOO_SHORT = "output_too_short"
    TOTAL_TOO_LONG = "total_too_long"
    OVER_MODEL_LENGTH = "over_model_length"
    REPEATED = "repeated"


@dataclass(frozen=True, slots=True)
class SelectionRules:
    """What makes a row usable.

    `output_tokens` None takes each reply's own length (custom: the row's `output_tokens`). `max_prompt_tokens` None is
    no limit, which is the right default for custom prompts. `max_model_len` (the smallest of the study, None: unknown)
    bounds prompt + output + `template_tokens`, room for what the chat template adds on the server: requests over it are
    answered 400.

    ShareGPT with prompts of at most 1,024 tokens goes through the client's ShareGPT reader, whose filters then apply:
    prompt 4 to 1,024 tokens, output at least 4 unless it is set, both together at most 2,048. Longer ShareGPT prompts,
    and custom ones, go through its `custom` reader, which drops nothing; of the filters only the lower ones stay then,
    and for custom prompts none.
    """

    dataset: Literal["sharegpt", "custom"] = "sharegpt"
    output_tokens: int | None = None
    max_prompt_tokens: int | None = CLIENT_MAX_PROMPT_TOKENS
    max_model_len: int | None = None
    template_tokens: int = 64

    @property
    def client_format(self) -> Literal["sharegpt", "custom"]:
        """The reader of the load client that the rows are written for."""
        short = self.max_prompt_tokens is not None and self.max_prompt_tokens <= CLIENT_MAX_PROMPT_TOKENS
        return "sharegpt" if self.dataset == "sharegpt" and short else "custom"

    @property
    def min_tokens(self) -> int:
        """Fewest tokens of a prompt, and of an output whose length is not set."""
        return CLIENT_MIN_TOKENS if self.dataset == "sharegpt" else 1

    @property
    def max_total_tokens(self) -> int | None:
        """Most tokens of prompt and output together that the client lets pass."""
        return CLIENT_MAX_TOTAL_TOKENS if self.client_format == "sharegpt" else None

    @property
    def model_room_tokens(self) -> int | None:
        """Most tokens of prompt and output together that the server takes."""
        return None if self.max_model_len is None else self.max_model_len - self.template_tokens

    def refuses(self, input_tokens: int, output_tokens: int) -> Reason | None:
        """The reason why a row of these lengths is not used, None when it is."""
        if input_tokens < self.min_tokens:
            return Reason.PROMPT_TOO_SHORT
        if self.max_prompt_tokens is not None and input_tokens > self.max_prompt_tokens:
            return Reason.PROMPT_TOO_LONG
        if self.output_tokens is None and output_tokens < self.min_tokens:
            return Reason.OUTPUT_TOO_SHORT
        if self.max_total_tokens is not None and input_tokens + output_tokens > self.max_total_tokens:
            return Reason.TOTAL_TOO_LONG
        if self.model_room_tokens is not None and input_tokens + output_tokens > self.model_room_tokens:
            return Reason.OVER_MODEL_LENGTH
        return None

    def explain(self, reason: Reason) -> str:
        """`reason` in words, with this rule's figure."""
        texts = {
            Reason.NOT_UNICODE: "not valid Unicode (half a surrogate pair)",
            Reason.PROMPT_TOO_SHORT: f"prompt under {self.min_tokens} tokens",
            Reason.PROMPT_TOO_LONG: f"prompt over {self.max_prompt_tokens or 0:,} tokens",
            Reason.OUTPUT_TOO_SHORT: f"output under {self.min_tokens} tokens",
            Reason.TOTAL_TOO_LONG: f"prompt plus output over the client's {self.max_total_tokens or 0:,} tokens",
            Reason.OVER_MODEL_LENGTH: f"prompt plus output over max-model-len {self.max_model_len or 0:,} "
            f"(less {self.template_tokens} for the chat template)",
            Reason.REPEATED: "prompt seen before",
        }
        return texts[reason]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request to send. `prompt_id` is a hash of the text: the same prompt has the same one in every study.

    `input_tokens` is the text alone, without the chat template, as the client counts it; the engine reports more.
    `reply` is the stored answer, which a ShareGPT file needs.
    """

    prompt_id: str
    text: str = field(repr=False)
    input_tokens: int
    output_tokens: int
    reply: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Selection:
    """The prompts chosen, in the seeded order, and what was seen on the way.

    `usable` of the first `examined` rows (of `rows` with a prompt and a reply in this part of the file, see `Split`)
    pass the rules; `dropped` counts the others by reason. `examined == rows` means every row was judged, so that
    `usable` is exact; otherwise it is a lower bound for the part.
    """

    path: Path
    rules: SelectionRules
    prompts: tuple[Prompt, ...]
    rows: int
    examined: int
    usable: int
    dropped: Mapping[Reason, int]
    split: Split

    @property
    def counted_all(self) -> bool:
        """Whether `usable` is the number of the whole file."""
        return self.examined == self.rows

    def describe(self) -> str:
        """One line: how many rows are usable, exactly or at least, and why the others are not."""
        if self.counted_all:
            text = f"{self.usable:,} of {self.rows:,} conversations usable"
        else:
            share = self.usable / self.examined
            text = (
                f"at least {self.usable:,} conversations usable: that many among the first {self.examined:,} looked at "
                f"(seeded order) of {self.rows:,}, about {share:.0%} by this sample"
            )
        if part := self.split.describe():
            text = f"{part}: {text}"
        reasons = ", ".join(f"{self.rules.explain(reason)}: {count:,}" for reason, count in self.dropped.items())
        return f"{text}; dropped: {reasons}" if reasons else text


def refuse_output_length(rules: SelectionRules, path: Path) -> None:
    """Raise DatasetError when the output length leaves no room for any prompt, with the limit that is in the way."""
    if rules.output_tokens is None:
        return
    least = rules.min_tokens + rules.output_tokens
    if rules.max_total_tokens is not None and least > rules.max_total_tokens:
        raise DatasetError(
            f"an output length of {rules.output_tokens:,} leaves no conversation: the load client drops each whose "
            f"prompt plus output exceeds {rules.max_total_tokens:,} tokens; set load.output_tokens to "
            f"{rules.max_total_tokens - rules.min_tokens:,} at most, or load.max_prompt_tokens above "
            f"{CLIENT_MAX_PROMPT_TOKENS:,}, which chooses the conversations without that filter",
            path=path,
        )
    if rules.model_room_tokens is not None and least > rules.model_room_tokens:
        raise DatasetError(
            f"an output length of {rules.output_tokens:,} leaves no room for a prompt in max-model-len "
            f"{rules.max_model_len:,} (less {rules.template_tokens} tokens for the chat template); "
            "lower load.output_tokens or raise max-model-len",
            path=path,
        )


def select(
    conversations: Conversations,
    rules: SelectionRules,
    count_tokens: Callable[[str], int],
    *,
    needed: int,
    seed: int,
    wanted: int | None = None,
    split: Split | None = None,
    count_all: bool = False,
) -> Selection:
    """`needed` usable prompts of `conversations`, in an order that `seed` decides; up to `wanted` where there are more.

    `split` says which part of the file they are taken from, by default all of it.

    Rows are judged in that order until enough are found: tokenising all of a 90,000-row file takes minutes, and a load
    of some hundred prompts needs about a thousand rows. What is then known about the file is a lower bound and a share
    among the rows looked at, a random sample, and `Selection.describe` says it so. `count_all` judges every row for the
    exact number; the prompts chosen are the same.

    A prompt whose text was chosen before is not taken again: a repeated prompt is answered from the prefix cache, and a
    warm-up prompt must not come back measured. `count_tokens` must count as the client does (`token_counter`).

    Raises DatasetError when fewer than `needed` rows are usable, with the figures; when the output length leaves
    nothing; when a custom row has no output length and none is set.
    """
    refuse_output_length(rules, conversations.path)
    split, wanted = split or Split(), max(needed, wanted or 0)
    order = [index for index, exchange in enumerate(conversations.exchanges) if _in_part(exchange.prompt, split)]
    random.Random(seed).shuffle(order)
    chosen: list[Prompt] = []
    seen: set[str] = set()
    dropped: Counter[Reason] = Counter()
    examined = usable = 0
    for index in order:
        if usable >= wanted and not count_all:
            break
        examined += 1
        judged = _judge(conversations.exchanges[index], rules, count_tokens, seen, conversations.path)
        if isinstance(judged, Reason):
            dropped[judged] += 1
            continue
        usable += 1
        seen.add(judged.prompt_id)
        if len(chosen) < wanted:
            chosen.append(judged)
    counts = MappingProxyType(dict(dropped.most_common()))
    selection = Selection(conversations.path, rules, tuple(chosen), len(order), examined, usable, counts, split)
    if usable < needed:
        _refuse_too_few(selection, conversations, needed)
    return selection


def prompt_id(text: str) -> str:
    """16 hexadecimal digits of the SHA-256 of the text. Raises UnicodeEncodeError for half a surrogate pair."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def _in_part(text: str, split: Split) -> bool:
    if not split.held_out_share:
        return split.part == "tuning"  # nothing is held out: no hash of every text for that
    try:
        return split.takes(prompt_id(text))
    except UnicodeEncodeError:
        return split.part == "tuning"  # to be judged, and counted, once


def _judge(
    exchange: Exchange, rules: SelectionRules, count_tokens: Callable[[str], int], seen: set[str], path: Path
) -> Prompt | Reason:
    try:
        name = prompt_id(exchange.prompt)
        (exchange.reply or "").encode("utf-8")
    except UnicodeEncodeError:
        # JSON may hold "\ud83d" alone; tokenizers and HTTP cannot carry it.
        return Reason.NOT_UNICODE
    if name in seen:
        return Reason.REPEATED
    input_tokens = count_tokens(exchange.prompt)
    output_tokens = rules.output_tokens
    if output_tokens is None:
        output_tokens = exchange.output_tokens
    if output_tokens is None:
        if exchange.reply is None:
            raise DatasetError(
                "has no `output_tokens`, and load.output_tokens is not set; give one of them",
                path=path,
                row=exchange.row,
            )
        output_tokens = count_tokens(exchange.reply)
    reason = rules.refuses(input_tokens, output_tokens)
    return reason or Prompt(name, exchange.prompt, input_tokens, output_tokens, exchange.reply)


def _refuse_too_few(selection: Selection, conversations: Conversations, needed: int) -> None:
    short = f" ({conversations.too_few_turns:,} more have fewer than two turns)" if conversations.too_few_turns else ""
    share = selection.split.held_out_share
    mend = "lower load.num_prompts or load.warmup_prompts, or take a larger file"
    if selection.split.part == "held_out":
        mend += ", raise load.held_out_share, or set it to 0, which gives up confirming the winner on other prompts"
    elif share:
        mend += ", or lower load.held_out_share"
    raise DatasetError(
        f"{needed:,} different prompts are needed (warm-up and measured), but {selection.describe()}{short}; {mend}",
        path=conversations.path,
    )
