# SPDX-License-Identifier: Apache-2.0
"""Alerts and recording rules fire on what they are for and on nothing else; they and the dashboards name what there is."""

import json
import re
import subprocess

import promql_parser
import pytest
import yaml
from alert_cases import CASES, MINUTES, MINUTES_OF
from conftest import CHART, DASHBOARDS, ROOT, RULES, TOOLS, concrete, dashboard_expressions, rules, run

RECORDED = {rule["record"] for rule in rules() if "record" in rule}
# Of Prometheus, and what it adds to every sample.
METRICS_OF_SCRAPES = {"up"}
LABELS_OF_SCRAPES = {"job", "instance", "le"}


def documented():
    """Labels by metric of docs/reference/metrics.md, a histogram under the names of its series."""
    found = {}
    for line in (ROOT / "docs" / "reference" / "metrics.md").read_text().splitlines():
        row = re.match(r"\| `(cairn_\w+)` \| (\w+) \| [^|]* \| ([^|]*) \|", line)
        if row:
            name, kind, labels = row.groups()
            labels = set(re.findall(r"`(\w+)`(?=:|;|$| \|)", labels.strip())) | set(re.findall(r"`(\w+)`:", labels))
            for suffix in ["_bucket", "_sum", "_count"] if kind == "histogram" else [""]:
                found[name + suffix] = labels
    return found


