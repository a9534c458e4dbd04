# SPDX-License-Identifier: Apache-2.0
"""What every engine does, sooner or later, with the objects that a deleted one owned."""

from typing import Any

import pytest
from contract_objects import GENERICJOBS, PODS_WHOLE, eventually, job, key, names, owner, pod, secret

from trainwright.errors import NotFoundError
from trainwright.runtime.ports import SECRETS, Cluster, Propagation, Resource

pytest_plugins = ("contract_engines",)


async def _gone(cluster: Cluster, resource: Resource, name: str) -> None:
    async def missing() -> bool:
        try:
            await cluster.get(resource, key(name))
        except NotFoundError:
            return True
        return False

    await eventually(missing)


async def _going(cluster: Cluster, name: str) -> dict[str, Any]:
    """A pod, once it is being deleted."""

    async def marked() -> bool:
        return "deletionTimestamp" in (await cluster.get(PODS_WHOLE, key(name)))["metadata"]

    await eventually(marked)
    body: dict[str, Any] = await cluster.get(PODS_WHOLE, key(name))
    return body


async def test_dependents_follow_their_owner(cluster: Cluster) -> None:
    made = await cluster.create(GENERICJOBS, job("a"))
    await cluster.create(SECRETS, secret("mine", ownerReferences=[owner(made)]))
    await cluster.create(SECRETS, secret("free"))
    assert await cluster.delete(GENERICJOBS, key("a")) is None
    await _gone(cluster, SECRETS, "mine")
    assert await names(cluster, SECRETS) == ["free"]


async def test_pods_on_a_node_follow_in_their_own_time(cluster: Cluster) -> None:
    made = await cluster.create(GENERICJOBS, job("a"))
    await cluster.create(PODS_WHOLE, pod("placed", node="n", ownerReferences=[owner(made)]))
    await cluster.create(PODS_WHOLE, pod("waiting", ownerReferences=[owner(made)]))
    assert await cluster.delete(GENERICJOBS, key("a")) is None
    await _gone(cluster, PODS_WHOLE, "waiting")
    left = await _going(cluster, "placed")
    assert left["metadata"]["deletionGracePeriodSeconds"] == 30


async def test_a_family_follows_to_the_last(cluster: Cluster) -> None:
    last = await cluster.create(SECRETS, secret("m-0"))
    for number in range(1, 5):
        last = await cluster.create(SECRETS, secret(f"m-{number}", ownerReferences=[owner(last)]))
    await cluster.delete(SECRETS, key("m-0"))
    await _gone(cluster, SECRETS, "m-4")
    assert await names(cluster, SECRETS) == []


async def test_what_has_another_owner_stays_until_that_is_gone_too(cluster: Cluster) -> None:
    one, two = [await cluster.create(GENERICJOBS, job(name)) for name in ("one", "two")]
    await cluster.create(SECRETS, secret("shared", ownerReferences=[owner(one), owner(two)]))
    await cluster.delete(GENERICJOBS, key("one"))

    async def released() -> bool:
        return bool((await cluster.get(SECRETS, key("shared")))["metadata"]["ownerReferences"] == [owner(two)])

    await eventually(released)
    await cluster.delete(GENERICJOBS, key("two"))
    await _gone(cluster, SECRETS, "shared")


async def test_what_names_an_owner_that_does_not_exist_goes(cluster: Cluster) -> None:
    made = await cluster.create(GENERICJOBS, job("a"))
    await cluster.delete(GENERICJOBS, key("a"))
    await cluster.create(SECRETS, secret("late", ownerReferences=[owner(made)]))
    await _gone(cluster, SECRETS, "late")


async def test_an_owner_of_the_same_name_is_not_the_owner(cluster: Cluster) -> None:
    made = await cluster.create(GENERICJOBS, job("a"))
    await cluster.delete(GENERICJOBS, key("a"))
    await cluster.create(GENERICJOBS, job("a"))
    await cluster.create(SECRETS, secret("old", ownerReferences=[owner(made)]))
    await _gone(cluster, SECRETS, "old")


async def test_what_is_released_in_time_stays(cluster: Cluster) -> None:
    made = await cluster.create(GENERICJOBS, job("a"))
    await cluster.create(SECRETS, secret("mine", ownerReferences=[owner(made)]))
    await cluster.create(SECRETS, secret("witness", ownerReferences=[owner(made)]))
    await cluster.patch(SECRETS, key("mine"), {"metadata": {"ownerReferences": None}})
    await cluster.delete(GENERICJOBS, key("a"))
    await _gone(cluster, SECRETS, "witness")
    assert await names(cluster, SECRETS) == ["mine"]


async def test_what_is_adopted_follows(cluster: Cluster) -> None:
    made = await cluster.create(GENERICJOBS, job("a"))
    await cluster.create(SECRETS, secret("found"))
    await cluster.patch(SECRETS, key("found"), {"metadata": {"ownerReferences": [owner(made)]}})
    await cluster.delete(GENERICJOBS, key("a"))
    await _gone(cluster, SECRETS, "found")


async def test_orphans_stay_and_forget_their_owner(cluster: Cluster) -> None:
    made = await cluster.create(GENERICJOBS, job("a"))
    await cluster.create(SECRETS, secret("mine", ownerReferences=[owner(made, blocks=True)]))
    await cluster.delete(GENERICJOBS, key("a"), propagation=Propagation.ORPHAN)
    await _gone(cluster, GENERICJOBS, "a")
    assert not (await cluster.get(SECRETS, key("mine")))["metadata"].get("ownerReferences")


async def test_an_owner_waits_for_those_that_block_it(cluster: Cluster) -> None:
    made = await cluster.create(GENERICJOBS, job("a"))
    await cluster.create(PODS_WHOLE, pod("blocks", node="n", ownerReferences=[owner(made, blocks=True)]))
    left = await cluster.delete(GENERICJOBS, key("a"), propagation=Propagation.FOREGROUND)
    assert left["metadata"]["finalizers"] == ["foregroundDeletion"]
    await _going(cluster, "blocks")
    assert await names(cluster, GENERICJOBS) == ["a"]
    await cluster.delete(PODS_WHOLE, key("blocks"), grace=0)
    await _gone(cluster, GENERICJOBS, "a")


async def test_an_owner_does_not_wait_for_the_others(cluster: Cluster) -> None:
    made = await cluster.create(GENERICJOBS, job("a"))
    await cluster.create(PODS_WHOLE, pod("free", node="n", ownerReferences=[owner(made)]))
    await cluster.delete(GENERICJOBS, key("a"), propagation=Propagation.FOREGROUND)
    await _gone(cluster, GENERICJOBS, "a")
    await _going(cluster, "free")


@pytest.mark.parametrize("propagation", [Propagation.BACKGROUND, Propagation.FOREGROUND])
async def test_a_finalizer_of_a_dependent_keeps_it(cluster: Cluster, propagation: Propagation) -> None:
    made = await cluster.create(GENERICJOBS, job("a"))
    held = secret("held", ownerReferences=[owner(made, blocks=True)], finalizers=["example.com/held"])
    await cluster.create(SECRETS, held)
    await cluster.delete(GENERICJOBS, key("a"), propagation=propagation)

    async def marked() -> bool:
        return "deletionTimestamp" in (await cluster.get(SECRETS, key("held")))["metadata"]

    await eventually(marked)
    assert await names(cluster, GENERICJOBS) == (["a"] if propagation is Propagation.FOREGROUND else [])
    await cluster.patch(SECRETS, key("held"), {"metadata": {"finalizers": None}})
    await _gone(cluster, SECRETS, "held")
    await _gone(cluster, GENERICJOBS, "a")
