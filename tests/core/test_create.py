# SPDX-License-Identifier: Apache-2.0
"""Keeping a live job going: what is made, what is removed, when to look again."""

from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace
from passes import Bare, Grouped, group, lived, look, names, on, undone, waiting

from trainwright.core.render import digest, extra
from trainwright.model.cause import CauseKind
from trainwright.model.child import Extra, Observed, Pod, Refusal
from trainwright.model.job import Body, Deadline, Gang, Job, Lifecycle, RestartScope, Role
from trainwright.model.ledger import Hold, Ledger, Phase, RoleLedger, Times
from trainwright.model.meta import DIGEST, Key, Meta, Owner
from trainwright.model.plan import Delete, Patch, Write
from trainwright.model.rule import NEVER
from trainwright.model.site import Site
from trainwright.testing.factories import NOW, OWNER, PlainDialect, container, job, later, node, pod, role, service

FOREIGN = Owner("v1", "Other", "other", "other", controller=True)


def made(plan: Any) -> list[str]:
    return [f"{one.body['kind']} {one.name}" for one in plan.creates]


def test_what_is_missing_is_made_in_document_order_and_by_index() -> None:
    given = job(role("worker", 2), role("chief"), role("none", 0), ledger=lived())

    assert made(look(given, pod(1))) == ["Pod job-worker-0", "Pod job-chief-0"]


def test_a_pod_is_made_for_its_attempt() -> None:
    plan = look(job(role(replicas=2), ledger=lived(RoleLedger("worker", 2, "1:3"))))

    assert [one.body["metadata"]["labels"]["trainwright.dev/attempt"] for one in plan.creates] == ["2", "5"]
    assert [one.body["metadata"]["labels"]["trainwright.dev/index"] for one in plan.creates] == ["0", "1"]


def test_a_dialect_is_told_where_it_is() -> None:
    hosts = {(Key("default", "job"), "job-worker-0"): "127.0.0.4"}

    plan = look(job(role(service=True), dialect=Bare()), site=Site(names_resolve=False, hosts=hosts))

    assert [one.body["spec"] for one in plan.creates] == [
        {"clusterIP": "127.0.0.4", "publishNotReadyAddresses": True},
        {"host": "127.0.0.4"},
    ]


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(pod(owners=(FOREIGN,)), id="a foreign pod"),
        pytest.param(pod(deleting=NOW), id="one on its way out"),
        pytest.param(pod(attempt=0, deleting=NOW, phase="Failed"), id="a stale one on its way out"),
        pytest.param(pod(owners=()), id="an orphan that is being adopted"),
    ],
)
def test_nothing_is_made_while_something_bears_its_name(one: Pod) -> None:
    plan = look(job(ledger=lived(RoleLedger("worker", 1))), one)

    assert (plan.creates, plan.deletes) == ((), ())


@pytest.mark.parametrize("text", [pytest.param("succeeded", id="succeeded"), pytest.param("failed", id="failed")])
def test_a_finished_replica_is_not_made_again_when_its_pod_is_collected(text: str) -> None:
    given = job(role(replicas=2), failure=job().success, ledger=lived(RoleLedger("worker", reached=2, **{text: "0"})))  # type: ignore[arg-type]

    plan = look(given, pod(1))

    assert plan.creates == ()


# -- stages ------------------------------------------------------------------------------------------------------------


