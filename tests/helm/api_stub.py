# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a Kubernetes API, enough for helm: discovery, objects, server-side apply as a merge, and watches.

It has no admission, no defaulting, no conflicts of owners, no garbage collection and no schemas; nothing runs. Workloads are ready at
once, unless `ready` is False.
"""

import base64
import copy
import hashlib
import http.server
import json
import threading
import time
import urllib.parse

import yaml

RESOURCES = {
    ("", "v1"): {
        "pods": "Pod", "services": "Service", "configmaps": "ConfigMap", "secrets": "Secret",
        "namespaces": "Namespace", "persistentvolumeclaims": "PersistentVolumeClaim",
    },
    ("apps", "v1"): {
        "deployments": "Deployment", "daemonsets": "DaemonSet", "statefulsets": "StatefulSet", "replicasets": "ReplicaSet",
    },
    ("batch", "v1"): {"jobs": "Job"},
    ("policy", "v1"): {"poddisruptionbudgets": "PodDisruptionBudget"},
    ("networking.k8s.io", "v1"): {"networkpolicies": "NetworkPolicy"},
    ("monitoring.coreos.com", "v1"): {
        "servicemonitors": "ServiceMonitor", "podmonitors": "PodMonitor", "prometheusrules": "PrometheusRule",
    },
}  # fmt: skip
VERBS = ["get", "list", "create", "update", "patch", "delete", "watch"]
WATCH_SECONDS_MAX = 60
WATCH_STEP_SECONDS = 0.05


def merge(target, source):
    """JSON merge patch: what server-side apply comes to while nobody else owns a field."""
    for key, value in source.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = value
    return target


def protobuf_fields(data):
    """(number, value) of a message: whole numbers and bytes, which are all that a Secret has."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 2:
            length = varint()
            yield tag >> 3, data[at : at + length]
            at += length
        else:
            yield tag >> 3, varint()


def parse_protobuf(data):
    """helm posts the Secrets of its releases so, behind the four bytes "k8s" and 0."""
    outer = dict(protobuf_fields(data[4:]))
    meta = dict(protobuf_fields(outer[1]))
    result = {"apiVersion": meta[1].decode(), "kind": meta[2].decode(), "metadata": {"labels": {}}, "data": {}}
    for number, value in protobuf_fields(outer[2]):
        if number == 1:
            for field, part in protobuf_fields(value):
                if field == 1:
                    result["metadata"]["name"] = part.decode()
                if field == 11:
                    label = dict(protobuf_fields(part))
                    result["metadata"]["labels"][label[1].decode()] = label[2].decode()
        elif number == 2:
            entry = dict(protobuf_fields(value))
            result["data"][entry[1].decode()] = base64.b64encode(entry.get(2, b"")).decode()
        elif number == 3:
            result["type"] = value.decode()
    return result


def parse_body(data):
    if data[:4] == b"k8s\0":
        return parse_protobuf(data)
    return json.loads(data) if data[:1] in b"{[" else yaml.safe_load(data)


def status_of(kind, spec, ready):
    count = spec.get("replicas", 1)
    good = count if ready else 0
    if kind == "DaemonSet":
        return {
            "observedGeneration": 1, "desiredNumberScheduled": 1, "currentNumberScheduled": 1,
            "numberReady": int(ready), "updatedNumberScheduled": int(ready), "numberAvailable": int(ready),
        }  # fmt: skip
    if kind == "StatefulSet":
        return {
            "observedGeneration": 1, "replicas": count, "readyReplicas": good, "availableReplicas": good,
            "currentReplicas": good, "updatedReplicas": good, "currentRevision": "a", "updateRevision": "a",
        }  # fmt: skip
    if kind == "Deployment":
        return {
            "observedGeneration": 1, "replicas": count, "readyReplicas": good, "availableReplicas": good,
            "updatedReplicas": good, "conditions": [{"type": "Available", "status": str(bool(ready))}],
        }  # fmt: skip
    return {"phase": "Succeeded"} if kind == "Pod" else None


class Api:
    """`url` is where it listens, on loopback; `objects` what it holds, by (group, resource, namespace, name)."""

    def __init__(self):
        self.objects, self.ready, self.revision, self.lock = {}, True, 0, threading.RLock()
        api = self

        class Handler(Request):
            pass

        Handler.api = api
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def kinds(self):
        """What there is beside helm's own releases: {(kind, name)}."""
        with self.lock:
            return {
                (found["kind"], found["metadata"]["name"])
                for found in self.objects.values()
                if not found["metadata"]["name"].startswith("sh.helm.release")
            }

    def find(self, kind, name):
        with self.lock:
            return next(
                (o for o in self.objects.values() if o["kind"] == kind and o["metadata"]["name"] == name), None
            )

    def store(self, key, version, value, dry_run):
        group, resource, namespace, name = key
        kind = RESOURCES[group, version][resource]
        meta = value.setdefault("metadata", {})
        meta.update(name=name, resourceVersion=str(self.revision), generation=1)
        meta.setdefault("uid", hashlib.sha1(repr(key).encode()).hexdigest())
        meta.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        if namespace:
            meta["namespace"] = namespace
        value.setdefault("apiVersion", f"{group}/{version}".lstrip("/"))
        value.setdefault("kind", kind)
        status = status_of(kind, value.get("spec") or {}, self.ready)
        if status is not None:
            value["status"] = status
        if not dry_run:
            self.objects[key] = value
        return value