def selectors(node):
    """(metric, labels that it is selected by) of every one below a node of an expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node.name, {matcher.name for matcher in node.matchers.matchers}
    elif isinstance(node, promql_parser.MatrixSelector):
        yield from selectors(node.vector_selector)
    elif isinstance(node, promql_parser.Call):
        for argument in node.args:
            yield from selectors(argument)
    elif isinstance(node, promql_parser.BinaryExpr):
        yield from selectors(node.lhs)
        yield from selectors(node.rhs)
    elif isinstance(node, (promql_parser.AggregateExpr, promql_parser.ParenExpr, promql_parser.UnaryExpr)):
        yield from selectors(node.expr)
    elif not isinstance(node, (promql_parser.NumberLiteral, promql_parser.StringLiteral)):
        raise AssertionError(f"an expression of a kind that this test does not know: {type(node)}")


def test_every_expression_names_what_there_is():
    known = documented()
    assert len(known) > 100
    texts = [concrete(text) for _, _, text in dashboard_expressions()] + [rule["expr"] for rule in rules()]
    unknown = []
    for text in texts:
        for metric, labels in selectors(promql_parser.parse(text)):
            if metric not in known.keys() | RECORDED | METRICS_OF_SCRAPES:
                unknown.append(f"{metric} in {text}")
            extra = labels - known.get(metric, set()) - LABELS_OF_SCRAPES
            if extra and metric not in RECORDED:
                unknown.append(f"labels {extra} of {metric} in {text}")
    assert not unknown, "\n".join(unknown)


def test_every_label_value_named_is_a_documented_one():
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    for expression in [text for _, _, text in dashboard_expressions()] + [rule["expr"] for rule in rules()]:
        for name, values in re.findall(r'(tier|outcome|op|state)[!=]~?="?([^"}]+)"', expression):
            for value in values.split("|"):
                listed = rf"`{name}`:[^|]*\b{re.escape(value)}\b"
                assert re.search(listed, text), f"{name}={value} in {expression}"


def test_promtool_takes_the_rules():
    assert "SUCCESS" in run(TOOLS / "promtool", "check", "rules", RULES)


def test_every_alert_has_cases_and_a_page_in_the_runbook():
    alerts = {rule["alert"]: rule for rule in rules() if "alert" in rule}
    assert set(CASES) == set(alerts)
    runbook = (ROOT / "docs" / "guides" / "runbook.md").read_text()
    headings = set(re.findall(r"^## (\w+)$", runbook, re.MULTILINE))
    assert headings == set(alerts)
    for name, rule in alerts.items():
        assert rule["annotations"]["runbook"] == f"docs/guides/runbook.md#{name.lower()}"
        assert rule["labels"]["severity"] == CASES[name].severity


def promtool_test(alert, series, expected):
    minutes = MINUTES_OF.get(alert, MINUTES)
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": f"{minutes}m", "alertname": alert, "exp_alerts": expected}],
    }


def run_promtool(folder, tests):
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    return subprocess.run([TOOLS / "promtool", "test", "rules", path], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("alert", CASES)
def test_fires_on_what_it_is_for_and_on_nothing_else(alert, tmp_path):
    case = CASES[alert]
    labels = case.labels | {"severity": case.severity}
    if case.instance:
        labels["instance"] = case.instance
    expected = {
        "exp_labels": labels,
        "exp_annotations": {"summary": case.summary, "runbook": f"docs/guides/runbook.md#{alert.lower()}"},
    }
    tests = [promtool_test(alert, case.fires, [expected]), promtool_test(alert, case.silent, [])]
    ran = run_promtool(tmp_path, tests)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    swapped = [promtool_test(alert, case.silent, [expected])]
    assert run_promtool(tmp_path, swapped).returncode != 0, "a case that holds for anything proves nothing"


def test_recorded_series(tmp_path):
    series = {
        'cairn_match_found_blocks_total{instance="n1"}': "0+30x40",
        'cairn_match_asked_blocks_total{instance="n1"}': "0+40x40",
        'cairn_source_bytes{instance="n1"}': "300x40",
        'cairn_image_bytes{instance="n1"}': "200x40",
        'cairn_ssd_io_bytes_total{instance="n1",device="0",op="write"}': "0+120x40",
        'cairn_ssd_written_bytes_total{instance="n1",device="0"}': "0+100x40",
    }
    expected = {
        "cairn:block_hits:ratio_rate5m": ("", 0.75),
        "cairn:effective_capacity:ratio": ("", 1.5),
        "cairn:ssd_write_amplification:ratio_rate1h": (',device="0"', 1.2),
    }
    assert set(expected) == RECORDED
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": f"round({name}, 0.001)",  # promtool compares exactly
                    "eval_time": "30m",
                    "exp_samples": [{"labels": f'{{instance="n1"{labels}}}', "value": value}],
                }
                for name, (labels, value) in expected.items()
            ],
        }
    ]
    ran = run_promtool(tmp_path, tests)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_dashboards_are_what_their_source_says(tmp_path):
    run(ROOT / "build" / "venv" / "bin" / "python", ROOT / "helm" / "dashboards" / "generate.py", tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.glob("*.json")}
    kept = {path.name: path.read_text() for path in DASHBOARDS.glob("*.json")}
    assert made == kept, "run helm/dashboards/generate.py"


@pytest.mark.parametrize("path", sorted(DASHBOARDS.glob("*.json")), ids=lambda path: path.stem)
def test_a_dashboard_is_well_formed(path):
    board = json.loads(path.read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert all(x < 24 for x, _ in cells) and not cells & taken, panel["title"]
        taken |= cells
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] == "${datasource}"
            assert "$instance" in target["expr"] or "up{" in target["expr"]
    uids = [json.loads(other.read_text())["uid"] for other in DASHBOARDS.glob("*.json")]
    assert len(set(uids)) == len(uids)


def test_the_chart_carries_them(render):
    objects = render("-f", CHART / "ci" / "sidecar-values.yaml")
    (rule,) = [found for found in objects if found["kind"] == "PrometheusRule"]
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    maps = {key: value for found in objects if found["kind"] == "ConfigMap" for key, value in found["data"].items()}
    assert {name: json.loads(text) for name, text in maps.items()} == {
        path.name: json.loads(path.read_text()) for path in DASHBOARDS.glob("*.json")
    }
    labels = [found["metadata"]["labels"] for found in objects if found["kind"] == "ConfigMap"]
    assert all(found["grafana_dashboard"] == "1" for found in labels)