def staged(*, awaits: bool = True) -> tuple[Role, ...]:
    return (
        role("worker", 1, stage=2, awaits_running=awaits),
        role("chief", 1, stage=1, awaits_running=awaits),
        role("ps", 2),
    )


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param((), ["ps-0", "ps-1"], id="the first stage"),
        pytest.param((pod(0, role="ps"),), ["ps-1"], id="one of the first runs"),
        pytest.param((pod(0, role="ps"), pod(1, "Pending", role="ps")), [], id="the other is not up"),
        pytest.param((pod(0, role="ps"), pod(1, role="ps")), ["chief-0"], id="the first stage is up"),
        pytest.param(
            (pod(0, role="ps"), pod(1, role="ps"), pod(0, "Pending", role="chief")), [], id="the second is not up"
        ),
        pytest.param(
            (pod(0, role="ps"), pod(1, role="ps"), pod(0, role="chief")), ["worker-0"], id="the second stage is up"
        ),
        pytest.param((pod(0, role="chief"),), ["ps-0", "ps-1"], id="every stage before counts"),
        pytest.param(
            (pod(0, role="ps"), pod(1, "Succeeded", role="ps"), pod(0, role="chief")), ["worker-0"], id="finished is up"
        ),
    ],
)
def test_a_role_that_waits_is_made_once_the_roles_before_it_are_up(pods: tuple[Pod, ...], expected: list[str]) -> None:
    entries = tuple(RoleLedger(name) for name in ("worker", "chief", "ps"))

    assert [f"Pod job-{name}" for name in expected] == made(look(job(*staged(), ledger=waiting(*entries)), *pods))


def test_a_role_that_does_not_wait_is_only_made_later_in_the_same_pass() -> None:
    assert made(look(job(*staged(awaits=False)))) == [
        "Pod job-ps-0",
        "Pod job-ps-1",
        "Pod job-chief-0",
        "Pod job-worker-0",
    ]


def test_roles_of_one_stage_do_not_wait_for_each_other() -> None:
    roles = (role("a", stage=1, awaits_running=True), role("b", stage=1, awaits_running=True))

    assert made(look(job(*roles))) == ["Pod job-a-0", "Pod job-b-0"]


# -- size --------------------------------------------------------------------------------------------------------------


def test_a_job_that_grows_gets_pods_and_services_and_keeps_running() -> None:
    given = job(role(replicas=3, service=True), ledger=lived(RoleLedger("worker", reached=1)), generation=2)

    plan = look(given, pod(0), services=(service("job-worker-0"),))

    assert made(plan) == ["Service job-worker-1", "Service job-worker-2", "Pod job-worker-1", "Pod job-worker-2"]
    assert (plan.status.ledger.phase, plan.deletes) == (Phase.RUNNING, ())


def test_a_job_that_shrinks_loses_pods_and_services_and_forgets_them() -> None:
    entry = RoleLedger("worker", retries="2:1", reached=3)
    given = job(role(replicas=1, service=True), ledger=lived(entry))
    services = tuple(service(f"job-worker-{index}") for index in (2, 0, 1))

    plan = look(given, pod(0), pod(1, "Succeeded"), pod(2, attempt=1), services=services)

    why, gone = "worker has 1 replica", "no replica of this name is wanted"
    assert plan.deletes == (
        Delete("Pod", "job-worker-1", "job-worker-1-0", why),
        Delete("Pod", "job-worker-2", "job-worker-2-1", why),
        Delete("Service", "job-worker-1", "service-job-worker-1", gone),
        Delete("Service", "job-worker-2", "service-job-worker-2", gone),
    )
    assert plan.creates == ()
    # Should one come back it is a new one: its attempt is above that of the pod that goes.
    assert plan.status.ledger.roles == (RoleLedger("worker", retries="1:1,2:2", reached=1),)
    assert (plan.write, plan.status.ledger.phase) == (Write.NOW, Phase.RUNNING)


def test_a_job_that_shrinks_below_what_succeeded_is_not_thereby_done() -> None:
    given = job(role(replicas=2), ledger=lived(RoleLedger("worker", succeeded="2-3", reached=4)))

    plan = look(given, pod(0), pod(1), pod(2, "Succeeded"), pod(3, "Succeeded"))

    assert plan.status.ledger.outcome is None


def test_a_replica_that_comes_back_is_a_new_one() -> None:
    small = job(role(replicas=1), success=NEVER, ledger=lived(RoleLedger("worker", reached=2)))
    old = pod(1, "Succeeded", deleting=later(30))

    ledger = look(small, pod(0), old).status.ledger
    plan = look(job(role(replicas=2), success=NEVER, ledger=ledger), pod(0), old)

    assert plan.status.ledger.roles[0].succeeded == ""


