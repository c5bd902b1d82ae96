# SPDX-License-Identifier: Apache-2.0
"""Every expression of the dashboards and rules, evaluated by a real Prometheus that scrapes a real daemon under load: each has a value.

CAIRN_LIVE_SECONDS says for how long a trace is replayed first (0).
"""

import contextlib
import json
import math
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import numpy as np
import promql_parser
import pytest
from conftest import ROOT, RULES, TOOLS, concrete, dashboard_expressions, rules

sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "client" / "examples" / "demo")]
import cairn  # noqa: E402
from daemon import Daemon  # noqa: E402

BIN = pathlib.Path(os.environ.get("CAIRN_BIN_DIR", ROOT / "build" / "release" / "bin"))
REPLAY_SECONDS = int(os.environ.get("CAIRN_LIVE_SECONDS", "0"))
LOAD_SECONDS = 8
LAYERS, HEADS, TOKENS, DIM = 8, 4, 64, 128  # a block of 1 MiB
CHAIN = 4
HOST_MIB = 64


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


class Prometheus:
    """targets: a file, which may change, of what it scrapes."""

    @staticmethod
    def write_target(targets, address):
        new = targets.with_suffix(".new")
        new.write_text(json.dumps([{"targets": [address], "labels": {"instance": "cairn-0"}}]))
        new.rename(targets)

    def __init__(self, folder, targets):
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "cairn", "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = open(folder / "prometheus.log", "w")
        command = [TOOLS / "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
        command.append(f"--web.listen-address=127.0.0.1:{port}")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)

    def await_scrape(self):
        for _ in range(200):
            with contextlib.suppress(OSError):
                if self.query('up{job="cairn"} == 1'):
                    return
            time.sleep(0.1)
        raise AssertionError("Prometheus does not scrape the daemon")

    def query(self, expression):
        """(labels, value) of every series."""
        answer = get(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        result = answer["data"]["result"]
        if answer["data"]["resultType"] == "scalar":
            return [({}, float(result[1]))]
        return [(series["metric"], float(series["value"][1])) for series in result]

    def query_range(self, expression, start, end, step):
        """(labels, [(time, value)]) of every series."""
        query = {"query": expression, "start": start, "end": end, "step": step}
        answer = get(f"{self.url}/api/v1/query_range?{urllib.parse.urlencode(query)}")
        return [
            (series["metric"], [(float(time_), float(value)) for time_, value in series["values"]])
            for series in answer["data"]["result"]
        ]

    def close(self):
        self.process.terminate()
        self.process.wait(20)
        self.log.close()


def write_trace(path, seconds):
    """Conversations that grow turn by turn behind a common first block, four requests a second."""
    rng = random.Random(1)
    conversations, next_id = [], 1
    with open(path, "w") as file:
        for at in range(0, seconds * 1000, 250):
            if not conversations or rng.random() < 0.15:
                conversations.append([0])
            ids = conversations[rng.randrange(max(0, len(conversations) - 24), len(conversations))]
            ids.extend(range(next_id, next_id + 3))
            next_id += 3
            request = {"timestamp": at, "input_length": 512 * len(ids), "output_length": 8, "hash_ids": ids}
            file.write(json.dumps(request) + "\n")


def replay(control, trace):
    """The blocks that were asked for and found, by the replay's own account."""
    command = [str(BIN / "cairnctl"), "replay", str(trace), "--control", control, "--rate", "1", "--json"]
    seen = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert (seen["wrong_bytes"], seen["lost_blocks"]) == (0, 0), seen
    return seen["blocks"], seen["hits"]["all"]["blocks"]


def load(client, seconds):
    """Chains of blocks are put, asked for and read back, older ones too, which went to the drive meanwhile."""
    group = cairn.KvGroup(LAYERS, HEADS, DIM, rope=cairn.Rope("half", DIM, 10000.0))
    space = client.open_space("synthetic", "live", [group], dtype="bf16", tokens_per_block=TOKENS, recipe="kivi:4")
    rng = np.random.default_rng(1)
    shape = (LAYERS, HEADS, TOKENS, DIM)
    out = np.zeros(shape, np.uint16), np.zeros(shape, np.uint16)
    chains = []
    asked = found = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(chains) * CHAIN * 0.27 < 2 * HOST_MIB:
        tokens = range(len(chains) * 1000, len(chains) * 1000 + CHAIN * TOKENS)
        keys = space.keys(tokens)
        for at, key in enumerate(keys):
            planes = [(rng.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16) for _ in range(2)]
            space.put(key, *planes, parent=keys[at - 1] if at else None, first_position=at * TOKENS)
        chains.append(keys)
        for wanted in [keys, chains[int(rng.integers(len(chains)))], space.keys(range(10**6, 10**6 + TOKENS))]:
            with space.match(wanted) as match:
                asked, found = asked + len(wanted), found + match.block_count
                for key in wanted[: match.block_count]:
                    space.get(key, *out)
    return asked, found


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """A Prometheus whose last minute holds a load, with what replay and load saw themselves, and when they began."""
    folder = tmp_path_factory.mktemp("live")
    disk = ROOT / "build" / f"live-{os.getpid()}"  # a temporary folder may be memory, which is no drive
    with contextlib.ExitStack() as stack:
        stack.callback(subprocess.run, ["rm", "-rf", disk])
        daemon = stack.enter_context(Daemon(BIN, "local", folder, f"{HOST_MIB}MiB", f"{disk}=512MiB"))
        Prometheus.write_target(folder / "targets.json", daemon.http)
        prometheus = Prometheus(folder, folder / "targets.json")
        stack.callback(prometheus.close)
        prometheus.await_scrape()
        began, asked, found = time.time(), 0, 0
        if REPLAY_SECONDS:
            write_trace(folder / "trace", REPLAY_SECONDS)
            asked, found = replay(daemon.control, folder / "trace")
        with cairn.connect(daemon.control, data=daemon.data, tenant="live") as client:
            loaded = load(client, LOAD_SECONDS)
            time.sleep(2)  # two scrapes more, so that Prometheus has all of it
            yield prometheus, asked + loaded[0], found + loaded[1], began


def test_every_panel_has_values(scraped):
    prometheus, *_ = scraped
    empty = []
    for board, panel, expression in dashboard_expressions():
        values = [value for _, value in prometheus.query(concrete(expression))]
        if board in ("gpu", "members"):
            assert not values, "this daemon has no GPU and is alone"  # its names are those of docs/reference/metrics.md: test_rules.py
            continue
        if not any(math.isfinite(value) for value in values):
            empty.append(f"{board}: {panel}: {values}: {expression}")
    assert not empty, "\n".join(empty)


def test_every_step_of_the_histograms_is_measured(scraped):
    """A step that never counts anything measures nothing."""
    prometheus, *_ = scraped
    for metric in ["cairn_put_step_seconds", "cairn_get_step_seconds"]:
        counts = {labels["step"]: value for labels, value in prometheus.query(f"{metric}_count")}
        assert counts and all(value > 0 for value in counts.values()), counts


def measured(expression):
    """What an alert compares: the comparison itself has no series while all is well."""
    node = promql_parser.parse(expression)
    while isinstance(node, promql_parser.BinaryExpr) and str(node.op) in ("==", ">", "and"):
        node = node.lhs
    return str(node)


def test_every_rule_has_values_and_none_fires(scraped):
    prometheus, *_ = scraped
    empty = []
    for rule in rules():
        text = measured(rule["expr"])
        values = [value for _, value in prometheus.query(text)]
        if re.search(r"cairn_(gpu|tls|policy|members?|peer)_", text):
            # With them: alert_cases.py, and their own tests.
            assert not values, "this daemon has no GPU tier, TLS, policy or members"
            continue
        if not any(math.isfinite(value) for value in values):
            empty.append(f"{rule.get('alert') or rule['record']}: {values}: {text}")
    assert not empty, "\n".join(empty)
    firing = prometheus.query('ALERTS{alertstate="firing"}')
    assert not firing, firing
    health = get(prometheus.url + "/api/v1/rules")["data"]["groups"]
    bad = [rule for group in health for rule in group["rules"] if rule["health"] != "ok"]
    assert not bad, bad


def test_the_recorded_hit_rate_is_what_was_seen(scraped):
    prometheus, asked, found, began = scraped
    counted = [
        sum(value for _, value in prometheus.query(f"cairn_match_{what}_blocks_total")) for what in ["asked", "found"]
    ]
    assert counted == [asked, found]
    assert len(prometheus.query("cairn:block_hits:ratio_rate5m")) == 1
    # The rule over all of the run, which may be longer than its five minutes.
    (rule,) = [rule for rule in rules() if rule.get("record") == "cairn:block_hits:ratio_rate5m"]
    over_all = rule["expr"].replace("[5m]", f"[{max(300, int(time.time() - began) + 1)}s]")
    ((_, recorded),) = prometheus.query(over_all)
    print(f"recorded hit rate {recorded:.4f}, seen {found / asked:.4f}")
    # A rate leaves out what came before its first sample, and the load does not begin with that.
    assert abs(recorded - found / asked) < 0.02 * found / asked, (recorded, found / asked)
