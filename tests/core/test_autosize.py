# SPDX-License-Identifier: Apache-2.0
"""Roles that resize themselves: smaller when pods find no place, larger into places that spares have found."""

from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace
from passes import emitted, lived, look, names

from trainwright.model.cause import CauseKind
from trainwright.model.child import ObjectCondition, Pod, Refusal
from trainwright.model.event import Emit, EventReason
from trainwright.model.job import Elastic, Job, Restart, RestartScope
from trainwright.model.ledger import Ledger, Phase, RoleLedger, SizeCap
from trainwright.model.meta import ATTEMPT, SPARE
from trainwright.model.plan import Plan, Write
from trainwright.model.rule import NEVER, Atom, Result, Which
from trainwright.model.site import Site, SizingRules
from trainwright.testing.factories import NOW, job, later, node, pod, role
from trainwright.testing.world import World

SITE = Site(sizing=SizingRules(patience=30, cooldown=60))
#: Nothing that this file is about depends on what is answered.
ANY = Restart(frozenset({CauseKind.EXIT, CauseKind.NODE_LOST}))


PAIR = (pod(0), pod(1))


def auto(replicas: int = 4, least: int = 1, most: int = 4, **more: Any) -> Job:
    entry = more.pop("entry", RoleLedger("worker", reached=replicas, size=replicas))
    given: dict[str, Any] = {"resize": RestartScope.ROLE, "restart": ANY} | more
    return job(role(replicas=replicas, elastic=Elastic(least, most, True), **given), ledger=lived(entry))


def placeless(index: int, since: datetime | None = NOW, **more: Any) -> Pod:
    """A pod for which there is no node."""
    told = ObjectCondition(
        more.pop("type", "PodScheduled"), more.pop("status", "False"), more.pop("reason", "Unschedulable")
    )
    told = replace(told, message="0/3 nodes are available", last_transition_time=since)
    return pod(index, "Pending", node="", conditions=(told,), **more)


def entry(plan: Plan) -> RoleLedger:
    return plan.status.ledger.roles[0]


def most(plan: Plan) -> int | None:
    """What the role is held to."""
    ceiling = entry(plan).ceiling
    return None if ceiling is None else ceiling.most


# -- smaller ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pods", "least", "expected"),
    [
        pytest.param((pod(0), pod(1), pod(2), placeless(3)), 1, 3, id="one has no place"),
        pytest.param((placeless(0), pod(1), pod(2), pod(3)), 1, 3, id="whichever it is"),
        pytest.param((pod(0), placeless(1), placeless(2), placeless(3)), 1, 1, id="three have none"),
        pytest.param((pod(0), placeless(1), placeless(2), placeless(3)), 2, 2, id="not below its least"),
        pytest.param(tuple(map(placeless, range(4))), 1, 1, id="none has one"),
        pytest.param((pod(0), pod(1), pod(2, "Pending"), placeless(3)), 1, 3, id="one has its place and starts"),
    ],
)
def test_it_does_without_pods_that_find_no_place(pods: tuple[Pod, ...], least: int, expected: int) -> None:
    plan = look(auto(least=least), *pods, site=SITE, now=later(30))

    assert (most(plan), entry(plan).size, plan.write) == (expected, expected, Write.NOW)
    assert len(plan.status.roles[0].replicas) == expected
    assert plan.status.ledger.phase is Phase.RESTARTING
    assert sorted(one.name for one in plan.deletes) == [f"job-worker-{i}" for i in range(4)]
    assert entry(plan).restarts == {}


