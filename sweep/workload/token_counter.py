"""How many tokens a text has, by the tokenizer that the load client itself will use."""

from __future__ import annotations

from collections.abc import Callable

from sweep.errors import HostError
from sweep.vllm_cpu import hide_broken_torchvision


def token_counter(tokenizer: str, *, trust_remote_code: bool = False) -> Callable[[str], int]:
    """A function from a text to its number of tokens, special tokens of the tokenizer included, as the client counts.

    `tokenizer` is a folder or hub id. Raises HostError when transformers is not installed or cannot load it.
    """
    hide_broken_torchvision()
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise HostError(f"counting tokens needs transformers, which vLLM brings: {error}") from None
    try:
        loaded = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise HostError(f"tokenizer {tokenizer!r} cannot be loaded: {first_line}") from None

    # Only a limit for a warning ("sequence length is longer than ..."), which says nothing about counting.
    loaded.model_max_length = 1 << 40

    def count(text: str) -> int:
        return len(loaded(text).input_ids)

    return count
