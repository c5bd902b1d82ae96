# SPDX-License-Identifier: Apache-2.0
"""The chart of bits against a loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ..pages.chart import BLUE, GREEN, GREY, chart, hint

_INCHES = (5.2, 3.8)
_MARGINS = (0.62, 0.1, 0.5, 0.35)
_BITS = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_LEAST = 1e-6  # smaller values are drawn on the lowest line, which is then labelled "0"
# Possible places of a name beside its point, in points: (across, up, the edge of the name there).
_PLACES = [
    (6, 4, "left"),
    (-6, -10, "right"),
    (6, -10, "left"),
    (-6, 4, "right"),
    (6, 14, "left"),
    (-6, -20, "right"),
    (6, -20, "left"),
    (-6, 14, "right"),
    (8, -1, "left"),
]

Point = tuple[float, float, str, bool]  # bits, loss, name, is it the recommended one


def make_plot(points: Sequence[Point], title: str, limit: float | None) -> Markup:
    """Draws bits (across) against loss (up), both logarithmic, with `limit` as a dashed line.
    Recipes without loss are on the lowest line. The recommended recipe and the recipes that no
    other one beats have their names beside their points. The mouse shows all names."""

    def draw(axes: Axes) -> None:
        floor = _scale(axes, points, limit)
        if limit is not None and limit > 0:
            axes.axhline(limit, color=GREEN, dashes=(5, 4), linewidth=1)
        front = front_of(points)
        placed = {point: (point[0], max(point[1], floor)) for point in points}
        if len(front) > 1:
            axes.plot(*zip(*map(placed.get, front), strict=True), color=BLUE, alpha=0.3, zorder=1)
        for point, place in placed.items():
            bits, loss, name, is_best = point
            color = GREEN if is_best else BLUE if point in front else GREY
            (drawn,) = axes.plot(*place, "o", color=color, markersize=7 if is_best else 5, zorder=2)
            drawn.set_gid(hint(f"{name}: {bits:.2f} bits, {loss:.4g}"))
        named = [point for point in points if point[3]]
        _name(axes, [*named, *(point for point in front if point not in named)], placed)

    return chart(title, _INCHES, _MARGINS, draw)


def front_of(points: Sequence[Point]) -> list[Point]:
    """Returns the recipes that no other one beats at both, by ascending bits."""
    front: list[Point] = []
    for point in sorted(points):
        if math.isfinite(point[1]) and (not front or point[1] < front[-1][1]):
            front.append(point)
    return front


def _scale(axes: Axes, points: Sequence[Point], limit: float | None) -> float:
    """Sets the axes, with whole powers of ten at both ends. Returns the height for a loss of 0."""
    losses = [loss for _, loss, _, _ in points if math.isfinite(loss) and loss > _LEAST]
    losses += [limit] if limit else []
    has_zero = any(loss <= _LEAST for _, loss, _, _ in points)
    least, most = (min(losses), max(losses)) if losses else (0.1, 1.0)
    low = math.floor(math.log10(least)) - (1 if has_zero else 0)
    high = max(math.ceil(math.log10(most) - 1e-9), low + 1)
    floor = 10.0**low
    bits = [point[0] for point in points]
    axes.set(xscale="log", yscale="log", xlabel="bits per element, all-in")
    axes.set_xlim(0.55 * min(bits), 1.35 * max(bits))  # leaves room for names
    axes.set_ylim(floor * (0.8 if has_zero else 1), 10.0**high)
    axes.xaxis.set_major_locator(FixedLocator(_BITS))
    axes.yaxis.set_major_locator(FixedLocator([10.0**power for power in range(low, high + 1)]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: "0" if has_zero and value <= floor else f"{value:g}")
    )
    return floor


def _name(axes: Axes, points: Sequence[Point], placed: dict) -> None:
    """Places each name beside its point, at the first place where it covers no other name and no
    point."""
    within = axes.get_window_extent()
    dots = [axes.transData.transform(place) for place in placed.values()]
    taken: list = []
    for point in points:
        others = [dot for dot, other in zip(dots, placed, strict=True) if other is not point]
        for across, up, edge in _PLACES:
            text = axes.annotate(
                point[2], placed[point], (across, up), textcoords="offset points", ha=edge,
                fontsize=8, fontweight="bold" if point[3] else "normal",
            )  # fmt: skip
            box = text.get_window_extent()
            is_free = within.x0 <= box.x0 and box.x1 <= within.x1 and box.y1 <= within.y1
            is_free = is_free and box.y0 >= within.y0 and not box.padded(4).count_contains(others)
            if is_free and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()
