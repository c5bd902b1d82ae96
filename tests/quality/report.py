# SPDX-License-Identifier: Apache-2.0
"""Writes measured figures into docs/results: the tables of quality.md and quality-tables.md, the
plot, and the data behind them.

    build/venv/bin/python tests/quality/report.py [--results build/quality-cache/results.jsonl]
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import re
from collections.abc import Callable

from run import CACHE, IDENTITY, read_results  # first: sets the paths

from claims import claims_of, refuted
from goals import counted, goals_table, lab_table
from models import MODELS

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
PAGES = (RESULTS / "quality.md", RESULTS / "quality-tables.md")
PLOT, DATA = RESULTS / "quality.svg", RESULTS / "quality.jsonl"
PAGES_WITH_CLAIMS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
# Of the table of what a user gets: recipes, and what they code with in the study and as a user's.
MAIN = ("exact", "fp8", "kivi:4", "cairn:4.3", "kivi:2+", "cairn-hot:2.4", "cairn:2.3")
TEXTS, SIDES = ("A", "B", "alice"), ("plain", "evaluate", "daemon")
LOSSLESS = ("raw", "exact", "exact:fast")
KL_MIN = 1e-5  # of the plot: less is lost in the rounding of fp32

NOT_RUN = "*not run*"

Row = dict
Column = tuple[str, Callable[[Row], str]]


def replace_tables(page: str, tables: dict[str, str]) -> str:
    """Puts each table between <!-- table NAME --> and <!-- end -->."""
    for name, table in tables.items():
        marks = rf"(<!-- table {name} -->\n).*?(<!-- end -->)"
        page, count = re.subn(marks, lambda m: f"{m[1]}{table}\n{m[2]}", page, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{count} places for table {name}")
    return page


def pivot(
    rows: list[Row],
    column_of: Callable[[Row], tuple],
    name_of: Callable[[tuple], str],
    cell: Callable[[Row], str],
) -> str:
    """Recipes and their profiles down, by falling bits; `column_of` across. Bits are the mean over
    the columns."""
    columns = sorted({column_of(row) for row in rows})
    lines: dict[tuple, dict] = {}
    for row in rows:
        lines.setdefault((row["recipe"], row["profile"] or ""), {})[column_of(row)] = row
    bits = {
        line: sum(row["bits"] for row in cells.values()) / len(cells)
        for line, cells in lines.items()
    }
    names = ["recipe", "profile", "bits", "coded by", *map(name_of, columns)]
    table = ["| " + " | ".join(names) + " |", "| --- " * len(names) + "|"]
    for line in sorted(lines, key=lambda line: (-bits[line], line)):
        recipe, profile = line
        coders = sorted({row["through"] for row in lines[line].values()})
        cells = [lines[line].get(column) for column in columns]
        shown = [cell(row) if row else "" for row in cells]
        shown = [f"`{recipe}`", profile, f"{bits[line]:.3f}", ", ".join(coders), *shown]
        table.append("| " + " | ".join(shown) + " |")
    return "\n".join(table)


def number(value: float, decimals: int | None = None) -> str:
    """With so many decimals; without them, as many as its magnitude asks for."""
    if value == 0:
        return "0"
    if decimals is None:
        decimals = 2 if value >= 1 else 4 if value >= 0.001 else 5
    return f"{value:.{decimals}f}"


def with_error(value: float, error: float) -> str:
    """Both down to the second significant digit of the error, and no further than 0.00001."""
    if error == 0:
        return number(value)
    decimals = min(max(0, 1 - math.floor(math.log10(error))), 5)
    return f"{number(value, decimals)} ± {number(error, decimals)}"


def divergence_cell(row: Row) -> str:
    return with_error(row["kl"], row["kl_error"])


def details_cell(row: Row) -> str:
    trimmed, ratio = number(row["kl_trimmed"]), row["perplexity_ratio"]
    return f"{trimmed} · {ratio:.3f} · {100 * row['same_top']:.0f} %"


def written_cell(row: Row) -> str:
    return f"{with_error(row['regret'], row['regret_error'])} · {row['same_tokens']}"


def exact_table(rows: list[Row], column_of: Callable, name_of: Callable) -> str:
    found = {column_of(row): row["perplexity_exact"] for row in rows}
    names = [name_of(column) for column in sorted(found)]
    values = [f"{found[column]:.1f}" for column in sorted(found)]
    lines = [names, ["---"] * len(names), values]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def studied(rows: list[Row]) -> list[Row]:
    """Without those of a user's profiles, which have a table of their own."""
    return [row for row in rows if row["profile"] not in SIDES[1:]]


