# SPDX-License-Identifier: Apache-2.0
"""The ConfigMap that pods wait for: made when all addresses are known, of one attempt only, gone before the next."""

from typing import Any

import pytest
from msgspec.structs import replace
from passes import emitted

from trainwright.core.classify import classify_pod
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.child import (
    CONFIG_ERROR,
    ContainerState,
    ContainerStatus,
    Extra,
    Observed,
    Pod,
    PodStatus,
    Waiting,
)
from trainwright.model.job import Body, CleanPods, CleanUp, Job, Lifecycle, Replica, Restart, RestartScope
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ADDRESS_HASHES, JOB_UID, KIND, WORLD, Meta, ObjectMeta
from trainwright.model.site import Site
from trainwright.testing.factories import NOW, OWNER, UID, PlainDialect, job, role
from trainwright.testing.world import World

ANEW = Restart(frozenset({CauseKind.EXIT, CauseKind.DELETED}), scope=RestartScope.JOB)


class Listed(PlainDialect, frozen=True):
    """With a ConfigMap of all addresses, once they are known, which every pod needs."""

    def pod(self, job: Job, replica: Replica, site: Site) -> Body:
        """The template, and the map."""
        made = super().pod(job, replica, site)
        container = {"name": "main", "image": "x", "envFrom": [{"configMapRef": {"name": "job"}}]}
        return made | {"spec": {"containers": [container]}}

    def extras(self, job: Job, observed: Observed, site: Site) -> tuple[Body, ...]:  # noqa: ARG002 - a protocol's
        """The map."""
        known = {pod.metadata.name: pod.status.pod_ip for pod in observed.pods}
        wanted = [known.get(f"job-{one.name}-{index}", "") for one in job.roles for index in range(one.replicas)]
        if job.ledger.outcome is not None or job.lifecycle.suspended or not all(wanted):
            return ()
        return (
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "job"}, "data": {"all": " ".join(wanted)}},
        )


def gated(replicas: int = 2, **lifecycle: Any) -> Job:
    """A job whose replicas restart together, and are told of each other's addresses."""
    one = role(replicas=replicas, restart=ANEW, gate="job", resize=RestartScope.JOB)
    return job(one, dialect=Listed(), lifecycle=Lifecycle(**lifecycle))


def started(world: World) -> World:
    """All pods have an address, then run."""
    for _ in range(2):
        rest(world)
        for name, pod in world.pods().items():
            if pod.status.phase == "Pending":
                world.start(name)
    rest(world)
    return world


def rest(world: World) -> None:
    for _ in range(30):
        world.reap()
        world.catch_up()
        if world.step().empty and not world.notes:
            return


def map_of(world: World) -> Extra | None:
    found = world.truth.get(("ConfigMap", "job"))
    assert found is None or isinstance(found, Extra)
    return found


def test_it_is_made_once_every_address_is_known_and_speaks_of_this_attempt() -> None:
    world = World(gated())
    rest(world)
    world.start("job-worker-0")
    rest(world)
    assert map_of(world) is None
    world.start("job-worker-1")
    rest(world)

    made = map_of(world)
    assert made is not None
    assert (made.metadata.annotations or {})[WORLD] == world.job.world


def test_no_pod_of_the_next_attempt_is_made_while_the_last_ones_map_is_there() -> None:
    world = started(World(gated()))
    world.exit("job-worker-1", 1)
    world.catch_up()
    world.step()
    world.reap()
    world.wait(5)
    stale = map_of(world)
    assert stale is None, "removed along with the attempt"
    old = replace(gated(), ledger=replace(world.job.ledger, roles=()))
    labels = {KIND: "example", JOB_UID: UID}
    meta = ObjectMeta("job", "default", "map", labels=labels, owner_references=(OWNER,), annotations={WORLD: old.world})
    left = Extra("ConfigMap", meta, api_version="v1")
    world.put(("ConfigMap", "job"), left)
    world.catch_up()
    plan = world.look()
    assert [create.body["kind"] for create in plan.creates] == []
    assert [(one.kind, one.name) for one in plan.deletes if one.kind == "ConfigMap"] == [("ConfigMap", "job")]
    going = replace(left, metadata=replace(left.metadata, deletion_timestamp=NOW))
    world.put(("ConfigMap", "job"), going)
    world.catch_up()
    assert world.look().creates == ()
    world.put(("ConfigMap", "job"), None)
    world.catch_up()
    assert [create.name for create in world.look().creates] == ["job-worker-0"], "the other one's log is shown"


def test_a_pod_that_goes_after_the_map_was_made_takes_all_along_although_nothing_was_stored_of_it() -> None:
    """The operator dies right after the map: that all had existed was not stored, but the map proves it."""
    world = World(gated(), defers=True)
    rest(world)
    for name in world.pods():
        world.start(name)
    world.catch_up()
    world.step()
    assert map_of(world) is not None
    assert world.job.ledger.roles[0].reached == 0, "not stored yet"
    world.restart_operator()
    world.vanish("job-worker-0")
    world.restart_operator()
    world.step()

    assert world.job.ledger.roles[0].epoch == 1
    assert map_of(world) is None


ALSO_DISRUPTED = Restart(
    frozenset({CauseKind.EXIT, CauseKind.DELETED, CauseKind.DISRUPTED}),
    free=frozenset({CauseKind.DISRUPTED}),
    scope=RestartScope.JOB,
)


def lasting(restart: Restart = ALSO_DISRUPTED) -> World:
    """It runs, and its pods may be restarted in place."""
    one = gated()
    return started(World(replace(one, roles=(replace(one.roles[0], restart=restart),))))


