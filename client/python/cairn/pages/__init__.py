# SPDX-License-Identifier: Apache-2.0
"""Self-contained HTML pages with SVG charts, for `cairn.evaluate` and `cairnctl replay`.

Needs jinja2 and matplotlib: the wheel's extra `evaluate`.
"""

from __future__ import annotations

import pathlib
from typing import Any

import jinja2

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def render(template: str, **values: Any) -> str:
    """Returns the page of a template in this folder."""
    return _ENVIRONMENT.get_template(template).render(**values)
