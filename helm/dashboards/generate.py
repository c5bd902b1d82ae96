# SPDX-License-Identifier: Apache-2.0
"""Writes the dashboards of panels.py as Grafana's JSON into the chart: generate.py [FOLDER].

The files are committed, so that whoever has the chart needs no generator; a test compares them with what this writes.
"""

import json
import pathlib
import sys

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard as models
from gpu_panels import GPU
from panels import COLORS, DASHBOARDS

ALL = DASHBOARDS | {"gpu": ("Cairn: GPU", "cairn-gpu", [("", GPU)])}
HERE = pathlib.Path(__file__).resolve().parent
COLUMNS = 24
HEIGHT = {"timeseries": 8, "stat": 4}
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
INSTANCES = 'job="cairn",instance=~"$instance"'


def full(expression):
    """An expression as Grafana takes it."""
    return expression.replace("$I", INSTANCES).replace("$R", "$__rate_interval")


def expressions():
    """(dashboard, panel, expression) of every query, as Grafana takes it."""
    for name, (_, _, rows) in ALL.items():
        for _, panels in rows:
            for panel in panels:
                for expression, _ in panel.queries:
                    yield name, panel.title, full(expression)


def colors_of(panel):
    """{series: colour}, of what its legends can say."""
    if panel.colors:
        return panel.colors
    legends = {legend for _, legend in panel.queries}
    found = {}
    for label, colors in COLORS.items():
        if "{{" + label + "}}" in legends:
            found |= colors
    return found


def color_and_hide(built, panel):
    """Fixed colours, and no series in the legend that is 0 all the time."""
    colors = colors_of(panel)
    for color in dict.fromkeys(colors.values()):
        names = "|".join(name for name, its in colors.items() if its == color)
        fixed = models.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})
        built.override_by_regexp(f"/^({names})$/", [fixed])
    hidden = models.DynamicConfigValue("custom.hideFrom", {"legend": True, "tooltip": True, "viz": False})
    built.with_override(models.MatcherConfig("byValue", {"reducer": "allIsZero", "op": "gte", "value": 0}), [hidden])


def build_panel(panel, number, column, line):
    height = HEIGHT[panel.kind]
    built = {"timeseries": timeseries.Panel, "stat": stat.Panel}[panel.kind]()
    built.title(panel.title).description(panel.description).unit(panel.unit).datasource(SOURCE).id(number)
    built.min(0)
    built.grid_pos(models.GridPos(h=height, w=panel.width, x=column, y=line))
    if panel.kind == "timeseries":
        built.fill_opacity(10).line_width(1).show_points(common.VisibilityMode.NEVER)
        if panel.stacked:
            built.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL)).fill_opacity(60)
        color_and_hide(built, panel)
    for index, (expression, legend) in enumerate(panel.queries):
        query = prometheus.Dataquery().expr(full(expression)).legend_format(legend).ref_id(chr(ord("A") + index))
        built.with_target(query.datasource(SOURCE))
    return built


def build(title, uid, rows):
    board = dashboard.Dashboard(title).uid(uid).tags(["cairn"]).refresh("30s").time("now-1h", "now").timezone("browser")
    board.tooltip(models.DashboardCursorSync.CROSSHAIR).editable()
    board.with_variable(dashboard.DatasourceVariable("datasource").type("prometheus").label("Data source"))
    board.with_variable(
        dashboard.QueryVariable("instance")
        .label("Instance")
        .datasource(SOURCE)
        .query('label_values(cairn_build_info{job="cairn"}, instance)')
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".+")
    )
    number, line = 1, 0
    for row, panels in rows:
        if row:
            board.with_row(dashboard.Row(row).id(number).grid_pos(models.GridPos(h=1, w=COLUMNS, x=0, y=line)))
            number, line = number + 1, line + 1
        column = 0
        for panel in panels:
            if column + panel.width > COLUMNS:
                column, line = 0, line + HEIGHT[panel.kind]
            board.with_panel(build_panel(panel, number, column, line))
            number, column = number + 1, column + panel.width
        line += HEIGHT[panels[-1].kind]
    return json.dumps(board.build(), cls=JSONEncoder, sort_keys=True, indent=1) + "\n"


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "cairn" / "files" / "dashboards"
    folder.mkdir(parents=True, exist_ok=True)
    for name, dashboard_ in ALL.items():
        (folder / f"{name}.json").write_text(build(*dashboard_))


if __name__ == "__main__":
    main()
