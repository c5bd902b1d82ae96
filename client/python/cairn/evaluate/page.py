# SPDX-License-Identifier: Apache-2.0
"""The page that `cairn.evaluate` writes: one HTML file that needs nothing else."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence

from .choice import Loss
from .measure import Evaluation
from .plot import make_plot
from .terminal import format_error, format_rate, verdict_of

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2733; max-width: 86em; margin: 2em auto;
  padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin: 2em 0 .5em; }
h3 { font-size: 1em; margin: 0 0 .4em; }
p.best { background: #e8f4ec; border-left: 4px solid #2f8f4e; padding: .6em 1em; }
p.none { background: #fbeee8; border-left: 4px solid #c0532b; padding: .6em 1em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25em .7em; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } td:first-child { font-family: monospace; }
thead th { border-bottom: 1px solid #9aa7b4; font-weight: 600; vertical-align: bottom; }
tr.best td { background: #e8f4ec; } .note, .no { color: #5b6875; } .note { font-size: .9em; }
.wide { overflow-x: auto; } .side { display: flex; flex-wrap: wrap; gap: 1.5em 1.8em; }
.heat td { padding: 0 .5em; min-width: 2.6em; text-align: right; font-size: .8em;
  line-height: 1.55; border: 1px solid #fff; }
.heat th { padding: 0 .5em; font-size: .8em; font-weight: 400; text-align: right; }
.heat thead th { font-family: monospace; font-size: .72em; padding-bottom: .2em; }
.heat td:first-child { font-family: inherit; text-align: right; }
.heat tr.all th, .heat tr.all td { border-top: 2px solid #1c2733; }
.scale { display: inline-block; width: 12em; height: .8em; margin: 0 .5em; }
svg text { font: 12px system-ui, sans-serif; fill: #1c2733;
  paint-order: stroke; stroke: #fff; stroke-width: 3px; stroke-linejoin: round; }
"""
# Figures of a loss: what is drawn is what their limits are held against.
_PLOTS = {
    "kl": "KL of the next token, nats, + 2 standard errors",
    "perplexity_ratio": "perplexity ratio + 2 standard errors",
    "attention_error": "error of what attention returns, worst layer",
    "kv_error": "larger of K's and V's error, worst layer",
    "k_error": "error of K, worst layer",
    "v_error": "error of V, worst layer",
}
_ALWAYS_DRAWN = ("kl", "attention_error", "kv_error")
_HEAT_LEAST, _HEAT_MOST = 1e-3, 1.0  # of the colours, by powers of ten
_HEAT_LIGHT, _HEAT_DARK = (250, 246, 238), (140, 30, 25)


def make_page(
    found: Sequence[Evaluation], best: Evaluation | None, loss: Loss, about: dict
) -> str:
    """`found` is drawn in its order."""
    title = f"Recipes on {about['name']}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{about['layers']} layers, {about['tokens']} tokens, {about['dtype']}.</p>",
        _verdict(best, loss),
        _warnings(about),
        "<h2>Rate against loss</h2>",
        f'<div class="side">{_plots(found, best, loss)}</div>',
        "<h2>Figures</h2>",
        f'<div class="wide">{_table(found, best)}</div>',
        _notes(found, about),
        "<h2>Error by layer</h2>",
        _heat_maps(found),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _verdict(best: Evaluation | None, loss: Loss) -> str:
    said = html.escape(verdict_of(best, loss))
    if best is None:
        return f'<p class="none">{said}.</p>'
    name = html.escape(best.name)
    return f'<p class="best">{said.replace(name, f"<b>{name}</b>", 1)}.</p>'


def _plots(found: Sequence[Evaluation], best: Evaluation | None, loss: Loss) -> str:
    wanted = [loss.figure, *(figure for figure in _ALWAYS_DRAWN if figure != loss.figure)]
    drawn = []
    for figure in wanted:
        points = [
            (one.bits, one.bound(figure), one.name, one is best)
            for one in found
            if one.bound(figure) is not None
        ]
        if points:
            limit = loss.most if figure == loss.figure else None
            drawn.append(make_plot(points, _PLOTS[figure], limit))
    return "".join(f"<div>{plot}</div>" for plot in drawn)


