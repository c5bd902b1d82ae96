# SPDX-License-Identifier: Apache-2.0
"""The chart without a cluster: it lints, renders what Kubernetes' schemas and cairnd take, and refuses what is wrong."""

import atexit
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import pytest
import yaml
from conftest import CHART, IMAGE, ROOT, VALUES, run

BIN = pathlib.Path(os.environ.get("CAIRN_BIN_DIR", ROOT / "build" / "release" / "bin"))
MIB = 1 << 20
VLLM_PAGE = ROOT / "docs" / "guides" / "vllm.md"

by_values = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)


def of_kind(objects, *kinds):
    return [found for found in objects if found["kind"] in kinds]


def pods(objects):
    """The pod specs of the workloads."""
    return [found["spec"]["template"]["spec"] for found in of_kind(objects, "DaemonSet", "StatefulSet", "Deployment")]


def daemon_of(pod):
    containers = pod["containers"] + pod.get("initContainers", [])
    return next(container for container in containers if container["name"] == "cairnd")


def mebibytes(size):
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi|Ti)", size).groups()
    return int(number) * {"Mi": 1, "Gi": 1024, "Ti": 1 << 20}[unit]


@pytest.fixture(scope="module")
def example(helm, tmp_path_factory):
    """The example with its dependency, as helm would fetch it."""
    folder = tmp_path_factory.mktemp("charts") / "helm"
    shutil.copytree(ROOT / "helm", folder)
    helm("dependency", "update", folder / "examples" / "vllm")
    return folder / "examples" / "vllm"


@by_values
def test_lints(helm, values):
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART, "-f", values)


@by_values
def test_renders_what_kubernetes_takes(helm, values):
    check_schemas(helm("template", "r", CHART, "-f", values))


