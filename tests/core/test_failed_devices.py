# SPDX-License-Identifier: Apache-2.0
"""GPUs that have failed: how that is known, whom it concerns, and what becomes of it."""

from typing import Any

import pytest
from msgspec.structs import replace
from passes import emitted, lived, look, names, on, view

from trainwright.core import nodes
from trainwright.core.nodes import another_node_fits, unhealthy_nodes
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.child import Node, NodeSpec, Observed, Pod, Taint
from trainwright.model.job import CleanPods, CleanUp, Elastic, Lifecycle, Restart, Role
from trainwright.model.ledger import Avoided, RoleLedger
from trainwright.model.meta import JOB_UID, ROLE
from trainwright.model.plan import State, Write
from trainwright.model.site import DeviceRules, Site
from trainwright.testing.factories import NOW, container, job, later, node, pod, role

SITE = Site(devices=DeviceRules(grace=10))
GPU = "nvidia.com/gpu"
NODE = on(CauseKind.NODE_LOST)
XID = "XIDErrors"


def noted(*names: str, **more: Any) -> tuple[Avoided, ...]:
    """Suspects, since NOW."""
    return tuple(Avoided(name, NOW, CauseKind.DEVICE, **more) for name in names)


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        pytest.param({}, {}, id="nothing"),
        pytest.param({"limits": {"cpu": 4}}, {}, id="no GPU"),
        pytest.param({"limits": {GPU: 2}}, {GPU: 2}, id="a limit"),
        pytest.param({"requests": {GPU: "2"}}, {GPU: 2}, id="a request, as text"),
        pytest.param({"requests": {GPU: 2}, "limits": {GPU: 2}}, {GPU: 2}, id="both are the same"),
        pytest.param({"limits": {"amd.com/gpu": 1}}, {"amd.com/gpu": 1}, id="of another maker"),
        pytest.param({"limits": {GPU: "many"}}, {GPU: 0}, id="not a number"),
        pytest.param(None, {}, id="null"),
    ],
)
def test_what_a_role_asks_for(resources: Any, expected: dict[str, int]) -> None:
    containers = [{"name": "a", "resources": resources}, {"name": "b"}]

    assert nodes.requested_devices(Role("worker", 1, {"spec": {"containers": containers}}), SITE) == expected


def test_containers_add_up_and_a_template_may_have_none() -> None:
    one = {"resources": {"limits": {GPU: 2}}}

    assert nodes.requested_devices(Role("worker", 1, {"spec": {"containers": [one, one]}}), SITE) == {GPU: 4}
    assert nodes.requested_devices(Role("worker", 1, {}), SITE) == {}
    assert nodes.requested_devices(Role("worker", 1, {"spec": {"containers": None}}), SITE) == {}


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        pytest.param(node(), "", id="well"),
        pytest.param(node(sick=XID), "XIDErrors is True", id="a condition"),
        pytest.param(node(sick=XID, message="Xid 79"), "XIDErrors is True: Xid 79", id="with its message"),
        pytest.param(node(sick=XID, status="False"), "", id="a condition that does not hold"),
        pytest.param(
            node(sick="AcceleratedHardwareReady", status="False"),
            "AcceleratedHardwareReady is False",
            id="EKS",
        ),
        pytest.param(node(sick="AcceleratedHardwareReady"), "", id="EKS, well"),
        pytest.param(node(sick="MemoryPressure"), "", id="another condition"),
        pytest.param(node(taint="nvidia.com/gpu-health"), "tainted nvidia.com/gpu-health", id="a taint"),
        pytest.param(node(taint="nvidia.com/gpu"), "", id="another taint"),
        pytest.param(node(has={GPU: "4"}), "", id="all are left"),
        pytest.param(node(has={GPU: "3"}), "3 nvidia.com/gpu left of 4 in use", id="one less"),
        pytest.param(node(has={"cpu": "1"}), "", id="it never said how many"),
    ],
)
def test_what_tells_of_an_illness(known: Node, expected: str) -> None:
    assert nodes.device_failure(known, {GPU: 4}, SITE) == expected


@pytest.mark.parametrize("name", sorted({type_ for type_, _ in DeviceRules().conditions}))
def test_the_usual_detectors_are_known(name: str) -> None:
    status = "False" if name.endswith("Ready") else "True"

    assert nodes.device_failure(node(sick=name, status=status), {}, Site())


