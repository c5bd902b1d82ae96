# SPDX-License-Identifier: Apache-2.0
"""The page of `cairnctl replay --html`: python -m cairn.pages.replay PAGE < REPORT

REPORT is the output of `cairnctl replay --json`, with the figures of each time window of the trace.
"""

from __future__ import annotations

import json
import math
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, MultipleLocator, NullLocator

from . import render
from .chart import BLUE, GREEN, LIGHT_BLUE, ORANGE, PURPLE, RED, chart

_INCHES = (9.6, 3.2)
_MARGINS = (0.7, 1.8, 0.35, 0.35)  # equal for both charts, so that equal times are aligned
_TIERS = {"gpu": PURPLE, "host": BLUE, "ssd": LIGHT_BLUE, "peer": ORANGE}
_CALLS = {"match": BLUE, "get": GREEN, "put": ORANGE}
_TIME_TICKS = 8  # maximum number of labels
# Steps between the times on an axis, in seconds.
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def make_page(report: dict[str, Any]) -> str:
    windows, tiers = report["windows"], _tiers_of(report)
    said = (
        f"{report['requests']:,} requests, {report['blocks']:,} blocks, {report['distinct_blocks']:,}"
        f" of them distinct, of {format_bytes(report['block_bytes'])} in source form, kept as"
        f" {report['recipe']}. Played in {report['elapsed_ms'] / 1000:.1f} s, {report['parallel']} at a"
        " time."
    )
    return render(
        "replay.html",
        title=f"Replay of {report['trace']}",
        said=said,
        hits_chart=_hits_chart(report["trace_ms"], windows, tiers),
        hits_head=("hits", "blocks", "of blocks", "of tokens"),
        hits_rows=[_hit_row(name, of) for name, of in _hits_of(report)],
        latency_chart=_latency_chart(report["trace_ms"], windows),
        calls_head=("calls", "count", "p50", "p90", "p99", "max"),
        calls_rows=[_call_row(name, of) for name, of in report["calls"].items()],
        figures=_figures(report),
    )


def _tiers_of(report: dict[str, Any]) -> Sequence[str]:
    return [name for name in report["hits"] if name not in ("all", "unbounded")]


