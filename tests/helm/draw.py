# SPDX-License-Identifier: Apache-2.0
"""Draws the dashboards from what a Prometheus has, each panel in the place that it has in Grafana."""

import json
import math
import re

import matplotlib

matplotlib.use("agg")
from conftest import DASHBOARDS, concrete  # noqa: E402
from matplotlib import pyplot  # noqa: E402
from matplotlib.ticker import FuncFormatter, MultipleLocator  # noqa: E402

COLUMNS = 24
WIDTH_INCHES, INCHES_A_LINE = 16.0, 0.3
DPI = 80
STEPS = 200  # of a panel
LEGEND_MAX = 8  # of lines: more hide the picture


def scaled(value, base, suffixes):
    for suffix in suffixes[:-1]:
        if abs(value) < 0.97 * base:  # 0.98 GiB, not 1003 MiB
            return f"{value:.3g} {suffix}".rstrip()
        value /= base
    return f"{value:.3g} {suffixes[-1]}"


def text_of(value, unit):
    """As Grafana writes it, roughly."""
    if unit in ("bytes", "Bps"):
        return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]) + ("/s" if unit == "Bps" else "")
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s":
        return scaled(value * 1e6, 1000, ["µs", "ms", "s"]) if value < 1000 else f"{value:.0f} s"
    return scaled(value, 1000, ["", "k", "M"]) + (" /s" if unit == "ops" else "")


def named(legend, labels):
    return re.sub(r"{{(\w+)}}", lambda match: labels.get(match.group(1), ""), legend) or "·"


def draw_lines(axes, panel, prometheus, start, end):
    unit = panel["fieldConfig"]["defaults"].get("unit", "short")
    stacking = panel["fieldConfig"]["defaults"].get("custom", {}).get("stacking", {}).get("mode")
    lines = []
    for target in panel["targets"]:
        for labels, points in prometheus.query_range(concrete(target["expr"], "30s"), start, end, (end - start) / STEPS):
            lines.append((named(target.get("legendFormat", ""), labels), points))
    if stacking == "normal" and lines:
        times = sorted({time for _, points in lines for time, _ in points})
        values = [[dict(points).get(time, 0.0) for time in times] for _, points in lines]
        axes.stackplot([time - start for time in times], values, labels=[name for name, _ in lines], alpha=0.6)
    else:
        for name, points in lines:
            kept = [(time - start, value) for time, value in points if math.isfinite(value)]
            axes.plot([time for time, _ in kept], [value for _, value in kept], linewidth=1, label=name)
    if lines and len(lines) <= LEGEND_MAX:
        axes.legend(fontsize=6, loc="upper left", framealpha=0.6)
    axes.set_xlim(0, end - start)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text_of(value, unit)))
    axes.xaxis.set_major_locator(MultipleLocator(60 * max(1, round((end - start) / 300))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 60:g} min"))
    axes.tick_params(labelsize=6)
    axes.grid(alpha=0.3)


def draw_number(axes, panel, prometheus):
    unit = panel["fieldConfig"]["defaults"].get("unit", "short")
    found = prometheus.query(concrete(panel["targets"][0]["expr"]))
    axes.axis("off")
    axes.text(0.5, 0.4, ", ".join(text_of(value, unit) for _, value in found) or "–", ha="center", va="center", fontsize=16)


def draw_board(path, prometheus, start, end, folder):
    """Writes FOLDER/NAME.png of NAME.json."""
    panels = json.loads(path.read_text())["panels"]
    lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = pyplot.figure(figsize=(WIDTH_INCHES, lines * INCHES_A_LINE))
    for panel in panels:
        place = panel["gridPos"]
        left, bottom = place["x"] / COLUMNS, 1 - (place["y"] + place["h"]) / lines
        width, height = place["w"] / COLUMNS, place["h"] / lines
        if panel["type"] == "row":
            figure.text(left + 0.005, bottom + 0.3 * height, panel["title"], fontsize=11, weight="bold")
            continue
        margin = 1.0 / lines  # a line: title above, times below
        axes = figure.add_axes((left + 0.035, bottom + margin, width - 0.045, max(height - 2.2 * margin, margin)))
        axes.set_title(panel["title"], fontsize=8, loc="left", pad=3)
        if panel["type"] == "stat":
            draw_number(axes, panel, prometheus)
        else:
            draw_lines(axes, panel, prometheus, start, end)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{path.stem}.png", dpi=DPI)
    pyplot.close(figure)


def draw(prometheus, start, end, folder):
    for path in sorted(DASHBOARDS.glob("*.json")):
        if path.stem == "gpu":
            continue  # a daemon without one has none of its series
        draw_board(path, prometheus, start, end, folder)