def test_a_role_that_is_removed_goes_with_its_services() -> None:
    given = job(role("chief", service=True), ledger=lived(RoleLedger("chief", reached=1), RoleLedger("worker")))
    services = (service("job-chief-0"), service("job-worker-0"))

    plan = look(given, pod(0, role="chief"), pod(0), services=services)

    assert names(plan) == {"creates": [], "deletes": ["Pod job-worker-0", "Service job-worker-0"]}
    assert [one.why for one in plan.deletes] == ["the job has no role worker", "no replica of this name is wanted"]
    assert plan.status.ledger.roles == (RoleLedger("chief", reached=1),)


@pytest.mark.parametrize(
    ("wanted", "present", "creates", "deletes"),
    [
        pytest.param(True, ("job-worker-0", "job-worker-1"), [], [], id="all there"),
        pytest.param(True, ("job-worker-1",), ["Service job-worker-0"], [], id="one is missing"),
        pytest.param(True, ("job-worker-0", "x"), ["Service job-worker-1"], ["Service x"], id="one is another's"),
        pytest.param(False, (), [], [], id="none wanted"),
        pytest.param(False, ("job-worker-0",), [], ["Service job-worker-0"], id="no longer wanted"),
    ],
)
def test_services_are_one_per_replica_of_a_role_that_has_them(
    wanted: bool, present: tuple[str, ...], creates: list[str], deletes: list[str]
) -> None:
    given = job(role(replicas=2, service=wanted), ledger=lived(RoleLedger("worker", reached=2)))

    plan = look(given, pod(0), pod(1), services=tuple(service(name) for name in present))

    assert names(plan) == {"creates": creates, "deletes": deletes}


def test_a_service_on_its_way_out_is_waited_for() -> None:
    going = type(service("x"))(Meta("job-worker-0", "default", "u", owner_references=(OWNER,), deletion_timestamp=NOW))
    surplus = type(service("x"))(Meta("x", "default", "u", owner_references=(OWNER,), deletion_timestamp=NOW))

    plan = look(job(role(service=True), ledger=lived()), pod(), services=(going, surplus))

    assert names(plan) == {"creates": [], "deletes": []}


def test_a_pod_of_ours_of_another_name_leaves_its_service_alone() -> None:
    plan = look(job(role(service=True), ledger=lived()), pod(name="hand-made"), services=(service("job-worker-0"),))

    assert names(plan) == {"creates": [], "deletes": []}


def test_only_roles_that_have_services_get_them() -> None:
    given = job(role("chief", service=True), role("worker"), ledger=lived())

    assert made(look(given, pod(0, role="chief"), pod(0))) == ["Service job-chief-0"]


# -- children of the whole job -----------------------------------------------------------------------------------------

GROUPED = job(role(replicas=2), dialect=Grouped(2), ledger=lived(RoleLedger("worker", reached=2)))
BODY: Body = {"apiVersion": "gang/v1", "kind": "PodGroup", "spec": {"minMember": 2}}
PODS = (pod(0), pod(1))


def test_an_extra_is_made_before_pods() -> None:
    plan = look(GROUPED)

    assert extra(GROUPED, BODY) == plan.creates[0]
    assert made(plan) == ["PodGroup job", "Pod job-worker-0", "Pod job-worker-1"]


@pytest.mark.parametrize(
    ("present", "patched"),
    [
        pytest.param(group(digest(BODY)), False, id="in step"),
        pytest.param(group("old"), True, id="out of step"),
        pytest.param(group(), True, id="without a digest"),
        pytest.param(group("old", deletion_timestamp=NOW), False, id="on its way out"),
    ],
)
def test_an_extra_is_kept_in_step_with_the_job(present: Any, patched: bool) -> None:
    body = {"spec": {"minMember": 2}, "metadata": {"annotations": {DIGEST: digest(BODY)}}}
    patch = Patch("PodGroup", "job", "uid-job", body, "kept in step with the job", api="gang/v1")

    plan = look(GROUPED, *PODS, extras=(present,))

    assert (patch,) * patched == plan.patches
    assert (plan.creates, plan.deletes) == ((), ())