def _table(found: Sequence[Evaluation], best: Evaluation | None) -> str:
    columns: list[tuple[str, Callable[[Evaluation], str]]] = [
        ("recipe", lambda one: html.escape(one.name)),
        ("bits", lambda one: f"{one.bits:.3f}"),
        ("ratio", lambda one: f"{one.ratio:.2f}"),
        ("K error (worst layer)", lambda one: format_error(one, "k_error")),
        ("V error (worst layer)", lambda one: format_error(one, "v_error")),
        ("attention (worst layer)", lambda one: format_error(one, "attention_error")),
        ("KL, nats", lambda one: _cell(one.kl, ".5f") + _margin(one.kl_error)),
        ("trimmed", lambda one: _cell(one.kl_trimmed, ".5f")),
        ("ppl ×", lambda one: _cell(one.perplexity_ratio, ".4f")),
        ("top-1", lambda one: _cell(one.same_top, ".1%")),
        ("encode", lambda one: format_rate(one.encode_rate)),
        ("decode", lambda one: format_rate(one.decode_rate)),
    ]
    head = "".join(f"<th>{name}</th>" for name, _ in columns)
    rows = []
    for one in found:
        mark = ' class="best"' if one is best else ""
        cells = "".join(f"<td>{cell(one)}</td>" for _, cell in columns)
        rows.append(f"<tr{mark}>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cell(value: float | None, form: str) -> str:
    return '<span class="no">unavailable</span>' if value is None else format(value, form)


def _margin(error: float | None) -> str:
    return "" if error is None else f" ± {error:.5f}"


def _notes(found: Sequence[Evaluation], about: dict) -> str:
    notes = [
        "Bits are all-in, per element of K and V: headers, directories and parameters are counted."
        " Errors are relative: the root of the summed squared error over that of the summed"
        " squares, of all layers, and in brackets the worst layer and its error. Of K both sums are"
        " taken about the means of channels: what a constant of a channel adds tells no token from"
        " another. encode and decode are GB of source a second, one core, one block at a time;"
        f" decode checks every checksum. A plain copy here: {about['copy_rate'] / 1e9:.1f} GB/s."
    ]
    if any(one.kl is not None for one in found):
        notes.append(
            "KL is that of the model's next-token distribution behind the coded KV from the one"
            " behind the exact KV, mean over positions ± its standard error; trimmed leaves out the"
            " 5 % largest and the 5 % smallest; ppl × is perplexity over the exact one's; top-1 is"
            " the share of positions at which the likeliest token is the same."
        )
    else:
        notes.append("KL and perplexity are unavailable: they need a judge (--judge).")
    if all(one.attention_error is None for one in found):
        notes.append("The error of attention is unavailable: it needs queries (q) in the dump.")
    notes += map(html.escape, about["notes"])
    notes += [
        f"{html.escape(name)} is not measured: {html.escape(why)}."
        for name, why in about["not_measured"].items()
    ]
    return "".join(f'<p class="note">{note}</p>' for note in notes)


def _warnings(about: dict) -> str:
    return "".join(f'<p class="none">{html.escape(one)}</p>' for one in about["warnings"])


def _heat_maps(found: Sequence[Evaluation]) -> str:
    """A table for each of K, V and attention: a row per layer, a column per recipe with a loss."""
    lossy = [one for one in found if one.kv_error]
    exact = [one.name for one in found if not one.kv_error]
    planes = [
        ("K", "k_error", "k_error_by_layer"),
        ("V", "v_error", "v_error_by_layer"),
        ("What attention returns", "attention_error", "attention_error_by_layer"),
    ]
    drawn = [
        f"<div><h3>{name}</h3>{_heat_map(lossy, whole, by_layer)}</div>"
        for name, whole, by_layer in planes
        if any(getattr(one, whole) is not None for one in lossy)
    ]
    ramp = ", ".join(_color(_HEAT_LEAST * 10 ** (3 * step / 6)) for step in range(7))
    scale = (
        f'<p class="note">Relative errors in percent: 0.1 <span class="scale" style="background:'
        f' linear-gradient(to right, {ramp})"></span> 100, by powers of ten. The last row is of all'
        " layers together."
    )
    if exact:
        scale += f" Without any error: {html.escape(', '.join(exact))}."
    return f'{scale}</p><div class="side wide">{"".join(drawn)}</div>'


def _heat_map(lossy: Sequence[Evaluation], whole: str, by_layer: str) -> str:
    names = (html.escape(one.name).replace("/", "/<br/>") for one in lossy)
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = []
    for place, layer in enumerate(lossy[0].layers):
        errors = [getattr(one, by_layer)[place] for one in lossy]
        rows.append(f"<tr><th>{layer}</th>{''.join(map(_heat_cell, errors))}</tr>")
    cells = "".join(_heat_cell(getattr(one, whole)) for one in lossy)
    rows.append(f'<tr class="all"><th>all</th>{cells}</tr>')
    return (
        f'<table class="heat"><thead><tr><th>layer</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _heat_cell(error: float | None) -> str:
    if error is None:
        return '<td class="no">–</td>'
    ink = "#fff" if _share(error) > 0.5 else "#1c2733"
    percent = 100 * error
    text = f"{percent:.0f}" if percent >= 9.95 else f"{percent:.1f}"
    if 0 < percent < 0.1:
        text = f"{percent:.2f}"
    return f'<td style="background:{_color(error)};color:{ink}">{text}</td>'


def _share(error: float) -> float:
    """Where an error lies between the two ends of the colours."""
    if not math.isfinite(error):
        return 1.0
    decades = math.log10(_HEAT_MOST / _HEAT_LEAST)
    return min(1.0, max(0.0, math.log10(max(error, _HEAT_LEAST) / _HEAT_LEAST) / decades))


def _color(error: float) -> str:
    share = _share(error)
    ends = zip(_HEAT_LIGHT, _HEAT_DARK, strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in ends)