def seen(*pods: Pod, of: Role | None = None, nodes: dict[str, Node] | None = None, **more: Any) -> Any:
    given = job(of or role(replicas=4, gpus=2), **more)
    known = {"other": node("other")} | (nodes or {})
    return unhealthy_nodes(given, Observed(pods, nodes=known), SITE, NOW)


def test_only_nodes_that_hold_pods_with_gpus_are_in_doubt() -> None:
    ill = {"node-1": node(sick=XID)}

    assert seen(pod(), nodes=ill)["node-1"].device_message == "XIDErrors is True"
    assert seen(pod(), nodes=ill)["node-1"].roles == {"worker"}
    assert seen(pod(node="other"), nodes=ill) == {}
    assert seen(pod(), of=role(replicas=4), nodes=ill) == {}
    assert seen(pod(phase="Succeeded"), nodes=ill) == {}
    assert seen(pod(labels={}), nodes=ill) == {}
    assert seen(pod(role="gone"), nodes=ill) == {}
    assert seen(pod(labels={ROLE: "worker", JOB_UID: "another"}), nodes=ill) == {}


def test_of_two_roles_only_the_one_with_gpus_is_concerned() -> None:
    given = job(role(gpus=1), role("ps"))
    known = {"node-1": node(sick=XID), "other": node("other")}

    found = unhealthy_nodes(given, Observed((pod(), pod(role="ps")), nodes=known), SITE, NOW)

    assert found["node-1"].roles == {"worker"}
    assert found["node-1"].devices_have_failed("worker", later(10))
    assert not found["node-1"].devices_have_failed("ps", later(10))
    assert not found["node-1"].devices_have_failed("worker", later(9.9))


@pytest.mark.parametrize(
    ("left", "pods", "ill"),
    [
        pytest.param("8", 4, False, id="all there"),
        pytest.param("7", 4, True, id="one less than they hold"),
        pytest.param("7", 3, False, id="still enough for those that are there"),
        pytest.param("0", 1, True, id="none left"),
    ],
)
def test_what_is_left_is_held_against_what_pods_of_the_job_hold(left: str, pods: int, ill: bool) -> None:
    found = seen(*(pod(i) for i in range(pods)), nodes={"node-1": node(has={GPU: left})})

    assert bool(found) is ill


def test_pods_that_have_ended_hold_nothing() -> None:
    ended = (pod(0), pod(1), pod(2), pod(3, "Failed"))

    assert seen(*ended, nodes={"node-1": node(has={GPU: "6"})}) == {}


def test_a_silent_node_is_silent_whatever_its_gpus_are() -> None:
    (health,) = seen(pod(), nodes={"node-1": node(ready=False, sick=XID)}).values()

    assert (health.silent, health.device_message) == (True, "")


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        pytest.param({"b": node("b")}, True, id="another node"),
        pytest.param({}, False, id="no other"),
        pytest.param({"b": node("b", ready=False)}, False, id="another that does not answer"),
        pytest.param({"b": node("b", closed=True)}, False, id="another that is closed"),
        pytest.param({"b": node("b", sick=XID)}, False, id="another that is as sick"),
        pytest.param({"b": node("b", has={GPU: "1"})}, False, id="another with too few GPUs"),
        pytest.param({"b": node("b", has={GPU: "2"})}, True, id="another with enough"),
        pytest.param({"b": node("b", has={"cpu": "9"})}, False, id="another without GPUs"),
        pytest.param({"b": node("b", has={})}, True, id="another that does not say what it has"),
        pytest.param({"b": node("b", taint="control-plane")}, False, id="another that is kept for others"),
        pytest.param({"b": node("b", taint=GPU)}, True, id="another that is kept for those that ask for GPUs"),
    ],
)
def test_gpus_are_judged_only_if_there_is_somewhere_else_to_go(others: dict[str, Node], expected: bool) -> None:
    nodes = {"node-1": node(sick=XID)} | others
    found = unhealthy_nodes(job(role(gpus=2)), Observed((pod(),), nodes=nodes), SITE, NOW)

    assert found["node-1"].devices_failed_at == (later(10) if expected else None)
    assert found["node-1"].devices_have_failed("worker", later(1e6)) is expected