def user_table(rows: list[Row]) -> str:
    """The study's figures beside a user's, of texts A, B and alice. A recipe without a profile has
    one figure for all."""
    found = {
        (row["recipe"], row["model"], row["profile"], row["text"]): row for row in counted(rows)
        if row["test"] == "forced"
    }
    names = ["recipe", "model", "study", *SIDES[1:]]
    table = ["| " + " | ".join(names) + " |", "| --- " * len(names) + "|"]
    for recipe in MAIN:
        sides = SIDES if recipe.startswith("cairn") else (None, "", "")
        for model in MODELS:
            cells = [
                "the same"
                if side == ""
                else _user_cell([found.get((recipe, model, side, text)) for text in TEXTS])
                for side in sides
            ]
            table.append("| " + " | ".join([f"`{recipe}`", model, *cells]) + " |")
    return "\n".join(table)


def _user_cell(rows: list[Row | None]) -> str:
    if not any(rows):
        return NOT_RUN
    figures = " · ".join(number(row["kl"]) if row else NOT_RUN for row in rows)
    bits = [row["bits"] for row in rows if row]
    return f"{figures} ({sum(bits) / len(bits):.2f})"


def make_tables(rows: list[Row]) -> dict[str, str]:
    def by_text(row: Row) -> tuple:
        return (list(MODELS).index(row["model"]), row["text"])

    def by_prefix(row: Row) -> tuple:
        return (list(MODELS).index(row["model"]), row["prefix_tokens"])

    def name_of(column: tuple) -> str:
        return f"{list(MODELS)[column[0]]} {column[1]}"

    forced = [row for row in studied(rows) if row["test"] == "forced"]
    at_2048 = [row for row in forced if row["prefix_tokens"] == 2048]
    on_a = [row for row in forced if row["text"] == "A"]
    copied = [row for row in rows if row["test"] == "copy"]
    written = [row for row in rows if row["test"] == "written"]
    tensors = [row for row in at_2048 if row["text"] == "A"]
    return {
        "exact": exact_table(at_2048, by_text, name_of),
        "forced": pivot(at_2048, by_text, name_of, divergence_cell),
        "details": pivot(at_2048, by_text, name_of, details_cell),
        "user": user_table(rows),
        "copy": pivot(copied, by_text, name_of, divergence_cell),
        "length": pivot(on_a, by_prefix, name_of, divergence_cell),
        "written": pivot(written, by_text, name_of, written_cell),
        "tensors": pivot(
            tensors, by_text, name_of, lambda row: f"{row['k_error']:.4f} · {row['v_error']:.4f}"
        ),
    }


def family_of(row: Row) -> str:
    """`kivi:2` and `kivi:4` are one series, `kivi:2+` is in another; a profile makes a third."""
    name = row["recipe"].split(":")[0]
    name += "+" if row["recipe"].endswith("+") else ""
    # Of a model that was not measured with the study's profile, a user's stands for it.
    profile = {"evaluate": "plain"}.get(row["profile"], row["profile"])
    return f"{name}/{profile}" if profile else name


# What has a color and names; all else is grey.
SERIES = {
    "kivi": ("#c05621", "kivi"),
    "kivi+": ("#d69e2e", "kivi with +"),
    "cairn-hot/plain": ("#319795", "cairn-hot"),
    "cairn/plain": ("#2b6cb0", "cairn, plain profile"),
    "cairn/basis": ("#553c9a", "cairn, profile with a basis"),
}
GREY = "#a0aec0"


def drawn(rows: list[Row]) -> list[Row]:
    """The study's rows, and of a model without them those of evaluate's profile."""
    with_plain = {row["model"] for row in rows if row["profile"] == "plain"}
    kept = [
        row for row in rows if row["profile"] == "evaluate" and row["model"] not in with_plain
    ]
    return [
        row
        for row in studied(rows) + kept
        if row["prefix_tokens"] == 2048 and row["recipe"] not in LOSSLESS
    ]