class Request(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: Api

    def log_message(self, *_):
        pass

    def answer(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, code, reason):
        self.answer(
            code,
            {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code,
             "message": f"{reason}: {self.path}"},
        )  # fmt: skip

    def discovery(self, parts):
        """True if that was asked for."""
        if parts == ["version"]:
            self.answer(200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
        elif parts == ["api"]:
            self.answer(200, {"kind": "APIVersions", "versions": ["v1"]})
        elif parts == ["apis"]:
            groups = [
                {"name": group, "versions": [{"groupVersion": f"{group}/{version}", "version": version}],
                 "preferredVersion": {"groupVersion": f"{group}/{version}", "version": version}}
                for group, version in RESOURCES if group
            ]  # fmt: skip
            self.answer(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        elif parts[:1] == ["openapi"]:
            self.answer(200, {"openapi": "3.0.0", "info": {"title": "stand-in", "version": "1"}, "paths": {}})
        else:
            return False
        return True

    def watch(self, wanted, kind, query):
        """Sends what there is, then what changes. `wanted` tells the keys that are watched, `kind` their apiVersion and kind."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

        def send(event, value):
            data = (json.dumps({"type": event, "object": value}) + "\n").encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

        initial = query.get("sendInitialEvents") == "true"
        since = 0 if initial else int(query.get("resourceVersion") or 0)
        sent, marked = {}, not initial
        end = time.monotonic() + min(float(query.get("timeoutSeconds") or 60), WATCH_SECONDS_MAX)
        try:
            while time.monotonic() < end:
                with self.api.lock:
                    now = {k: copy.deepcopy(o) for k, o in self.api.objects.items() if wanted(k)}
                    revision = str(self.api.revision)
                for key, value in now.items():
                    version = value["metadata"]["resourceVersion"]
                    if sent.get(key, (None,))[0] != version and (key in sent or int(version) > since):
                        send("MODIFIED" if key in sent else "ADDED", value)
                    sent[key] = (version, value)
                for key in [k for k in sent if k not in now]:
                    send("DELETED", sent.pop(key)[1])
                if not marked:
                    marked = True
                    notes = {"k8s.io/initial-events-end": "true"}
                    send("BOOKMARK", kind | {"metadata": {"resourceVersion": revision, "annotations": notes}})
                time.sleep(WATCH_STEP_SECONDS)
            self.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def serve(self):
        address = urllib.parse.urlparse(self.path)
        query = dict(urllib.parse.parse_qsl(address.query))
        parts = [part for part in address.path.split("/") if part]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.discovery(parts):
            return
        if parts[0] == "api":
            group, version, rest = "", parts[1], parts[2:]
        elif parts[0] == "apis" and len(parts) > 2:
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            return self.refuse(404, "NotFound")
        if (group, version) not in RESOURCES:
            return self.refuse(404, "NotFound")
        known = RESOURCES[group, version]
        if not rest:
            resources = [
                {"name": name, "singularName": kind.lower(), "namespaced": kind != "Namespace", "kind": kind, "verbs": VERBS}
                for name, kind in known.items()
            ]
            group_version = f"{group}/{version}".lstrip("/")
            return self.answer(
                200, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}
            )
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        if rest[0] not in known:
            return self.refuse(404, "NotFound")
        name = rest[1] if len(rest) > 1 else query.get("fieldSelector", "").removeprefix("metadata.name=")
        if query.get("watch") in ("true", "1"):
            return self.watch(
                lambda k: k[:2] == (group, rest[0]) and namespace in ("", k[2]) and name in ("", k[3]),
                {"apiVersion": f"{group}/{version}".lstrip("/"), "kind": known[rest[0]]},
                query,
            )
        with self.api.lock:
            self.api.revision += 1
            self.change((group, rest[0], namespace, rest[1] if len(rest) > 1 else ""), version, query, body)

    def listed(self, key, version, query):
        group, resource, namespace, _ = key
        wanted = dict(
            part.split("=", 1) for part in query.get("labelSelector", "").split(",") if "=" in part and "!" not in part
        )
        found = [
            value
            for k, value in self.api.objects.items()
            if k[:2] == (group, resource)
            and namespace in ("", k[2])
            and wanted.items() <= value["metadata"].get("labels", {}).items()
        ]
        return {
            "kind": RESOURCES[group, version][resource] + "List", "apiVersion": f"{group}/{version}".lstrip("/"),
            "metadata": {"resourceVersion": str(self.api.revision)}, "items": found,
        }  # fmt: skip

    def change(self, key, version, query, body):
        api, name = self.api, key[3]
        dry_run = query.get("dryRun") == "All"
        if self.command == "GET" and not name:
            return self.answer(200, self.listed(key, version, query))
        if self.command == "POST":
            value = parse_body(body)
            key = (*key[:3], value["metadata"]["name"])
            if key in api.objects:
                return self.refuse(409, "AlreadyExists")
            return self.answer(201, api.store(key, version, value, dry_run))
        is_apply = self.command == "PATCH" and "apply-patch" in self.headers.get("Content-Type", "")
        if key not in api.objects and not is_apply:
            return self.refuse(404, "NotFound")
        if self.command == "GET":
            return self.answer(200, api.objects[key])
        if self.command == "DELETE":
            del api.objects[key]
            return self.answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})
        value = parse_body(body)
        if self.command == "PATCH":
            value = merge(copy.deepcopy(api.objects.get(key, {})), value)
        return self.answer(200, api.store(key, version, value, dry_run))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve
