# SPDX-License-Identifier: Apache-2.0
"""Queues: they are stored and checked, and described to clients like the other custom resources."""

from typing import Any

import pytest
from api_server import MERGE, TABLE, ServedStore

from trainwright.model.job import Body

_GROUP = "/apis/scheduler.tensorstack.dev/v1beta1"
_QUEUES = f"{_GROUP}/namespaces/t9k-system/queues"
_FULL: Body = {
    "priority": 80,
    "preemptible": False,
    "closed": False,
    "maxDuration": "1w2d12h",
    "resourceShapeProfile": "small",
    "quota": {"requests": {"cpu": 40, "memory": "200Gi", "nvidia.com/gpu": "8"}},
    "nodeSelector": {"matchExpressions": [{"key": "gpu", "operator": "Exists"}], "matchLabels": {"a": "b"}},
    "namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "In", "values": ["x"]}]},
}


def queue(name: str = "q", **spec: Any) -> Body:
    return {"metadata": {"name": name}, "spec": spec}


def _expression(**fields: Any) -> Body:
    return {"nodeSelector": {"matchExpressions": [fields]}}


async def test_a_queue_is_stored_as_it_is_and_can_change(api: ServedStore) -> None:
    made = await api.make(_QUEUES, queue(**_FULL))
    assert made["spec"] == _FULL
    assert (made["kind"], made["metadata"]["namespace"]) == ("Queue", "t9k-system")
    changed = await api.ask("PATCH", f"{_QUEUES}/q", {"spec": {"closed": True}}, kind=MERGE)
    assert (changed.body["spec"]["closed"], changed.body["metadata"]["generation"]) == (True, 2)
    status = {"status": {"podGroups": {"total": 3}}}
    assert (await api.ask("PATCH", f"{_QUEUES}/q/status", status, kind=MERGE)).body["status"] == status["status"]
    assert [one["metadata"]["name"] for one in (await api.get(f"{_GROUP}/queues"))["items"]] == ["q"]
    assert (await api.ask("DELETE", f"{_QUEUES}/q")).code == 200
    assert (await api.ask("GET", f"{_QUEUES}/q")).code == 404


@pytest.mark.parametrize(
    ("spec", "field", "text"),
    [
        ({"priority": 101}, "spec.priority", "101: spec.priority in body should be less than or equal to 100"),
        ({"priority": -1}, "spec.priority", "-1: spec.priority in body should be greater than or equal to 0"),
        ({"priority": "5"}, "spec.priority", '"string": spec.priority in body must be of type integer: "string"'),
        ({"priority": 1.5}, "spec.priority", '"number": spec.priority in body must be of type integer: "number"'),
        ({"priority": True}, "spec.priority", "must be of type integer"),
        ({"closed": "yes"}, "spec.closed", "must be of type boolean"),
        ({"preemptible": 1}, "spec.preemptible", "must be of type boolean"),
        ({"maxDuration": "1d 2h"}, "spec.maxDuration", '"1d 2h": spec.maxDuration in body should match \'^(0|'),
        ({"maxDuration": "2h1d"}, "spec.maxDuration", "should match"),
        ({"maxDuration": "1d\n"}, "spec.maxDuration", "should match"),
        ({"maxDuration": 10}, "spec.maxDuration", "must be of type string"),
        ({"quota": []}, "spec.quota", "must be of type object"),
        ({"quota": {"requests": {"cpu": "many"}}}, "spec.quota.requests.cpu", "should match"),
        ({"quota": {"requests": {"cpu": "-1"}}}, "spec.quota.requests.cpu", "should match"),
        ({"quota": {"requests": {"cpu": [1]}}}, "spec.quota.requests.cpu", "must be of type integer,string"),
        ({"nodeSelector": "gpu"}, "spec.nodeSelector", "must be of type object"),
        ({"nodeSelector": {"matchLabels": {"a": 1}}}, "spec.nodeSelector.matchLabels.a", "must be of type string"),
        (_expression(operator="In", values=["a"]), "spec.nodeSelector.matchExpressions[0].key", "Required value"),
        (_expression(key="a", operator="Like"), "spec.nodeSelector.matchExpressions[0].operator", "Unsupported value"),
        (_expression(key="a", operator="In"), "spec.nodeSelector.matchExpressions[0].values", "Required value"),
        (
            _expression(key="a", operator="Exists", values=["b"]),
            "spec.nodeSelector.matchExpressions[0].values",
            "Forbidden",
        ),
    ],
)
async def test_a_wrong_queue_is_refused(api: ServedStore, spec: Body, field: str, text: str) -> None:
    answer = await api.ask("POST", _QUEUES, queue(**spec))
    assert (answer.code, answer.reason) == (422, "Invalid"), answer.body
    cause = answer.body["details"]["causes"][0]
    assert (cause["field"], text in cause["message"]) == (field, True), cause
    assert (await api.ask("GET", f"{_QUEUES}/q")).code == 404


