# SPDX-License-Identifier: Apache-2.0
"""What the API checks itself, with the texts of an API server. `tests/cluster` compares these texts with a real one."""

from typing import Any

import pytest
from api_server import CONFIG_MAPS, JOBS, JSON_PATCH, MERGE, ServedStore, config_map, generic_job

from trainwright.model.job import Body

PODS, SERVICES = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/services"
SECRETS, LEASES = "/api/v1/namespaces/default/secrets", "/apis/coordination.k8s.io/v1/namespaces/default/leases"
NAMESPACES = "/api/v1/namespaces"


def pod(name: str = "p", **more: Any) -> Body:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "a"}], **more}}


def named(**metadata: Any) -> Body:
    return {"metadata": {"name": "a", **metadata}}


@pytest.mark.parametrize(
    ("path", "body", "field", "text"),
    [
        (CONFIG_MAPS, {}, "metadata.name", "Required value: name or generateName is required"),
        (CONFIG_MAPS, named(name="A"), "metadata.name", 'Invalid value: "A": a lowercase RFC 1123 subdomain must'),
        (CONFIG_MAPS, named(name="a" * 254), "metadata.name", "must be no more than 253 characters"),
        (SERVICES, named(name="a.b"), "metadata.name", "must not contain dots"),
        (CONFIG_MAPS, named(labels={"a b": "c"}), "metadata.labels", 'Invalid value: "a b": name part must consist'),
        (CONFIG_MAPS, named(labels={"A_/a": "c"}), "metadata.labels", "prefix part a lowercase RFC 1123 subdomain"),
        (CONFIG_MAPS, named(labels={"a": "c d"}), "metadata.labels", 'Invalid value: "c d": a valid label must be'),
        (CONFIG_MAPS, named(labels={"a": "c" * 64}), "metadata.labels", "must be no more than 63 bytes"),
        (CONFIG_MAPS, named(annotations={"/a": ""}), "metadata.annotations", "prefix part must be non-empty"),
        (CONFIG_MAPS, named(finalizers=["a"]), "metadata.finalizers[0]", "nor is it fully qualified"),
        (CONFIG_MAPS, named(ownerReferences=[{}]), "metadata.ownerReferences.apiVersion", "version must not be empty"),
        (CONFIG_MAPS, {**named(), "data": {"a b": "c"}}, "data[a b]", "a valid config key must consist of"),
        (
            CONFIG_MAPS,
            {**named(), "data": {"x": ""}, "binaryData": {"x": ""}},
            "data[x]",
            "duplicate of key present in",
        ),
        (PODS, pod(containers=[]), "spec.containers", "Required value"),
        (PODS, pod(containers=[{"name": "a"}]), "spec.containers[0].image", "Required value"),
        (PODS, pod(restartPolicy="Odd"), "spec.restartPolicy", 'Unsupported value: "Odd": supported values: "Always"'),
        (SERVICES, {**named(), "spec": {"ports": [{"port": 0}]}}, "spec.ports[0].port", "must be between 1 and 65535"),
        (SERVICES, {**named(), "spec": {"ports": [{"port": 1}, {"port": 2}]}}, "spec.ports[0].name", "Required value"),
        (SERVICES, {**named(), "spec": {"type": "Odd"}}, "spec.type", 'Unsupported value: "Odd"'),
    ],
)
async def test_a_wrong_value_is_invalid(api: ServedStore, path: str, body: Body, field: str, text: str) -> None:
    answer = await api.ask("POST", path, body)
    assert (answer.code, answer.reason) == (422, "Invalid"), answer.body
    found = answer.body["details"]["causes"][0]
    assert (found["field"], text in found["message"]) == (field, True), found
    assert text in answer.body["message"]


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        (CONFIG_MAPS, named(labels={"a": 1}), "unmarshal number into Go struct field ObjectMeta.metadata.labels"),
        (CONFIG_MAPS, named(labels=[]), "cannot unmarshal array into Go struct field ObjectMeta.metadata.labels"),
        (JOBS, {**generic_job("a"), **named(labels={"a": {}})}, "unmarshal object into Go struct field ObjectMeta"),
        (CONFIG_MAPS, {**named(), "data": {"a": 1}}, "unmarshal number into Go struct field ConfigMap.data of type"),
        (SECRETS, {**named(), "data": {"a": "%"}}, "illegal base64 data at input byte 0"),
        (PODS, {**named(), "spec": "x"}, "cannot unmarshal string into Go struct field Pod.spec of type v1.PodSpec"),
        (PODS, pod(initContainers=5), "unmarshal number into Go struct field PodSpec.spec.initContainers"),
        (SERVICES, {**named(), "spec": {"ports": {}}}, "unmarshal object into Go struct field ServiceSpec.spec"),
    ],
)  # fmt: skip
async def test_a_value_of_a_wrong_type_cannot_be_read(api: ServedStore, path: str, body: Body, text: str) -> None:
    answer = await api.ask("POST", path, body)
    assert (answer.code, answer.reason) == (400, "BadRequest"), answer.body
    assert text in answer.body["message"]


async def test_unknown_fields_are_not_stored(api: ServedStore) -> None:
    odd = {**config_map("a", k="v"), "odd": 1, "metadata": {"name": "a", "odd": 2, "labels": {}}}
    made = await api.ask("POST", CONFIG_MAPS, odd)
    assert made.headers["Warning"] == '299 - "unknown field \\"odd\\""'
    assert "odd" not in made.body
    assert made.body["metadata"].keys().isdisjoint(("odd", "labels"))
    job = generic_job("j")
    job["spec"]["replicaSpecs"][0]["odd"] = 1
    assert "odd" not in (await api.make(JOBS, job))["spec"]["replicaSpecs"][0]
    strict = await api.ask("POST", f"{CONFIG_MAPS}?fieldValidation=Strict", {**odd, "metadata": {"name": "b"}})
    assert 'strict decoding error: unknown field "odd"' in strict.body["message"]