@pytest.mark.parametrize(
    ("pods", "seconds"),
    [
        pytest.param((pod(0), pod(1), pod(2), placeless(3)), 29.9, id="not for long enough"),
        pytest.param((pod(0), pod(1), placeless(2, later(9)), placeless(3)), 38, id="one of two not for long enough"),
        pytest.param((pod(0), pod(1), pod(2, "Pending", node=""), placeless(3)), 99, id="one has not been looked at"),
        pytest.param((pod(0), pod(1), pod(2)), 99, id="one has no pod"),
        pytest.param((pod(0), pod(1), placeless(2), pod(3, deleting=later(200))), 99, id="one is on its way out"),
        pytest.param((pod(0), pod(1), pod(2), placeless(3, status="True")), 99, id="it has been scheduled"),
        pytest.param((pod(0), pod(1), pod(2), placeless(3, reason="SchedulingGated")), 99, id="it is held by a gate"),
        pytest.param((pod(0), pod(1), pod(2), placeless(3, type="Ready")), 99, id="another condition"),
        pytest.param((pod(0), pod(1), pod(2), placeless(3, None)), 99, id="nobody knows since when"),
        pytest.param((pod(0), pod(1), pod(2), pod(3, "Pending")), 9999, id="it has a place and does not start"),
    ],
)
def test_it_waits_for_those_that_may_still_find_one(pods: tuple[Pod, ...], seconds: float) -> None:
    plan = look(auto(), *pods, site=SITE, now=later(seconds))

    assert most(plan) is None
    assert plan.deletes == ()


def test_it_is_looked_at_again_when_pods_have_had_no_place_for_long_enough() -> None:
    pods = (pod(0), pod(1), placeless(2, later(5)), placeless(3))

    assert look(auto(), *pods, site=SITE, now=NOW).wake == later(30), "also in the instant in which the first is told"
    assert look(auto(), *pods, site=SITE, now=later(10)).wake == later(30)
    assert look(auto(), *pods, site=SITE, now=later(30)).wake == later(35)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(auto(least=4), id="it is as small as it may be"),
        pytest.param(replace(auto(), roles=(role(replicas=4, elastic=Elastic(1, 4)),)), id="its size is its user's"),
        pytest.param(replace(auto(), roles=(role(replicas=4),)), id="it is not elastic"),
    ],
)
def test_others_wait_for_a_place_however_long_it_takes(given: Job) -> None:
    plan = look(given, pod(0), pod(1), pod(2), placeless(3), site=SITE, now=later(9999))

    assert most(plan) is None
    assert plan.deletes == ()


def refusal(name: str = "job-worker-2", **more: Any) -> Refusal:
    given: dict[str, Any] = {"since": NOW, "quota": True} | more
    return Refusal(name, "Forbidden", "exceeded quota: gpus", later(99), **given)


def test_a_quota_that_is_used_up_is_as_good_as_no_place() -> None:
    """Of several that would be refused, one is tried."""
    early, late = (look(auto(), *PAIR, refusals=(refusal(),), site=SITE, now=later(n)) for n in (29.9, 30))

    assert (most(early), early.wake, most(late)) == (None, later(30), 2)
    assert emitted(late)[0].message.endswith("2 of 4 pods found no place for 30 s: Forbidden: exceeded quota: gpus")


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(refusal(quota=False), id="for another reason, whatever its text"),
        pytest.param(refusal("job-ps-0"), id="of another role"),
        pytest.param(refusal("job-worker-4"), id="of one that only was to hold a place"),
        pytest.param(refusal("job-worker-1"), id="of one that has been made since"),
        pytest.param(refusal(since=None), id="nobody knows since when"),
        pytest.param(refusal(kind="Service"), id="of something else"),
    ],
)
def test_other_refusals_are_waited_for(one: Refusal) -> None:
    assert most(look(auto(), *PAIR, refusals=(one,), site=SITE, now=later(99))) is None


def test_a_role_of_which_some_have_finished_is_left_alone() -> None:
    plan = look(auto(), pod(0, "Succeeded"), pod(1), pod(2), placeless(3), site=SITE, now=later(99))

    assert most(plan) is None


def test_where_nobody_is_told_of_the_size_only_the_surplus_goes() -> None:
    given = auto(resize=None, entry=RoleLedger("worker", reached=4))

    plan = look(given, placeless(0), pod(1), pod(2), pod(3), site=SITE, now=later(30))

    assert names(plan)["deletes"] == ["Pod job-worker-3"]
    assert entry(plan).epoch == 0


