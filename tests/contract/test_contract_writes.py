# SPDX-License-Identifier: Apache-2.0
"""What every engine does with a write: identity, versions, generations, the status apart, optimistic concurrency."""

from collections.abc import Callable
from typing import Any, Protocol

import pytest
from contract_objects import GENERICJOBS, HERE, ONE, PODS_WHOLE, SPACE, TWO, job, key, pod, secret, version

from trainwright.errors import AlreadyExistsError, ApiError, ConflictError, InvalidError, NotFoundError
from trainwright.model.child import Pod
from trainwright.model.meta import Key
from trainwright.runtime.ports import PODS, SECRETS, Cluster, Resource

pytest_plugins = ("contract_engines",)


class Engine(Cluster, Protocol):
    """What schedulers need besides."""

    async def bind(self, key: Key, node: str, *, uid: str = "", version: str = "") -> Any: ...


async def test_a_new_object_gets_its_identity_and_keeps_what_it_said(cluster: Cluster) -> None:
    made = await cluster.create(SECRETS, secret("a", labels={"x": "y"}))
    metadata = made["metadata"]
    assert (metadata["name"], metadata["namespace"], metadata["labels"]) == ("a", SPACE, {"x": "y"})
    assert metadata["uid"]
    assert int(metadata["resourceVersion"]) > 0
    assert metadata["creationTimestamp"].endswith("Z")
    assert made["data"] == {"a": ONE}
    assert await cluster.get(SECRETS, key("a")) == made


async def test_what_only_the_server_writes_is_not_taken_from_the_client(cluster: Cluster) -> None:
    mine = {"uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z", "generation": 7}
    metadata = (await cluster.create(GENERICJOBS, job("a", **mine)))["metadata"]
    assert metadata["uid"] != "mine"
    assert not metadata["creationTimestamp"].startswith("2001")
    assert metadata["generation"] == 1


async def test_two_objects_of_one_name_have_two_uids(cluster: Cluster) -> None:
    first = await cluster.create(SECRETS, secret("a"))
    await cluster.delete(SECRETS, key("a"))
    second = await cluster.create(SECRETS, secret("a"))
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert int(version(second)) > int(version(first))


async def test_a_name_can_be_made_up(cluster: Cluster) -> None:
    made = [await cluster.create(SECRETS, secret("", generateName="gen-")) for _ in range(3)]
    given = {body["metadata"]["name"] for body in made}
    assert len(given) == 3
    assert all(name.startswith("gen-") and len(name) > 4 for name in given)


async def test_a_name_is_given_once_for_each_resource(cluster: Cluster) -> None:
    await cluster.create(SECRETS, secret("a"))
    await cluster.create(GENERICJOBS, job("a"))
    with pytest.raises(AlreadyExistsError, match='"a"'):
        await cluster.create(SECRETS, secret("a"))


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a.", "a" * 254, "a/b"], ids=repr)
async def test_a_name_that_cannot_be_is_refused(cluster: Cluster, name: str) -> None:
    with pytest.raises(InvalidError, match="name"):
        await cluster.create(SECRETS, secret("") | {"metadata": {"name": name, "namespace": SPACE}})


async def test_what_is_not_there_cannot_be_found(cluster: Cluster) -> None:
    for ask in (
        cluster.get(SECRETS, key("a")),
        cluster.patch(SECRETS, key("a"), {"data": {}}),
        cluster.delete(SECRETS, key("a")),
    ):
        with pytest.raises(NotFoundError, match='"a"'):
            await ask


async def test_objects_come_back_as_the_resource_is_read(cluster: Cluster) -> None:
    made = await cluster.create(PODS, pod("a", node="n"))
    assert isinstance(made, Pod)
    assert (made.metadata.name, made.spec.node_name, made.status.phase) == ("a", "n", "Pending")
    patched = await cluster.patch(PODS, key("a"), {"status": {"phase": "Running"}}, status=True)
    assert (await cluster.get(PODS, key("a"))) == patched
    assert (await cluster.list(PODS, HERE)).items == (patched,)


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        pytest.param({"data": {"b": TWO}}, {"a": ONE, "b": TWO}, id="added"),
        pytest.param({"data": {"a": TWO}}, {"a": TWO}, id="changed"),
        pytest.param({"data": {"a": None, "b": TWO}}, {"b": TWO}, id="null removes"),
        pytest.param({"data": {"b": None}}, {"a": ONE}, id="null of nothing"),
        pytest.param({"metadata": {"labels": {"x": "y"}}}, {"a": ONE}, id="elsewhere"),
    ],
)
async def test_a_patch_is_merged(cluster: Cluster, patch: dict[str, Any], expected: dict[str, str]) -> None:
    await cluster.create(SECRETS, secret("a"))
    assert (await cluster.patch(SECRETS, key("a"), patch))["data"] == expected
    assert (await cluster.get(SECRETS, key("a")))["data"] == expected