@pytest.mark.parametrize("duration", ["0", "", "10s", "1y2w3d4h5m6s7ms", "90m"])
async def test_durations(api: ServedStore, duration: str) -> None:
    assert (await api.make(_QUEUES, queue(maxDuration=duration)))["spec"]["maxDuration"] == duration


async def test_a_change_is_checked_like_a_new_queue(api: ServedStore) -> None:
    await api.make(_QUEUES, queue(priority=1))
    for method, body, kind in (("PATCH", {"spec": {"priority": 200}}, MERGE), ("PUT", queue(priority=200), "")):
        assert (await api.ask(method, f"{_QUEUES}/q", body, kind=kind)).code == 422
    assert (await api.get(f"{_QUEUES}/q"))["spec"] == {"priority": 1}


async def test_unknown_fields_are_not_stored(api: ServedStore) -> None:
    made = await api.ask("POST", _QUEUES, queue(priority=1, odd=2, quota={"limits": {}, "requests": {"a.b/c": 1}}))
    assert made.body["spec"] == {"priority": 1, "quota": {"requests": {"a.b/c": 1}}}
    assert 'unknown field \\"spec.odd\\"' in made.headers["Warning"]
    strict = await api.ask("POST", f"{_QUEUES}?fieldValidation=Strict", queue("r", odd=1))
    assert (strict.code, 'unknown field "spec.odd"' in strict.body["message"]) == (400, True)


@pytest.mark.parametrize(("role", "codes"), [("admin", (201, 200)), ("user", (403, 200)), ("viewer", (403, 200))])
async def test_only_an_admin_writes_queues(api: ServedStore, role: str, codes: tuple[int, int]) -> None:
    made = await api.ask("POST", _QUEUES, queue(), role=role)
    assert (made.code, (await api.ask("GET", _QUEUES, role=role)).code) == codes


async def test_clients_find_and_explain_queues(api: ServedStore) -> None:
    found = {one["name"]: one for one in (await api.get(_GROUP))["resources"]}
    assert (found["queues"]["kind"], found["queues"]["namespaced"]) == ("Queue", True)
    assert "queues/status" in found
    schemas = (await api.get(f"/openapi/v3{_GROUP}"))["components"]["schemas"]
    spec = schemas["dev.tensorstack.scheduler.v1beta1.Queue"]["properties"]["spec"]
    assert "from 0 to 100" in spec["properties"]["priority"]["description"]
    await api.make(_QUEUES, queue(**_FULL))
    table = await api.get(_QUEUES, accept=TABLE)
    names = [one["name"] for one in table["columnDefinitions"]]
    assert names == ["Name", "Priority", "Closed", "Preemptible", "CPU", "Memory", "Max Duration", "Age"]
    assert table["rows"][0]["cells"][:7] == ["q", 80, False, False, "40", "200Gi", "1w2d12h"]


@pytest.mark.parametrize("name", ["queues", "podgroups"])
async def test_the_definitions_can_be_read(api: ServedStore, name: str) -> None:
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}.scheduler.tensorstack.dev"
    found = await api.get(path)
    assert (found["spec"]["scope"], found["spec"]["names"]["plural"]) == ("Namespaced", name)
    schema = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert ("properties" in schema) == (name == "queues")
    assert found["status"]["storedVersions"] == ["v1beta1"]
