"""Counting tokens as the load client's tokenizer does.

The `tokenizers` library reads a `tokenizer.json` in milliseconds; transformers, which the load client uses, takes
seconds to import and gives the same ids. It is asked only where a model ships no `tokenizer.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sweep.errors import HostError
from sweep.vllm_cpu import hide_broken_torchvision

CountTokens = Callable[[Sequence[str]], list[int]]


def load_counter(name: str) -> CountTokens:
    """A function from texts to their token counts, special tokens included. Raises HostError when there is none."""
    folder = Path(name)
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return _slow_counter(name)
    file = folder / "tokenizer.json"
    if folder.is_dir() and not file.is_file():
        return _slow_counter(name)
    try:
        fast = Tokenizer.from_file(str(file)) if folder.is_dir() else Tokenizer.from_pretrained(name)
    except Exception as error:  # noqa: BLE001 - the library raises plain Exception for every fault
        if folder.is_dir():
            raise _no_tokenizer(name, error) from None
        return _slow_counter(name)
    fast.no_truncation()
    fast.no_padding()
    return lambda texts: [len(encoding.ids) for encoding in fast.encode_batch(list(texts))]


def _slow_counter(name: str) -> CountTokens:
    hide_broken_torchvision()
    try:
        from transformers import AutoTokenizer

        slow = AutoTokenizer.from_pretrained(name)
    except ImportError as error:
        raise HostError(f"tokenizer {name}: {error}; install transformers beside sweep") from None
    except (OSError, ValueError, KeyError) as error:
        raise _no_tokenizer(name, error) from None
    return lambda texts: [len(ids) for ids in slow(list(texts)).input_ids]


def _no_tokenizer(name: str, error: Exception) -> HostError:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return HostError(f"tokenizer {name} cannot be loaded: {first}; set model.tokenizer to a folder or hub id that can")
