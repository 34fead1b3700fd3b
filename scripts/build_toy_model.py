"""Build a tiny model and its tokenizer in a folder, in seconds and without network: for the demo and the tests.

    python scripts/build_toy_model.py OUT_DIR [--hidden 128] [--layers 2] [--kv-heads 4]

A Qwen3 of random weights with a byte-level BPE tokenizer trained on the demo conversations. Its text is noise and its
numbers say nothing about any real model; what is real is the server around it. Shape: 2 layers, hidden size 128, 4 KV
heads of 128, so that a token takes 4 KiB of KV cache: much for its size, to let `gpu-memory-utilization` bind. More
layers or KV heads take more of it, and a smaller hidden size keeps them fast. (Qwen3 and not Qwen2, whose heads cannot
be wider than hidden size / heads in vLLM.)

Needs torch, safetensors and tokenizers, which vLLM brings. Built already: returns at once.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = 7
VOCABULARY = 16_384
HIDDEN, LAYERS, HEADS, HEAD_SIZE, INNER = 128, 2, 4, 128, 384
MAX_POSITIONS = 8192
MARKER = "toy_model.json"
DEMO_FILE = Path(__file__).parents[1] / "sweep" / "data" / "demo_sharegpt.json"

END_OF_TEXT, TURN_START, TURN_END = SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What may differ from one toy to the next."""

    hidden: int = HIDDEN
    layers: int = LAYERS
    heads: int = HEADS


def build(out: Path, *, hidden: int = HIDDEN, layers: int = LAYERS, heads: int = HEADS) -> None:
    """Put the model into `out`. A finished one of the same recipe is left as it is, an older one is replaced.

    Written beside `out` and renamed, so that `out` is whole or not there. Raises SystemExit with one line when `out`
    holds something else.
    """
    out, shape = out.absolute(), Shape(hidden, layers, heads)
    recipe = _recipe(shape)
    if _is_built(out, recipe):
        return
    if out.exists() and not (out / MARKER).exists() and (not out.is_dir() or any(out.iterdir())):
        raise SystemExit(f"{out} exists and is not a toy model; name another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        tokens = build_tokenizer(scratch)
        _write_json(scratch / "config.json", _config(len(tokens), shape))
        _write_weights(scratch / "model.safetensors", tokens, shape)
        _write_json(scratch / MARKER, {"recipe": recipe})
        if (out / MARKER).exists():
            shutil.rmtree(out)
        try:
            scratch.rename(out)
        except OSError:
            # Somebody else built it in the meantime.
            if not _is_built(out, recipe):
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def build_tokenizer(out: Path) -> list[str]:
    """Train the tokenizer, write its files into `out` and return its tokens by id."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(text, special=True, normalized=False) for text in SPECIAL]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.save(str(out / "tokenizer.json"))
    _write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": TURN_END,
            "pad_token": END_OF_TEXT,
            "model_max_length": MAX_POSITIONS,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    by_id: dict[int, str] = {number: token for token, number in tokenizer.get_vocab().items()}
    return [by_id[number] for number in range(len(by_id))]


def _is_built(out: Path, recipe: str) -> bool:
    try:
        found: object = json.loads((out / MARKER).read_text(encoding="utf-8")).get("recipe")
    except (OSError, ValueError):
        return False
    return found == recipe


def _recipe(shape: Shape | None = None) -> str:
    """A digest of everything the model is made of: this script, the texts of its tokenizer, its shape."""
    told = repr(shape or Shape()).encode()
    return hashlib.sha256(Path(__file__).read_bytes() + DEMO_FILE.read_bytes() + told).hexdigest()


def _texts() -> Iterator[str]:
    for row in json.loads(DEMO_FILE.read_text(encoding="utf-8")):
        for turn in row["conversations"]:
            yield turn["value"]


def _config(vocabulary: int, shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": INNER,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": SPECIAL.index(TURN_END),
        "pad_token_id": SPECIAL.index(END_OF_TEXT),
    }


def _write_weights(path: Path, tokens: list[str], shape: Shape) -> None:
    import torch
    from safetensors.torch import save_file

    random = torch.Generator().manual_seed(SEED)

    def normal(*shape: int, spread: float) -> Any:
        return torch.randn(shape, generator=random) * spread

    hidden, width = shape.hidden, shape.heads * HEAD_SIZE
    weights = {"model.embed_tokens.weight": normal(len(tokens), hidden, spread=0.5)}
    for number in range(shape.layers):
        layer = f"model.layers.{number}"
        for name, rows, columns in (
            *((f"self_attn.{part}_proj", width, hidden) for part in "qkv"),
            ("self_attn.o_proj", hidden, width),
            ("mlp.gate_proj", INNER, hidden),
            ("mlp.up_proj", INNER, hidden),
            ("mlp.down_proj", hidden, INNER),
        ):
            weights[f"{layer}.{name}.weight"] = normal(rows, columns, spread=columns**-0.5)
        for name, size in (
            ("self_attn.q_norm", HEAD_SIZE),
            ("self_attn.k_norm", HEAD_SIZE),
            ("input_layernorm", hidden),
            ("post_attention_layernorm", hidden),
        ):
            weights[f"{layer}.{name}.weight"] = torch.ones(size)
    weights["model.norm.weight"] = torch.ones(hidden)
    weights["lm_head.weight"] = normal(len(tokens), hidden, spread=0.3)
    # Their logits are 0 while the others spread by 3.4 (0.3 x sqrt(128)): the end of a turn comes about once in five
    # million tokens, and so do bytes that are no text by themselves, which a stream would hold back.
    silent = [number for number, token in enumerate(tokens) if token in SPECIAL or _is_lone_byte(token)]
    weights["lm_head.weight"][silent] = 0.0
    save_file(
        {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items()},
        path,
        metadata={"format": "pt"},
    )
    # safetensors writes for the owner alone; a folder shared with a server under another user must be readable.
    path.chmod(0o644)


def _is_lone_byte(token: str) -> bool:
    """Whether a token of the byte-level alphabet is one byte other than a printable ASCII character."""
    return len(token) == 1 and not ("!" <= token <= "~")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build a tiny model of random weights and its tokenizer in a folder.")
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--hidden", type=int, default=HIDDEN)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--kv-heads", type=int, default=HEADS)
    asked = parser.parse_args()
    build(asked.out, hidden=asked.hidden, layers=asked.layers, heads=asked.kv_heads)
    print(asked.out)