def test_a_node_that_the_template_would_not_have_is_nowhere_to_go() -> None:
    worker = role()
    worker = replace(worker, template={"spec": worker.template["spec"] | {"nodeSelector": {"zone": "a"}}})

    assert not another_node_fits(worker, {"b": node("b")}, (), SITE)
    assert not another_node_fits(worker, {"b": node("b", labels={"zone": "b"})}, (), SITE)
    assert another_node_fits(worker, {"b": node("b", labels={"zone": "a"})}, (), SITE)
    assert not another_node_fits(worker, {"b": node("b", labels={"zone": "a"})}, {"b"}, SITE)


@pytest.mark.parametrize(
    ("tolerations", "expected"),
    [
        pytest.param(None, False, id="none"),
        pytest.param([{"key": "team", "operator": "Exists"}], True, id="by its key"),
        pytest.param([{"key": "team", "value": "ours", "effect": "NoSchedule"}], True, id="by its effect too"),
        pytest.param([{"key": "team", "effect": "NoExecute"}], False, id="another effect"),
        pytest.param([{"key": "other"}], False, id="another key"),
        pytest.param([{"operator": "Exists"}], True, id="everything"),
    ],
)
def test_a_taint_that_the_template_does_not_tolerate_leaves_nowhere_to_go(tolerations: Any, expected: bool) -> None:
    worker = role()
    worker = replace(worker, template={"spec": worker.template["spec"] | {"tolerations": tolerations}})

    assert another_node_fits(worker, {"b": node("b", taint="team")}, (), SITE) is expected


def test_a_taint_of_a_node_where_its_pods_have_been_keeps_none_off() -> None:
    known = {"a": node("a", taint="team"), "b": node("b", taint="team")}

    assert another_node_fits(role(), known, {"a"}, SITE)


def test_a_taint_that_only_asks_keeps_none_off() -> None:
    soft = replace(node("b"), spec=NodeSpec(taints=(Taint("team", "PreferNoSchedule"),)))

    assert another_node_fits(role(), {"b": soft}, (), SITE)


def test_the_grace_begins_when_it_was_first_seen() -> None:
    ill = {"node-1": node(sick=XID)}

    assert seen(pod(), nodes=ill)["node-1"].devices_failed_at == later(10)
    stored = lived(RoleLedger("worker", reached=4), avoided=(Avoided("node-1", later(-7), CauseKind.DEVICE),))
    assert seen(pod(), nodes=ill, ledger=stored)["node-1"].devices_failed_at == later(3)
    ahead = lived(RoleLedger("worker", reached=4), avoided=(Avoided("node-1", later(99), CauseKind.DEVICE),))
    assert seen(pod(), nodes=ill, ledger=ahead)["node-1"].devices_failed_at == later(10)


LOST = (State.LOST, Cause(CauseKind.DEVICE, message="XIDErrors is True", node="node-1"))


@pytest.mark.parametrize(
    ("one", "policy", "expected"),
    [
        pytest.param(pod(), NODE, LOST, id="it runs"),
        pytest.param(pod(phase="Pending"), NODE, LOST, id="it starts"),
        pytest.param(pod(), on(CauseKind.DEVICE), LOST, id="a policy may name it"),
        pytest.param(pod(), on(CauseKind.EXIT), (State.RUNNING, None), id="it would not be tried again"),
        pytest.param(pod(phase="Succeeded"), NODE, (State.SUCCEEDED, Cause(CauseKind.COMPLETED)), id="it has finished"),
        pytest.param(pod(deleting=later(99)), NODE, (State.STOPPING, None), id="it is on its way out"),
    ],
)
def test_what_becomes_of_a_pod(one: Pod, policy: Restart, expected: Any) -> None:
    ledger = lived(avoided=noted("node-1"))
    given = job(role(gpus=1, restart=policy), ledger=ledger)
    nodes = {"node-1": node(sick=XID)}

    (replica,) = view(given, one, nodes=nodes, site=SITE, now=later(10)).roles[0].replicas

    assert (replica.state, replica.cause) == expected