@pytest.mark.parametrize(("keeps", "left"), [((), {"minMember": 2}), (("minMember",), {})], ids=["all", "kept"])
def test_what_is_others_to_change_is_not_written_over(keeps: tuple[str, ...], left: Body) -> None:
    given = replace(GROUPED, gang=Gang("gang/v1", create_only_fields=frozenset(keeps)))

    (patch,) = look(given, *PODS, extras=(group("old"),), site=Site(gangs=frozenset({"gang/v1"}))).patches

    assert patch.body == {"spec": left, "metadata": {"annotations": {DIGEST: digest(BODY)}}}


def test_extras_that_the_job_no_longer_has_are_removed() -> None:
    others = (
        group(name="b"),
        group(name="a"),
        group(name="c", deletion_timestamp=NOW),
        group(name="job", kind="ConfigMap"),
        group(digest(BODY)),
    )

    plan = look(GROUPED, *PODS, extras=others)

    assert plan.deletes == (
        Delete("PodGroup", "a", "uid-a", "the job no longer has it", api="gang/v1"),
        Delete("PodGroup", "b", "uid-b", "the job no longer has it", api="gang/v1"),
        Delete("ConfigMap", "job", "uid-job", "the job no longer has it"),
    )
    assert (plan.creates, plan.patches) == ((), ())


class Numbered(PlainDialect, frozen=True):
    """A dialect that sees what is there."""

    def extras(self, job: Job, observed: Observed, site: Site) -> tuple[Body, ...]:
        name = f"{job.key.name}-{len(observed.pods)}-{site.domain}"
        return ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}},)


def test_a_dialect_sees_the_job_the_world_and_the_site() -> None:
    assert made(look(job(dialect=Numbered(), ledger=lived()), pod(), site=Site("local"))) == ["ConfigMap job-1-local"]


GATE = Gang("gang/v1", frozenset({"Inqueue", "Running"}))
OTHERWISE = Gang("first/v1", alternatives=(GATE,))
HERE = Site(gangs=frozenset({"gang/v1"}))


@pytest.mark.parametrize(
    ("gang", "site", "phase", "admitted"),
    [
        pytest.param(None, HERE, None, True, id="no gang"),
        pytest.param(Gang("gang/v1"), HERE, None, True, id="a gang that admits at any time"),
        pytest.param(GATE, Site(), None, True, id="its API is not here"),
        pytest.param(GATE, Site(gangs=frozenset({"other/v1"})), None, True, id="another API is here"),
        pytest.param(GATE, HERE, None, False, id="no word yet"),
        pytest.param(GATE, HERE, "Pending", False, id="not admitted"),
        pytest.param(GATE, HERE, "Inqueue", True, id="admitted"),
        pytest.param(GATE, HERE, "Running", True, id="running"),
        pytest.param(OTHERWISE, HERE, None, False, id="the second choice is here, and it must be asked"),
        pytest.param(OTHERWISE, Site(gangs=frozenset({"first/v1"})), None, True, id="the first choice is here"),
        pytest.param(OTHERWISE, Site(gangs=frozenset({"first/v1", "gang/v1"})), None, True, id="both are: the first"),
    ],
)
def test_pods_of_a_gang_are_made_once_it_is_admitted(
    gang: Gang | None, site: Site, phase: str | None, admitted: bool
) -> None:
    given = job(role(replicas=2, service=True), dialect=Grouped(2), gang=gang)
    extras = (group(name="z", kind="ConfigMap"), group(digest(BODY), phase=phase))

    plan = look(given, site=site, extras=extras)

    services = ["Service job-worker-0", "Service job-worker-1"]
    assert services + ["Pod job-worker-0", "Pod job-worker-1"] * admitted == made(plan)


