# SPDX-License-Identifier: Apache-2.0
"""Creates, updates, patches and deletions, as a Kubernetes API server does them."""

from typing import Any

import pytest
from api_server import CONFIG_MAPS, JOBS, JSON_PATCH, MERGE, STRATEGIC, ServedStore, config_map, generic_job

from trainwright.model.job import Body


async def test_a_created_object_gets_what_only_the_server_writes(api: ServedStore) -> None:
    given = {**config_map("a", k="v"), "status": {"x": 1}}
    given["metadata"] |= {"uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z", "generation": 7}
    made = await api.make(CONFIG_MAPS, given)
    assert (made["apiVersion"], made["kind"], made["data"]) == ("v1", "ConfigMap", {"k": "v"})
    assert made["metadata"]["namespace"] == "default"
    assert made["metadata"]["uid"] != "mine"
    assert not made["metadata"]["creationTimestamp"].startswith("2001")
    again = await api.ask("POST", CONFIG_MAPS, config_map("a"))
    assert (again.code, again.reason) == (409, "AlreadyExists")
    assert again.body["message"] == 'configmaps "a" already exists'
    assert again.body["details"] == {"name": "a", "kind": "configmaps"}


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"kind": "Secret"}, 400, "cannot be handled as a ConfigMap"),
        ({"apiVersion": "v2"}, 400, "cannot be handled as a ConfigMap"),
        ({"metadata": {"name": "a", "namespace": "other"}}, 400, "does not match the namespace"),
        ({"metadata": {"name": "a", "resourceVersion": "1"}}, 400, "resourceVersion should not be set"),
        ({"metadata": {}}, 422, "metadata.name"),
        ({"metadata": []}, 400, "metadata"),
        ({"metadata": {"name": "A B"}}, 422, "metadata.name"),
        ({"data": {"k": 1}}, 400, "ConfigMap.data of type string"),
    ],
)
async def test_a_wrong_object_is_refused(api: ServedStore, change: Body, code: int, words: str) -> None:
    answer = await api.ask("POST", CONFIG_MAPS, {**config_map("a"), **change})
    assert answer.code == code, answer.body
    assert words in answer.body["message"]


@pytest.mark.parametrize(
    ("data", "kind", "code"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'"x"', "", 400),
        (b"", "application/json", 400),
        (b"{}", "text/plain", 415),
        (b"{}", "application/xml; charset=utf-8", 415),
        (b"k8s\0nonsense", "application/vnd.kubernetes.protobuf", 400),
        (b"[" * 5000 + b"]" * 5000, "application/json", 400),
        (b'{"a":' * 200 + b"1" + b"}" * 200, "application/json", 400),
        (b'{"metadata":{"name":"a"},"data":{"k":"' + b"x" * (4 << 20) + b'"}}', "application/json", 413),
    ],
)
async def test_a_wrong_body_is_refused(api: ServedStore, data: bytes, kind: str, code: int) -> None:
    answer = await api.ask("POST", CONFIG_MAPS, data, kind=kind or "application/json")
    assert answer.code == code, answer.body
    assert answer.body["kind"] == "Status"


async def test_an_update_replaces_everything_but_what_the_server_writes(api: ServedStore) -> None:
    made = await api.make(CONFIG_MAPS, {**config_map("a", k="v"), "metadata": {"name": "a", "labels": {"x": "y"}}})
    answer = await api.ask("PUT", f"{CONFIG_MAPS}/a", config_map("a", other="w"))
    assert answer.code == 200
    assert answer.body["data"] == {"other": "w"}
    assert "labels" not in answer.body["metadata"]
    assert answer.body["metadata"]["uid"] == made["metadata"]["uid"]
    stale = await api.ask("PUT", f"{CONFIG_MAPS}/a", made)
    assert (stale.code, stale.reason) == (409, "Conflict")
    assert stale.body["message"].startswith('Operation cannot be fulfilled on configmaps "a": the object has been mod')
    missing = await api.ask("PUT", f"{CONFIG_MAPS}/b", config_map("b"))
    assert (missing.code, missing.body["message"]) == (404, 'configmaps "b" not found')
    other = await api.ask("PUT", f"{CONFIG_MAPS}/a", config_map("b"))
    assert other.code == 400