async def test_only_some_fields_of_a_pod_can_change(api: ServedStore) -> None:
    await api.make(PODS, pod(activeDeadlineSeconds=9))
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "b"}]
    assert (await api.ask("PATCH", f"{PODS}/p", image, kind=JSON_PATCH)).body["metadata"]["generation"] == 2
    put = await api.ask("PUT", f"{PODS}/p", pod(activeDeadlineSeconds=8))
    assert put.body["spec"]["restartPolicy"] == "Always"
    changes: list[Body] = [{"nodeName": "n"}, {"containers": []}, {"activeDeadlineSeconds": None}, {"hostname": "h"}]
    for change in changes:
        refused = await api.ask("PATCH", f"{PODS}/p", {"spec": change}, kind=MERGE)
        assert refused.code == 422, change


async def test_immutable_content_stays(api: ServedStore) -> None:
    await api.make(CONFIG_MAPS, {**config_map("a", k="v"), "immutable": True})
    for change in ({"data": {"k": "w"}}, {"immutable": False}, {"binaryData": {"b": ""}}):
        refused = await api.ask("PATCH", f"{CONFIG_MAPS}/a", change, kind=MERGE)
        assert "field is immutable when `immutable` is set" in refused.body["message"], change
    label = {"metadata": {"labels": {"a": "b"}}}
    assert (await api.ask("PATCH", f"{CONFIG_MAPS}/a", label, kind=MERGE)).code == 200
    await api.make(SECRETS, {**named(), "type": "my/type"})
    assert (await api.ask("PATCH", f"{SECRETS}/a", {"type": "other"}, kind=MERGE)).code == 422


async def test_what_identifies_an_object_cannot_change(api: ServedStore) -> None:
    await api.make(CONFIG_MAPS, config_map("a"))
    cases: list[tuple[Body, int, str]] = [
        ({"metadata": {"name": "b"}}, 400, "the name of the object (b) does not match the name on the URL (a)"),
        ({"metadata": None}, 400, "the name of the object (a based on URL) was undeterminable"),
        ({"metadata": {"namespace": "b"}}, 400, "does not match the namespace sent on the request"),
        ({"metadata": {"uid": "b"}}, 422, 'metadata.uid: Invalid value: "b": field is immutable'),
        ({"kind": "Pod"}, 422, 'kind: Invalid value: "Pod": must be ConfigMap'),
        ({"metadata": "b"}, 422, "patch: Invalid value"),
    ]
    for change, code, text in cases:
        answer = await api.ask("PATCH", f"{CONFIG_MAPS}/a", change, kind=MERGE)
        assert (answer.code, text in answer.body["message"]) == (code, True), answer.body


async def test_only_some_resources_have_generations_and_are_made_by_put(api: ServedStore) -> None:
    assert "generation" not in (await api.make(CONFIG_MAPS, config_map("a")))["metadata"]
    assert (await api.make(PODS, pod()))["metadata"]["generation"] == 1
    assert (await api.ask("PUT", f"{LEASES}/a", {**named(), "spec": {}})).code == 201
    assert (await api.ask("PUT", f"{LEASES}/a", {**named(), "spec": {}})).code == 422  # now it must state a version
    assert (await api.ask("PUT", f"{CONFIG_MAPS}/b", config_map("b"))).code == 404


async def test_a_namespace_that_is_being_deleted_takes_nothing_new(api: ServedStore) -> None:
    kept = {"metadata": {"name": "kept", "finalizers": ["example.com/wait"]}}
    await api.make(f"{NAMESPACES}/team/configmaps", kept)
    gone = await api.ask("DELETE", f"{NAMESPACES}/team")
    assert (gone.body["status"]["phase"], "deletionTimestamp" in gone.body["metadata"]) == ("Terminating", True)
    late = await api.ask("POST", f"{NAMESPACES}/team/configmaps", config_map("late"))
    assert (late.code, late.body["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")
    again = await api.ask("POST", NAMESPACES, {"metadata": {"name": "team"}})
    assert again.body["message"] == 'object is being deleted: namespaces "team" already exists'
    assert (await api.ask("PUT", f"{NAMESPACES}/team", {"metadata": {"name": "team"}})).code == 200
    assert (await api.get(f"{NAMESPACES}/team"))["spec"] == {"finalizers": ["kubernetes"]}
    assert (await api.ask("DELETE", f"{NAMESPACES}/default")).code == 403


async def test_a_new_server_finishes_the_deletion_of_a_namespace(api: ServedStore) -> None:
    namespaces = api.server._handlers._namespaces
    await api.make(f"{NAMESPACES}/team/configmaps", {"metadata": {"name": "a", "finalizers": ["example.com/wait"]}})
    await api.ask("DELETE", f"{NAMESPACES}/team")
    for task in [*namespaces._deletions.values()]:  # the end of the engine
        task.cancel()
    off = {"metadata": {"finalizers": None}}
    await api.ask("PATCH", f"{NAMESPACES}/team/configmaps/a", off, kind=MERGE)
    async with api.watch(f"{NAMESPACES}?watch=true&fieldSelector=metadata.name%3Dteam") as events:
        namespaces._deletions.clear()
        await namespaces.require_all()
        assert [what for what, _ in [await events.next(), await events.next()]] == ["ADDED", "DELETED"]