def _hits_of(report: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    names = {"all": "all tiers", "unbounded": "unbounded store"}
    return [(names.get(name, name), of) for name, of in report["hits"].items()]


def _hit_row(name: str, of: dict[str, Any]) -> tuple[str, ...]:
    return name, f"{of['blocks']:,}", f"{of['block_rate']:.2%}", f"{of['token_rate']:.2%}"


def _call_row(name: str, of: dict[str, Any]) -> tuple[str, ...]:
    times = (format_us(of[f"{share}_us"]) for share in ("p50", "p90", "p99", "max"))
    return name, f"{of['count']:,}", *times


def _figures(report: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("wrong bytes", f"{report['wrong_bytes']:,}"),
        ("late calls", f"{report['late_calls']:,}"),
        ("wire bytes of gets", format_bytes(report["get_wire_bytes"])),
        ("wire bytes of puts", format_bytes(report["put_wire_bytes"])),
        ("blocks stored", f"{report['stored_blocks']:,}"),
        ("bytes stored", format_bytes(report["stored_bytes"])),
    ]
    for tier in report["tiers"]:
        used, capacity = map(format_bytes, (tier["used_bytes"], tier["capacity_bytes"]))
        rows.append((f"{tier['tier']} used at the end", f"{used} of {capacity}"))
        if tier["evicted_for_index"]:
            name = f"{tier['tier']} blocks evicted because the index was full"
            rows.append((name, f"{tier['evicted_for_index']:,}"))
    return rows + [(f"failed: {name}", f"{count:,}") for name, count in report["errors"].items()]


# ------------------------------------------------------------------------------------ charts


def _hits_chart(trace_ms: int, windows: Sequence[dict], tiers: Sequence[str]) -> str:
    """Draws a bar for each window, with the tiers stacked, and a line for a store without limits.
    """

    def draw(axes: Axes) -> None:
        width, middles = _time_axis(axes, trace_ms, len(windows))
        asked = [max(window["asked"], 1) for window in windows]
        below = [0.0] * len(windows)
        for tier in tiers:
            shares = [w["hits"].get(tier, 0) / n for w, n in zip(windows, asked, strict=True)]
            color = _TIERS.get(tier, RED)
            axes.bar(middles, shares, 0.97 * width, bottom=below, color=color, label=tier)
            below = [a + b for a, b in zip(below, shares, strict=True)]
        known = [(x, w["ceiling"] / w["asked"]) for x, w in zip(middles, windows, strict=True) if w["asked"]]
        axes.plot(*zip(*known, strict=True), color=RED, linewidth=1.5, label="unbounded store")
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_locator(MultipleLocator(0.25))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        axes.grid(axis="x", visible=False)
        _legend(axes)

    return chart("Hit rate by tier", _INCHES, _MARGINS, draw)


def _latency_chart(trace_ms: int, windows: Sequence[dict]) -> str:
    """Draws latencies on an axis of whole decades around the measured values."""

    def draw(axes: Axes) -> None:
        _, middles = _time_axis(axes, trace_ms, len(windows))
        seen = []
        for name, color in _CALLS.items():
            for share, dashes in (("p50", (None, None)), ("p99", (4, 3))):
                field = f"{share}_us"
                known = [
                    (x, max(window["calls"][name][field], 1))
                    for x, window in zip(middles, windows, strict=True)
                    if window["calls"][name]["count"]
                ]
                if known:
                    label = name if share == "p50" else None
                    axes.plot(*zip(*known, strict=True), color=color, dashes=dashes, label=label)
                    seen += [time for _, time in known]
        low, high = _decades(seen)
        axes.set_yscale("log")
        axes.set_ylim(low, high)
        axes.yaxis.set_major_locator(LogLocator(10))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_us(value)))
        _legend(axes)

    return chart("Time of a call", _INCHES, _MARGINS, draw)


def _decades(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return 1.0, 10.0
    low = math.floor(math.log10(min(values)))
    return 10.0**low, 10.0 ** max(math.ceil(math.log10(max(values))), low + 1)


def _time_axis(axes: Axes, trace_ms: int, count: int) -> tuple[float, list[float]]:
    """Sets the axis to the trace's time in seconds. Returns the length of a window, and the middle
    of each."""
    seconds = max(trace_ms, 1) / 1000
    width = seconds / count
    axes.set_xlim(0, seconds)
    step = next((step for step in _STEPS if seconds / step <= _TIME_TICKS), None)
    fitting = MaxNLocator(_TIME_TICKS, steps=[1, 2, 5, 10])
    is_short = seconds < _TIME_TICKS
    axes.xaxis.set_major_locator(fitting if step is None or is_short else MultipleLocator(step))
    axes.xaxis.set_major_formatter(FuncFormatter(_time_of(seconds)))
    return width, [(i + 0.5) * width for i in range(count)]


def _time_of(seconds: float) -> Callable[[float, int], str]:
    unit, name = next((u, n) for u, n in ((3600, "h"), (60, "min"), (1, "s")) if seconds >= 2 * u or u == 1)
    return lambda value, _: f"{value / unit:.4g} {name}"


def _legend(axes: Axes) -> None:
    """Places the legend beside the chart."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def format_us(microseconds: float) -> str:
    """Returns a text such as "250 µs" or "1.52 ms"."""
    for scale, unit in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= scale:
            return f"{microseconds / scale:.3g} {unit}"
    return f"{microseconds:.3g} µs"


def format_bytes(count: float) -> str:
    for unit in _UNITS[:-1]:
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} {_UNITS[-1]}"


def main() -> None:
    (path,) = sys.argv[1:]
    pathlib.Path(path).write_text(make_page(json.load(sys.stdin)), encoding="utf-8")


if __name__ == "__main__":
    main()
