"""What lies in a model's folder: its `config.json`, and how large its weights are, without reading them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sweep.memory.values import Unknown

# The header of a safetensors file is a length of 8 bytes and that much JSON; the format caps it at 100 MB.
_LENGTH_BYTES = 8
_LARGEST_HEADER = 100_000_000
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth")


def read_config(folder: Path) -> dict[str, Any] | Unknown:
    """The object in `config.json`, or why there is none."""
    path = folder / "config.json"
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return Unknown("the model has no config.json here")
    except OSError as error:
        return Unknown(f"config.json of the model cannot be read: {error.strerror}")
    except ValueError:
        return Unknown("config.json of the model is not JSON")
    if not isinstance(content, dict):
        return Unknown("config.json of the model is not an object")
    return content


def stored_bytes(folder: Path) -> int | None:
    """Bytes of all weights: what the index says, else what the headers of the safetensors files say, else the sizes
    of the files; None where there are none.

    Source: https://huggingface.co/docs/safetensors (file format; `metadata.total_size` of an index).
    """
    for name in _INDEXES:
        if (total := _index_total(folder / name)) is not None:
            return total
    files = [path for path in sorted(folder.glob("*.safetensors")) if path.is_file()]
    if not files:
        files = [path for pattern in _OTHER_WEIGHTS for path in sorted(folder.glob(pattern)) if path.is_file()]
    try:
        sizes = [_data_bytes(path) for path in files]
    except OSError:
        return None
    return sum(sizes) or None


def _index_total(path: Path) -> int | None:
    try:
        total = json.loads(path.read_bytes())["metadata"]["total_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    whole = isinstance(total, (int, float)) and not isinstance(total, bool) and 0 < total < 2**60
    return int(total) if whole else None


def _data_bytes(path: Path) -> int:
    """The tensors of a file: all of it but a safetensors file's header."""
    size = path.stat().st_size
    if path.suffix != ".safetensors":
        return size
    with path.open("rb") as file:
        header = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    return size - _LENGTH_BYTES - header if header <= min(_LARGEST_HEADER, size) else size
