# SPDX-License-Identifier: Apache-2.0
"""Runs helm over the chart, offline and with a home of its own."""

import json
import os
import pathlib
import subprocess

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "cairn"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
TOOLS = ROOT / "build" / "tools" / "bin"
DASHBOARDS = CHART / "files" / "dashboards"
RULES = CHART / "files" / "rules.yaml"
# What a release of every form needs at least.
IMAGE = ["--set", "image.repository=registry.example/cairn"]


def pytest_collection_modifyitems(items):
    """Nothing to run is what run_pytest.py takes for skipped."""
    for tool in ["helm", "prometheus", "promtool"]:
        if not (TOOLS / tool).exists():
            print(f"\nskipped: {tool} is not there (.ci/tools)")
            items.clear()


def rules():
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def dashboard_expressions():
    """(dashboard, panel, expression) of every query."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                yield path.stem, panel["title"], target["expr"]


def concrete(expression, range_="1m"):
    """Without Grafana's variables."""
    return expression.replace("$__rate_interval", range_).replace("$instance", ".+")


def run(*command, fails=False, **options):
    """What it prints; `fails`: it has to fail."""
    ran = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, **options,
    )  # fmt: skip
    assert (ran.returncode != 0) == fails, f"{command}\n{ran.stdout}"
    return ran.stdout


@pytest.fixture(scope="session")
def helm(tmp_path_factory):
    home = tmp_path_factory.mktemp("helm")
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": "/nonexistent"}

    def call(*words, fails=False):
        return run(TOOLS / "helm", *words, fails=fails, env=environment)

    return call


@pytest.fixture(scope="session")
def render(helm):
    """The objects that a chart comes to."""

    def call(*words, chart=CHART):
        return [found for found in yaml.safe_load_all(helm("template", "r", chart, *words)) if found]

    return call