def test_people_are_told_from_what_to_what_and_why() -> None:
    why = "2 of 4 pods found no place for 30 s: 0/3 nodes are available"
    pods = (pod(0), pod(1), placeless(2), placeless(3))

    told = emitted(look(auto(), *pods, site=SITE, now=later(30)))
    untold = emitted(look(auto(resize=None, entry=RoleLedger("worker", reached=4)), *pods, site=SITE, now=later(30)))

    assert told == (Emit(EventReason.RESIZED, f"worker is scaled from 4 to 2 replicas: {why}"),)
    assert untold == (Emit(EventReason.RESIZED, f"worker is scaled to 2 replicas: {why}"),)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        pytest.param(None, 0, id="the first time"),
        pytest.param(SizeCap(later(-599), -1, grew=True, tries=2), 3, id="soon after it grew"),
        pytest.param(SizeCap(later(-600), -1, grew=True, tries=2), 0, id="long after it grew"),
        pytest.param(SizeCap(later(-10), -1, tries=2), 0, id="after it shrank"),
    ],
)
def test_growth_that_did_not_last_makes_it_more_careful(before: SizeCap | None, expected: int) -> None:
    given = auto(entry=RoleLedger("worker", reached=4, size=4, ceiling=before))

    ceiling = entry(look(given, pod(0), pod(1), pod(2), placeless(3, later(-60)), site=SITE)).ceiling

    assert ceiling is not None
    assert (ceiling.most, ceiling.at, ceiling.grew, ceiling.tries) == (3, NOW, False, expected)


# -- larger ----------------------------------------------------------------------------------------------------------


def held(most: int = 2, at: datetime = NOW, **more: Any) -> RoleLedger:
    """The ledger entry of a role with a cap on its size."""
    return RoleLedger("worker", reached=most, size=most, ceiling=SizeCap(at, most, "no room", **more))


def spare(index: int, **more: Any) -> Pod:
    return pod(index, more.pop("phase", "Pending"), attempt=SPARE, node=more.pop("node", ""), **more)


def test_after_the_cool_down_places_are_looked_for() -> None:
    given = auto(entry=held())

    assert look(given, *PAIR, site=SITE, now=later(59.9)).creates == ()
    assert look(given, *PAIR, site=SITE, now=later(59.9)).wake == later(60)
    plan = look(given, *PAIR, site=SITE, now=later(60))
    assert names(plan) == {"creates": ["Pod job-worker-2", "Pod job-worker-3"], "deletes": []}
    assert plan.write is Write.NOT


def test_a_spare_has_what_a_scheduler_looks_at_and_runs_nothing() -> None:
    template = {
        "metadata": {"labels": {"team": "vision"}, "annotations": {"a": "b"}, "finalizers": ["x/y"]},
        "spec": {
            "nodeSelector": {"zone": "a"},
            "initContainers": [{"name": "init", "image": "i"}],
            "containers": [{"name": "main", "image": "m", "envFrom": [{"secretRef": {"name": "s"}}]}],
        },
    }
    given = auto(replicas=3, entry=held())
    given = replace(given, roles=(replace(given.roles[0], template=template),))

    (create,) = look(given, *PAIR, site=SITE, now=later(60)).creates

    never = {"configMapRef": {"name": "trainwright.spare-holds-a-place-for-growth"}}
    assert create.body["metadata"]["labels"] == {
        "team": "vision",
        "trainwright.dev/kind": "example",
        "trainwright.dev/job-uid": given.uid,
        "trainwright.dev/role": "worker",
        "trainwright.dev/index": "2",
        "trainwright.dev/attempt": "spare",
    }
    assert create.body["metadata"]["annotations"] == {"a": "b"}
    assert "finalizers" not in create.body["metadata"]
    assert create.body["spec"] == {
        "nodeSelector": {"zone": "a"},
        "initContainers": [{"name": "init", "image": "i", "envFrom": [never]}],
        "containers": [{"name": "main", "image": "m", "envFrom": [{"secretRef": {"name": "s"}}, never]}],
    }


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param((pod(0),), id="one is missing"),
        pytest.param((pod(0), pod(1, "Pending")), id="one starts"),
        pytest.param((pod(0), pod(1, "Succeeded")), id="one has finished"),
    ],
)
def test_places_are_looked_for_only_while_all_run(pods: tuple[Pod, ...]) -> None:
    made = look(auto(entry=held()), *pods, site=SITE, now=later(60)).creates

    assert not [one for one in made if one.body["metadata"]["labels"][ATTEMPT] == SPARE]


