# SPDX-License-Identifier: Apache-2.0
"""Charts of pages: drawn by matplotlib as SVG, and inserted into HTML."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from xml.etree import ElementTree

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK, GRID, GREY = "#1c2733", "#dde3e8", "#9aa7b4"
BLUE, LIGHT_BLUE, GREEN, ORANGE, PURPLE, RED = (
    "#2463a6",
    "#8fbfe0",
    "#2f8f4e",
    "#d9822b",
    "#7b4fa3",
    "#c0392b",
)
_STYLE = {
    "svg.fonttype": "none",  # keeps text as text, in the font of the page
    "svg.hashsalt": "cairn",  # the same figure always gives the same file
    "font.size": 9,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "xtick.major.pad": 6,
    "ytick.major.size": 0,
}
_HINT = "hint: "
_FULL_NAME = re.compile(r"\{[^}]*\}")


def hint(text: str) -> str:
    """Returns the gid of an artist for which the mouse shows the text."""
    return _HINT + text


def chart(
    title: str,
    inches: tuple[float, float],
    margins: tuple[float, float, float, float],
    draw: Callable[[Axes], None],
) -> Markup:
    """Returns the chart that `draw` draws on the axes. margins: left, right, bottom and top margins
    in inches, for labels. title: also for screen readers."""
    (width, height), (left, right, bottom, top) = inches, margins
    with matplotlib.rc_context(_STYLE):
        figure = Figure(inches)
        FigureCanvasAgg(figure)  # it knows the sizes of texts
        size = (width - left - right) / width, (height - bottom - top) / height
        axes = figure.add_axes((left / width, bottom / height, *size))
        axes.set_title(title)
        draw(axes)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return _inline(file.getvalue(), title)


def _inline(text: str, title: str) -> Markup:
    """Converts an SVG file to an HTML element: without namespaces and links, and with unique ids.
    """
    root = ElementTree.fromstring(text)
    prefix = re.sub(r"\W+", "-", title).strip("-").lower()
    for child in list(root):
        if child.tag.endswith("metadata"):
            root.remove(child)
    for element in root.iter():
        element.tag = _FULL_NAME.sub("", element.tag)
        given = {_FULL_NAME.sub("", name): value for name, value in element.attrib.items()}
        element.attrib.clear()
        for name, value in given.items():
            if name == "id" and value.startswith(_HINT):
                said = ElementTree.Element("title")
                said.text = value.removeprefix(_HINT)
                element.insert(0, said)
            elif name == "id":
                element.set(name, f"{prefix}-{value}")
            else:
                element.set(name, re.sub(r"(^#|url\(#)", rf"\1{prefix}-", value))
    root.set("role", "img")
    root.set("aria-label", title)
    for name in ("width", "height"):  # the page sets them
        root.attrib.pop(name, None)
    return Markup(ElementTree.tostring(root, encoding="unicode"))
