# SPDX-License-Identifier: Apache-2.0
"""Requests for the life of one object, the same for each resource: create, read, change, status, delete, and errors."""

from typing import Any

import cluster_asks as asks
from cluster_asks import (
    JSON_PATCH,
    STRATEGIC,
    TABLE,
    Ask,
    Body,
    Scenario,
    delete,
    get,
    patch,
    post,
    put,
    scenario,
    watch,
)

_NODES, _NAMESPACES = "/api/v1/nodes", "/api/v1/namespaces"
_LABEL = {"metadata": {"labels": {"a": "1"}}}
_META = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"


def _life(word: str, path: str, body: Body, change: Body, *, status: Body | None, custom: bool = False) -> Scenario:
    """The life of one object; `change` is a merge patch of its content."""
    name = body["metadata"]["name"]
    one = f"{path}/{name}"
    labelled = {**body, "metadata": {"name": name, "labels": {"a": "3"}}}
    versioned = {
        **labelled,
        "metadata": {**labelled["metadata"], "resourceVersion": "{changed:metadata.resourceVersion}"},
    }
    found: list[Ask] = [
        get("absent", one),
        put("put absent", one, body),
        patch("patch absent", one, _LABEL),
        delete("delete absent", one),
        post("dry", f"{path}?dryRun=All", body),
        get("absent after dry", one),
        post("made", path, body),
        post("made again", path, body),
        post("dry again", f"{path}?dryRun=All", body),
        get("read", one),
        get("table", one, TABLE),
        get("table whole", f"{one}?includeObject=Object", TABLE),
        get("metadata", one, _META),
        get("list", f"{path}?fieldSelector=metadata.name%3D{name}"),
        get("list table", f"{path}?fieldSelector=metadata.name%3D{name}", TABLE),
        watch("watch", f"{path}?resourceVersion=0&fieldSelector=metadata.name%3D{name}", 1),
        patch("label", one, _LABEL),
        patch("label again", one, _LABEL),
        patch("label json", one, [{"op": "add", "path": "/metadata/labels/b", "value": "2"}], JSON_PATCH),
        patch("label strategic", one, {"metadata": {"labels": {"b": None}}}, STRATEGIC),
        patch("dry patch", f"{one}?dryRun=All", {"metadata": {"labels": {"c": "4"}}}),
        patch("changed", one, change),
        patch("status ignored", one, {"status": {"phase": "Odd"}}),
        put("put", one, versioned),
        put("put stale", one, versioned),
        put("put bare", one, {**body, "metadata": {"name": name}}),
        put("put wrong name", one, {**body, "metadata": {"name": "other"}}),
        put("put wrong uid", one, {**body, "metadata": {"name": name, "uid": "11111111-2222-3333-4444-555555555555"}}),
        patch("patch name", one, {"metadata": {"name": "other"}}),
        patch("patch stale", one, {"metadata": {"resourceVersion": "1", "labels": {"d": "5"}}}),
        patch("patch uid", one, {"metadata": {"uid": "11111111-2222-3333-4444-555555555555"}}),
        post("post to object", f"{one}?dryRun=All", body),
        get("subresource", f"{one}/scaled"),
        get("status", f"{one}/status"),
    ]
    if status is not None:
        found += _status_asks(one, body, status)
    found += _deletion_asks(path, one, name)[: 3 if word == "namespaces" else None]
    return scenario(f"{word}-life", *found)


def _status_asks(one: str, body: Body, status: Body) -> list[Ask]:
    version = "{after status:metadata.resourceVersion}"
    made = {**body, "metadata": {"name": body["metadata"]["name"], "resourceVersion": version}}
    return [
        patch("status patch", f"{one}/status", {"status": status}),
        patch("status patch same", f"{one}/status", {"status": status}),
        patch("status dry label", f"{one}/status?dryRun=All", {"metadata": {"labels": {"s": "1"}}, "status": status}),
        get("after status", one),
        patch("status dry", f"{one}/status?dryRun=All", {"status": {"phase": "Failed"}}),
        put("status put", f"{one}/status", {**made, "status": status}),
        put("status put stale", f"{one}/status", {**made, "metadata": {**made["metadata"], "resourceVersion": "1"}}),
        delete("status delete", f"{one}/status"),
        post("status post", f"{one}/status", {"status": status}),
    ]


def _deletion_asks(path: str, one: str, name: str) -> list[Ask]:
    return [
        delete("delete dry", f"{one}?dryRun=All"),
        delete("delete wrong uid", one, {"preconditions": {"uid": "11111111-2222-3333-4444-555555555555"}}),
        delete("delete wrong version", one, {"preconditions": {"resourceVersion": "1"}}),
        patch("finalizer", one, {"metadata": {"finalizers": ["test.dev/keep"]}}),
        delete("delete kept", one, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}),
        delete("delete kept again", one, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}),
        patch("finalizer more", one, {"metadata": {"finalizers": ["test.dev/keep", "test.dev/more"]}}),
        get("kept", one),
        patch("finalizer off", one, {"metadata": {"finalizers": None}}),
        get("gone", one),
        get("list gone", f"{path}?fieldSelector=metadata.name%3D{name}"),
    ]


