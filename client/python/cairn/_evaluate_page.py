# SPDX-License-Identifier: Apache-2.0
"""The page that `cairn.evaluate` writes: one HTML file that needs nothing else."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .evaluate import Evaluation

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2733; max-width: 62em; margin: 2em auto;
  padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
p.best { background: #e8f4ec; border-left: 4px solid #2f8f4e; padding: .6em 1em; }
p.none { background: #fbeee8; border-left: 4px solid #c0532b; padding: .6em 1em; }
table { border-collapse: collapse; } th, td { padding: .25em .7em; text-align: right; }
th:first-child, td:first-child { text-align: left; font-family: monospace; }
thead th { border-bottom: 1px solid #9aa7b4; font-weight: 600; }
tr.best td { background: #e8f4ec; } .note { color: #5b6875; font-size: .9em; }
svg text { font: 12px system-ui, sans-serif; fill: #1c2733; } .wide { overflow-x: auto; }
"""
_WIDTH, _HEIGHT = 700, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 90, 20, 50
_LOSS_MIN = 1e-5  # of the plot; what is lossless is drawn there


def make_page(
    found: Sequence[Evaluation], best: Evaluation | None, loss_max: float, about: str
) -> str:
    has_queries = any(one.attention_error is not None for one in found)
    loss = "attention-output error" if has_queries else "larger of K and V error"
    if best is None:
        verdict = f'<p class="none">No recipe has a loss of at most {loss_max:g}.</p>'
    else:
        verdict = (
            f'<p class="best">For a loss of at most {loss_max:g}:'
            f" <b>{html.escape(best.recipe)}</b>, {best.bits:.2f} bits an element,"
            f" {best.ratio:.2f} times as many tokens in the same memory.</p>"
        )
    parts = [
        f"<h1>Recipes on {html.escape(about)}</h1>",
        f'{verdict}<p class="note">Loss is the {loss}.</p>',
        "<h2>Rate against loss</h2>",
        _plot(found, loss, loss_max),
        "<h2>Figures</h2>",
        _table(found, best),
        '<p class="note">Bits are all-in: headers, directories and parameters are counted. Errors'
        " are relative: the root of the summed squared error over that of the summed squares. Rates"
        " are GB of source a second, of one caller; decode is one core's, checksums verified.</p>",
        "<h2>Error by layer</h2>",
        _heat_map(found),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>cairn evaluate</title>'
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _table(found: Sequence[Evaluation], best: Evaluation | None) -> str:
    names = ("recipe", "bits", "ratio", "K error", "V error", "attention", "put", "get", "decode")
    rows = []
    for one in found:
        attention = "–" if one.attention_error is None else f"{one.attention_error:.4f}"
        cells = [html.escape(one.recipe), f"{one.bits:.3f}", f"{one.ratio:.2f}"]
        cells += [f"{one.k_error:.4f}", f"{one.v_error:.4f}", attention]
        cells += [f"{x / 1e9:.2f}" for x in (one.put_rate, one.get_rate, one.decode_rate)]
        mark = ' class="best"' if one is best else ""
        rows.append(f"<tr{mark}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _plot(found: Sequence[Evaluation], loss: str, loss_max: float) -> str:
    """Bits across, loss up by powers of ten, the limit as a dashed line."""
    losses = [max(one.loss, _LOSS_MIN) for one in found if math.isfinite(one.loss)] + [loss_max]
    low = math.floor(math.log10(max(min(losses), _LOSS_MIN)))
    high = max(math.ceil(math.log10(max(losses))), low + 1)
    bits_max = math.ceil(max(one.bits for one in found) / 2) * 2

    def across(bits: float) -> float:
        return _LEFT + bits / bits_max * (_WIDTH - _LEFT - _RIGHT)

    def up(value: float) -> float:
        share = (math.log10(max(value, _LOSS_MIN)) - low) / (high - low)
        return _HEIGHT - _BOTTOM - max(0.0, min(1.0, share)) * (_HEIGHT - _TOP - _BOTTOM)

    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    shapes = []
    for power in range(low, high + 1):
        y = up(10.0**power)
        shapes.append(_line(_LEFT, y, right, y))
        shapes.append(_text(_LEFT - 8, y + 4, f"{10.0**power:g}", "end"))
    for bits in range(0, bits_max + 1, 2):
        x = across(bits)
        shapes.append(_line(x, _TOP, x, bottom))
        shapes.append(_text(x, bottom + 18, f"{bits}", "middle"))
    shapes.append(_line(_LEFT, up(loss_max), right, up(loss_max), "#2f8f4e", "5 4"))
    taken: list[tuple[float, float]] = []
    for one in found:
        x, y = across(one.bits), up(one.loss)
        label = y + 4
        while any(abs(x - other) < 60 and abs(label - there) < 13 for other, there in taken):
            label -= 13
        taken.append((x, label))
        shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="#2463a6"/>')
        shapes.append(_text(x + 9, label, one.recipe))
    shapes.append(_text((_LEFT + right) / 2, _HEIGHT - 10, "bits per element, all-in", "middle"))
    shapes.append(
        f'<text transform="translate(16 {(_TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
        f"{html.escape(loss)}</text>"
    )
    return (
        f'<svg role="img" aria-label="bits against loss" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        f' width="{_WIDTH}" height="{_HEIGHT}">{"".join(shapes)}</svg>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, color="#dde3e8", dashes="none") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"'
        f' stroke-dasharray="{dashes}"/>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _heat_map(found: Sequence[Evaluation]) -> str:
    """A line per recipe and plane, a cell per layer; white is 0, dark is 1 or more."""
    layers = found[0].layers
    cell = max(14, min(26, 640 // max(1, len(layers))))
    shapes, y = [], 22
    for place, layer in enumerate(layers):
        if place % max(1, len(layers) // 16) == 0:
            x = 110 + place * cell + cell / 2
            shapes.append(_text(x, 14, f"{layer}", "middle"))
    for one in found:
        for plane, errors in (("K", one.k_error_by_layer), ("V", one.v_error_by_layer)):
            shapes.append(_text(0, y + 13, f"{one.recipe} {plane}"))
            for place, error in enumerate(errors):
                title = f"{html.escape(one.recipe)} {plane}, layer {layers[place]}: {error:.4f}"
                shapes.append(
                    f'<rect x="{110 + place * cell}" y="{y}" width="{cell - 1}" height="17"'
                    f' fill="{_color(error)}"><title>{title}</title></rect>'
                )
            y += 18
        y += 5
    width = 110 + len(layers) * cell
    return (
        f'<div class="wide"><svg role="img" aria-label="error by layer" viewBox="0 0 {width} {y}"'
        f' width="{width}" height="{y}">{"".join(shapes)}</svg></div>'
        '<p class="note">Columns are layers; the figure is under the pointer.</p>'
    )


def _color(error: float) -> str:
    """By the square root, so that small errors can be told apart."""
    share = min(1.0, max(0.0, error if math.isfinite(error) else 1.0)) ** 0.5
    light, dark = (247, 249, 251), (150, 40, 27)
    channels = [round(a + (b - a) * share) for a, b in zip(light, dark, strict=True)]
    return "#" + "".join(f"{channel:02x}" for channel in channels)
