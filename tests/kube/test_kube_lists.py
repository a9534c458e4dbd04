# SPDX-License-Identifier: Apache-2.0
"""Lists: in pages, from the start when the server has forgotten, and readable although one object in them is not."""

import json
import logging
from typing import Any

import pytest
from kube_server import SECRETS, Server, a_list, a_secret, refuses, says

from trainwright.errors import GoneError
from trainwright.kube.cluster import KubeCluster
from trainwright.model.child import Extra
from trainwright.runtime.ports import NODES, POD_GROUPS, PODS, Resource, Selection

GONE = refuses(410, "Expired", "The provided continue parameter is too old")
SELECTED = Selection("ns", "a in (b, c)", "metadata.name!=x")


async def test_pages_make_one_list(server: Server, cluster: KubeCluster) -> None:
    server.says = [
        says(a_list(a_secret("a"), a_secret("b"), version="7", more="t/1")),
        says(a_list(a_secret("c"), version="7", more="t/2")),
        says(a_list(version="7")),
    ]
    page = await cluster.list(SECRETS, SELECTED)
    assert [item["metadata"]["name"] for item in page.items] == ["a", "b", "c"]
    assert page.version == "7"
    selectors = {"labelSelector": "a in (b, c)", "fieldSelector": "metadata.name!=x"}
    assert [asked.query for asked in server.asked] == [
        {**selectors, "limit": "500"},
        {**selectors, "limit": "500", "continue": "t/1"},
        {**selectors, "limit": "500", "continue": "t/2"},
    ]
    assert {asked.path for asked in server.asked} == {"/api/v1/namespaces/ns/secrets"}


async def test_a_list_as_new_as_asked_says_so_on_its_first_page(server: Server, cluster: KubeCluster) -> None:
    server.says = [says(a_list(more="t")), says(a_list())]
    await cluster.list(SECRETS, not_older_than="12")
    first, second = server.asked
    assert first.query == {"limit": "500", "resourceVersion": "12", "resourceVersionMatch": "NotOlderThan"}
    assert second.query == {"limit": "500", "continue": "t"}


async def test_a_list_that_took_too_long_is_read_in_one_piece(server: Server, cluster: KubeCluster) -> None:
    server.says = [
        says(a_list(a_secret("old"), version="3", more="t")),
        GONE,
        says(a_list(a_secret("a"), a_secret("b"), version="8")),
    ]
    page = await cluster.list(SECRETS, SELECTED, not_older_than="2")
    assert [item["metadata"]["name"] for item in page.items] == ["a", "b"]
    assert page.version == "8"
    assert "limit" not in server.asked[2].query
    assert server.asked[2].query["resourceVersion"] == "2"


async def test_a_server_that_forgets_at_once_is_believed(server: Server, cluster: KubeCluster) -> None:
    server.says = [GONE]
    with pytest.raises(GoneError, match="too old"):
        await cluster.list(SECRETS)


async def test_whole_objects_say_what_they_are_and_lose_what_nobody_reads(server: Server, cluster: KubeCluster) -> None:
    server.says = [says(a_list(a_secret(managedFields=[{"manager": "x"}])))]
    (item,) = (await cluster.list(SECRETS)).items
    assert item == {"apiVersion": "v1", "kind": "Secret", **a_secret()}


def _pod(name: str, **rest: Any) -> dict[str, Any]:
    return {**a_secret(name), "spec": {"nodeName": "n", "containers": None}, **rest}


async def test_go_writes_null_for_nothing(server: Server, cluster: KubeCluster) -> None:
    status = {"phase": "Running", "conditions": None, "containerStatuses": None, "startTime": None}
    server.says = [says(a_list(_pod("a", status=status))), says(a_list())]
    (pod,) = (await cluster.list(PODS)).items
    assert (pod.metadata.name, pod.spec.node_name, pod.status.phase) == ("a", "n", "Running")
    assert (await cluster.list(PODS)).items == ()


async def test_a_narrow_type_that_asks_for_the_kind_gets_it(server: Server, cluster: KubeCluster) -> None:
    server.says = [says(a_list(a_secret("a"), {**a_secret("b"), "kind": "PodGroup"}))]
    items = (await cluster.list(POD_GROUPS)).items
    assert [(type(item), item.kind, item.metadata.name) for item in items] == [
        (Extra, "PodGroup", "a"),
        (Extra, "PodGroup", "b"),
    ]


async def test_one_object_that_cannot_be_read_does_not_hide_the_others(
    server: Server, cluster: KubeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    server.says = [says(a_list(_pod("a"), _pod("b", status={"phase": 3}), _pod("c")))]
    with caplog.at_level(logging.WARNING):
        page = await cluster.list(PODS)
    assert [pod.metadata.name for pod in page.items] == ["a", "c"]
    assert "object=ns/b" in caplog.text


@pytest.mark.parametrize(
    ("resource", "scope", "path"),
    [
        (PODS, Selection(), "/api/v1/pods"),
        (PODS, Selection("ns"), "/api/v1/namespaces/ns/pods"),
        (POD_GROUPS, Selection("ns"), "/apis/scheduler.tensorstack.dev/v1beta1/namespaces/ns/podgroups"),
        (NODES, Selection("ns"), "/api/v1/nodes"),
        (Resource("apps", "v1", "deployments", "Deployment"), Selection(), "/apis/apps/v1/deployments"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_where_lists_are(
    server: Server, cluster: KubeCluster, resource: Resource, scope: Selection, path: str
) -> None:
    server.says = [says(a_list())]
    await cluster.list(resource, scope)
    assert server.asked[0].path == path


async def test_a_large_page_is_no_problem(server: Server, cluster: KubeCluster) -> None:
    server.says = [says(a_list(*[_pod(f"p-{number}", pad="x" * 20_000) for number in range(500)]))]
    page = await cluster.list(PODS)
    assert len(page.items) == 500
    assert len(json.dumps(a_list(_pod("p", pad="x" * 20_000)))) > 20_000