def check_schemas(rendered):
    checked = subprocess.run(
        [sys.executable, "-m", "kubernetes_validate", "--strict", "-"],
        input=rendered, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    output = checked.stdout + checked.stderr
    assert checked.returncode == 0, output
    # What the Prometheus operator defines has no schema here.
    for line in output.splitlines():
        assert "find schema" not in line or "monitoring.coreos.com/v1" in line, line


def given_policy(values):
    """The policy that the comment of an example says."""
    lines = [line.removeprefix("#   ") for line in values.read_text().splitlines() if line.startswith("#   ")]
    return "\n".join(["version: 1", *lines, ""])


@functools.cache
def policy_file():
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
        file.write(given_policy(CHART / "ci" / "daemonset-cluster-values.yaml"))
    atexit.register(os.unlink, file.name)
    return file.name


def check_flags(container):
    """cairnd takes them."""
    family = "::1" if any("[$(POD_IP)]" in word for word in container["args"]) else "127.0.0.1"
    words = [word.replace("$(POD_IP)", family).replace("$(MEMBER_NAME)", "node-1") for word in container["args"]]
    assert not [word for word in words if "$(" in word]
    words = [word.replace("/run/cairn-policy/policy.yaml", policy_file()) for word in words]
    ran = subprocess.run([BIN / "cairnd", *words, "--check-config"], capture_output=True, text=True, timeout=20)
    assert ran.returncode == 0, ran.stderr
    printed = subprocess.run([BIN / "cairnd", *words, "--print-config"], capture_output=True, text=True, timeout=20)
    return yaml.safe_load(printed.stdout)


def check_memory(container, config):
    """The limit and the huge pages hold what docs/guides/memory.md says that the daemon may take of them."""
    mib = lambda name: int(re.fullmatch(r"(\d+)MiB", to_mib(config[name])).group(1))
    arena = mib("host-bytes") + mib("staging-bytes")
    limits, requests = container["resources"]["limits"], container["resources"]["requests"]
    assert limits["memory"] == requests["memory"]
    devices = [part.split("=")[1] for part in config["ssd"].split(",")] if config["ssd"] != "off" else []
    gpu = mebibytes_of(config["gpu"].split("=")[1]) if config["gpu"] != "off" else 0
    tier = gpu - min(2048, max(32, gpu // 8)) if gpu and devices else 0
    index = 2048 * min(4 << 20, max(1024, (mib("host-bytes") + tier) * 64))
    index += sum(128 * max(mib_ * 2, min(1 << 19, mib_ * 32)) for mib_ in map(mebibytes_of, devices))
    given = mib("index-bytes") if config["index-bytes"] != "auto" else index // MIB
    members = mib("location-bytes") + 64 if config["members"] != "off" else 0
    rest = 256 + 64 + 192 + 64 + 64 + len(devices) * 96 + given + (1024 if gpu else 0) + members
    if "hugepages-2Mi" in limits:
        assert limits["hugepages-2Mi"] == requests["hugepages-2Mi"]
        assert mebibytes(limits["hugepages-2Mi"]) >= arena
        assert mebibytes(limits["memory"]) >= rest
    else:
        assert mebibytes(limits["memory"]) >= arena + rest


def to_mib(size):
    return f"{mebibytes_of(size)}MiB"


def mebibytes_of(size):
    number, unit = re.fullmatch(r"(\d+)(MiB|GiB|TiB)", size).groups()
    return int(number) * {"MiB": 1, "GiB": 1024, "TiB": 1 << 20}[unit]


def check_container(container):
    security = container["securityContext"]
    assert security["runAsNonRoot"] and security["runAsUser"] > 0
    assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    # Probes that an answer of the first moment satisfies: recovery ends no daemon.
    assert container["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    check_memory(container, check_flags(container))


def test_nobody_but_the_daemon_writes_where_its_sockets_are(render):
    """Else another pod of the group is the daemon for all who connect."""
    values = CHART / "ci" / "daemonset-ssd-values.yaml"
    (pod,) = pods(render("-f", values))
    (prepare,) = [part for part in pod["initContainers"] if part["name"] == "prepare-node"]
    assert "prepare 2750 /run/cairn\n" in prepare["args"][0]
    assert "prepare 0700 /var/lib/cairn/" in prepare["args"][0]
    assert subprocess.run(["/bin/sh", "-n", "-c", prepare["args"][0]]).returncode == 0


@by_values
def test_renders_a_daemon_that_starts(render, values):
    for pod in pods(render("-f", values)):
        container = daemon_of(pod)
        check_container(container)
        assert "--map=off" in container["args"], "pods of one node may not see one another's blocks"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        drain = next(word for word in container["args"] if word.startswith("--drain-ms="))
        assert pod["terminationGracePeriodSeconds"] * 1000 >= int(drain.split("=")[1]) + 3000 + 4000
        command = container["lifecycle"]["preStop"]["exec"]["command"]
        ran = subprocess.run(
            [BIN / "cairnctl", *command[1:], "--control", "127.0.0.1:1"], capture_output=True, text=True, timeout=20
        )
        assert ran.returncode == 4, ran.stderr  # no daemon answers; the words are right
        assert pod["enableServiceLinks"] is False and pod["automountServiceAccountToken"] is False


def test_a_daemonset_never_has_two_on_a_node(render):
    for name in ["daemonset", "daemonset-ssd"]:
        (found,) = of_kind(render("-f", CHART / "ci" / f"{name}-values.yaml"), "DaemonSet")
        assert found["spec"]["updateStrategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_a_store_speaks_tls_or_says_that_it_does_not(render):
    store = ["-f", CHART / "ci" / "statefulset-values.yaml"]
    (plain,) = pods(render(*store))
    assert "--plaintext=anywhere" in daemon_of(plain)["args"]
    assert not any(word.startswith("--stream") for word in daemon_of(plain)["args"])
    for source in ["tls.secretName=a", "tls.csi.driver=csi.spiffe.io,tls.csi.readOnly=true"]:
        (pod,) = pods(render(*store, "--set", source, "--set", "policy.configMapName=p"))
        container = daemon_of(pod)
        assert "--tls-cert=/run/cairn-tls/tls.crt" in container["args"]
        assert "--stream=$(POD_IP):50154" in container["args"]
        assert {"name": "stream", "containerPort": 50154} in container["ports"]
        assert "--policy=/run/cairn-policy/policy.yaml" in container["args"]
        assert not any(word.startswith("--plaintext") for word in container["args"])
        # cairnctl in the container has no certificate: it enters the socket of operators.
        (control,) = [one["value"] for one in container["env"] if one["name"] == "CAIRN_CONTROL"]
        assert control == "unix:/run/cairn-admin/admin.sock"
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes | {"cairn-ssd-data"}


def test_the_test_of_a_store_proves_who_it_is(render, helm, tmp_path):
    store = ["-f", CHART / "ci" / "statefulset-values.yaml"]

    def test_pod(*words):
        (pod,) = [one for one in render(*store, *words) if "helm.sh/hook" in one["metadata"].get("annotations", {})]
        spec = pod["spec"]
        (container,) = spec["containers"]
        env = {one["name"]: one["value"] for one in container["env"]}
        assert env["CAIRN_CONTROL"].endswith(".svc:50151")
        mounts = {mount["name"]: mount["mountPath"] for mount in container.get("volumeMounts", [])}
        volumes = {volume.pop("name"): volume for volume in spec.get("volumes", [])}
        assert mounts.keys() == volumes.keys()
        return {name: env.get(f"CAIRN_TLS_{name}") for name in ("CA", "CERT", "KEY")}, volumes, spec

    files, volumes, _ = test_pod()
    assert set(files.values()) == {None} and not volumes
    whole = {"CA": "/run/cairn-tls/ca.crt", "CERT": "/run/cairn-tls/tls.crt", "KEY": "/run/cairn-tls/tls.key"}
    files, volumes, spec = test_pod("--set", "tls.secretName=a,tls.testSecretName=b")
    assert files == whole
    assert volumes == {"cairn-tls": {"secret": {"secretName": "b", "defaultMode": 0o440}}}
    assert spec["securityContext"]["fsGroup"]  # or it could not read the files
    files, volumes, _ = test_pod("--set", "tls.csi.driver=csi.example,tls.csi.readOnly=true")
    assert files == whole and volumes["cairn-tls"]["csi"]["driver"] == "csi.example"
    # Without a certificate, cairnctl's message has the name of the value.
    files, volumes, _ = test_pod("--set", "tls.secretName=a")
    assert not volumes
    cairnctl = ROOT / "build" / "release" / "bin" / "cairnctl"
    if cairnctl.exists():
        env = {f"CAIRN_TLS_{name}": value for name, value in files.items()} | {"CAIRN_CONTROL": "127.0.0.1:9"}
        assert "/set-tls.testSecretName/" in run(cairnctl, "status", fails=True, env=env)


def test_every_mount_has_its_volume(render, example):
    specs = [pod for values in VALUES for pod in pods(render("-f", values))]
    words = ["--set", "image=y:1,cairn.image.repository=x", "--set-json", 'cairn.ssd.devices=[{"name":"a","size":"1Gi"}]']
    specs += pods(render(*words, chart=example))
    assert len(specs) == 9
    for pod in specs:
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounts = {m["name"] for c in pod["containers"] + pod.get("initContainers", []) for m in c["volumeMounts"]}
        claims = {"cairn-ssd-data"}  # of the statefulset's claim templates
        assert mounts - claims == volumes


def test_each_tenant_has_a_door(render, helm):
    doors = ["-f", CHART / "ci" / "daemonset-ssd-values.yaml", "--set", "doors.names={team-a,team-b},prepareNode.enabled=false"]
    (pod,) = pods(render(*doors, "--set", "policy.configMapName=p"))
    container = daemon_of(pod)
    found = [word for word in container["args"] if word.startswith("--door=")]
    assert found == ["--door=/run/cairn-doors/team-a", "--door=/run/cairn-doors/team-b"]
    assert {"name": "cairn-doors", "mountPath": "/run/cairn-doors"} in container["volumeMounts"]
    assert {"name": "cairn-doors", "hostPath": {"path": "/run/cairn-doors", "type": "Directory"}} in pod["volumes"]
    assert "set policy.configMapName" in helm("template", "r", CHART, *doors, fails=True)


def test_a_gpu_is_asked_for_where_there_is_a_gpu_tier(render):
    for values in VALUES:
        for pod in pods(render("-f", values)):
            container = daemon_of(pod)
            flags = [word for word in container["args"] if word.startswith("--gpu=")]
            resources = [container["resources"][kind].get("nvidia.com/gpu") for kind in ("requests", "limits")]
            environment = {v["name"]: v.get("value") for v in container["env"]}
            if "gpu" in values.name:
                assert flags == ["--gpu=1=16384MiB"] and resources == [2, 2]
                assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "compute"
            else:
                assert not flags and resources == [None, None] and "NVIDIA_DRIVER_CAPABILITIES" not in environment
    shared = ["-f", CHART / "ci" / "daemonset-gpu-values.yaml", "--set", "gpu.resources=null"]
    (pod,) = pods(render(*shared))
    assert "--gpu=1=16384MiB" in daemon_of(pod)["args"]
    assert "nvidia.com/gpu" not in daemon_of(pod)["resources"]["limits"], "engines have it too"


def test_the_selector_of_a_release_does_not_change(render):
    """Kubernetes refuses an upgrade that changes it: a change here is one that users must be told of."""
    expected = {"app.kubernetes.io/name": "cairn", "app.kubernetes.io/instance": "r"}
    for name, component in {"daemonset": "node", "statefulset": "store"}.items():
        (found,) = of_kind(render("-f", CHART / "ci" / f"{name}-values.yaml"), "DaemonSet", "StatefulSet")
        wanted = expected | {"app.kubernetes.io/component": component}
        assert found["spec"]["selector"]["matchLabels"] == wanted
        assert wanted.items() <= found["spec"]["template"]["metadata"]["labels"].items()


def test_the_sidecar_in_another_chart(helm, render, example):
    words = ["--set", "image=registry.example/vllm:1,cairn.image.repository=registry.example/cairn"]
    check_schemas(helm("template", "r", example, *words))
    objects = render(*words, chart=example)
    assert not of_kind(objects, "DaemonSet", "StatefulSet", "NetworkPolicy")
    (pod,) = pods(objects)
    (container,) = pod["initContainers"]
    check_container(container)
    assert "--map=auto" in container["args"], "the engine is alone with it"
    assert container["restartPolicy"] == "Always"
    assert "readinessProbe" not in container and "lifecycle" not in container
    (engine,) = pod["containers"]
    environment = {v["name"]: v.get("value") for v in engine["env"]}
    assert f"--control={environment['CAIRN_CONTROL']}" in container["args"]
    # Operators come in by a folder that the engine does not have.
    assert "--admin=unix:/run/cairn-admin/admin.sock" in container["args"]
    assert {m["mountPath"] for m in container["volumeMounts"]} - {m["mountPath"] for m in engine["volumeMounts"]} >= {"/run/cairn-admin"}
    (given,) = [json.loads(w.split("=", 1)[1]) for w in engine["args"] if w.startswith("--kv-transfer-config=")]
    assert given["kv_connector_extra_config"]["control"] == environment["CAIRN_CONTROL"]
    documented = json.loads(re.search(r"--kv-transfer-config '(\{.*?\})'", VLLM_PAGE.read_text(), re.DOTALL).group(1))
    # The page's engine has the wheel, which names its connectors, and the default address.
    del given["kv_connector_extra_config"], given["kv_connector_module_path"]
    assert given == documented


def test_the_example_has_a_tag_a_cache_and_variables(helm, render, example):
    said = helm("template", "r", example, "--set", "image=registry.example:5000/vllm,cairn.image.repository=x", fails=True)
    assert "has no tag and no digest" in said
    words = ["--set", "image=registry.example:5000/vllm@sha256:abc,cairn.image.repository=x"]
    more = [
        "--set-json", 'modelCache={"persistentVolumeClaim": {"claimName": "models"}}',
        "--set-json", 'env=[{"name": "HF_TOKEN", "value": "t"}]',
    ]  # fmt: skip
    check_schemas(helm("template", "r", example, *words, *more))
    (pod,) = pods(render(*words, *more, chart=example))
    (engine,) = pod["containers"]
    assert {"HF_TOKEN": "t", "HF_HOME": "/models"}.items() <= {v["name"]: v.get("value") for v in engine["env"]}.items()
    assert {"name": "models", "persistentVolumeClaim": {"claimName": "models"}} in pod["volumes"]
    assert {"name": "models", "mountPath": "/models"} in engine["volumeMounts"]


def test_the_monitor_finds_the_pods(render):
    objects = render("-f", CHART / "ci" / "sidecar-values.yaml")
    (monitor,) = of_kind(objects, "PodMonitor")
    assert monitor["spec"]["selector"]["matchLabels"] == {"cairn.io/sidecar": "r"}
    objects = render("-f", CHART / "ci" / "statefulset-values.yaml")
    (monitor,), (service,) = of_kind(objects, "ServiceMonitor"), of_kind(objects, "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    ports = {port["name"] for port in service["spec"]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports


def test_ucx_is_fenced(render):
    (policy,) = of_kind(render("-f", CHART / "ci" / "statefulset-values.yaml"), "NetworkPolicy")
    fenced = [rule for rule in policy["spec"]["ingress"] if {"port": 50153} in rule["ports"]]
    assert fenced == [
        {
            "ports": [{"port": 50153}, {"port": 50160, "endPort": 50191}],
            "from": [{"podSelector": {"matchLabels": {"role": "worker"}}}],
        }
    ]


def members_of(render, *words):
    """(what is rendered, the daemon's container, its flags as a dictionary) of a cluster; cairnd takes the flags."""
    objects = render(*words)
    (pod,) = pods(objects)
    container = daemon_of(pod)
    check_flags(container)
    flags = dict(word.removeprefix("--").split("=", 1) for word in container["args"])
    return objects, container, flags


def name_field(container):
    (field,) = [one["valueFrom"]["fieldRef"]["fieldPath"] for one in container["env"] if one["name"] == "MEMBER_NAME"]
    return field


NODES = ["-f", CHART / "ci" / "daemonset-cluster-values.yaml"]
STORES = ["-f", CHART / "ci" / "statefulset-cluster-values.yaml"]
PLAIN = ["--set", "plaintext=anywhere,ucx.enabled=true,cluster.enabled=true"]


def test_daemons_of_nodes_find_each_other_by_a_service(render):
    objects, container, flags = members_of(render, *NODES)
    assert flags["members"] == "dns:r-cairn-members.default.svc:50155" and flags["cluster"] == "r-cairn"
    assert flags["member-name"] == "$(MEMBER_NAME)" and name_field(container) == "spec.nodeName"
    assert flags["peer"] == "$(POD_IP):50155" and flags["stream"] == "$(POD_IP):50154"
    assert (flags["member-grace"], flags["peer-match-ms"]) == ("120", "20")
    assert flags["tls-cert"] == "/run/cairn-tls/tls.crt" and flags["control"] == "unix:/run/cairn/control.sock"
    assert "plaintext" not in flags and "data" not in flags
    (service,) = of_kind(objects, "Service")
    assert service["metadata"]["name"] == "r-cairn-members"
    # One that recovers is a member.
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    (found,) = of_kind(objects, "DaemonSet")
    assert service["spec"]["selector"] == found["spec"]["selector"]["matchLabels"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert [ports[port["targetPort"]] for port in service["spec"]["ports"]] == [50155]
    # What drains a daemonset's pods asks no budget.
    assert not of_kind(objects, "PodDisruptionBudget", "ConfigMap")


def test_stores_find_each_other_by_a_file(render):
    objects, container, flags = members_of(render, *STORES)
    assert flags["members"] == "file:/run/cairn-members/members" and flags["cluster"] == "prod"
    assert name_field(container) == "metadata.name"
    (listed,) = of_kind(objects, "ConfigMap")
    assert listed["data"]["members"].splitlines() == [
        f"r-cairn-{at}=r-cairn-{at}.r-cairn.default.svc:50155 {zone}" for at, zone in enumerate(["rack-a", "rack-a", "rack-b"])
    ]
    (found,) = of_kind(objects, "StatefulSet")
    assert found["spec"]["replicas"] == 3
    # The names of the file are those of the pods below the Service that governs them.
    assert found["spec"]["serviceName"] == found["metadata"]["name"] == "r-cairn"
    volumes = found["spec"]["template"]["spec"]["volumes"]
    assert {"name": "cairn-members", "configMap": {"name": listed["metadata"]["name"]}} in volumes
    # Whole, so that a new list arrives.
    assert {"name": "cairn-members", "mountPath": "/run/cairn-members", "readOnly": True} in container["volumeMounts"]
    (budget,) = of_kind(objects, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"] == found["spec"]["selector"]
    sixth = ["--set-json", 'cluster.file.members=[{"name":"a","host":"fd00::1"}]', "--set", "replicas=1"]
    (listed,) = of_kind(render(*STORES, *sixth), "ConfigMap")
    assert listed["data"]["members"].splitlines() == ["a=[fd00::1]:50155"]


def test_members_are_found_in_etcd(render):
    etcd = [*IMAGE, *PLAIN, "--set", "cluster.source=etcd,cluster.name=prod,cluster.etcd.endpoints={e-0.etcd:2379,10.0.0.9:2379}"]
    objects, _, flags = members_of(render, *etcd)
    assert flags["members"] == "etcd:e-0.etcd:2379,10.0.0.9:2379" and flags["plaintext"] == "anywhere"
    assert flags["data"] == "$(POD_IP):50153"
    assert not of_kind(objects, "Service", "ConfigMap")
    # Blocks over TLS, and etcd without.
    *_, flags = members_of(render, *etcd, "--set", "ucx.enabled=false,tls.secretName=a,policy.configMapName=p")
    assert flags["plaintext"] == "anywhere" and flags["stream"] == "$(POD_IP):50154" and "data" not in flags


def test_etcd_has_tls_and_a_user(render):
    etcd = [*NODES, "--set", "cluster.source=etcd,cluster.name=prod,cluster.etcd.endpoints={e:2379},cluster.etcd.secretName=etcd-files"]
    objects, container, flags = members_of(render, *etcd, "--set", "cluster.etcd.user=cairn")
    at = "/run/cairn-etcd"
    assert flags["etcd-ca"] == f"{at}/ca.crt" and flags["etcd-user"] == "cairn" and "plaintext" not in flags
    assert flags["etcd-cert"] == f"{at}/tls.crt" and flags["etcd-key"] == f"{at}/tls.key"
    assert flags["etcd-password-file"] == f"{at}/password"
    assert {"name": "cairn-etcd", "mountPath": at, "readOnly": True} in container["volumeMounts"]
    (pod,) = pods(objects)
    assert {"name": "cairn-etcd", "secret": {"secretName": "etcd-files", "defaultMode": 0o440}} in pod["volumes"]
    # Only etcd's own certificate is checked.
    *_, flags = members_of(render, *etcd, "--set", "cluster.etcd.certificate=")
    assert "etcd-ca" in flags and not {"etcd-cert", "etcd-key", "etcd-user", "etcd-password-file"} & set(flags)


def test_members_are_found_in_endpoint_slices(render):
    """The rights to it are there where it is used, and nowhere else."""
    watching = ["--set", "cluster.source=kubernetes"]
    objects, _, flags = members_of(render, *NODES, *watching)
    assert flags["members"] == "kubernetes:default/r-cairn-members"
    (service,) = of_kind(objects, "Service")
    assert service["metadata"]["name"] == "r-cairn-members" and service["spec"]["publishNotReadyAddresses"] is True
    assert [port["name"] for port in service["spec"]["ports"]] == ["peer"]
    (account,), (role,), (binding,) = (of_kind(objects, kind) for kind in ["ServiceAccount", "Role", "RoleBinding"])
    assert account["automountServiceAccountToken"] is False
    assert role["rules"] == [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert (subject["kind"], subject["name"]) == ("ServiceAccount", account["metadata"]["name"])
    (found,) = of_kind(objects, "DaemonSet")
    pod = found["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account["metadata"]["name"] and pod["automountServiceAccountToken"] is True
    own = render(*NODES, *watching, "--set", "pod.serviceAccountName=mine")
    assert not of_kind(own, "ServiceAccount")
    assert of_kind(own, "RoleBinding")[0]["subjects"][0]["name"] == "mine"
    assert of_kind(own, "DaemonSet")[0]["spec"]["template"]["spec"]["serviceAccountName"] == "mine"
    for words in [NODES, STORES]:
        objects = render(*words)
        assert not of_kind(objects, "ServiceAccount", "Role", "RoleBinding")
        (pod,) = pods(objects)
        assert pod["automountServiceAccountToken"] is False


def test_members_of_ipv6(render):
    *_, flags = members_of(render, *NODES, "--set", "ipFamily=IPv6,cluster.matchMs=5,cluster.memberGraceSeconds=0")
    assert flags["peer"] == "[$(POD_IP)]:50155"
    assert (flags["member-grace"], flags["peer-match-ms"]) == ("0", "5")


def test_only_members_reach_the_ports_of_members(render):
    plain = [*IMAGE, *PLAIN]
    data = [{"port": 50153}, {"port": 50160, "endPort": 50191}]
    for words, wanted in [(NODES, [{"port": "stream"}]), (STORES, [{"port": "stream"}]), (plain, data)]:
        objects = render(*words)
        (policy,) = of_kind(objects, "NetworkPolicy")
        (found,) = of_kind(objects, "DaemonSet", "StatefulSet")
        rules = [rule for rule in policy["spec"]["ingress"] if {"port": "peer"} in rule["ports"]]
        assert rules == [
            {"ports": [{"port": "peer"}, *wanted], "from": [{"podSelector": found["spec"]["selector"]}]}
        ], words
        # No other rule is for everybody, but that of metrics.
        assert all(rule.get("from") or rule["ports"] == [{"port": "http-metrics"}] for rule in policy["spec"]["ingress"])
        named = {port["name"] for port in daemon_of(pods(objects)[0])["ports"]}
        ports = [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]
        assert {port for port in ports if isinstance(port, str)} <= named


def test_without_a_cluster_nothing_is_said_of_it(render):
    for values in VALUES:
        if "cluster" not in values.stem:
            text = json.dumps([one for one in render("-f", values) if one["kind"] not in ("ConfigMap", "PrometheusRule")])
            assert "--members" not in text and "MEMBER_NAME" not in text and "peer" not in text, values


def test_the_monitor_of_stores_does_not_scrape_them_twice(render):
    words = ["--set", "cluster.source=dns,metrics.monitor.enabled=true"]
    objects = render(*STORES, *words)
    (monitor,) = of_kind(objects, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = of_kind(objects, "Service")
    assert len(services) == 2
    assert [one["metadata"]["name"] for one in services if wanted <= one["metadata"]["labels"].items()] == ["r-cairn"]


def test_takes_every_recipe():
    said = json.loads(subprocess.run([BIN / "cairnctl", "version", "--json"], capture_output=True, check=True).stdout)
    names = [name for name in said["recipes"].split(", ") if "BITS" not in name]
    assert len(names) > 20
    pattern = json.loads((CHART / "values.schema.json").read_text())["properties"]["recipe"]["pattern"]
    for name in [*names, "cairn:2.3", "cairn-hot:2.4", "cairn:10.0*27"]:
        assert re.search(pattern, name), name


REFUSALS = [
    (["--set", "memory.hots=1Gi"], "additional properties 'hots' not allowed"),
    (["--set", "frm=daemonset"], "additional properties 'frm' not allowed"),
    (["--set", "form=deployment"], "value must be one of 'daemonset', 'statefulset', 'sidecar'"),
    (["--set", "memory.host=8GB"], "at '/memory/host': '8GB' does not match pattern"),
    (["--set", "memory.host=8589934592"], "at '/memory/host': got number, want string"),
    (["--set", "memory.limit=4Gi"], "memory.limit is 4096Mi, and the daemon may take 10944Mi: host 8192Mi + staging"),
    (["--set", "replicas=0"], "at '/replicas': minimum: got 0, want 1"),
    (["--set", "replicas=2"], "replicas is for form statefulset"),
    (["--set", "form=statefulset,replicas=2"], "replicas is 2: set cluster.enabled"),
    (["--set", "form=sidecar,cluster.enabled=true"], "cluster.enabled is for the forms daemonset and statefulset: sidecars"),
    (["--set", "cluster.enabled=true"], "whoever reaches the ports of the members can read and change every block"),
    (["--set", "cluster.enabled=true,ucx.enabled=true"], "cluster.enabled: set tls.secretName or tls.csi"),
    (["--set", "cluster.enabled=true,plaintext=anywhere"], "set plaintext=anywhere and ucx.enabled=true"),
    ([*PLAIN, "--set", "policy.configMapName=p"], "without it, a member cannot prove that it is one"),
    (["--set", "cluster.enabled=true,tls.secretName=a"], "set policy.configMapName, whose policy names the members"),
    ([*PLAIN, "--set", "cluster.source=gossip"], "value must be one of 'dns', 'kubernetes', 'etcd', 'file'"),
    ([*PLAIN, "--set", "cluster.source=etcd"], "cluster.source is etcd: set cluster.etcd.endpoints"),
    ([*PLAIN, "--set", "cluster.source=etcd,cluster.etcd.endpoints={e:2379}"], "cluster.source is etcd: set cluster.name"),
    ([*PLAIN, "--set", "cluster.etcd.endpoints={e:2379}"], "cluster.etcd.endpoints is for the source etcd"),
    ([*PLAIN, "--set", "cluster.etcd.endpoints={e}"], "at '/cluster/etcd/endpoints/0': 'e' does not match pattern"),
    (
        [*NODES, "--set", "cluster.source=etcd,cluster.name=a,cluster.etcd.endpoints={e:2379}"],
        "the daemon speaks to it without TLS: set plaintext=anywhere",
    ),
    (
        [*PLAIN, "--set", "cluster.source=etcd,cluster.name=a,cluster.etcd.endpoints={e:2379},cluster.etcd.user=u"],
        "cluster.etcd.user is set: set cluster.etcd.secretName",
    ),
    (
        [*PLAIN, "--set", "cluster.source=etcd,cluster.name=a,cluster.etcd.endpoints={e:2379},cluster.etcd.secretName=s,cluster.etcd.ca="],
        "cluster.etcd.certificate is set, and cluster.etcd.ca is not",
    ),
    ([*PLAIN, "--set", "cluster.etcd.secretName=s"], "cluster.etcd.secretName is for the source etcd"),
    ([*PLAIN, "--set", "cluster.source=file"], "cluster.source is file: set cluster.file.members"),
    ([*PLAIN, "--set-json", 'cluster.file.members=[{"name":"a"}]'], "missing property 'host'"),
    ([*PLAIN, "--set", "cluster.peerPort=50154"], "cluster.peerPort is 50154, which is another port of the daemon"),
    ([*PLAIN, "--set", "cluster.peerPort=50160"], "cluster.peerPort is 50160, which is one of the ports of UCX"),
    (["--set", "ports.http=80"], "at '/ports/http': minimum: got 80, want 1,024"),
    (["--set", "drainSeconds=601"], "at '/drainSeconds': maximum: got 601, want 600"),
    (["--set", "securityContext.runAsUser=0"], "at '/securityContext/runAsUser': minimum: got 0, want 1"),
    (["--set", "securityContext.seccompProfile.type=Unconfined"], "value must be one of 'RuntimeDefault', 'Localhost'"),
    (["--set", "image.digest=sha256:12"], "at '/image/digest': 'sha256:12' does not match pattern"),
    (["--set", "form=statefulset"], "form statefulset needs ucx.enabled or tls"),
    (["--set", "ucx.enabled=true"], "networkPolicy.clientsFrom: name the peers that may reach UCX"),
    (["--set", "form=sidecar,ucx.enabled=true"], "form sidecar takes no ucx"),
    (["--set", "tls.secretName=a"], "tls is for form statefulset"),
    (["--set", "form=statefulset,tls.secretName=a,tls.csi.driver=b"], "secretName and csi are both set"),
    (["--set", "form=statefulset,tls.testSecretName=b"], "the daemon would not speak TLS"),
    (["--set", "form=statefulset,plaintext=refuse"], "form statefulset then needs tls.secretName or tls.csi"),
    (["--set", "plaintext=yes"], "value must be one of 'anywhere', 'loopback', 'refuse'"),
    (["--set", "ssd.io=uring"], "ssd.io uring needs securityContext.seccompProfile of type Localhost"),
    (["--set", "ssd.writeBudget=2TB"], "at '/ssd/writeBudget': '2TB' does not match pattern"),
    (["--set", "recipe=kivi:3"], "at '/recipe': 'kivi:3' does not match pattern"),
    (["--set", "gpu.size=16GB"], "at '/gpu/size': '16GB' does not match pattern"),
    (["--set", "gpu.device=64"], "at '/gpu/device': maximum: got 64, want 63"),
    (
        ["--set", "gpu.size=32Mi", "--set-json", 'ssd.devices=[{"name":"a","size":"1Gi","hostPath":"/mnt/a"}]'],
        "gpu.size is 32Mi, expected 64Mi to 1Ti",
    ),
    (["--set", "prepareNode.enabled=true"], "prepareNode.image: name an image"),
    (["--set-json", 'ssd.devices=[{"name":"a"}]'], "missing property 'size'"),
    (["--set-json", 'ssd.devices=[{"name":"a","size":"1Gi"}]'], "form daemonset wants hostPath or storageClassName"),
    (["--set-json", 'ssd.devices=[{"name":"a","size":"1Gi","hostPath":"/a=b"}]'], "'/a=b' does not match pattern"),
    (
        ["--set", "form=sidecar", "--set-json", 'ssd.devices=[{"name":"a","size":"1Gi","hostPath":"/mnt/a"}]'],
        "ssd.devices a: hostPath is for form daemonset",
    ),
]


@pytest.mark.parametrize("words, message", REFUSALS, ids=lambda value: value[-1] if isinstance(value, list) else None)
def test_refuses(helm, words, message):
    assert message in helm("template", "r", CHART, *IMAGE, *words, fails=True)


def test_refuses_a_release_without_an_image(helm):
    assert "image.repository: name the image" in helm("template", "r", CHART, fails=True)


def test_the_schema_knows_every_value():
    """A default that it does not bound would be a value that a typo changes in silence."""
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    missing = []

    def compare(values, known, path):
        for name, value in values.items():
            at = known.get("properties", {}).get(name)
            if at is None:
                missing.append(f"{path}{name}")
            elif isinstance(value, dict) and "properties" in at:
                assert at["additionalProperties"] is False, f"{path}{name}"
                compare(value, at, f"{path}{name}.")

    compare(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "")
    assert not missing
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(schema["properties"]) - {"global"} == set(defaults)


def test_the_package_leaves_tests_out(helm, tmp_path):
    helm("package", CHART, "-d", tmp_path)
    names = run("tar", "tzf", next(tmp_path.glob("cairn-*.tgz")))
    assert "cairn/values.schema.json" in names and "/ci/" not in names
