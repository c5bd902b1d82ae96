# SPDX-License-Identifier: Apache-2.0
"""The page that `cairn.evaluate` writes: one HTML file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..pages import render
from .choice import Loss
from .columns import columns
from .measure import Evaluation
from .plot import make_plot
from .terminal import verdict_of

# Figures of a loss. The plotted value is the one that is compared with the limit.
_PLOTS = {
    "kl": "KL of the next token, nats, + 2 standard errors",
    "perplexity_ratio": "perplexity ratio + 2 standard errors",
    "attention_error": "error of what attention returns, worst layer",
    "kv_error": "larger of K's and V's error, worst layer",
    "k_error": "error of K, worst layer",
    "v_error": "error of V, worst layer",
}
_ALWAYS_DRAWN = ("kl", "attention_error", "kv_error")
_HEAT_LEAST, _HEAT_MOST = 1e-3, 1.0  # range of the colours, in powers of ten
_HEAT_LIGHT, _HEAT_DARK = (250, 246, 238), (140, 30, 25)


def make_page(
    found: Sequence[Evaluation], best: Evaluation | None, loss: Loss, about: dict
) -> str:
    """`found` is shown in its order."""
    name, said = best.name if best else "", verdict_of(best, loss)
    shown = columns(found)
    return render(
        "evaluate.html",
        title=f"Recipes on {about['name']}",
        about=about,
        best=name,
        verdict=said.split(name, 1) if name else [said],
        plots=_plots(found, best, loss),
        head=[column.head for column in shown],
        rows=[[column.cell(one) for column in shown] for one in found],
        marked=found.index(best) if best else None,
        notes=_notes(found, about),
        heats=_heats(found),
        ramp=", ".join(_color(_HEAT_LEAST * 10 ** (3 * step / 6)) for step in range(7)),
        exact=", ".join(one.name for one in found if not one.kv_error),
    )


def _plots(found: Sequence[Evaluation], best: Evaluation | None, loss: Loss) -> list[str]:
    wanted = [loss.figure, *(figure for figure in _ALWAYS_DRAWN if figure != loss.figure)]
    drawn = []
    for figure in wanted:
        bounds = [(one, one.bound(figure)) for one in found]
        points = [(one.bits, most, one.name, one is best) for one, most in bounds if most is not None]
        if points:
            limit = loss.most if figure == loss.figure else None
            drawn.append(make_plot(points, _PLOTS[figure], limit))
    return drawn


def _notes(found: Sequence[Evaluation], about: dict) -> list[str]:
    notes = [
        "Bits are all-in, per element of K and V: headers, directories and parameters are counted."
        " Errors are relative: the root of the summed squared error over that of the summed"
        " squares, of all layers, and in brackets the worst layer and its error. Of K both sums are"
        " taken about the means of channels: what a constant of a channel adds tells no token from"
        " another. encode and decode are of source bytes, on one core, one block at a time;"
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
        notes.append("KL and perplexity are not in the table: they need a judge (--judge).")
    if all(one.attention_error is None for one in found):
        notes.append("The error of attention is not in the table: it needs queries (q) in the dump.")
    missing = about["not_measured"].items()
    return [*notes, *about["notes"], *(f"{name} is not measured: {why}." for name, why in missing)]


def _heats(found: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """Makes a table each for K, V and attention, with a row per layer and a column per lossy
    recipe."""
    lossy = [one for one in found if one.kv_error]
    planes = [
        ("K", "k_error"),
        ("V", "v_error"),
        ("What attention returns", "attention_error"),
    ]
    return [
        {
            "name": name,
            "recipes": [one.name.replace("/", "/\n") for one in lossy],
            "rows": _heat_rows(lossy, figure),
        }
        for name, figure in planes
        if any(getattr(one, figure) is not None for one in lossy)
    ]


def _heat_rows(lossy: Sequence[Evaluation], figure: str) -> list[dict[str, Any]]:
    by_layer = [getattr(one, f"{figure}_by_layer") for one in lossy]
    rows = [
        {"label": layer, "cells": [_heat(errors[place]) for errors in by_layer]}
        for place, layer in enumerate(lossy[0].layers)
    ]
    whole = [_heat(getattr(one, figure)) for one in lossy]
    return [*rows, {"label": "all", "cells": whole}]


def _heat(error: float | None) -> dict[str, str] | None:
    if error is None:
        return None
    percent = 100 * error
    text = f"{percent:.0f}" if percent >= 9.95 else f"{percent:.1f}"
    if 0 < percent < 0.1:
        text = f"{percent:.2f}"
    ink = "#fff" if _share(error) > 0.5 else "#1c2733"
    return {"color": _color(error), "ink": ink, "text": text}


def _share(error: float) -> float:
    """Returns the position of an error between the two ends of the colours."""
    if not math.isfinite(error):
        return 1.0
    decades = math.log10(_HEAT_MOST / _HEAT_LEAST)
    return min(1.0, max(0.0, math.log10(max(error, _HEAT_LEAST) / _HEAT_LEAST) / decades))


def _color(error: float) -> str:
    share = _share(error)
    ends = zip(_HEAT_LIGHT, _HEAT_DARK, strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in ends)