def test_a_group_of_another_scheduler_is_neither_asked_nor_kept() -> None:
    """It has the same kind and name: the operator was told another scheduler since it was made."""
    given = job(role(), dialect=Grouped(2), gang=GATE, ledger=waiting())
    other = group(digest(BODY), phase="Running", api="other/v1")

    plan = look(given, site=HERE, extras=(other,))

    assert made(plan) == ["PodGroup job"]
    assert plan.creates[0].body["apiVersion"] == "gang/v1"
    assert (Delete("PodGroup", "job", "uid-job", "the job no longer has it", api="other/v1"),) == plan.deletes


@pytest.mark.parametrize("gangs", [(), ("gang/v2", "other/v1")], ids=["none", "others"])
@pytest.mark.parametrize(
    "extras",
    [
        pytest.param((), id="missing"),
        pytest.param((group("old"),), id="out of step"),
        pytest.param((group(name="surplus"), group(name="other")), id="too many"),
    ],
)
def test_extras_are_left_alone_where_the_gangs_api_is_out_of_sight(
    extras: tuple[Extra, ...], gangs: tuple[str, ...]
) -> None:
    one = job(role(service=True), dialect=Grouped(2), gang=GATE, ledger=waiting())

    plan = look(one, extras=extras, site=Site(gangs=frozenset(gangs)))

    assert names(plan) == {"creates": ["Service job-worker-0", "Pod job-worker-0"], "deletes": []}
    assert plan.patches == ()


def test_extras_of_a_gang_are_kept_in_step_where_its_api_is_in_sight() -> None:
    one = job(role(replicas=2), dialect=Grouped(2), gang=GATE, ledger=lived(RoleLedger("worker", reached=2)))

    plan = look(one, *PODS, extras=(group("old"), group(name="surplus")), site=HERE)

    assert [patch.name for patch in plan.patches] == ["job"]
    assert names(plan) == {"creates": [], "deletes": ["PodGroup surplus"]}


def test_a_gang_that_does_not_exist_yet_admits_nothing() -> None:
    assert made(look(job(dialect=Grouped(2), gang=GATE), site=HERE)) == ["PodGroup job"]


# -- what was refused --------------------------------------------------------------------------------------------------


def refused(name: str, at: datetime | None, kind: str = "Pod") -> Refusal:
    return Refusal(name, "Forbidden", "exceeded quota", at, kind)


@pytest.mark.parametrize(
    ("refusals", "creates", "wake"),
    [
        pytest.param((), ["PodGroup job", "Pod job-worker-0", "Pod job-worker-1"], None, id="nothing"),
        pytest.param(
            (refused("job-worker-0", None),),
            ["PodGroup job", "Pod job-worker-0", "Pod job-worker-1"],
            None,
            id="at any time again",
        ),
        pytest.param(
            (refused("job-worker-0", NOW),),
            ["PodGroup job", "Pod job-worker-0", "Pod job-worker-1"],
            None,
            id="now again",
        ),
        pytest.param(
            (refused("job-worker-0", later(0.001)),), ["PodGroup job", "Pod job-worker-1"], later(0.001), id="not yet"
        ),
        pytest.param(
            (refused("job", later(9), "PodGroup"), refused("job-worker-1", later(5))),
            ["Pod job-worker-0"],
            later(5),
            id="two",
        ),
        pytest.param(
            (refused("job", later(9), "PodGroup"), refused("job-worker-1", NOW)),
            ["Pod job-worker-0", "Pod job-worker-1"],
            later(9),
            id="one of two",
        ),
    ],
)
def test_what_was_refused_is_not_made_before_its_time(
    refusals: tuple[Refusal, ...], creates: list[str], wake: datetime | None
) -> None:
    plan = look(job(role(replicas=2), dialect=Grouped(2), ledger=waiting()), refusals=refusals)

    assert (creates, wake) == (made(plan), plan.wake)