def test_a_pod_that_gets_another_address_takes_all_along() -> None:
    """A node that boots anew keeps its pods, but not their addresses."""
    world = lasting()
    world.change("job-worker-1", pod_ip="")
    rest(world)
    assert world.job.ledger.roles[0].epoch == 0, "none yet"
    world.change("job-worker-1", pod_ip="10.9.9.9")
    world.catch_up()
    plan = world.step()

    entry = world.job.ledger.roles[0]
    assert (entry.epoch, entry.restarts) == (1, {"Disrupted": 1})
    assert map_of(world) is None
    assert "job-worker-1: disrupted (AddressChanged: its peers were told" in emitted(plan)[0].message
    world.wait(60)
    started(world)
    assert {pod.status.phase for pod in world.pods().values()} == {"Running"}
    assert world.job.ledger.roles[0].epoch == 1, "once"


@pytest.mark.parametrize(
    "restart",
    [
        pytest.param(replace(ALSO_DISRUPTED, scope=RestartScope.POD), id="peers go by name"),
        pytest.param(ANEW, id="disruptions are not answered"),
    ],
)
def test_where_nobody_answers_that_a_pod_has_another_address_the_map_follows(restart: Restart) -> None:
    world = lasting(restart)
    before = map_of(world)
    world.change("job-worker-1", pod_ip="10.9.9.9")
    rest(world)

    after = map_of(world)
    assert before is not None
    assert after is not None
    assert world.job.ledger.roles[0].epoch == 0
    assert (after.metadata.uid, after.metadata.annotations) != (before.metadata.uid, before.metadata.annotations)
    assert after.metadata.uid == before.metadata.uid


def test_a_map_that_does_not_say_where_pods_were_judges_nobody() -> None:
    """One of an operator before this one."""
    world = lasting()
    made = map_of(world)
    assert made is not None
    noted = {name: value for name, value in (made.metadata.annotations or {}).items() if name != ADDRESS_HASHES}
    world.put(("ConfigMap", "job"), replace(made, metadata=replace(made.metadata, annotations=noted)))
    world.change("job-worker-1", pod_ip="10.9.9.9")
    rest(world)

    assert world.job.ledger.roles[0].epoch == 0


def test_after_a_lost_status_the_map_is_written_over_and_pods_that_ask_for_it_still_find_it() -> None:
    world = lasting()
    world.exit("job-worker-0", 1)
    rest(world)
    world.wait(60)
    started(world)
    before = map_of(world)
    world.edit(ledger=Ledger())
    rest(world)

    after = map_of(world)
    assert before is not None
    assert after is not None
    assert after.metadata.uid == before.metadata.uid
    assert {pod.status.phase for pod in world.pods().values()} == {"Running"}


def test_a_new_replica_is_not_one_that_went() -> None:
    world = started(World(gated()))
    first = world.job.roles[0]
    world.edit(roles=(replace(first, replicas=3),))
    rest(world)

    assert world.job.ledger.roles[0].restarts == {}
    assert world.job.ledger.roles[0].epoch == 1


def test_an_address_of_a_pod_on_its_way_out_is_not_told() -> None:
    world = World(gated())
    rest(world)
    for name in world.pods():
        world.start(name)
    world.delete(("Pod", "job-worker-0"))
    world.catch_up()
    world.step()

    assert map_of(world) is None


def test_it_stays_when_a_pod_that_had_finished_is_collected() -> None:
    """Its address is not known any more, but nobody will ask for it again, and others may be started anew in place."""
    world = started(World(gated()))
    before = map_of(world)
    world.exit("job-worker-0")
    rest(world)
    world.vanish("job-worker-0")
    rest(world)

    assert before is not None
    assert map_of(world) == before


@pytest.mark.parametrize("level", [CleanPods.NONE, CleanPods.ALL])
def test_it_stays_with_the_job_when_that_has_ended(level: CleanPods) -> None:
    world = started(World(gated(clean=CleanUp(level, level, level))))
    for name in world.pods():
        world.exit(name)
    rest(world)

    assert world.job.ledger.outcome is not None
    assert map_of(world) is not None


def test_it_goes_when_the_job_is_suspended() -> None:
    world = started(World(gated()))
    world.edit(lifecycle=Lifecycle(suspended=True))
    rest(world)

    assert (map_of(world), world.pods()) == (None, {})


@pytest.mark.parametrize(
    ("message", "excused"),
    [
        ('configmap "job" not found', True),
        ("couldn't find key WORLD_1 in ConfigMap default/job", True),
        ("spec.containers[0].envFrom[0].configMapRef.name: there is no ConfigMap 'job' in namespace 'default'", True),
        ("spec.containers[0].env[0].valueFrom.configMapKeyRef.key: ConfigMap 'job' has no key 'a'; it has b", True),
        ('configmap "job-data" not found', False),
        ('configmap "my-job" not found', False),
        ('secret "job" not found', False),
        ("", False),
    ],
)
def test_only_its_own_absence_is_excused(message: str, excused: bool) -> None:
    def cause(reason: str, name: str) -> Cause | None:
        state = ContainerState(waiting=Waiting(reason, message))
        waits = Pod(Meta("job-a-0"), status=PodStatus(container_statuses=(ContainerStatus("main", state=state),)))
        return classify_pod(waits, role(gate=name), None, Site(), NOW)[1]

    assert (cause(CONFIG_ERROR, "job") is None) is excused
    assert cause(CONFIG_ERROR, "") is not None
    assert cause("ImagePullBackOff", "job") is not None
