"""A round as a file of the load client, such that request i of the client is prompt i of the round."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweep.atomic_file import write_atomically
from sweep.errors import FlagError
from sweep.workload.load_plan import Round
from sweep.workload.selection import Prompt

# vllm #31881 (merged January 2026) lets `custom` rows carry their own `output_tokens`: surely in 0.15, perhaps before.
_OWN_LENGTHS_SINCE = (0, 15)
# Clients without --disable-shuffle (0.10.1) give the custom reader no seed: it shuffles with its default.
_OLD_CUSTOM_SEED = 0


@dataclass(frozen=True, slots=True)
class ClientFeatures:
    """What the installed `vllm bench serve` can do; the defaults are 0.32.0's.

    `disable_shuffle`: it can keep the order of the file. `no_oversample`: it can be told not to repeat rows.
    `skip_template_flag`: how the custom reader is kept from applying the chat template, which the chat endpoint
    applies again. `own_lengths`: custom rows may carry their output length.
    """

    disable_shuffle: bool = True
    no_oversample: bool = True
    skip_template_flag: str | None = "--skip-chat-template"
    own_lengths: bool = True

    @classmethod
    def from_help(cls, flags: Collection[str] | None, version: str | None = None) -> ClientFeatures:
        """Read from the flags that the client's help lists (with or without dashes; None: unknown, as 0.32.0)."""
        if flags is None:
            return cls()
        known = {flag.lstrip("-") for flag in flags}
        skips = [name for name in ("skip-chat-template", "custom-skip-chat-template") if name in known]
        numbers = re.match(r"(\d+)\.(\d+)", version or "")
        recent = numbers is None or (int(numbers[1]), int(numbers[2])) >= _OWN_LENGTHS_SINCE
        shuffle = "disable-shuffle" in known
        return cls(shuffle, "no-oversample" in known, f"--{skips[0]}" if skips else None, recent and shuffle)


@dataclass(frozen=True, slots=True)
class ClientFile:
    """A written round: its file and the client's arguments that belong to it (dataset, count, seed, arrivals)."""

    path: Path
    argv: tuple[str, ...]


def write_round(one: Round, folder: Path, *, name: str, client: ClientFeatures | None = None) -> ClientFile:
    """Write `one` into `folder` as `NAME.json` (ShareGPT) or `NAME.jsonl` (custom) and return it with its arguments.

    The file holds exactly the rows of the round, so that the client has nothing to drop or to repeat. A client that
    knows `--disable-shuffle` reads them in order; for one that does not (0.10.1) they are stored in the order that its
    seeded shuffle turns into ours. The same round gives the same bytes.

    Raises FlagError when this client cannot send the round: custom prompts with an output length each before 0.15, or
    no way to switch off the template. Raises HostNotReady when the file cannot be written.
    """
    client = client or ClientFeatures()
    sharegpt = one.client_format == "sharegpt"
    argv = ["--num-prompts", str(len(one.prompts)), "--seed", str(one.seed)]
    if sharegpt:
        path = folder / f"{name}.json"
        argv += ["--dataset-name", "sharegpt", "--dataset-path", str(path)]
        if one.output_tokens is not None:
            argv += ["--sharegpt-output-len", str(one.output_tokens)]
    else:
        path = folder / f"{name}.jsonl"
        argv += ["--dataset-name", "custom", "--dataset-path", str(path), *_custom_argv(one, client)]
    argv += ["--request-rate", "inf" if one.request_rate is None else repr(one.request_rate)]
    argv += ["--burstiness", repr(one.burstiness)]
    if client.no_oversample:
        argv.append("--no-oversample")
    if client.disable_shuffle:
        argv.append("--disable-shuffle")
        rows = list(one.prompts)
    else:
        rows = before_shuffle(one.prompts, one.seed if sharegpt else _OLD_CUSTOM_SEED)
    write_atomically(path, _sharegpt_bytes(rows) if sharegpt else _custom_bytes(rows))
    return ClientFile(path, tuple(argv))


def before_shuffle(wanted: Sequence[Prompt], seed: int) -> list[Prompt]:
    """The order that `random.seed(seed); random.shuffle(rows)` turns into `wanted`."""
    places = list(range(len(wanted)))
    random.Random(seed).shuffle(places)
    rows = list(wanted)
    for index, place in enumerate(places):
        rows[place] = wanted[index]
    return rows


def _custom_argv(one: Round, client: ClientFeatures) -> list[str]:
    if client.skip_template_flag is None:
        raise FlagError(
            "this `vllm bench serve` cannot send custom prompts without its own chat template; use a newer one"
        )
    if one.output_tokens is None and not client.own_lengths:
        raise FlagError(
            "this `vllm bench serve` knows only one output length for all custom prompts; set load.output_tokens, "
            "or use vLLM 0.15 or newer for the load client"
        )
    # -1 takes each row's own; the default would be 256 for all.
    return ["--custom-output-len", str(one.output_tokens or -1), client.skip_template_flag]


def _sharegpt_bytes(prompts: Sequence[Prompt]) -> bytes:
    rows = [
        {
            "id": prompt.prompt_id,
            "conversations": [
                {"from": "human", "value": prompt.text},
                {"from": "gpt", "value": prompt.reply or ""},
            ],
        }
        for prompt in prompts
    ]
    # One row a line, for people; ASCII, whatever locale the client reads it under.
    return ("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n").encode("ascii")


def _custom_bytes(prompts: Sequence[Prompt]) -> bytes:
    rows = ({"prompt": prompt.text, "output_tokens": prompt.output_tokens} for prompt in prompts)
    return "".join(json.dumps(row) + "\n" for row in rows).encode("ascii")