async def test_a_list_in_a_patch_replaces_the_list(cluster: Cluster) -> None:
    await cluster.create(SECRETS, secret("a", finalizers=["example.com/a", "example.com/b"]))
    patched = await cluster.patch(SECRETS, key("a"), {"metadata": {"finalizers": ["example.com/c"]}})
    assert patched["metadata"]["finalizers"] == ["example.com/c"]


async def test_every_change_has_a_newer_version_and_a_write_that_changes_nothing_has_none(cluster: Cluster) -> None:
    made = await cluster.create(SECRETS, secret("a"))
    changed = await cluster.patch(SECRETS, key("a"), {"data": {"a": TWO}})
    assert int(version(changed)) > int(version(made))
    assert await cluster.patch(SECRETS, key("a"), {"data": {"a": TWO, "b": None}}) == changed
    assert await cluster.patch(SECRETS, key("a"), {}) == changed


async def test_the_generation_counts_changes_of_what_is_wanted(cluster: Cluster) -> None:
    await cluster.create(GENERICJOBS, job("a"))
    labelled = await cluster.patch(GENERICJOBS, key("a"), {"metadata": {"labels": {"x": "y"}}})
    assert labelled["metadata"]["generation"] == 1
    suspended = await cluster.patch(GENERICJOBS, key("a"), {"spec": {"runMode": {"pause": {"enabled": True}}}})
    assert suspended["metadata"]["generation"] == 2
    again = await cluster.patch(GENERICJOBS, key("a"), {"spec": {"runMode": {"pause": {"enabled": True}}}})
    assert again["metadata"]["generation"] == 2
    stated = await cluster.patch(GENERICJOBS, key("a"), {"status": {"phase": "Running"}}, status=True)
    assert stated["metadata"]["generation"] == 2


async def test_a_new_job_has_no_status_whatever_it_says(cluster: Cluster) -> None:
    made = await cluster.create(GENERICJOBS, job("a") | {"status": {"phase": "Succeeded"}})
    assert not made.get("status")


async def test_a_new_pod_is_pending_whatever_it_says(cluster: Cluster) -> None:
    made = await cluster.create(PODS_WHOLE, pod("a") | {"status": {"phase": "Running"}})
    assert made["status"]["phase"] == "Pending"


async def test_the_status_is_written_apart(cluster: Cluster) -> None:
    made = await cluster.create(GENERICJOBS, job("a"))
    both: dict[str, Any] = {"spec": {"runMode": {"pause": {"enabled": True}}}, "status": {"phase": "Running"}}
    stated = await cluster.patch(GENERICJOBS, key("a"), both, status=True)
    assert (stated["spec"], stated["status"]) == (made["spec"], {"phase": "Running"})
    both["status"]["phase"] = "Succeeded"
    specified = await cluster.patch(GENERICJOBS, key("a"), both)
    assert specified["spec"]["runMode"] == {"pause": {"enabled": True}}
    assert specified["status"] == {"phase": "Running"}


async def test_a_status_is_merged_too(cluster: Cluster) -> None:
    await cluster.create(PODS_WHOLE, pod("a"))
    await cluster.patch(PODS_WHOLE, key("a"), {"status": {"phase": "Running", "message": "m"}}, status=True)
    stated = await cluster.patch(PODS_WHOLE, key("a"), {"status": {"reason": "r", "message": None}}, status=True)
    assert (stated["status"]["phase"], stated["status"]["reason"]) == ("Running", "r")
    assert "message" not in stated["status"]


# -- the status as a whole ---------------------------------------------------------------------------------------------


async def test_a_replaced_status_has_the_new_fields_and_no_others(cluster: Cluster) -> None:
    made = await cluster.create(GENERICJOBS, job("a", labels={"x": "y"}))
    first = {"phase": "Running", "aggregate": {"running": 2, "failed": 1}, "conditions": [_condition("Running")]}
    stated = await cluster.replace_status(GENERICJOBS, {**made, "status": first})
    assert stated["status"] == first
    second = {"phase": "Running", "aggregate": {"running": 1}}
    replaced = await cluster.replace_status(GENERICJOBS, {**stated, "status": second})
    assert replaced["status"] == second
    assert int(version(made)) < int(version(stated)) < int(version(replaced))
    assert (replaced["spec"], replaced["metadata"]["labels"]) == (made["spec"], {"x": "y"})
    assert await cluster.get(GENERICJOBS, key("a")) == replaced


