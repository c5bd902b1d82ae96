# SPDX-License-Identifier: Apache-2.0
"""install, upgrade, rollback and uninstall by the real helm, against a stand-in for the API."""

import shlex
import shutil
import time

import pytest
import yaml
from api_stub import Api
from conftest import CHART, ROOT, VALUES

FAST = ["--wait", "--timeout", "30s", "--disable-openapi-validation"]


@pytest.fixture
def cluster(helm, tmp_path):
    api = Api()
    config = tmp_path / "kubeconfig"
    config.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1", "kind": "Config", "current-context": "stand-in",
                "clusters": [{"name": "stand-in", "cluster": {"server": api.url}}],
                "users": [{"name": "nobody", "user": {}}],
                "contexts": [{"name": "stand-in", "context": {"cluster": "stand-in", "user": "nobody"}}],
            }
        )
    )  # fmt: skip

    def call(*words, fails=False):
        return helm(*words, "--kubeconfig", config, "-n", "serving", fails=fails)

    yield api, call
    api.close()


def args_of(api):
    (found,) = [o for o in api.objects.values() if o["kind"] in ("DaemonSet", "StatefulSet")]
    return next(c["args"] for c in found["spec"]["template"]["spec"]["containers"] if c["name"] == "cairnd")


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_lives_through_a_release(cluster, values):
    api, helm = cluster
    notes = helm("install", "r", CHART, "-f", values, *FAST)
    assert "STATUS: deployed" in notes and "Cairn 0.1.0" in notes
    installed = api.kinds()
    helm("upgrade", "r", CHART, "-f", values, "--set", "logLevel=debug", *FAST)
    assert api.kinds() == installed
    if "sidecar" not in values.stem:
        assert "--log-level=debug" in args_of(api)
        helm("rollback", "r", "1", "--wait", "--timeout", "30s")
        assert "--log-level=info" in args_of(api)
    assert helm("history", "r").count("\n") >= 3
    helm("uninstall", "r", "--wait", "--timeout", "30s")
    assert not api.kinds()


def documented(verb):
    """The words of each `helm VERB` of the page, but the namespace: it is the stand-in's own, and making one wants schemas, which it has not."""
    page = (ROOT / "docs" / "install" / "cluster.md").read_text().replace("\\\n", " ")
    found = [shlex.split(line)[1:] for line in page.splitlines() if line.startswith(f"helm {verb}")]
    return [[word for word in words if word not in ("--namespace", "serving", "--create-namespace", "--wait")] for words in found]


def test_the_page_upgrades_and_goes_back(cluster):
    api, helm = cluster
    ((_, name, _, *install), *_), (upgrade,), (back,), (end,) = map(documented, ["install", "upgrade", "rollback", "uninstall"])
    images = []
    for words in [["install", name, CHART, *install, *FAST], [*upgrade[:2], CHART, *upgrade[3:], *FAST], back]:
        helm(*words)
        (workload,) = [found for found in api.objects.values() if found["kind"] == "DaemonSet"]
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        images.append(container["image"])
        assert "--host-bytes=65536MiB" in container["args"], "the release's values stay"
    assert images == [f"registry.example/cairn:{tag}" for tag in ["0.1.0", "0.2.0", "0.1.0"]]
    helm(*end)
    assert not api.kinds()


@pytest.mark.parametrize("words", documented("install"), ids=lambda words: words[1])
def test_the_page_installs_what_it_says(cluster, words, tmp_path):
    api, helm = cluster
    shutil.copytree(ROOT / "helm", tmp_path / "helm")
    helm("dependency", "update", tmp_path / "helm" / "examples" / "vllm")
    words = [str(tmp_path / word) if word.startswith("helm/") else word for word in words]
    assert "STATUS: deployed" in helm(*words, *FAST)
    assert {kind for kind, _ in api.kinds()} & {"DaemonSet", "StatefulSet", "Deployment"}


def test_waits_for_daemons_and_says_that_they_are_not_ready(cluster):
    api, helm = cluster
    api.ready = False
    began = time.monotonic()
    values = CHART / "ci" / "daemonset-values.yaml"
    said = helm("install", "r", CHART, "-f", values, "--wait", "--timeout", "3s", "--disable-openapi-validation", fails=True)
    assert time.monotonic() - began >= 3
    assert "r-cairn" in said
    assert ("DaemonSet", "r-cairn") in api.kinds()


def test_refuses_before_anything_is_made(cluster):
    api, helm = cluster
    values = CHART / "ci" / "daemonset-values.yaml"
    said = helm("install", "r", CHART, "-f", values, "--set", "memory.limit=1Gi", *FAST, fails=True)
    assert "the daemon may take" in said
    assert not api.kinds()