def beside_an_ended_role(resize: RestartScope | None, *spares: Pod) -> Plan:
    """One pass over a role that is held below its size, next to a role that has failed for good."""
    worker = auto(entry=held(), resize=resize).roles[0]
    ended = RoleLedger("ps", failed="0", reached=1)
    done = Atom("worker", Which.EVERY, Result.SUCCEEDED)
    given = job(worker, role("ps", 1), success=done, failure=NEVER, ledger=lived(held(), ended))
    return look(given, *PAIR, *spares, pod(0, role="ps", phase="Failed", code=1), site=SITE, now=later(61))


def test_places_are_looked_for_beside_a_role_that_has_ended_for_good() -> None:
    plan = beside_an_ended_role(RestartScope.ROLE)

    assert names(plan)["creates"] == ["Pod job-worker-2", "Pod job-worker-3"]


def test_it_grows_beside_a_role_that_has_ended_for_good() -> None:
    plan = beside_an_ended_role(RestartScope.ROLE, *(spare(i, node="node-2", born=later(60)) for i in (2, 3)))

    assert (entry(plan).size, most(plan)) == (4, -1)


def test_it_does_not_grow_where_that_would_start_a_role_anew_that_has_ended_for_good() -> None:
    """Another size of the job starts all of its roles anew, and what has finished is not run again."""
    places = [spare(i, node="node-2", born=later(60)) for i in (2, 3)]
    before, plan = beside_an_ended_role(RestartScope.JOB), beside_an_ended_role(RestartScope.JOB, *places)

    assert not before.creates
    assert (entry(plan).size, most(plan)) == (2, 2)
    assert names(plan)["deletes"] == ["Pod job-worker-2", "Pod job-worker-3"]


def test_a_place_is_not_looked_for_under_a_name_that_is_taken() -> None:
    plan = look(auto(entry=held()), *PAIR, pod(2, deleting=later(90)), site=SITE, now=later(60))

    assert names(plan)["creates"] == ["Pod job-worker-3"]


def test_it_grows_at_once_when_all_places_are_found() -> None:
    pods = (*PAIR, spare(2, node="node-2", born=later(60)), spare(3, node="node-2", born=later(60)))

    plan = look(auto(entry=held(tries=2)), *pods, site=SITE, now=later(61))

    assert (entry(plan).size, entry(plan).epoch) == (4, 1)
    assert entry(plan).ceiling == SizeCap(later(61), -1, "there is room for 2 more", grew=True, tries=2)
    assert sorted(one.name for one in plan.deletes) == [f"job-worker-{i}" for i in range(4)]
    assert emitted(plan) == (
        Emit(EventReason.RESIZED, "worker is scaled from 2 to 4 replicas: there is room for 2 more"),
    )


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param(
            (pod(0), pod(1, "Pending"), *(spare(i, node="node-2", born=later(60)) for i in (2, 3))), id="early"
        ),
        pytest.param((*PAIR, *(spare(i, node="n", born=later(60), deleting=later(99)) for i in (2, 3))), id="late"),
    ],
)
def test_it_does_not_grow_while_one_is_missing_nor_into_places_that_were_given_up(pods: tuple[Pod, ...]) -> None:
    plan = look(auto(entry=held()), *pods, site=SITE, now=later(61))

    assert (most(plan), entry(plan).size, plan.deletes) == (2, 2, ())


def test_it_grows_by_what_was_found_when_that_took_long_enough() -> None:
    pods = (*PAIR, spare(2, born=later(60)), spare(3, node="node-2", born=later(60)))

    early, late = (look(auto(entry=held()), *pods, site=SITE, now=later(n)) for n in (89.9, 90))

    assert (most(early), early.deletes, early.creates, early.wake) == (2, (), (), later(90))
    assert (most(late), entry(late).size) == (3, 3)


