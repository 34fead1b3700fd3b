"""Writes the tables of README.md and docs/ that come from the code: `python scripts/readme_tables.py` (or --check)."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sweep.config import StudyConfig
from sweep.metric_table import LATENCIES, RATES, STATISTICS, Latency, Rate
from sweep.objective import PRESETS

ROOT = Path(__file__).parents[1]


def keys_table() -> str:
    """Every key of a study file with its default and meaning."""
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for section, field in StudyConfig.model_fields.items():
        model = field.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            for key, item in model.model_fields.items():
                lines.append(f"| `{section}.{key}` | {_default(item)} | {_cell(item.description or '')} |")
        else:
            lines.append(f"| `{section}` | {_default(field)} | {_cell(field.description or '')} |")
    return "\n".join(lines)


def metrics_table() -> str:
    """Every metric with what failed requests and replies of one token count for, and the statistics."""
    lines = [
        "| metric | unit | formula | from the columns | failed requests | replies of one token |",
        "|---|---|---|---|---|---|",
    ]
    rows: list[tuple[str, str, str, Latency | Rate]] = [
        *((f"{row.stem}_ms", "ms", f"{row.title}: {row.formula}", row) for row in LATENCIES.values()),
        *((row.name, row.unit, row.formula, row) for row in RATES.values()),
    ]
    for name, unit, formula, row in rows:
        columns = ", ".join(f"`{column}`" for column in row.columns)
        cells = (f"`{name}`", unit, _cell(formula), columns, _cell(row.failed), _cell(row.one_token))
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| before a latency's name | what it is of all values of a load |", "|---|---|"]
    lines += [f"| `{name}_` | {_cell(formula)} |" for name, formula in STATISTICS.items()]
    return "\n".join(lines)


def presets_table() -> str:
    """The weights each preset stands for."""
    lines = ["| preset | weights |", "|---|---|"]
    for name, weights in PRESETS.items():
        lines.append(f"| `{name}` | {', '.join(f'`{metric}: {weight:g}`' for metric, weight in weights.items())} |")
    return "\n".join(lines)


TABLES = {
    "README.md": {"metrics": metrics_table, "presets": presets_table},
    "docs/study-file.md": {"keys": keys_table},
}


def with_tables(page: str, text: str) -> str:
    """The text of a page with each of its tables as the code has it now."""
    for name, make in TABLES[page].items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        found = pattern.search(text)
        if found is None:
            raise SystemExit(f"{page} has no {begin}")
        text = f"{text[: found.start()]}{begin}\n{make()}\n{end}{text[found.end() :]}"
    return text


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.default if field.default_factory is None else field.default_factory()  # type: ignore[call-arg]
    if value is None or value in ({}, ()):
        return ""
    if isinstance(value, tuple):
        value = list(value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when README.md is stale")
    check = parser.parse_args().check
    for page in TABLES:
        text = (ROOT / page).read_text(encoding="utf-8")
        fresh = with_tables(page, text)
        if check and fresh != text:
            sys.exit(f"{page} is stale: run python scripts/readme_tables.py")
        (ROOT / page).write_text(fresh, encoding="utf-8")


if __name__ == "__main__":
    main()