def test_a_container_that_failed_has_its_own_cause() -> None:
    given = job(role(gpus=1, restart=NODE, main_containers=frozenset({"main"})), ledger=lived(avoided=noted("node-1")))
    one = pod(containers=(container(exit_code=3, reason="Error"), container("sidecar")))

    (replica,) = view(given, one, nodes={"node-1": node(sick=XID)}, site=SITE, now=later(10)).roles[0].replicas

    assert replica.cause is not None
    assert replica.cause.why is CauseKind.EXIT


def test_a_role_that_resizes_itself_lives_with_it() -> None:
    given = job(role(gpus=1, elastic=Elastic(1, 1, True)), ledger=lived(avoided=noted("node-1")))

    plan = look(given, pod(), nodes={"node-1": node(sick=XID)}, site=SITE, now=later(10))

    assert plan.status.ledger.roles[0].restarts == {"DeviceFailed": 1}
    assert plan.status.ledger.outcome is None


def test_the_story_of_a_gpu_that_fails() -> None:
    given = job(role(gpus=1, restart=NODE), ledger=lived())
    nodes = {"node-1": node(sick=XID)}

    first = look(given, pod(), nodes=nodes, site=SITE)
    assert first.status.ledger.avoided == noted("node-1")
    assert (first.deletes, first.wake, first.write) == ((), later(10), Write.LATER)
    given = replace(given, ledger=first.status.ledger)
    assert look(given, pod(), nodes=nodes, site=SITE, now=later(9)).deletes == ()

    plan = look(given, pod(), nodes=nodes, site=SITE, now=later(10))

    assert names(plan)["deletes"] == ["Pod job-worker-0"]
    assert not plan.deletes[0].force
    assert plan.status.ledger.avoided == (Avoided("node-1", later(10), CauseKind.DEVICE, failed=True),)
    assert plan.status.ledger.roles[0].restarts == {"DeviceFailed": 1}
    (event,) = emitted(plan)
    assert event.message == "restarting after job-worker-0: GPUs of node node-1 have failed (XIDErrors is True)"


def test_what_is_seen_by_what_is_left_is_no_less_an_illness() -> None:
    given = job(role(gpus=1, restart=NODE), ledger=lived(avoided=noted("node-1")))
    nodes = {"node-1": node(has={GPU: "0"})}

    assert look(given, pod(), nodes=nodes, site=SITE, now=later(9)).status.ledger.avoided == noted("node-1")
    assert len(look(given, pod(), nodes=nodes, site=SITE, now=later(10)).deletes) == 1


def test_an_illness_that_passes_is_forgotten() -> None:
    given = job(role(gpus=1, restart=NODE), ledger=lived(avoided=noted("node-1")))

    plan = look(given, pod(), nodes={"node-1": node()}, site=SITE, now=later(5))

    assert plan.status.ledger.avoided == ()
    assert plan.wake is None


@pytest.mark.parametrize(
    ("policy", "spent"),
    [
        pytest.param(on(CauseKind.NODE_LOST, limit=3), 1, id="counted as a lost node is"),
        pytest.param(
            Restart(frozenset({CauseKind.NODE_LOST}), free=frozenset({CauseKind.NODE_LOST})), 0, id="free where that is"
        ),
    ],
)
def test_what_it_costs(policy: Restart, spent: int) -> None:
    assert policy.answers(CauseKind.DEVICE)
    assert (CauseKind.DEVICE not in policy.uncounted) is bool(spent)
    assert (CauseKind.DEVICE not in role(restart=policy).uncounted) is bool(spent)
    assert CauseKind.DEVICE in role(restart=policy, elastic=Elastic(1, 2, True)).uncounted
    assert (CauseKind.DEVICE not in role(restart=policy, elastic=Elastic(1, 2)).uncounted) is bool(spent)


def test_it_is_cleaned_up_after_as_after_a_lost_node() -> None:
    life = Lifecycle(clean=CleanUp(failed=CleanPods.NONE, lost=CleanPods.ALL))
    restart = on(CauseKind.NODE_LOST, limit=0)
    given = job(role(gpus=1, restart=restart), lifecycle=life, ledger=lived(avoided=noted("node-1")))

    plan = look(given, pod(), nodes={"node-1": node(sick=XID)}, site=SITE, now=later(10))

    assert plan.status.ledger.outcome is not None
    assert names(plan)["deletes"] == ["Pod job-worker-0"]
