# SPDX-License-Identifier: Apache-2.0
"""What each verb sends, and what it makes of the answers that only some objects give."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from kube_server import HERE, SECRETS, Answer, Server, a_secret, refuses, says, text

from trainwright.errors import ConflictError, ForbiddenError, InvalidError
from trainwright.kube.cluster import KubeCluster
from trainwright.model.child import Pod
from trainwright.model.meta import Key
from trainwright.runtime.ports import JOBS, LEASES, NODES, PODS, Propagation

JOB = JOBS["genericjob"]
ONE = "/api/v1/namespaces/ns/secrets/a"
SUCCESS = {"kind": "Status", "apiVersion": "v1", "status": "Success", "details": {"name": "a", "uid": "u-a"}}
MANAGED = {"managedFields": [{"manager": "kubectl", "operation": "Update"}]}
#: A job as it was read, with the parts that a replaced status must contain. `managedFields` are left out.
A_JOB: dict[str, Any] = {
    "apiVersion": JOB.api_version,
    "kind": JOB.kind,
    "metadata": {
        "name": "a",
        "namespace": "ns",
        "uid": "u-a",
        "resourceVersion": "3",
        "labels": {"x": "y"},
        "annotations": {"p": "q"},
    },
    "spec": {"replicaSpecs": []},
    "status": {"phase": "Running"},
}
OPTIONS = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}


@pytest.mark.parametrize(
    ("ask", "sent"),
    [
        pytest.param(lambda c: c.get(SECRETS, HERE), ("GET", ONE, None), id="get"),
        pytest.param(lambda c: c.get(NODES, Key("", "n.example")), ("GET", "/api/v1/nodes/n.example", None), id="node"),
        pytest.param(
            lambda c: c.get(LEASES, HERE),
            ("GET", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/a", None),
            id="get from a group",
        ),
        pytest.param(
            lambda c: c.create(SECRETS, a_secret()),
            ("POST", "/api/v1/namespaces/ns/secrets", a_secret()),
            id="create",
        ),
        pytest.param(lambda c: c.patch(SECRETS, HERE, {"data": None}), ("PATCH", ONE, {"data": None}), id="patch"),
        pytest.param(
            lambda c: c.patch(SECRETS, HERE, {"metadata": {"labels": {"x": "y"}}}, uid="u", version="3"),
            ("PATCH", ONE, {"metadata": {"labels": {"x": "y"}, "uid": "u", "resourceVersion": "3"}}),
            id="patch of one state of one object",
        ),
        pytest.param(
            lambda c: c.patch(PODS, HERE, {"status": {}}, uid="u", status=True),
            ("PATCH", "/api/v1/namespaces/ns/pods/a/status", {"metadata": {"uid": "u"}, "status": {}}),
            id="status",
        ),
        pytest.param(
            lambda c: c.patch(JOB, HERE, {"status": {}}, uid="u", version="3", status=True),
            (
                "PATCH",
                f"/apis/{JOB.api_version}/namespaces/ns/genericjobs/a/status",
                {"metadata": {"uid": "u", "resourceVersion": "3"}, "status": {}},
            ),
            id="status of a job",
        ),
        pytest.param(
            lambda c: c.replace_status(JOB, {**A_JOB, "metadata": A_JOB["metadata"] | MANAGED}),
            (
                "PUT",
                f"/apis/{JOB.api_version}/namespaces/ns/genericjobs/a/status",
                {name: value for name, value in A_JOB.items() if name != "spec"},
            ),
            id="whole status of a job",
        ),
        pytest.param(lambda c: c.delete(SECRETS, HERE), ("DELETE", ONE, OPTIONS), id="delete"),
        pytest.param(
            lambda c: c.delete(SECRETS, HERE, uid="u", grace=0, propagation=Propagation.FOREGROUND),
            (
                "DELETE",
                ONE,
                {
                    **OPTIONS,
                    "propagationPolicy": "Foreground",
                    "gracePeriodSeconds": 0,
                    "preconditions": {"uid": "u"},
                },
            ),
            id="delete in detail",
        ),
    ],
)
async def test_what_is_sent(
    server: Server,
    cluster: KubeCluster,
    ask: Callable[[KubeCluster], Awaitable[Any]],
    sent: tuple[str, str, dict[str, Any] | None],
) -> None:
    server.says = [says(a_secret())]
    await ask(cluster)
    (asked,) = server.asked
    assert (asked.method, asked.raw, asked.body) == sent
    assert asked.headers["Accept"] == "application/json"
    assert asked.headers["User-Agent"].startswith("trainwright/")
    expected = {"PATCH": "application/merge-patch+json", "GET": None}.get(asked.method, "application/json")
    assert asked.headers.get("Content-Type") == expected


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "%2e"])
@pytest.mark.parametrize("what", ["get", "patch", "delete"])
async def test_a_name_that_would_lead_elsewhere_is_not_sent(
    server: Server, cluster: KubeCluster, what: str, name: str
) -> None:
    rest: tuple[Any, ...] = ({},) if what == "patch" else ()
    for key in (Key("ns", name), Key(name or "..", "a")):
        with pytest.raises(InvalidError, match=r"metadata\.name"):
            await getattr(cluster, what)(SECRETS, key, *rest)
    assert server.asked == []


async def test_everything_with_a_namespace_has_one(server: Server, cluster: KubeCluster) -> None:
    for ask in (
        cluster.get(SECRETS, Key("", "a")),
        cluster.create(SECRETS, {"metadata": {"name": "a"}}),
        cluster.create(SECRETS, {}),
    ):
        with pytest.raises(InvalidError, match=r"metadata\.namespace: missing"):
            await ask
    assert server.asked == []


DYING = {"deletionTimestamp": "2026-11-15T12:00:00Z"}


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        pytest.param(SUCCESS, False, id="a status"),
        pytest.param(a_secret(), False, id="the last state of it"),
        pytest.param(a_secret(**DYING, deletionGracePeriodSeconds=0), False, id="without grace"),
        pytest.param(a_secret(**DYING, deletionGracePeriodSeconds=30), True, id="a grace period"),
        pytest.param(a_secret(**DYING, deletionGracePeriodSeconds=0, finalizers=["x/y"]), True, id="a finalizer"),
    ],
)
async def test_what_a_deletion_leaves(
    server: Server, cluster: KubeCluster, answer: dict[str, Any], *, left: bool
) -> None:
    server.says = [says({"kind": "Pod", "apiVersion": "v1", **answer})]
    found = await cluster.delete(PODS, HERE)
    assert (found is not None) is left
    if left:
        assert isinstance(found, Pod)
        assert found.metadata.deletion_timestamp == datetime(2026, 11, 15, 12, tzinfo=UTC)


IMMUTABLE = {"causes": [{"reason": "FieldValueInvalid", "message": "immutable", "field": "metadata.uid"}]}
WRONG_UID = refuses(422, "Invalid", 'Pod "a" is invalid: metadata.uid', details=IMMUTABLE)


async def test_a_patch_of_another_object_is_a_conflict(server: Server, cluster: KubeCluster) -> None:
    server.says = [WRONG_UID]
    with pytest.raises(ConflictError, match='"a"'):
        await cluster.patch(PODS, HERE, {}, uid="u")
    with pytest.raises(InvalidError, match=r"metadata\.uid"):
        await cluster.patch(PODS, HERE, {"metadata": {"uid": "u"}})


async def test_a_patch_that_is_wrong_otherwise_is_none(server: Server, cluster: KubeCluster) -> None:
    server.says = [refuses(422, "Invalid", "spec.x", details={"causes": [{"field": "spec.x"}]})]
    with pytest.raises(InvalidError, match=r"spec\.x"):
        await cluster.patch(PODS, HERE, {}, uid="u")


async def test_a_jobs_status_is_pinned_by_its_version(server: Server, cluster: KubeCluster) -> None:
    """An API server passes over the UID there."""
    server.says = [says(a_secret(version="5"))]
    await cluster.patch(JOB, HERE, {"status": {}}, uid="u-a", status=True)
    assert server.asked[1].body["metadata"] == {"uid": "u-a", "resourceVersion": "5"}
    with pytest.raises(ConflictError, match="its UID is u-a, not u-b"):
        await cluster.patch(JOB, HERE, {"status": {}}, uid="u-b", status=True)
    assert len(server.asked) == 3


async def test_a_replaced_status_is_not_sent_again_and_again(server: Server, cluster: KubeCluster) -> None:
    """The document names one UID and one version: one request is enough, and a conflict is final."""
    server.says = [refuses(409, "Conflict", 'Operation cannot be fulfilled on genericjobs "a": modified')]
    with pytest.raises(ConflictError, match='"a"'):
        await cluster.replace_status(JOB, A_JOB)
    (asked,) = server.asked
    pins = asked.body["metadata"]
    assert (asked.method, pins["uid"], pins["resourceVersion"]) == ("PUT", "u-a", "3")


async def test_a_document_is_not_changed_by_the_request_that_contains_it(server: Server, cluster: KubeCluster) -> None:
    server.says = [says(A_JOB)]
    document = {**A_JOB, "metadata": A_JOB["metadata"] | MANAGED}
    assert await cluster.replace_status(JOB, document) == A_JOB
    assert document["metadata"]["managedFields"] == MANAGED["managedFields"]


async def test_a_status_of_an_object_without_a_place_is_not_sent(server: Server, cluster: KubeCluster) -> None:
    for metadata in ({"namespace": ""}, {"name": ".."}, {"name": "a/b"}):
        with pytest.raises(InvalidError, match=r"metadata\.name"):
            await cluster.replace_status(JOB, {**A_JOB, "metadata": A_JOB["metadata"] | metadata})
    assert server.asked == []


NO_UPDATE = refuses(
    403,
    "Forbidden",
    'genericjobs.batch.tensorstack.dev "a" is forbidden: User "system:serviceaccount:x:operator" cannot update'
    ' resource "genericjobs/status" in API group "batch.tensorstack.dev" in the namespace "ns"',
)
NO_PATCH = refuses(
    403, "Forbidden", 'genericjobs "a" is forbidden: User "x" cannot patch resource "genericjobs/status"'
)


async def test_a_status_is_patched_if_the_role_is_of_an_older_version(server: Server, cluster: KubeCluster) -> None:
    server.says = [NO_UPDATE, says(A_JOB)]
    for _ in range(2):
        assert await cluster.replace_status(JOB, A_JOB) == A_JOB
    assert [asked.method for asked in server.asked] == ["PUT", "PATCH", "PATCH"]
    assert {asked.path for asked in server.asked} == {f"/apis/{JOB.api_version}/namespaces/ns/genericjobs/a/status"}
    asked = server.asked[-1]
    assert asked.headers["Content-Type"] == "application/json-patch+json"
    assert asked.body == [
        {"op": "add", "path": "/metadata/uid", "value": "u-a"},
        {"op": "add", "path": "/metadata/resourceVersion", "value": "3"},
        {"op": "add", "path": "/status", "value": {"phase": "Running"}},
    ]


async def test_a_conflict_of_such_a_patch_is_one(server: Server, cluster: KubeCluster) -> None:
    conflict = refuses(409, "Conflict", 'Operation cannot be fulfilled on genericjobs "a": modified')
    server.says = [NO_UPDATE, conflict, NO_UPDATE, WRONG_UID]
    for _ in range(2):
        with pytest.raises(ConflictError, match='"a"'):
            await cluster.replace_status(JOB, A_JOB)
    assert [asked.method for asked in server.asked] == ["PUT", "PATCH", "PUT", "PATCH"]


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(refuses(403, "Forbidden", 'admission webhook "x.example" denied the request: no'), id="webhook"),
        pytest.param(refuses(403, "Forbidden", "exceeded quota: pods, requested: 1"), id="quota"),
        pytest.param(refuses(403, "Forbidden", "ValidatingAdmissionPolicy 'p' denied request: no"), id="policy"),
        pytest.param(refuses(403, "Forbidden", 'User "x" cannot impersonate resource "users"'), id="impersonation"),
        pytest.param(refuses(401, "Unauthorized", "Unauthorized"), id="expired token"),
        pytest.param(text("blocked by the firewall", 403), id="another server"),
    ],
)
async def test_a_status_that_is_refused_for_another_reason_is_not_patched(
    server: Server, cluster: KubeCluster, refusal: Answer
) -> None:
    server.says = [refusal, says(A_JOB)]
    with pytest.raises(ForbiddenError):
        await cluster.replace_status(JOB, A_JOB)
    assert await cluster.replace_status(JOB, A_JOB) == A_JOB
    assert [asked.method for asked in server.asked] == ["PUT", "PUT"]


async def test_a_status_is_replaced_again_if_the_role_no_longer_allows_patches(
    server: Server, cluster: KubeCluster
) -> None:
    server.says = [NO_UPDATE, says(A_JOB), NO_PATCH, says(A_JOB)]
    await cluster.replace_status(JOB, A_JOB)
    with pytest.raises(ForbiddenError, match="cannot patch"):
        await cluster.replace_status(JOB, A_JOB)
    await cluster.replace_status(JOB, A_JOB)
    assert [asked.method for asked in server.asked] == ["PUT", "PATCH", "PATCH", "PUT"]


async def test_the_right_that_is_missing_is_named(server: Server, cluster: KubeCluster) -> None:
    server.says = [NO_UPDATE, NO_PATCH, says(A_JOB)]
    with pytest.raises(ForbiddenError, match="cannot patch"):
        await cluster.replace_status(JOB, A_JOB)
    await cluster.replace_status(JOB, A_JOB)
    assert [asked.method for asked in server.asked] == ["PUT", "PATCH", "PUT"]


async def test_a_pod_is_bound(server: Server, cluster: KubeCluster) -> None:
    server.says = [says(SUCCESS, 201), says({**a_secret(), "spec": {"nodeName": "n"}})]
    bound = await cluster.bind(HERE, "n", uid="u", version="3")
    assert bound.spec.node_name == "n"
    asked = server.asked[0]
    assert (asked.method, asked.path) == ("POST", "/api/v1/namespaces/ns/pods/a/binding")
    assert asked.body["metadata"] == {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "3"}
    assert asked.body["target"] == {"apiVersion": "v1", "kind": "Node", "name": "n"}