async def test_a_document_without_a_status_removes_the_status(cluster: Cluster) -> None:
    made = await cluster.create(GENERICJOBS, job("a"))
    stated = await cluster.replace_status(GENERICJOBS, {**made, "status": {"phase": "Running"}})
    bare = {name: part for name, part in stated.items() if name != "status"}
    replaced = await cluster.replace_status(GENERICJOBS, bare)
    assert not replaced.get("status")
    assert int(version(replaced)) > int(version(stated))


async def test_a_replaced_status_leaves_all_other_parts_alone(cluster: Cluster) -> None:
    made = await cluster.create(GENERICJOBS, job("a", labels={"x": "y"}, annotations={"p": "q"}))
    metadata = {**made["metadata"], "labels": {"x": "z", "new": "label"}, "finalizers": ["example.com/held"]}
    del metadata["annotations"]
    spec = {**made["spec"], "runMode": {"pause": {"enabled": True}}}
    stated = await cluster.replace_status(
        GENERICJOBS, {**made, "metadata": metadata, "spec": spec, "status": {"phase": "Running"}}
    )
    assert (stated["spec"], stated["status"]) == (made["spec"], {"phase": "Running"})
    assert (stated["metadata"]["labels"], stated["metadata"]["annotations"]) == ({"x": "y"}, {"p": "q"})
    assert "finalizers" not in stated["metadata"]
    assert stated["metadata"]["generation"] == 1


async def test_a_status_is_replaced_only_in_the_version_that_was_read(cluster: Cluster) -> None:
    made = await cluster.create(GENERICJOBS, job("a"))
    newer = await cluster.patch(GENERICJOBS, key("a"), {"metadata": {"labels": {"x": "y"}}})
    with pytest.raises(ConflictError, match='"a"'):
        await cluster.replace_status(GENERICJOBS, {**made, "status": {"phase": "Failed"}})
    assert await cluster.get(GENERICJOBS, key("a")) == newer


async def test_a_status_is_replaced_only_in_the_object_that_was_read(cluster: Cluster) -> None:
    """Also if the version is the current one: a UID that is not that of the object is never right."""
    made = await cluster.create(GENERICJOBS, job("a"))
    await cluster.delete(GENERICJOBS, key("a"))
    other = await cluster.create(GENERICJOBS, job("a"))
    metadata = {**other["metadata"], "uid": made["metadata"]["uid"]}
    for document in (made, {**other, "metadata": metadata}):
        with pytest.raises(ConflictError, match='"a"'):
            await cluster.replace_status(GENERICJOBS, {**document, "status": {"phase": "Failed"}})
    assert await cluster.get(GENERICJOBS, key("a")) == other


async def test_the_status_of_an_object_that_is_gone_cannot_be_replaced(cluster: Cluster) -> None:
    made = await cluster.create(GENERICJOBS, job("a"))
    await cluster.delete(GENERICJOBS, key("a"))
    with pytest.raises(NotFoundError, match='"a"'):
        await cluster.replace_status(GENERICJOBS, {**made, "status": {"phase": "Failed"}})


async def test_a_status_that_is_replaced_by_itself_gets_no_new_version(cluster: Cluster) -> None:
    made = await cluster.create(GENERICJOBS, job("a"))
    status = {"phase": "Running", "conditions": [_condition("Running")]}
    stated = await cluster.replace_status(GENERICJOBS, {**made, "status": status})
    assert await cluster.replace_status(GENERICJOBS, stated) == stated
    assert version(await cluster.get(GENERICJOBS, key("a"))) == version(stated)


async def test_the_status_of_an_object_that_waits_for_its_finalizers_can_be_replaced(cluster: Cluster) -> None:
    await cluster.create(GENERICJOBS, job("a", finalizers=["example.com/held"]))
    left = await cluster.delete(GENERICJOBS, key("a"))
    stated = await cluster.replace_status(GENERICJOBS, {**left, "status": {"phase": "Failed"}})
    assert stated["status"] == {"phase": "Failed"}
    assert stated["metadata"]["deletionTimestamp"] == left["metadata"]["deletionTimestamp"]


def _condition(name: str) -> dict[str, str]:
    return {"type": name, "status": "True", "reason": "-", "lastTransitionTime": "2026-11-15T12:00:00Z"}


