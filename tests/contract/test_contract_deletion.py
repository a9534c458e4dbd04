# SPDX-License-Identifier: Apache-2.0
"""What every engine does with a deletion: at once, after a grace period, or when the last finalizer has gone."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from contract_objects import GENERICJOBS, PODS_WHOLE, job, key, names, pod, secret, told, version

from trainwright.errors import InvalidError
from trainwright.runtime.ports import SECRETS, Cluster, WatchEventType

pytest_plugins = ("contract_engines",)
HELD = ["example.com/held"]


def _due(body: dict[str, Any]) -> tuple[datetime, int]:
    metadata = body["metadata"]
    return datetime.fromisoformat(metadata["deletionTimestamp"]), metadata["deletionGracePeriodSeconds"]


async def test_what_nothing_keeps_goes_at_once(cluster: Cluster) -> None:
    made = await cluster.create(SECRETS, secret("a"))
    assert await cluster.delete(SECRETS, key("a")) is None
    assert await names(cluster, SECRETS) == []
    (gone,) = await told(cluster, SECRETS, version(made), 1)
    assert gone.what is WatchEventType.DELETED
    assert int(gone.version) > int(version(made))


async def test_a_pod_on_no_node_goes_at_once(cluster: Cluster) -> None:
    await cluster.create(PODS_WHOLE, pod("a"))
    assert await cluster.delete(PODS_WHOLE, key("a")) is None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_pod_that_has_ended_goes_at_once(cluster: Cluster, phase: str) -> None:
    await cluster.create(PODS_WHOLE, pod("a", node="n"))
    await cluster.patch(PODS_WHOLE, key("a"), {"status": {"phase": phase}}, status=True)
    assert await cluster.delete(PODS_WHOLE, key("a")) is None


@pytest.mark.parametrize(
    ("own", "asked", "expected"),
    [
        pytest.param(None, None, 30, id="thirty seconds"),
        pytest.param(5, None, 5, id="its own"),
        pytest.param(5, 60, 60, id="as asked"),
        pytest.param(60, 5, 5, id="as asked, shorter"),
    ],
)
async def test_a_pod_on_a_node_has_time_to_end(
    cluster: Cluster, own: int | None, asked: int | None, expected: int
) -> None:
    made = await cluster.create(PODS_WHOLE, pod("a", node="n", grace=own))
    left = await cluster.delete(PODS_WHOLE, key("a"), grace=asked)
    due, grace = _due(left)
    assert grace == expected
    began = datetime.fromisoformat(made["metadata"]["creationTimestamp"])
    assert timedelta() <= due - began - timedelta(seconds=expected) <= timedelta(seconds=5)
    assert await cluster.get(PODS_WHOLE, key("a")) == left


@pytest.mark.parametrize("before", [False, True], ids=["first", "while it ends"])
async def test_no_grace_ends_it_at_once(cluster: Cluster, *, before: bool) -> None:
    await cluster.create(PODS_WHOLE, pod("a", node="n"))
    if before:
        await cluster.delete(PODS_WHOLE, key("a"))
    assert await cluster.delete(PODS_WHOLE, key("a"), grace=0) is None
    assert await names(cluster, PODS_WHOLE) == []


async def test_a_grace_period_can_be_shortened_and_not_lengthened(cluster: Cluster) -> None:
    await cluster.create(PODS_WHOLE, pod("a", node="n"))
    first = await cluster.delete(PODS_WHOLE, key("a"), grace=20)
    for same in (20, 60, None):
        assert await cluster.delete(PODS_WHOLE, key("a"), grace=same) == first
    shorter = await cluster.delete(PODS_WHOLE, key("a"), grace=5)
    assert _due(shorter) == (_due(first)[0] - timedelta(seconds=15), 5)
    assert shorter["metadata"]["generation"] == first["metadata"]["generation"]


async def test_a_pod_that_ends_is_still_written_to(cluster: Cluster) -> None:
    await cluster.create(PODS_WHOLE, pod("a", node="n"))
    await cluster.delete(PODS_WHOLE, key("a"))
    stated = await cluster.patch(PODS_WHOLE, key("a"), {"status": {"phase": "Failed"}}, status=True)
    assert stated["status"]["phase"] == "Failed"
    assert await cluster.get(PODS_WHOLE, key("a")) == stated


async def test_a_finalizer_keeps_an_object_and_its_removal_lets_it_go(cluster: Cluster) -> None:
    await cluster.create(GENERICJOBS, job("a", finalizers=HELD))
    left = await cluster.delete(GENERICJOBS, key("a"))
    assert "deletionTimestamp" in left["metadata"]
    assert left["metadata"]["generation"] == 2
    assert await cluster.delete(GENERICJOBS, key("a")) == left
    stated = await cluster.patch(GENERICJOBS, key("a"), {"status": {"phase": "Failed"}}, status=True)
    assert stated["status"] == {"phase": "Failed"}
    await cluster.patch(GENERICJOBS, key("a"), {"metadata": {"finalizers": None}})
    assert await names(cluster, GENERICJOBS) == []
    (gone,) = await told(cluster, GENERICJOBS, version(stated), 1)
    assert gone.what is WatchEventType.DELETED


async def test_a_finalizer_of_several_is_not_enough(cluster: Cluster) -> None:
    await cluster.create(SECRETS, secret("a", finalizers=[*HELD, "example.com/other"]))
    await cluster.delete(SECRETS, key("a"))
    await cluster.patch(SECRETS, key("a"), {"metadata": {"finalizers": HELD}})
    assert await names(cluster, SECRETS) == ["a"]
    await cluster.patch(SECRETS, key("a"), {"metadata": {"finalizers": []}})
    assert await names(cluster, SECRETS) == []


async def test_a_finalizer_keeps_a_pod_after_its_grace(cluster: Cluster) -> None:
    await cluster.create(PODS_WHOLE, pod("a", node="n", finalizers=HELD))
    await cluster.delete(PODS_WHOLE, key("a"))
    left = await cluster.delete(PODS_WHOLE, key("a"), grace=0)
    assert left["metadata"]["deletionGracePeriodSeconds"] == 0
    await cluster.patch(PODS_WHOLE, key("a"), {"metadata": {"finalizers": None}})
    assert await names(cluster, PODS_WHOLE) == []


async def test_a_pod_that_still_ends_stays_without_its_finalizers(cluster: Cluster) -> None:
    await cluster.create(PODS_WHOLE, pod("a", node="n", finalizers=HELD))
    await cluster.delete(PODS_WHOLE, key("a"))
    await cluster.patch(PODS_WHOLE, key("a"), {"metadata": {"finalizers": None}})
    assert await names(cluster, PODS_WHOLE) == ["a"]
    assert await cluster.delete(PODS_WHOLE, key("a"), grace=0) is None


async def test_no_finalizer_is_added_to_what_is_being_deleted(cluster: Cluster) -> None:
    await cluster.create(SECRETS, secret("a", finalizers=HELD))
    await cluster.delete(SECRETS, key("a"))
    with pytest.raises(InvalidError, match="finalizers"):
        await cluster.patch(SECRETS, key("a"), {"metadata": {"finalizers": [*HELD, "example.com/late"]}})


async def test_a_name_is_free_again(cluster: Cluster) -> None:
    made = await cluster.create(PODS_WHOLE, pod("a", node="n"))
    await cluster.delete(PODS_WHOLE, key("a"), uid=made["metadata"]["uid"], grace=0)
    again = await cluster.create(PODS_WHOLE, pod("a"))
    assert again["metadata"]["uid"] != made["metadata"]["uid"]
    assert "deletionTimestamp" not in again["metadata"]