def draw(rows: list[Row], path: pathlib.Path) -> None:
    """Bits against divergence: a line for each series of SERIES, a dot for each text."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    # Same bytes from same figures: no date, no random ids; text stays text.
    matplotlib.rcParams.update({"svg.hashsalt": "cairn", "svg.fonttype": "none", "font.size": 9})
    size = (4.2 * len(MODELS), 7.4)
    figure, panels = plt.subplots(2, len(MODELS), figsize=size, sharex=True, sharey=True)
    for line, (test, what) in enumerate([("forced", "reading on"), ("copy", "copying")]):
        for side, (model, model_name) in enumerate(MODELS.items()):
            panel = panels[line][side]
            mine = [row for row in rows if (row["test"], row["model"]) == (test, model)]
            if not mine:
                panel.set_axis_off()
                continue
            draw_panel(panel, mine)
            panel.set_title(f"{model_name}, {what}")
            panel.tick_params(labelbottom=True)
            if side == 0:
                panel.set_ylabel("loss: mean KL, nats per token")
    for panel in panels.flat:
        panel.set_xlabel("bits per element of K and V")
    handles = [plt.Line2D([], [], color=color, marker="o") for color, _ in SERIES.values()]
    handles.append(plt.Line2D([], [], color=GREY, marker="o", linestyle=""))
    names = [*(name for _, name in SERIES.values()), "all other recipes"]
    figure.legend(handles, names, frameon=False, loc="lower center", ncol=6)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, metadata={"Date": None})


def draw_panel(panel, rows: list[Row]) -> None:
    panel.set_yscale("log")
    panel.set_xlim(1.0, 9.7)
    panel.grid(True, which="major", color="#e2e8f0", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    points: dict[str, list[tuple[float, float, str]]] = {}
    recipes: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        recipes.setdefault((family_of(row), row["recipe"]), []).append(row)
    for (family, recipe), same in recipes.items():
        color = SERIES[family][0] if family in SERIES else GREY
        bits = [row["bits"] for row in same]
        losses = [max(row["kl"], KL_MIN) for row in same]
        panel.plot(bits, losses, "o", color=color, alpha=0.5, markersize=4, markeredgewidth=0)
        mean = math.exp(sum(map(math.log, losses)) / len(losses))
        points.setdefault(family, []).append((sum(bits) / len(bits), mean, recipe))
    for family, (color, _) in SERIES.items():
        found = sorted(points.get(family, []))
        if found:
            across, up, _ = zip(*found, strict=True)
            panel.plot(across, up, "-o", color=color, markersize=5, linewidth=1.2)
        for bits, loss, recipe in found:
            # One name for both profiles of cairn; names of most are left of their line.
            if family == "cairn/basis" or recipe == "cairn:2.2":
                continue
            right = family in ("kivi", "cairn-hot/plain")
            panel.annotate(
                recipe,
                (bits, loss),
                (6, 2) if right else (-6, -5),
                textcoords="offset points",
                ha="left" if right else "right",
                color=color,
                fontsize=8,
            )


def refuted_claims(rows: list[Row]) -> list[str]:
    claims = [claim for page in PAGES_WITH_CLAIMS for claim in claims_of(page, tuple(MODELS))]
    return refuted(claims, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=pathlib.Path, default=CACHE / "results.jsonl")
    arguments = parser.parse_args()
    rows = list(read_results(arguments.results).values())
    # The codec's after the daemon's: where both coded, tables show the last.
    rows.sort(key=lambda row: [row[x] or "" for x in IDENTITY[:-1]] + [row["through"] == "codec"])
    DATA.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tables = make_tables(rows) | {"goals": goals_table(rows), "lab": lab_table(rows)}
    for page in PAGES:
        text = page.read_text()
        here = {name: tables.pop(name) for name in list(tables) if f"<!-- table {name} -->" in text}
        page.write_text(replace_tables(text, here))
    if tables:
        raise ValueError(f"no place for tables {', '.join(tables)}")
    draw(drawn(rows), PLOT)
    for row in rows:
        is_lossless = row["recipe"] in LOSSLESS
        if is_lossless and (row.get("kl") or row.get("k_error") or row.get("v_error")):
            raise SystemExit(f"{row['recipe']} is not lossless: {row}")
    if lines := refuted_claims(rows):
        raise SystemExit("\n".join(["rows refute what pages claim:", *lines]))


if __name__ == "__main__":
    main()