@pytest.mark.parametrize(
    "found",
    [
        pytest.param({}, id="none"),
        pytest.param({"node": "node-2", "phase": "Failed"}, id="it was not admitted"),
        pytest.param({"node": "lost"}, id="its node fell silent"),
    ],
)
def test_where_there_is_no_room_the_next_try_comes_later(found: dict[str, Any]) -> None:
    pods = (*PAIR, *(spare(i, born=later(60), **found) for i in (2, 3)))
    nodes = {"node-1": node(), "node-2": node("node-2"), "lost": node("lost", ready=False, since=later(85))}

    plan = look(auto(entry=held()), *pods, site=SITE, now=later(90), nodes=nodes)

    assert entry(plan).ceiling == SizeCap(later(90), 2, "no room", tries=1)
    assert names(plan)["deletes"] == ["Pod job-worker-2", "Pod job-worker-3"]
    assert (plan.events, entry(plan).epoch, plan.status.ledger.phase) == ((), 0, Phase.RUNNING)


@pytest.mark.parametrize(
    ("tries", "pause"), [(0, 60), (1, 120), (2, 240), (3, 480), (4, 960), (5, 960), (99, 960)], ids=str
)
def test_tries_are_ever_further_apart(tries: int, pause: float) -> None:
    given = auto(entry=held(tries=tries))

    assert look(given, *PAIR, site=SITE, now=later(pause - 0.1)).creates == ()
    assert len(look(given, *PAIR, site=SITE, now=later(pause)).creates) == 2


@pytest.mark.parametrize(
    ("since", "ready", "soon"),
    [
        pytest.param(later(1), True, True, id="a node has come"),
        pytest.param(NOW, True, False, id="it was there"),
        pytest.param(later(1), False, False, id="it has gone"),
    ],
)
def test_a_node_that_comes_is_tried_soon(since: datetime, ready: bool, soon: bool) -> None:
    nodes = {"node-1": node(since=later(-9)), "node-2": node("node-2", ready=ready, since=since)}

    plan = look(auto(entry=held(tries=4)), *PAIR, site=SITE, now=later(60), nodes=nodes)

    assert bool(plan.creates) is soon


def test_meanwhile_it_is_looked_at_now_and_then_should_a_node_come() -> None:
    assert look(auto(entry=held(tries=4)), *PAIR, site=SITE, now=later(100)).wake == later(160)
    assert look(auto(entry=held(tries=4)), *PAIR, site=SITE, now=later(920)).wake == later(960)


def test_spares_of_which_nobody_wants_to_know_any_more_go() -> None:
    ours = (spare(2, born=later(60)), spare(3, born=later(60)))
    small = auto(replicas=2, entry=RoleLedger("worker", reached=2, size=2))

    assert names(look(small, *PAIR, *ours, site=SITE, now=later(61)))["deletes"] == [
        "Pod job-worker-2",
        "Pod job-worker-3",
    ]
    # Its cool-down has begun again meanwhile.
    again = auto(entry=held(at=later(61)))
    assert len(look(again, *PAIR, *ours, site=SITE, now=later(62)).deletes) == 2


def test_spares_hold_no_places_for_a_role_of_which_some_have_finished() -> None:
    given = auto(entry=held())
    pods = (pod(0), pod(1, "Succeeded"), *(spare(i, node="node-2", born=later(60)) for i in (2, 3)))

    assert names(look(given, *pods, site=SITE, now=later(61)))["deletes"] == ["Pod job-worker-2", "Pod job-worker-3"]


def test_spares_wait_for_nobody_when_the_job_ends() -> None:
    given = auto(entry=held())
    ended = look(given, pod(0, "Failed", code=1), pod(1), spare(2), site=SITE, now=later(61))

    assert ended.status.ledger.outcome is None  # tried again: the policy answers it
    given = auto(entry=held(), restart=Restart())
    ended = look(given, pod(0, "Failed", code=1), pod(1), spare(2), site=SITE, now=later(61))
    assert ended.status.ledger.outcome is not None
    assert "Pod job-worker-2" in names(ended)["deletes"]


# -- what the user wants ---------------------------------------------------------------------------------------------


def test_an_edit_sets_what_is_wanted_and_the_ceiling_stays() -> None:
    plan = look(auto(replicas=3, entry=held()), *PAIR, site=SITE, now=later(60))

    assert names(plan)["creates"] == ["Pod job-worker-2"]


