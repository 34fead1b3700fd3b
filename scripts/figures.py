"""What a bench found: printed, a line a figure, and written as JSON where `--json` asks for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path


def tell(figures: Mapping[str, float | None], file: Path | None) -> None:
    """Print each figure, "-" for None, and write all of them to `file`, if there is one."""
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:>{width}} {'-' if value is None else f'{value:.4g}'}")
    if file is not None:
        file.write_text(json.dumps(figures, indent=2) + "\n")