def test_a_service_that_was_refused_is_not_made_before_its_time() -> None:
    one = job(role(replicas=2, service=True), ledger=lived(RoleLedger("worker", reached=2)))

    plan = look(one, *PODS, refusals=(refused("job-worker-0", later(30), "Service"),))

    assert (made(plan), plan.wake) == (["Service job-worker-1"], later(30))


def test_a_refused_service_does_not_hold_its_pod_back() -> None:
    plan = look(job(role(service=True), ledger=waiting()), refusals=(refused("job-worker-0", later(30), "Service"),))

    assert (made(plan), plan.wake) == (["Pod job-worker-0"], later(30))


@pytest.mark.parametrize(("held", "wake"), [(9, 7), (6, 6)], ids=["before a hold is over", "after"])
def test_a_refusal_wakes_among_the_other_moments(held: float, wake: float) -> None:
    entry = RoleLedger("worker", retries="1:1", holds=(Hold(later(held), "1"),))

    plan = look(job(role(replicas=2), ledger=lived(entry)), refusals=(refused("job-worker-0", later(7)),))

    assert (plan.creates, plan.wake) == ((), later(wake))


# -- what is left over -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "deleted"),
    [
        pytest.param(pod(phase="Failed"), False, id="failed: its log may be read"),
        pytest.param(pod(phase="Succeeded"), False, id="succeeded: its log may be read"),
        pytest.param(pod(phase="Running"), True, id="running"),
        pytest.param(pod(phase="Pending"), True, id="pending"),
        pytest.param(pod(1, "Failed"), True, id="of another replica"),
        pytest.param(pod(role="chief", phase="Failed"), True, id="of another role"),
    ],
)
def test_a_stale_pod_that_ended_stays_while_its_replica_is_held_back(one: Pod, deleted: bool) -> None:
    entry = RoleLedger("worker", 1, holds=(Hold(later(9), "0"),))

    plan = look(job(ledger=lived(entry, phase=Phase.RESTARTING)), one)

    assert [f"Pod {one.metadata.name}"] * deleted == names(plan)["deletes"]
    assert plan.wake == later(9)


@pytest.mark.parametrize(
    ("deleting", "nodes", "seconds", "expected"),
    [
        pytest.param(NOW, {"node-1": node()}, 999, False, id="its node will see to it"),
        pytest.param(NOW, None, 999, False, id="where nodes are not known"),
        pytest.param(NOW, {"node-1": node(ready=False)}, 59, False, id="its node is in doubt"),
        pytest.param(NOW, {"node-1": node(ready=False)}, 60, True, id="its node is lost"),
        pytest.param(later(31), {"node-1": node(ready=False)}, 60, False, id="it may linger"),
        pytest.param(later(30), {"node-1": node(ready=False)}, 60, True, id="it has lingered"),
    ],
)
def test_a_pod_that_cannot_go_is_removed_by_force(
    deleting: datetime, nodes: Any, seconds: float, expected: bool
) -> None:
    forced = Delete(
        "Pod", "job-worker-0", "job-worker-0-0", "being deleted; its node is lost and it has lingered", force=True
    )

    plan = look(job(ledger=lived()), pod(deleting=deleting), nodes=nodes, now=later(seconds))

    assert (forced,) * expected == plan.deletes
    assert plan.creates == ()


def test_leftovers_go_before_stuck_pods_extras_and_services() -> None:
    given = job(role(replicas=1), ledger=lived())
    dead = {"node-1": node(ready=False), "node-2": node("node-2")}

    plan = look(
        given,
        pod(0, deleting=NOW),
        pod(5, node="node-2"),
        nodes=dead,
        now=later(60),
        services=(service("s"),),
        extras=(group(name="g"),),
    )

    assert names(plan)["deletes"] == ["Pod job-worker-5", "Pod job-worker-0", "PodGroup g", "Service s"]


