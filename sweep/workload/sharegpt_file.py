"""The ShareGPT file: read in full once, before any launch, with one clear line for whatever is wrong in it.

The load client takes any file whose rows look right and dies late on others: a row without `value` ends in "Unknown
dataset: sharegpt", a file without a usable row in an IndexError (vllm #28699, after hours of set-up).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sweep.errors import DatasetError
from sweep.workload.exchanges import Conversations, Exchange, kind_of, open_prompt_file
from sweep.workload.json_stream import CutOff, JsonStream

DEMO_FILE = Path(__file__).parents[1] / "data" / "demo_sharegpt.json"
"""The small ShareGPT file that ships with the package; `scripts/make_demo_dataset.py` generates it."""


def check_sharegpt(path: Path, *, salvage: bool = False) -> Conversations:
    """Read the ShareGPT file at `path` in full, one row in memory at a time besides the first two turns of each.

    The first turn is the prompt whoever spoke it, as in the load client; later turns are not looked at. `salvage`
    takes the whole conversations of a truncated file. Raises DatasetError with the row (from 0) or the character
    position of the first thing wrong: not UTF-8, not a list, JSON Lines, not JSON, truncated, an empty list, a row
    without `conversations` or whose first two turns lack a `value` that is a string.
    """
    with open_prompt_file(path) as file:
        stream = JsonStream(file, path)
        _enter_list(stream, path)
        exchanges: list[Exchange] = []
        rows, cut_at = 0, None
        try:
            for rows, value in enumerate(_elements(stream, path), start=1):
                exchange = _exchange(value, rows - 1, path)
                if exchange is not None:
                    exchanges.append(exchange)
        except CutOff as cut:
            cut_at = cut.position
        stream.to_end()
    if cut_at is not None and not (salvage and rows):
        _refuse_truncated(path, rows, cut_at)
    if not rows:
        raise DatasetError("the list is empty: there is no conversation in it", path=path)
    return Conversations(path, stream.sha256, rows, tuple(exchanges), rows - len(exchanges), cut_at)


def _enter_list(stream: JsonStream, path: Path) -> None:
    first = stream.peek()
    if first == "[":
        stream.skip()
        return
    if first == "":
        raise DatasetError("the file is empty; download it again", path=path)
    if first == "{":
        _refuse_object(stream, path)
    raise DatasetError(
        f"is not a list of conversations: it begins with {first!r}, a ShareGPT file with '['",
        path=path,
        position=stream.position,
    )


def _refuse_object(stream: JsonStream, path: Path) -> None:
    """Say whether a file that begins with `{` is JSON Lines or one object around everything."""
    lines = "is JSON Lines; the load client reads one list: jq -s . FILE > NEW.json"
    try:
        value = stream.value()
    except CutOff as cut:
        raise DatasetError(
            "is not a list of conversations but an object, and the file ends inside it",
            path=path,
            position=cut.position,
        ) from None
    if stream.peek() == "{" or (isinstance(value, dict) and "conversations" in value):
        raise DatasetError(lines, path=path, position=0)
    if isinstance(value, dict) and "prompt" in value:
        raise DatasetError(
            "is a file of prompts, not of conversations; set load.dataset: custom", path=path, position=0
        )
    keys = ", ".join(list(value)[:5]) if isinstance(value, dict) else ""
    raise DatasetError(
        f"is one object (keys: {keys or 'none'}), not a list of conversations; "
        "take the list out of it: jq .KEY FILE > NEW.json",
        path=path,
        position=0,
    )


def _elements(stream: JsonStream, path: Path) -> Iterator[object]:
    """Each element of the list that `stream` has entered. Raises CutOff where the text ends before the list."""
    if stream.peek() == "]":
        stream.skip()
        _refuse_rest(stream, path)
        return
    while True:
        if not stream.peek():
            raise CutOff(stream.position)
        yield stream.value()
        mark = stream.peek()
        if not mark:
            raise CutOff(stream.position)
        if mark not in ",]":
            raise DatasetError(
                f"expected ',' or ']' after a conversation, found {mark!r}", path=path, position=stream.position
            )
        stream.skip()
        if mark == "]":
            _refuse_rest(stream, path)
            return


def _refuse_rest(stream: JsonStream, path: Path) -> None:
    rest = stream.peek()
    if rest:
        raise DatasetError(
            f"goes on after the end of its list, with {rest!r}: two files in one? "
            "jq -s 'add' FILE > NEW.json makes one list of several",
            path=path,
            position=stream.position,
        )


def _refuse_truncated(path: Path, rows: int, position: int) -> None:
    if rows:
        whole = f"{rows:,} whole conversation{'' if rows == 1 else 's'}"
        mend = f"download it again, or take the {whole} before with `load.salvage: true` (--salvage)"
    else:
        mend = "there is no whole conversation before; download it again"
    raise DatasetError(
        f"is where the file ends, in the middle of its list: it is truncated; {mend}", path=path, position=position
    )


def _exchange(value: object, row: int, path: Path) -> Exchange | None:
    """Prompt and reply of one row, None when it has fewer than two turns. Raises DatasetError."""
    mend = f"remove the row: jq 'del(.[{row}])' FILE > NEW.json"
    if not isinstance(value, dict):
        raise DatasetError(f"is {kind_of(value)}, not an object with `conversations`; {mend}", path=path, row=row)
    if "conversations" not in value:
        hint = "; it has a `prompt`: set load.dataset: custom?" if "prompt" in value else f"; {mend}"
        raise DatasetError(f"has no `conversations`{hint}", path=path, row=row)
    turns = value["conversations"]
    if not isinstance(turns, list):
        raise DatasetError(f"`conversations` is {kind_of(turns)}, not a list; {mend}", path=path, row=row)
    if len(turns) < 2:
        return None
    texts: list[str] = []
    for number, turn in enumerate(turns[:2]):
        if not isinstance(turn, dict):
            raise DatasetError(f"turn {number} is {kind_of(turn)}, not an object; {mend}", path=path, row=row)
        if "value" not in turn:
            raise DatasetError(f"turn {number} has no `value`; {mend}", path=path, row=row)
        if not isinstance(turn["value"], str):
            text = kind_of(turn["value"])
            raise DatasetError(f"turn {number}: `value` is {text}, not a string; {mend}", path=path, row=row)
        texts.append(turn["value"])
    return Exchange(row, texts[0], texts[1])
