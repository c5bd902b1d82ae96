# SPDX-License-Identifier: Apache-2.0
"""A plot of bits against a loss, as SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

_WIDTH, _HEIGHT = 410, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 30, 46
_LABEL_HEIGHT, _CHARACTER_WIDTH = 14, 7
_TICKS = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_LEAST = 1e-6  # what is smaller is drawn on the lowest line, which then says "0"
_GRID, _LIMIT, _POINT, _BEST = "#dde3e8", "#2f8f4e", "#2463a6", "#2f8f4e"

Point = tuple[float, float, str, bool]  # bits, loss, name, is it the recommended one


def make_plot(points: Sequence[Point], title: str, limit: float | None) -> str:
    """Bits across and loss up, both by their logarithms, `limit` as a dashed line. What has no loss at
    all lies on the lowest line. Names that find no place are on their points alone, for the mouse."""
    axes = _Axes(points, limit)
    shapes = axes.grid()
    if limit is not None and limit > 0:
        y = axes.up(limit)
        shapes.append(_line(_LEFT, y, _WIDTH - _RIGHT, y, _LIMIT, "5 4"))
    front = _front(points)
    shapes += _line_through(front, axes)
    taken = [(axes.across(p[0]) - 5, axes.across(p[0]) + 5, axes.up(p[1]) + 4) for p in points]
    # The recommended one has the first choice of a place, then those that none beats.
    for point in sorted(points, key=lambda point: (not point[3], point not in front, point)):
        bits, loss, name, is_best = point
        x, y = axes.across(bits), axes.up(loss)
        color = _BEST if is_best else _POINT
        radius = 5.5 if is_best else 4.0
        hint = f"<title>{html.escape(name)}: {bits:.2f} bits, {loss:.4g}</title>"
        shapes.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{color}">{hint}</circle>'
        )
        shapes += _label(name, x, y, taken, is_best)
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    shapes.append(_text(_LEFT, 14, title, weight="600"))
    shapes.append(_text(middle, _HEIGHT - 8, "bits per element, all-in", "middle"))
    return (
        f'<svg role="img" aria-label="{html.escape(title)} against bits"'
        f' viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}">'
        f"{''.join(shapes)}</svg>"
    )


class _Axes:
    """From bits and loss to places."""

    def __init__(self, points: Sequence[Point], limit: float | None) -> None:
        losses = [loss for _, loss, _, _ in points if math.isfinite(loss) and loss > _LEAST]
        losses += [limit] if limit else []
        self._has_zero = any(loss <= _LEAST for _, loss, _, _ in points)
        low, high = (min(losses), max(losses)) if losses else (0.1, 1.0)
        self._low = math.floor(math.log10(low)) - (1 if self._has_zero else 0)
        self._high = max(math.ceil(math.log10(high) - 1e-9), self._low + 1)
        all_bits = [bits for bits, *_ in points]
        self._bits_min, self._bits_max = 0.8 * min(all_bits), 1.15 * max(all_bits)

    def across(self, bits: float) -> float:
        share = math.log(bits / self._bits_min) / math.log(self._bits_max / self._bits_min)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def up(self, loss: float) -> float:
        place = self._low if loss <= _LEAST else math.log10(loss)
        share = (place - self._low) / (self._high - self._low)
        return _HEIGHT - _BOTTOM - max(0.0, min(1.0, share)) * (_HEIGHT - _TOP - _BOTTOM)

    def grid(self) -> list[str]:
        shapes = []
        for power in range(self._low, self._high + 1):
            y = self.up(10.0**power)
            is_zero = self._has_zero and power == self._low
            shapes.append(_line(_LEFT, y, _WIDTH - _RIGHT, y))
            shapes.append(_text(_LEFT - 8, y + 4, "0" if is_zero else _power_of_ten(power), "end"))
        for bits in _TICKS:
            x = self.across(bits)
            if not _LEFT <= x <= _WIDTH - _RIGHT:
                continue
            shapes.append(_line(x, _TOP, x, _HEIGHT - _BOTTOM))
            shapes.append(_text(x, _HEIGHT - _BOTTOM + 18, f"{bits}", "middle"))
        return shapes


def _power_of_ten(power: int) -> str:
    return f"{10.0**power:.{max(0, -power)}f}"


def _front(points: Sequence[Point]) -> list[Point]:
    """Those that no other beats at both, by rising bits."""
    front: list[Point] = []
    for point in sorted(points):
        if math.isfinite(point[1]) and (not front or point[1] < front[-1][1]):
            front.append(point)
    return front


def _line_through(front: Sequence[Point], axes: _Axes) -> list[str]:
    if len(front) < 2:
        return []
    places = " ".join(f"{axes.across(b):.1f},{axes.up(loss):.1f}" for b, loss, _, _ in front)
    return [f'<polyline points="{places}" fill="none" stroke="{_POINT}" stroke-opacity="0.3"/>']


def _label(
    name: str, x: float, y: float, taken: list[tuple[float, float, float]], is_bold: bool
) -> list[str]:
    """Beside its point, on the first of a few places that no point and no other label has."""
    width = _CHARACTER_WIDTH * len(name)
    right, left = x + 9, x - 9 - width
    heights = [y + 4 + _LABEL_HEIGHT * step for step in (0, -1, 1, -2, 2)]
    places = [(at, height) for height in heights for at in (right, left)]

    def is_free(at: float, height: float) -> bool:
        inside = _LEFT < at and at + width < _WIDTH and _TOP - 4 < height <= _HEIGHT - _BOTTOM + 4
        return inside and all(
            at + width < first or last < at or abs(height - other) >= _LABEL_HEIGHT - 1
            for first, last, other in taken
        )

    for at, height in places:
        if is_free(at, height):
            taken.append((at, at + width, height))
            return [_text(at, height, name, weight="600" if is_bold else "400")]
    return [_text(x, _TOP - 2, name, "middle", "600")] if is_bold else []


def _line(x1: float, y1: float, x2: float, y2: float, color=_GRID, dashes="none") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"'
        f' stroke-dasharray="{dashes}"/>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start", weight: str = "400") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{html.escape(text)}</text>"
    )
