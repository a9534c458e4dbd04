# SPDX-License-Identifier: Apache-2.0
"""What each verb sends, and what it makes of the answers that only some objects give."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from kube_server import HERE, SECRETS, Server, a_secret, refuses, says

from trainwright.errors import ConflictError, InvalidError
from trainwright.kube.cluster import KubeCluster
from trainwright.model.child import Pod
from trainwright.model.meta import Key
from trainwright.runtime.ports import JOBS, LEASES, NODES, PODS, Propagation

JOB = JOBS["genericjob"]
ONE = "/api/v1/namespaces/ns/secrets/a"
SUCCESS = {"kind": "Status", "apiVersion": "v1", "status": "Success", "details": {"name": "a", "uid": "u-a"}}
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


async def test_a_pod_is_bound(server: Server, cluster: KubeCluster) -> None:
    server.says = [says(SUCCESS, 201), says({**a_secret(), "spec": {"nodeName": "n"}})]
    bound = await cluster.bind(HERE, "n", uid="u", version="3")
    assert bound.spec.node_name == "n"
    asked = server.asked[0]
    assert (asked.method, asked.path) == ("POST", "/api/v1/namespaces/ns/pods/a/binding")
    assert asked.body["metadata"] == {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "3"}
    assert asked.body["target"] == {"apiVersion": "v1", "kind": "Node", "name": "n"}
