# SPDX-License-Identifier: Apache-2.0
"""Draws the charts of docs/results from the tables of docs/results/benchmarks.md, so that pictures
and page say the same: build/venv/bin/python tests/bench/charts.py"""

import argparse
import pathlib
import re

RESULTS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "results"
CAIRN, OTHER, TEXT = "#2b6cb0", "#a0aec0", "#2d3748"
LIGHT = {CAIRN: "#90cdf4", OTHER: "#e2e8f0"}  # of puts
FIRST_TOKENS = {
    "vLLM alone, computed": "computed anew",
    "`LMCacheMPConnector`": "hit in LMCache",
    "`ExampleConnector`": "hit in vLLM's example connector",
    "Cairn, `exact`": "hit in Cairn",
    "vLLM alone, a hit in its own cache": "hit in vLLM's own memory",
}
PEERS = {
    "cairn local raw": "Cairn, raw",
    "lmcache server": "LMCache's server",
    "cairn local exact": "Cairn, exact",
    "mooncake tcp": "Mooncake, TCP",
    "redis": "Redis",
}


def rows(page: str, heading: str) -> list[list[str]]:
    """Cells of the table whose first line begins with `heading`."""
    _, _, table = page.partition(heading)
    lines = table.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def first_tokens(page: str) -> dict[str, float]:
    """Medians, in milliseconds, by the table's first column."""
    return {cells[0]: float(cells[1].split()[0]) for cells in rows(page, "| loads | first token, ms |")}


def peers(page: str) -> dict[str, tuple[float, float]]:
    """GB/s of puts and gets of 4 MiB, one at a time, by store."""
    found = {}
    for cells in rows(page.partition("## Compared with other stores")[2], "| case | put GB/s |"):
        store = re.fullmatch(r"(.*) 4 MiB, 1 at once", cells[0])
        if store:
            found[store[1]] = (float(cells[1]), float(cells[4]))
    return found


def start(height: float):
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    style = {"svg.hashsalt": "cairn", "svg.fonttype": "none", "font.size": 10, "text.color": TEXT}
    plt.rcParams.update(style)
    figure, panel = plt.subplots(figsize=(8.4, height))
    panel.set_xticks([])
    panel.tick_params(left=False, labelcolor=TEXT)
    for side in panel.spines.values():
        side.set_visible(False)
    return figure, panel


def finish(figure, panel, title: str, path: pathlib.Path) -> None:
    panel.set_title(title, loc="left", size=10)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def draw_first_tokens(medians: dict[str, float], path: pathlib.Path) -> None:
    figure, panel = start(2.2)
    names = list(reversed(FIRST_TOKENS))
    values = [medians[name] for name in names]
    colors = [CAIRN if name.startswith("Cairn") else OTHER for name in names]
    panel.barh([FIRST_TOKENS[name] for name in names], values, color=colors, height=0.7)
    for line, value in enumerate(values):
        panel.text(value + 20, line, f"{value:,.0f} ms", va="center")
    panel.set_xlim(0, max(values) * 1.12)
    panel.set_xticks([])
    finish(figure, panel, "Time to the first token of a prompt of 2,048 tokens, vLLM's CPU build", path)


def draw_peers(rates: dict[str, tuple[float, float]], path: pathlib.Path) -> None:
    figure, panel = start(3.0)
    names = list(reversed(PEERS))
    for line, name in enumerate(names):
        color = CAIRN if name.startswith("cairn") else OTHER
        write, read = rates[name]
        bars = ((0.2, read, "read", color), (-0.2, write, "write", LIGHT[color]))
        for place, rate, verb, shade in bars:
            panel.barh(line + place, rate, color=shade, height=0.38)
            panel.text(rate + 0.02, line + place, f"{verb} {rate:.2f} GB/s", va="center", size=9)
    panel.set_yticks(range(len(names)), [PEERS[name] for name in names])
    panel.set_xlim(0, max(max(rate) for rate in rates.values()) * 1.2)
    panel.set_xticks([])
    finish(figure, panel, "Blocks of 4 MiB, one at a time, on one host; only Cairn verifies what it reads", path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=pathlib.Path, default=RESULTS / "benchmarks.md")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    given = parser.parse_args()
    page = given.page.read_text(encoding="utf-8")
    draw_first_tokens(first_tokens(page), given.out / "first-token.svg")
    draw_peers(peers(page), given.out / "peers.svg")


if __name__ == "__main__":
    main()