def _short(word: str, path: str, body: Body) -> Scenario:
    """Generated names, deletion at once, and the wrong bodies of one resource."""
    head = {"apiVersion": body["apiVersion"], "kind": body["kind"]}
    rest: dict[str, Any] = {key: value for key, value in body.items() if key != "metadata"}
    mine, dry = body["metadata"]["name"], f"{path}?dryRun=All"
    named = [
        post("made", path, body),
        delete("deleted", f"{path}/{mine}", {"propagationPolicy": "Background"}),
        post("generated", path, {**rest, "metadata": {"generateName": f"{mine}-g-"}}),
        delete("generated gone", f"{path}/{{generated:metadata.name}}"),
    ]
    return scenario(
        f"{word}-short",
        # Without controllers nobody removes the finalizers of claims and namespaces.
        *(named if word not in ("pvc", "namespaces") else ()),
        post("no type", dry, {key: value for key, value in body.items() if key not in head}),
        post("no name", dry, {**rest, "metadata": {}}),
        post("no metadata", dry, rest),
        post("bad name", dry, {**rest, "metadata": {"name": "Bad_Name"}}),
        post("bad label", dry, {**rest, "metadata": {"name": mine, "labels": {"a b": "c"}}}),
        post("bad label value", dry, {**rest, "metadata": {"name": mine, "labels": {"a": "c d"}}}),
        post("bad annotation", dry, {**rest, "metadata": {"name": mine, "annotations": {"a b": "c"}}}),
        post("number as label", dry, {**rest, "metadata": {"name": mine, "labels": {"a": 1}}}),
        post("bad finalizer", dry, {**rest, "metadata": {"name": mine, "finalizers": ["nodomain"]}}),
        post("wrong kind", dry, {**body, "kind": "Other"}),
        post("wrong version", dry, {**body, "apiVersion": "v9"}),
        post("with version", path, {**body, "metadata": {"name": mine, "resourceVersion": "7"}}),
        post("with uid", dry, {**body, "metadata": {"name": mine, "uid": "11111111-2222-3333-4444-555555555555"}}),
        post("no body", dry, None),
        post("empty body", dry, ""),
        post("not JSON", dry, "{"),
        post("list body", dry, "[]"),
        post("text body", dry, '"text"'),
        post("null body", dry, "null"),
    )


_JOB_CHANGE = {"metadata": {"annotations": {"x": "y"}}}
_RESOURCES: tuple[tuple[str, str, Body, Body, Body | None, bool], ...] = (
    ("cm", "{cm}", asks.config_map("one", k="v"), {"data": {"k": "w"}}, None, False),
    ("secrets", "{secrets}", asks.secret("one"), {"data": {"a": "Yw=="}}, None, False),
    (
        "pods",
        "{pods}",
        asks.pod("one"),
        {"spec": {"terminationGracePeriodSeconds": 30}},
        {"phase": "Failed", "message": "m"},
        False,
    ),
    ("svc", "{svc}", asks.service("one"), {"spec": {"selector": {"app": "two"}}}, {"loadBalancer": {}}, False),
    ("pvc", "{pvc}", asks.claim("one"), _JOB_CHANGE, {"phase": "Lost"}, False),
    ("events", "{events}", asks.event("one"), {"count": 3}, None, False),
    ("leases", "{leases}", asks.lease("one"), {"spec": {"holderIdentity": "you"}}, None, False),
    (
        "gj",
        "{gj}",
        asks.generic_job("one"),
        {"spec": {"cleanUpPolicy": "All"}},
        {"phase": "Running", "aggregate": {"running": 1}},
        True,
    ),
    (
        "tf",
        "{tf}",
        asks.tf_job("one"),
        {"spec": {"runPolicy": {"cleanPodPolicy": "All"}}},
        {"conditions": [{"type": "Created", "status": "True"}]},
        True,
    ),
    (
        "nodes",
        _NODES,
        asks.node("{ns}-one"),
        {"spec": {"unschedulable": True}},
        {"nodeInfo": {"kubeletVersion": "v1"}},
        False,
    ),
    ("namespaces", _NAMESPACES, asks.namespace("{ns}-one"), _JOB_CHANGE, {"phase": "Active"}, False),
)
LIVES: tuple[Scenario, ...] = (
    *(
        _life(word, path, body, change, status=status, custom=custom)
        for word, path, body, change, status, custom in _RESOURCES
    ),
    *(_short(word, path, body) for word, path, body, *_ in _RESOURCES),
)
