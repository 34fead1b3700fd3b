"""HTML that is escaped unless it was made here: text goes in as `str`, markup as `Html`."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

_VOID = frozenset({"meta", "br", "hr", "wbr"})


class Html(str):
    """Markup, which is not escaped again."""

    __slots__ = ()


Part = Html | str | None


def el(tag: str, *parts: Part, **attributes: str | bool | None) -> Html:
    """An element around `parts`, each of which is escaped unless it is `Html`; None is left out.

    `class_` and `data_number` are the attributes `class` and `data-number`; True is one without a value, None and False
    are left out.
    """
    names = ""
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        spelled = name.rstrip("_").replace("_", "-")
        names += f" {spelled}" if value is True else f' {spelled}="{html.escape(value, quote=True)}"'
    if tag in _VOID:
        return Html(f"<{tag}{names}>")
    return Html(f"<{tag}{names}>{joined(parts)}</{tag}>")


def joined(parts: Iterable[Part]) -> Html:
    """Parts one after another."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part or "") for part in parts))


def table(
    head: Sequence[Part], rows: Iterable[Sequence[Part]], *, numbers: bool = True, class_: str | None = None
) -> Html:
    """A table that scrolls sideways where it is too wide; `numbers`: all but the first column stand to the right."""
    kind = " ".join(word for word in ("numbers" if numbers else "", class_ or "") if word) or None
    body = joined(el("tr", *(el("td", cell) for cell in row)) for row in rows)
    top = el("thead", el("tr", *(el("th", cell, scope="col") for cell in head)))
    return el("div", el("table", top, el("tbody", body), class_=kind), class_="wide")


def json_script(name: str, value: Any) -> Html:
    """Data for the page's script. Nothing in it can end the element, begin a comment or pass for markup.

    A number that is not finite becomes null: nothing can be drawn there.
    """
    text = json.dumps(_finite(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Html(f'<script type="application/json" id="{html.escape(name, quote=True)}">{text}</script>')


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def plain(text: object) -> str:
    """Text for a plot: plotly reads a few tags and entities in what it shows, so they are spelled out."""
    return html.escape(str(text), quote=False)
