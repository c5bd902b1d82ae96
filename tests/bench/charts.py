# SPDX-License-Identifier: Apache-2.0
"""Draws docs/first-token.svg from the table of connectors in docs/benchmarks.md, so that the picture
and the page say the same: build/venv/bin/python tests/bench/charts.py"""

import argparse
import pathlib
import re

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
CAIRN, OTHER, TEXT = "#2b6cb0", "#a0aec0", "#2d3748"
LABELS = {
    "vLLM alone, computed": "computed anew",
    "`LMCacheMPConnector`": "hit in LMCache",
    "`ExampleConnector`": "hit in vLLM's example connector",
    "Cairn, `exact`": "hit in Cairn",
    "vLLM alone, a hit in its own cache": "hit in vLLM's own memory",
}


def first_tokens(page: str) -> dict[str, float]:
    """Medians, in milliseconds, by the table's first column."""
    _, _, table = page.partition("| loads | first token, ms |")
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \(", table.partition("\n\n")[0], re.MULTILINE)
    return {name: float(median) for name, median in rows}


def draw(medians: dict[str, float], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    style = {"svg.hashsalt": "cairn", "svg.fonttype": "none", "font.size": 10, "text.color": TEXT}
    plt.rcParams.update(style)
    names = list(reversed(LABELS))
    values = [medians[name] for name in names]
    figure, panel = plt.subplots(figsize=(8.4, 2.2))
    colors = [CAIRN if name.startswith("Cairn") else OTHER for name in names]
    panel.barh([LABELS[name] for name in names], values, color=colors, height=0.7)
    for line, value in enumerate(values):
        panel.text(value + 20, line, f"{value:,.0f} ms", va="center")
    panel.set_xlim(0, max(values) * 1.12)
    panel.set_xticks([])
    panel.tick_params(left=False, labelcolor=TEXT)
    for side in panel.spines.values():
        side.set_visible(False)
    panel.set_title(
        "Time to the first token of a prompt of 2,048 tokens, vLLM's CPU build", loc="left", size=10
    )
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=pathlib.Path, default=DOCS / "benchmarks.md")
    parser.add_argument("--out", type=pathlib.Path, default=DOCS / "first-token.svg")
    given = parser.parse_args()
    draw(first_tokens(given.page.read_text(encoding="utf-8")), given.out)


if __name__ == "__main__":
    main()
