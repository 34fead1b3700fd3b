"""The live view's values as lines of a terminal; 80 columns suffice, and fewer lines where it is low."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sweep.console.figures import marked
from sweep.console.scene import EndedTrial, RunningTrial, Scene
from sweep.console.words import duration_text, flags_text
from sweep.trial import SEARCHING, TrialKind

if TYPE_CHECKING:  # a report, which also prints with this package, asks no device
    from sweep.gpu import DeviceReading

_BARS = "▁▂▃▄▅▆▇█"
_PHASE_WORDS = {"host": "waiting", "start": "starting", "warmup": "warm-up", "stop": "stopping"}
_MOST_RUNNING, _MOST_DEVICES = 4, 8


def draw(scene: Scene, width: int, height: int) -> RenderableType:
    """The scene for a terminal of that size. Running trials and the verdict come before ended ones where it is low."""
    running = _running_table(scene, width)
    foot = [*_best_lines(scene, width), _left_line(scene, width)]
    devices = [_device_line(one, width) for one in scene.devices[:_MOST_DEVICES]]
    used = 1 + 2 * min(len(scene.running), _MOST_RUNNING) + len(foot) + len(devices)
    room = max(0, height - used - 2)
    parts: list[RenderableType] = []
    if scene.last and room >= 2:
        parts.append(_ended_table(scene.last[-(room - 1) :], width, few=scene.few))
    if scene.running:
        parts.append(running)
    return Group(*parts, *devices, *foot)


def sparkline(values: Sequence[float], width: int) -> str:
    """At most `width` bars, lower for lower values; of more values every bar is the last of its share."""
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    chosen = [values[(place + 1) * len(values) // count - 1] for place in range(count)]
    low, high = min(chosen), max(chosen)
    if high == low:
        return _BARS[0] * count
    return "".join(_BARS[round((value - low) / (high - low) * (len(_BARS) - 1))] for value in chosen)


def _table() -> Table:
    return Table(box=None, pad_edge=False, expand=True, header_style="bold", padding=(0, 1, 0, 0))


def _ended_table(ended: Sequence[EndedTrial], width: int, *, few: bool) -> Table:
    table = _table()
    table.add_column("ended", justify="right", no_wrap=True)
    table.add_column(marked("p95 TTFT/TPOT", few), justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis", max_width=max(12, width // 3))
    table.add_column("flags", ratio=1, no_wrap=True, overflow="ellipsis")
    for one in ended:
        kind = "" if one.kind in SEARCHING else f" {one.kind}"
        mark = "*" if one.is_best else " "
        cells = (f"{one.number}{kind}{mark}", _pair(one.p95_ms), one.how, flags_text(one.flags))
        table.add_row(*map(Text, cells), style="bold" if one.is_best else "dim" if one.score is None else "")
    return table


def _running_table(scene: Scene, width: int) -> Group:
    lines: list[Text] = []
    for one in scene.running[:_MOST_RUNNING]:
        lines.append(_cut(_running_line(one), width, style="bold"))
        lines.append(_cut(f"  {_against(one, scene)}", width))
    if len(scene.running) > _MOST_RUNNING:
        lines.append(Text(f"and {len(scene.running) - _MOST_RUNNING} more"))
    return Group(*lines)


def _running_line(one: RunningTrial) -> str:
    phase = _PHASE_WORDS.get(one.phase, one.phase)
    if one.total is not None:
        phase += f" {one.done or 0}/{one.total}"
    if one.attempt > 1:
        phase += f" (attempt {one.attempt})"
    since = "" if one.for_s is None else f" for {duration_text(one.for_s)}"
    kind = "" if one.kind in (TrialKind.SEARCH, TrialKind.BASELINE) else f" {one.kind}"
    return f"trial {one.number}{kind}: {phase}{since}   {flags_text(one.flags)}"


def _against(one: RunningTrial, scene: Scene) -> str:
    """The running p95s beside the incumbent's; before a round has ended, what it waits for."""
    if all(value is None for value in one.p95_ms):
        return f"waits for {one.waits}"
    rival = marked(_pair(scene.incumbent_p95_ms), scene.few)
    against = "" if scene.incumbent is None else f"; trial {scene.incumbent}: {rival}"
    return f"{marked('p95 TTFT/TPOT', one.few)} so far {_pair(one.p95_ms)} ms{against}; waits for {one.waits}"


def _best_lines(scene: Scene, width: int) -> list[Text]:
    found = []
    if len(scene.best_so_far) > 1:
        ends = f"best so far {scene.best_so_far[0]:.3f} ", f" {scene.best_so_far[-1]:.3f}"
        bars = sparkline(scene.best_so_far, min(60, width - len("".join(ends))))
        found.append(Text(f"{ends[0]}{bars}{ends[1]}"))
    return [*found, _cut(scene.sentence, width, style="bold")]


def _left_line(scene: Scene, width: int) -> Text:
    done = f"{scene.ended} of {scene.asked} trials done"
    if scene.left_s is None:
        return _cut(done, width)
    search_s, after_s = scene.left_s
    parts = [f"search {duration_text(search_s)}"] if search_s else []
    parts += [f"confirmation {duration_text(after_s)}"] if after_s else []
    ends = time.strftime("%H:%M", time.localtime(time.time() + search_s + after_s))
    return _cut(f"{done}; about {' + '.join(parts) or '0 s'} left, to {ends}", width)


def _device_line(one: DeviceReading, width: int) -> Text:
    values = (
        (one.memory_used_gib, "{:.1f} GiB"),
        (one.utilization_percent, "{:.0f} % busy"),
        (one.sm_clock_mhz, "{:.0f} MHz"),
        (one.power_w, "{:.0f} W"),
        (one.temperature_c, "{:.0f} °C"),
    )
    known = [form.format(value) for value, form in values if value is not None]
    if one.throttle_reasons:
        known.append(f"throttled: {', '.join(one.throttle_reasons)}")
    return _cut(f"{one.label}: {', '.join(known) or 'does not answer'}", width)


def _pair(values: Sequence[float | None]) -> str:
    return "/".join("-" if v is None else f"{v:,.0f}" if v >= 100 else f"{v:.1f}" for v in values)


def _cut(text: str, width: int, style: str = "") -> Text:
    found = Text(" ".join(text.split("\n")), style=style, no_wrap=True, overflow="ellipsis")
    found.truncate(width, overflow="ellipsis")
    return found
