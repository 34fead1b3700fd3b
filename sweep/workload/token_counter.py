"""How many tokens a text has, as the tokenizer that the load client itself will use counts them.

The `tokenizers` library reads a `tokenizer.json` in milliseconds; transformers, which the load client uses, takes
seconds to import and gives the same ids. It is asked only where a model ships no such file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from sweep.errors import HostError
from sweep.vllm_cpu import hide_broken_torchvision


def token_counter(tokenizer: str, *, trust_remote_code: bool = False) -> Callable[[str], int]:
    """A function from a text to its number of tokens, special tokens of the tokenizer included, as the client counts.

    `tokenizer` is a folder or hub id. Raises HostError when it cannot be loaded, or neither library is installed.
    """
    file = Path(tokenizer) / "tokenizer.json"
    if file.is_file() and (fast := _from_file(tokenizer, file)) is not None:
        return fast
    return _by_transformers(tokenizer, trust_remote_code=trust_remote_code)


def _from_file(tokenizer: str, file: Path) -> Callable[[str], int] | None:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    try:
        loaded = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the library raises plain Exception, for a file that is not one of its own
        raise _cannot_load(tokenizer, error) from None
    loaded.no_truncation()
    loaded.no_padding()
    return lambda text: len(loaded.encode(text).ids)


def _by_transformers(tokenizer: str, *, trust_remote_code: bool) -> Callable[[str], int]:
    hide_broken_torchvision()
    # Its thread pool and a later fork do not go together, and it prints a warning about that.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise HostError(f"counting tokens needs transformers, which vLLM brings: {error}") from None
    try:
        loaded = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise _cannot_load(tokenizer, error) from None
    # Only a limit for a warning ("sequence length is longer than ..."), which says nothing about counting.
    loaded.model_max_length = 1 << 40
    return lambda text: len(loaded(text).input_ids)


def _cannot_load(tokenizer: str, error: Exception) -> HostError:
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return HostError(f"tokenizer {tokenizer!r} cannot be loaded: {first_line}; set model.tokenizer to one that can")
