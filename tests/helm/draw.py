# SPDX-License-Identifier: Apache-2.0
"""Draws the dashboards from what a Prometheus has, each panel in the place and in the colours that it has in Grafana."""

import json
import math
import re

import matplotlib

matplotlib.use("agg")
from conftest import DASHBOARDS, concrete  # noqa: E402
from matplotlib import pyplot  # noqa: E402
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, MultipleLocator  # noqa: E402

COLUMNS = 24
WIDTH_INCHES, INCHES_A_LINE = 16.0, 0.3
CAPTION_LINES = 2  # above the panels
DPI = 80
STEPS = 200  # of a panel
TICKS_MAX = 6
LEGEND_MAX = 12  # of names
LEGEND_SHARE = 0.24  # of a panel's width
OTHER_COLORS = ["#3274D9", "#FF780A", "#56A64B", "#A352CC", "#B877D9", "#8E8E8E", "#F2CC0C", "#37872D"]


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
    if unit.startswith("suffix:"):
        return f"{value:.3g}{unit.removeprefix('suffix:')}"
    return scaled(value, 1000, ["", "k", "M"]) + ("/s" if unit == "ops" else "")


def named(legend, labels):
    return re.sub(r"{{(\w+)}}", lambda match: labels.get(match.group(1), ""), legend) or "·"


def ticks_of(unit, most):
    """Whole powers of two for bytes, else round numbers."""
    if unit not in ("bytes", "Bps"):
        return MaxNLocator(TICKS_MAX, steps=[1, 2, 5, 10])
    step = 2.0 ** math.ceil(math.log2(max(most, 1) / TICKS_MAX))
    return FixedLocator([step * i for i in range(TICKS_MAX + 2)])


def series_of(panel, prometheus, start, end):
    """(name, points) of those that are not 0 all the time."""
    found = []
    for target in panel["targets"]:
        expression = concrete(target["expr"], "30s")
        for labels, points in prometheus.query_range(expression, start, end, (end - start) / STEPS):
            kept = [(time - start, value) for time, value in points if math.isfinite(value)]
            if any(value != 0 for _, value in kept):
                found.append((named(target.get("legendFormat", ""), labels), kept))
    return found


def colors_of(panel, names):
    """The panel's own, and others for the rest."""
    fixed = {}
    for override in panel["fieldConfig"]["overrides"]:
        for said in override["properties"]:
            if override["matcher"]["id"] == "byRegexp" and said["id"] == "color":
                pattern = override["matcher"]["options"].strip("/")
                fixed |= {name: said["value"]["fixedColor"] for name in names if re.match(pattern, name)}
    free = iter(OTHER_COLORS * 8)
    return [fixed[name] if name in fixed else next(free) for name in names]


def draw_lines(axes, panel, prometheus, start, end):
    defaults = panel["fieldConfig"]["defaults"]
    unit, custom = defaults.get("unit", "short"), defaults.get("custom", {})
    lines = series_of(panel, prometheus, start, end)
    colors = colors_of(panel, [name for name, _ in lines])
    most = 1.0
    if custom.get("stacking", {}).get("mode") == "normal" and lines:
        times = sorted({time for _, points in lines for time, _ in points})
        values = [[dict(points).get(time, 0.0) for time in times] for _, points in lines]
        axes.stackplot(times, values, labels=[name for name, _ in lines], colors=colors, alpha=0.75, linewidth=0)
        most = max(map(sum, zip(*values, strict=True)))
    else:
        for (name, points), color in zip(lines, colors, strict=True):
            axes.plot([time for time, _ in points], [value for _, value in points], linewidth=1.2, label=name, color=color)
            most = max(value for _, points in lines for _, value in points)
    if lines:
        axes.legend(*legend_of(axes), fontsize=6.5, loc="upper left", bbox_to_anchor=(1.0, 1.02), frameon=False, handlelength=1.2)
        axes.yaxis.set_major_locator(ticks_of(unit, most))
        axes.set_ylim(0, 1.06 * most)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text_of(value, unit)))
    else:
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", va="center", fontsize=9, color="#8E8E8E")
        axes.set_yticks([])
    axes.set_xlim(0, end - start)
    axes.xaxis.set_major_locator(MultipleLocator(60 * max(1, round((end - start) / 300))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 60:g} min"))
    axes.tick_params(labelsize=6.5, length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)


def legend_of(axes):
    """The first names, and how many there are besides."""
    handles, names = axes.get_legend_handles_labels()
    if len(names) > LEGEND_MAX:
        names[LEGEND_MAX - 1 :] = [f"and {len(names) - LEGEND_MAX + 1} more"]
    return handles[: len(names)], names


def draw_number(axes, panel, prometheus):
    unit = panel["fieldConfig"]["defaults"].get("unit", "short")
    found = prometheus.query(concrete(panel["targets"][0]["expr"]))
    axes.axis("off")
    axes.text(0.5, 0.4, ", ".join(text_of(value, unit) for _, value in found) or "–", ha="center", va="center", fontsize=16)


def draw_board(path, prometheus, start, end, folder, events):
    """Writes FOLDER/NAME.png of NAME.json."""
    panels = json.loads(path.read_text())["panels"]
    lines = CAPTION_LINES + max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = pyplot.figure(figsize=(WIDTH_INCHES, lines * INCHES_A_LINE))
    caption = "   ·   ".join(f"{(time - start) / 60:.1f} min: {what}" for time, what in events)
    figure.text(0.005, 1 - 0.6 * CAPTION_LINES / lines, caption, fontsize=9, color="#555555")
    for panel in panels:
        place = panel["gridPos"]
        left, bottom = place["x"] / COLUMNS, 1 - (CAPTION_LINES + place["y"] + place["h"]) / lines
        width, height = place["w"] / COLUMNS, place["h"] / lines
        if panel["type"] == "row":
            figure.text(left + 0.005, bottom + 0.3 * height, panel["title"], fontsize=11, weight="bold")
            continue
        margin = 1.0 / lines  # a line: title above, times below
        inside = width - 0.045 - (0 if panel["type"] == "stat" else LEGEND_SHARE * width)
        axes = figure.add_axes((left + 0.035, bottom + margin, inside, max(height - 2.2 * margin, margin)))
        axes.set_title(panel["title"], fontsize=8, loc="left", pad=3)
        if panel["type"] == "stat":
            draw_number(axes, panel, prometheus)
            continue
        draw_lines(axes, panel, prometheus, start, end)
        for time, _ in events:
            axes.axvline(time - start, color="#777777", linewidth=0.7, linestyle=":")
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{path.stem}.png", dpi=DPI)
    pyplot.close(figure)


def draw(prometheus, start, end, folder, events=()):
    """events: (time, text) of what happened meanwhile."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        if path.stem in ("gpu", "members"):
            continue  # a daemon without them has none of their series
        draw_board(path, prometheus, start, end, folder, events)