# -- when to look again ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "lifecycle", "expected"),
    [
        pytest.param(RoleLedger("worker", reached=2), Lifecycle(), None, id="never"),
        pytest.param(RoleLedger("worker", holds=(Hold(later(5), "0"),)), Lifecycle(), later(5), id="a hold"),
        pytest.param(
            RoleLedger("worker", holds=(Hold(later(5), "0"), Hold(later(3), "1"))),
            Lifecycle(),
            later(3),
            id="two holds",
        ),
        pytest.param(RoleLedger("worker", holds=(Hold(NOW, "0"),)), Lifecycle(), None, id="a hold that is over"),
        pytest.param(RoleLedger("worker"), Lifecycle(deadline=Deadline(7)), later(7), id="a deadline"),
        pytest.param(
            RoleLedger("worker", holds=(Hold(later(9), "0"),)),
            Lifecycle(deadline=Deadline(7)),
            later(7),
            id="the earlier",
        ),
    ],
)
def test_the_next_moment_at_which_time_alone_changes_something(
    entry: RoleLedger, lifecycle: Lifecycle, expected: datetime | None
) -> None:
    assert expected == look(job(role(replicas=2), ledger=lived(entry), lifecycle=lifecycle), pod(0), pod(1)).wake


NODES = {"node-1": node(ready=False), "node-2": node("node-2", ready=False, since=later(-5))}


@pytest.mark.parametrize(
    ("pods", "entry", "seconds", "expected"),
    [
        pytest.param((pod(0), pod(1, node="node-3")), RoleLedger("worker"), 0, later(60), id="a silent node"),
        pytest.param(
            (pod(0), pod(1, node="node-2")), RoleLedger("worker"), 0, later(55), id="the node silent for longest"
        ),
        pytest.param(
            (pod(0), pod(1, "Succeeded", node="node-2")),
            RoleLedger("worker", succeeded="1"),
            0,
            later(60),
            id="a finished replica has no need of its node",
        ),
        pytest.param(
            (pod(0), pod(1), pod(2, deleting=later(5), node="node-2")),
            RoleLedger("worker"),
            0,
            later(55),
            id="a leftover",
        ),
    ],
)
def test_a_silent_node_is_looked_at_again_when_it_will_be_lost(
    pods: tuple[Pod, ...], entry: RoleLedger, seconds: float, expected: datetime
) -> None:
    nodes = NODES | {"node-3": node("node-3")}

    assert expected == look(job(role(replicas=2), ledger=lived(entry)), *pods, nodes=nodes, now=later(seconds)).wake


STUCK = (container(waiting="ErrImagePull"),)


@pytest.mark.parametrize(
    ("patience", "pods", "expected"),
    [
        pytest.param(None, (pod(0, "Pending", containers=STUCK), pod(1)), None, id="for ever"),
        pytest.param(9.0, (pod(0, "Pending", containers=STUCK), pod(1)), later(10), id="while one cannot start"),
        pytest.param(9.0, (pod(0, "Pending"), pod(1)), None, id="not while it merely starts"),
        pytest.param(9.0, (pod(0, "Pending", containers=STUCK, born=None), pod(1)), None, id="nobody knows since when"),
        pytest.param(
            9.0,
            (pod(0, "Pending", containers=STUCK), pod(1, "Pending", containers=STUCK, started=later(-2))),
            later(8),
            id="the first of two",
        ),
        pytest.param(9.0, (pod(0), pod(1)), None, id="not while all run"),
    ],
)
def test_a_pod_that_cannot_start_is_looked_at_again_when_patience_is_over(
    patience: float | None, pods: tuple[Pod, ...], expected: datetime | None
) -> None:
    one = job(role(replicas=2, patience=patience), ledger=lived(RoleLedger("worker", reached=2)))

    assert expected == look(one, *pods).wake