async def test_an_update_of_a_job_needs_its_version_and_counts_generations(api: ServedStore) -> None:
    made = await api.make(JOBS, generic_job("j"))
    without = await api.ask("PUT", f"{JOBS}/j", generic_job("j", 2))
    assert (without.code, "metadata.resourceVersion" in without.body["message"]) == (422, True)
    made["spec"]["replicaSpecs"][0]["replicas"] = 2
    changed = (await api.ask("PUT", f"{JOBS}/j", made)).body
    assert changed["metadata"]["generation"] == made["metadata"]["generation"] + 1
    same = (await api.ask("PUT", f"{JOBS}/j", changed)).body
    assert same["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("kind", "patch", "data"),
    [
        (MERGE, {"data": {"a": None, "c": "3"}}, {"b": "2", "c": "3"}),
        (JSON_PATCH, [{"op": "replace", "path": "/data/a", "value": "9"}], {"a": "9", "b": "2"}),
        (STRATEGIC, {"data": {"b": None}}, {"a": "1"}),
    ],
)
async def test_patches(api: ServedStore, kind: str, patch: Any, data: Body) -> None:
    made = await api.make(CONFIG_MAPS, config_map("m", a="1", b="2"))
    changed = await api.ask("PATCH", f"{CONFIG_MAPS}/m", patch, kind=kind)
    assert (changed.code, changed.body["data"]) == (200, data)
    assert changed.body["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]
    again = await api.ask("PATCH", f"{CONFIG_MAPS}/m", patch, kind=kind)
    assert again.body["metadata"]["resourceVersion"] == changed.body["metadata"]["resourceVersion"]


async def test_patches_that_are_refused(api: ServedStore) -> None:
    made = await api.make(JOBS, generic_job("j"))
    assert (await api.ask("PATCH", f"{JOBS}/j", {}, kind=STRATEGIC)).code == 415
    assert (await api.ask("PATCH", f"{JOBS}/j", {}, kind="application/apply-patch+yaml")).code == 415
    assert (await api.ask("PATCH", f"{JOBS}/j", [], kind=MERGE)).code == 400
    assert (await api.ask("PATCH", f"{JOBS}/j", {"spec": {"replicaSpecs": []}}, kind=MERGE)).code == 422
    version = {"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}}
    assert (await api.ask("PATCH", f"{JOBS}/j", version, kind=MERGE)).code == 409
    assert (await api.ask("PATCH", f"{JOBS}/none", {}, kind=MERGE)).code == 404
    assert (await api.ask("PATCH", f"{JOBS}/j", {"metadata": {"name": "k"}}, kind=MERGE)).code in (400, 422)
    assert (await api.get(f"{JOBS}/j")) == made


async def test_the_status_is_a_subresource(api: ServedStore) -> None:
    made = await api.make(JOBS, generic_job("j"))
    path = f"{JOBS}/j/status"
    changed = await api.ask("PATCH", path, {"status": {"phase": "Running"}, "spec": {"x": 1}}, kind=MERGE)
    assert (changed.code, changed.body["status"], changed.body["spec"]) == (200, {"phase": "Running"}, made["spec"])
    plain = await api.ask("PATCH", f"{JOBS}/j", {"status": {"phase": "Failed"}}, kind=MERGE)
    assert plain.body["status"] == {"phase": "Running"}
    whole = {**plain.body, "status": {"phase": "Succeeded"}}
    assert (await api.ask("PUT", path, whole)).body["status"] == {"phase": "Succeeded"}
    assert (await api.get(path))["status"] == {"phase": "Succeeded"}


@pytest.mark.parametrize("where", ["query", "body"])
async def test_a_dry_run_changes_nothing(api: ServedStore, where: str) -> None:
    made = await api.make(CONFIG_MAPS, config_map("a", k="v"))
    version = (await api.get(CONFIG_MAPS))["metadata"]["resourceVersion"]
    created = await api.ask("POST", f"{CONFIG_MAPS}?dryRun=All", config_map("b"))
    assert (created.code, created.body["metadata"]["name"]) == (201, "b")
    patched = await api.ask("PATCH", f"{CONFIG_MAPS}/a?dryRun=All", {"data": {"k": "w"}}, kind=MERGE)
    assert patched.body["data"] == {"k": "w"}
    options = {"dryRun": ["All"]} if where == "body" else {}
    gone = await api.ask("DELETE", f"{CONFIG_MAPS}/a{'?dryRun=All' if where == 'query' else ''}", options)
    assert gone.code == 200
    after = await api.get(CONFIG_MAPS)
    item = {name: part for name, part in made.items() if name not in ("apiVersion", "kind")}
    assert (after["metadata"]["resourceVersion"], after["items"]) == (version, [item])
    assert (await api.ask("POST", f"{CONFIG_MAPS}?dryRun=Some", config_map("b"))).code == 422


async def test_unknown_fields_are_refused_reported_or_ignored(api: ServedStore) -> None:
    body = generic_job("j")
    body["spec"]["succesRules"] = []
    strict = await api.ask("POST", f"{JOBS}?fieldValidation=Strict", body)
    assert (strict.code, 'strict decoding error: unknown field "spec.succesRules"' in strict.body["message"]) == (
        400,
        True,
    )
    ignored = await api.ask("POST", f"{JOBS}?fieldValidation=Ignore&dryRun=All", body)
    assert (ignored.code, "Warning" in ignored.headers) == (201, False)
    warned = await api.ask("POST", JOBS, body)
    assert (warned.code, warned.headers["Warning"][:30]) == (201, '299 - "unknown field \\"spec.su')


async def test_an_invalid_job_is_refused_with_its_mistakes(api: ServedStore) -> None:
    body = generic_job("j", -1)
    answer = await api.ask("POST", JOBS, body)
    assert (answer.code, answer.reason) == (422, "Invalid")
    causes = answer.body["details"]["causes"]
    assert causes[0]["field"] == "spec.replicaSpecs[0].replicas"
    assert answer.body["message"].startswith('GenericJob.batch.tensorstack.dev "j" is invalid: spec.replicaSpecs[0]')


async def test_deletions(api: ServedStore) -> None:
    made = await api.make(CONFIG_MAPS, config_map("a"))
    wrong = await api.ask("DELETE", f"{CONFIG_MAPS}/a", {"preconditions": {"uid": "other"}})
    assert (wrong.code, wrong.reason) == (409, "Conflict")
    assert (await api.ask("DELETE", f"{CONFIG_MAPS}/a", {"propagationPolicy": "Sometimes"})).code == 422
    gone = await api.ask("DELETE", f"{CONFIG_MAPS}/a", {"propagationPolicy": "Background"})
    assert gone.body["status"] == "Success"
    assert gone.body["details"] == {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}
    assert (await api.ask("DELETE", f"{CONFIG_MAPS}/a")).code == 404


async def test_an_object_with_a_finalizer_waits_for_its_end(api: ServedStore) -> None:
    await api.make(CONFIG_MAPS, {"metadata": {"name": "a", "finalizers": ["example.com/wait"]}})
    waits = await api.ask("DELETE", f"{CONFIG_MAPS}/a")
    assert (waits.code, waits.body["kind"]) == (200, "ConfigMap")
    assert waits.body["metadata"]["deletionTimestamp"]
    await api.ask("PATCH", f"{CONFIG_MAPS}/a", {"metadata": {"finalizers": None}}, kind=MERGE)
    assert (await api.ask("GET", f"{CONFIG_MAPS}/a")).code == 404


async def test_a_collection_is_deleted_by_selector(api: ServedStore) -> None:
    for name, label in (("a", "x"), ("b", "y"), ("c", "x")):
        await api.make(CONFIG_MAPS, {"metadata": {"name": name, "labels": {"l": label}}})
    gone = await api.ask("DELETE", f"{CONFIG_MAPS}?labelSelector=l%3Dx")
    assert (gone.code, gone.body["kind"]) == (200, "ConfigMapList")
    assert [one["metadata"]["name"] for one in (await api.get(CONFIG_MAPS))["items"]] == ["b"]


async def test_a_namespace_is_made_by_its_first_object_and_deleted_with_all(api: ServedStore) -> None:
    await api.make("/api/v1/namespaces/team/configmaps", config_map("a"))
    found = await api.get("/api/v1/namespaces/team")
    assert (found["status"], found["metadata"]["labels"]) == (
        {"phase": "Active"},
        {"kubernetes.io/metadata.name": "team"},
    )
    async with api.watch("/api/v1/namespaces?watch=true&fieldSelector=metadata.name%3Dteam") as events:
        gone = await api.ask("DELETE", "/api/v1/namespaces/team")
        assert gone.body["status"] == {"phase": "Terminating"}
        assert [what for what, _ in [await events.next() for _ in range(3)]] == ["ADDED", "MODIFIED", "DELETED"]
    assert (await api.ask("GET", "/api/v1/namespaces/team/configmaps/a")).code == 404