# -- writes that are out of date ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [False, True], ids=["object", "status"])
@pytest.mark.parametrize("inside", [False, True], ids=["as an argument", "in the body"])
async def test_a_write_based_on_an_old_version_is_refused(cluster: Cluster, *, status: bool, inside: bool) -> None:
    made = await cluster.create(GENERICJOBS, job("a"))
    newer = await cluster.patch(GENERICJOBS, key("a"), {"status": {"phase": "Running"}}, status=True)
    body = {"status": {"phase": "Failed"}} if status else {"metadata": {"labels": {"x": "y"}}}

    async def write(based: dict[str, Any]) -> Any:
        if not inside:
            return await cluster.patch(GENERICJOBS, key("a"), body, version=version(based), status=status)
        stamped = {**body, "metadata": {**body.get("metadata", {}), "resourceVersion": version(based)}}
        return await cluster.patch(GENERICJOBS, key("a"), stamped, status=status)

    with pytest.raises(ConflictError, match='"a"'):
        await write(made)
    assert await cluster.get(GENERICJOBS, key("a")) == newer
    assert int(version(await write(newer))) > int(version(newer))


@pytest.mark.parametrize(("resource", "make"), [(PODS_WHOLE, pod), (GENERICJOBS, job)], ids=["pod", "job"])
async def test_a_write_to_another_object_of_that_name_is_refused(
    cluster: Cluster, resource: Resource, make: Callable[[str], dict[str, Any]]
) -> None:
    made = await cluster.create(resource, make("a"))
    await cluster.delete(resource, key("a"))
    other = await cluster.create(resource, make("a"))
    for status in (False, True):
        with pytest.raises(ConflictError, match='"a"'):
            await cluster.patch(
                resource, key("a"), {"status": {"phase": "Failed"}}, uid=made["metadata"]["uid"], status=status
            )
    with pytest.raises(ConflictError, match='"a"'):
        await cluster.delete(resource, key("a"), uid=made["metadata"]["uid"])
    assert await cluster.get(resource, key("a")) == other
    patched = await cluster.patch(
        resource, key("a"), {"status": {"phase": "Failed"}}, uid=other["metadata"]["uid"], status=True
    )
    assert patched["status"]["phase"] == "Failed"


@pytest.mark.parametrize(
    "metadata",
    [
        {"uid": "other"},
        {"name": "other"},
        {"namespace": "other"},
        {"deletionTimestamp": "2001-01-01T00:00:00Z"},
        {"deletionGracePeriodSeconds": 5},
    ],
    ids=lambda metadata: next(iter(metadata)),
)
async def test_identity_cannot_change(cluster: Cluster, metadata: dict[str, str]) -> None:
    made = await cluster.create(SECRETS, secret("a"))
    with pytest.raises(InvalidError, match=next(iter(metadata))):
        await cluster.patch(SECRETS, key("a"), {"metadata": metadata})
    assert await cluster.get(SECRETS, key("a")) == made


async def test_what_only_the_server_knows_is_passed_over(cluster: Cluster) -> None:
    made = await cluster.create(SECRETS, secret("a", finalizers=["example.com/held"]))
    told = {"creationTimestamp": "2001-01-01T00:00:00Z", "selfLink": "/mine", "generation": 7}
    assert await cluster.patch(SECRETS, key("a"), {"metadata": told}) == made
    left = await cluster.delete(SECRETS, key("a"))
    late = await cluster.patch(SECRETS, key("a"), {"metadata": {"deletionTimestamp": "2001-01-01T00:00:00Z"}})
    assert late["metadata"]["deletionTimestamp"] == left["metadata"]["deletionTimestamp"]


async def test_a_pod_is_put_on_one_node_and_stays_there(cluster: Engine) -> None:
    made = await cluster.create(PODS_WHOLE, pod("a"))
    with pytest.raises(ConflictError, match='"a"'):
        await cluster.bind(key("a"), "n", uid="other")
    bound = await cluster.bind(key("a"), "n", uid=made["metadata"]["uid"])
    assert isinstance(bound, Pod)
    assert bound.spec.node_name == "n"
    assert [(one.type, one.status) for one in bound.status.conditions or ()] == [("PodScheduled", "True")]
    with pytest.raises(ConflictError, match='"a"'):
        await cluster.bind(key("a"), "other")
    whole = await cluster.get(PODS_WHOLE, key("a"))
    assert (whole["spec"]["nodeName"], whole["metadata"]["generation"]) == ("n", 1)


async def test_what_readers_could_not_decode_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ApiError):
        await cluster.create(PODS, pod("a", labels={"number": 1}))