def test_a_pod_that_cannot_start_is_tried_again_where_its_policy_says_so() -> None:
    one = job(role(patience=9, restart=on(CauseKind.CREATE_ERROR, limit=1)), ledger=waiting())

    plan = look(one, pod(0, "Pending", containers=STUCK), now=later(10))

    assert plan.status.ledger.roles == (
        undone(
            RoleLedger("worker", retries="0:1", restarts={"CreateError": 1}, holds=(Hold(later(11), "0"),)),
            "0",
            CauseKind.CREATE_ERROR,
        ),
    )
    assert names(plan) == {"creates": [], "deletes": ["Pod job-worker-0"]}
    assert (
        look(
            job(role(patience=9), ledger=waiting()), pod(0, "Pending", containers=STUCK), now=later(10)
        ).status.ledger.phase
        is Phase.FAILED
    )


@pytest.mark.parametrize(("seconds", "creates"), [(120, []), (120.001, ["Pod job-worker-0"])], ids=["sound", "wrong"])
def test_a_hold_that_a_wrong_clock_wrote_holds_nothing_back(seconds: float, creates: list[str]) -> None:
    hold = Hold(later(seconds), "0")

    plan = look(job(ledger=lived(RoleLedger("worker", 1, holds=(hold,)))))

    assert creates == made(plan)
    assert plan.status.ledger.roles[0].holds == (() if creates else (hold,))
    assert plan.wake == (None if creates else later(seconds))


def test_a_hold_that_is_over_before_a_node_is_lost_wakes_first() -> None:
    entry = RoleLedger("worker", retries="1:1", holds=(Hold(later(3), "1"),))

    assert look(job(role(replicas=2), ledger=lived(entry)), pod(0), nodes=NODES).wake == later(3)


def test_a_node_that_nobody_watches_wakes_nobody() -> None:
    assert look(job(ledger=lived()), pod(), nodes=None).wake is None


def test_a_node_that_nobody_knows_wakes_nobody_and_loses_nothing() -> None:
    plan = look(job(ledger=lived()), pod(), nodes={"node-2": node("node-2")}, now=later(1e6))

    assert plan.empty
    assert plan.wake is None


def test_a_job_at_rest_has_an_empty_plan() -> None:
    given = job(role(replicas=2, service=True), dialect=Grouped(2), ledger=lived(RoleLedger("worker", reached=2)))
    services = (service("job-worker-0"), service("job-worker-1"))

    plan = look(given, *PODS, services=services, extras=(group(digest(BODY)),), nodes={"node-1": node()})

    assert plan.empty
    assert (plan.write, plan.wake, plan.events) == (Write.NOT, None, ())


def test_times_are_those_of_the_ledger() -> None:
    given = job(lifecycle=Lifecycle(deadline=Deadline(7)), ledger=Ledger(Phase.PENDING, times=Times(NOW, later(-3))))

    assert look(given).wake == later(4)


# -- who begins together -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "old", "made"),
    [
        pytest.param(RestartScope.JOB, pod(1, role="ps"), [], id="all of them wait for the last of any role"),
        pytest.param(RestartScope.ROLE, pod(1), [], id="a role waits for its own last one"),
        pytest.param(
            RestartScope.ROLE, pod(1, role="ps"), ["Pod job-worker-0", "Pod job-worker-1"], id="and for no other"
        ),
        pytest.param(RestartScope.POD, pod(1), ["Pod job-worker-0"], id="single ones wait for nobody"),
        pytest.param(
            RestartScope.JOB, pod(1, phase="Failed", code=1), ["Pod job-worker-0"], id="what has ended answers no more"
        ),
    ],
)
def test_what_restarts_together_meets_nobody_of_an_older_attempt(
    scope: RestartScope, old: Pod, made: list[str]
) -> None:
    policy = on(CauseKind.EXIT, scope=scope)
    entries = (RoleLedger("worker", epoch=1), RoleLedger("ps", epoch=1))
    given = job(role("worker", 2, restart=policy), role("ps", 2, restart=policy), ledger=lived(*entries))

    plan = look(
        given,
        old,
        pod(0, role="ps", attempt=1),
        *([] if "ps-1" in old.metadata.name else [pod(1, role="ps", attempt=1)]),
    )

    assert names(plan)["creates"] == made