def test_an_edit_to_what_it_is_held_to_frees_it() -> None:
    plan = look(auto(replicas=2, entry=held()), *PAIR, site=SITE, now=later(10))

    assert entry(plan).ceiling == SizeCap(NOW, -1)
    assert (plan.creates, plan.deletes, plan.events) == ((), (), ())


def test_an_edit_below_what_it_is_held_to_is_followed_at_once() -> None:
    plan = look(auto(replicas=1, entry=held()), *PAIR, site=SITE, now=later(10))

    assert entry(plan).size == 1
    assert emitted(plan) == (Emit(EventReason.RESIZED, "worker is scaled from 2 to 1 replica"),)


def test_bounds_that_are_raised_hold() -> None:
    plan = look(auto(least=3, entry=held()), *PAIR, site=SITE, now=later(10))

    assert len(plan.status.roles[0].replicas) == 3


def test_a_suspension_forgets_what_it_was_held_to() -> None:
    given = auto(entry=held())
    given = replace(given, lifecycle=replace(given.lifecycle, suspended=True))

    assert entry(look(given, *PAIR, site=SITE, now=later(10))).ceiling is None


@pytest.mark.parametrize("elastic", [Elastic(1, 4), None], ids=["its user does", "nobody does"])
def test_a_role_that_no_longer_sizes_itself_forgets_what_it_was_held_to(elastic: Elastic | None) -> None:
    given = auto(entry=held())
    given = replace(given, roles=(replace(given.roles[0], elastic=elastic),))
    plan = look(given, *PAIR, site=SITE, now=later(10))

    assert (entry(plan).ceiling, entry(plan).size) == (None, 4)
    assert emitted(plan) == (Emit(EventReason.RESIZED, "worker is scaled from 2 to 4 replicas"),)


# -- lost nodes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy", [Restart(), Restart(frozenset({CauseKind.NODE_LOST}), limit=0)], ids=["Never", "spent"]
)
def test_it_lives_with_lost_nodes_whatever_its_policy_says(policy: Restart) -> None:
    nodes = {"node-1": node(), "node-2": node("node-2", ready=False)}
    pods = (pod(0), pod(1, node="node-2"))
    given = auto(replicas=2, restart=policy, entry=RoleLedger("worker", reached=2, size=2))

    plan = look(given, *pods, nodes=nodes, now=later(60))

    assert plan.status.ledger.outcome is None
    assert entry(plan).restarts == {"NodeLost": 1}
    assert names(plan)["deletes"] == ["Pod job-worker-1"]


def test_a_whole_story() -> None:
    """Four replicas on two nodes, one node dies and comes back: four, two, four."""
    world = World(
        auto(restart=Restart(frozenset({CauseKind.NODE_LOST}), scope=RestartScope.ROLE)), site=SITE, nodes=("a", "b")
    )
    world.job = world.seen_job = replace(world.job, ledger=Ledger())

    def place(*nodes: str) -> None:
        """Two pods fit on each node; the others are told that there is no room."""
        for name, one in sorted(world.pods().items()):
            free = [n for n in nodes if sum(p.spec.node_name == n for p in world.pods().values()) < 2]
            if not one.spec.node_name and free:
                world.start(name, free[0])
            elif not one.spec.node_name:
                world.unplace(name)
        world.catch_up()

    def sizes() -> list[str]:
        seen = world.job.ledger.roles[0]
        return [f"{seen.size}", *sorted(name for name, one in world.pods().items() if one.status.phase == "Running")]

    world.step()
    place("a", "b")
    world.step()
    assert sizes() == ["4", "job-worker-0", "job-worker-1", "job-worker-2", "job-worker-3"]

    world.lose_node("b")
    for _ in range(60):
        world.wait(5)
        world.reap()
        world.catch_up()
        world.step()
        place("a")
    assert sizes() == ["2", "job-worker-0", "job-worker-1"]

    world.return_node("b")
    for _ in range(60):
        world.wait(5)
        world.reap()
        world.catch_up()
        world.step()
        place("a", "b")
    assert sizes() == ["4", "job-worker-0", "job-worker-1", "job-worker-2", "job-worker-3"]
    assert world.job.ledger.roles[0].restarts == {"NodeLost": 1}
    assert world.look().empty
