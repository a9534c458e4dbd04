# SPDX-License-Identifier: Apache-2.0
"""Nodes that failed a replica: remembered, kept away from, forgotten again."""

from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace
from passes import lived, look, on

from trainwright.core import quarantine
from trainwright.core.render import PREFERRED, REQUIRED, with_node_terms
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.child import Node
from trainwright.model.job import Body, Elastic, Job, RestartScope
from trainwright.model.ledger import KEPT_NODES, Avoided, Ledger, RoleLedger, SizeCap
from trainwright.model.plan import Plan, Write
from trainwright.model.site import Site
from trainwright.testing.factories import NOW, job, later, node, pod, role

SITE = Site(node_quarantine=100)
NODE = on(CauseKind.NODE_LOST)


def bad(name: str = "node-1", since: datetime = NOW, until: datetime | None = None) -> Avoided:
    """A node that has failed a replica."""
    return Avoided(name, since, CauseKind.NODE_LOST, failed=True, until=until)


def not_in(*hosts: str) -> Body:
    return {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(hosts)}]}


def affinity(plan: Plan) -> Body:
    """What the only pod that is made demands of its node."""
    (create,) = plan.creates
    found: Body = (create.body["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    return found


def avoiding(*entries: Avoided, **more: Any) -> Job:
    return job(role(replicas=1, restart=NODE, **more), ledger=lived(RoleLedger("worker"), avoided=entries))


# -- remembered ------------------------------------------------------------------------------------------------------


def test_the_node_that_failed_a_replica_is_remembered_with_the_restart() -> None:
    given = job(role(replicas=2, restart=NODE), ledger=lived(RoleLedger("worker", reached=2)))
    nodes = {"node-1": node(), "node-2": node("node-2", ready=False)}

    plan = look(given, pod(0), pod(1, node="node-2"), nodes=nodes, now=later(60))

    assert plan.status.ledger.avoided == (bad("node-2", later(60)),)
    assert plan.write is Write.NOW


@pytest.mark.parametrize(
    ("causes", "expected"),
    [
        pytest.param([Cause(CauseKind.NODE_LOST, node="a")], ["a"], id="a lost node"),
        pytest.param([Cause(CauseKind.DEVICE, node="a")], ["a"], id="failed GPUs"),
        pytest.param(
            [Cause(CauseKind.EXIT, node="a"), Cause(CauseKind.DISRUPTED, node="b")], [], id="the node was not to blame"
        ),
        pytest.param([Cause(CauseKind.NODE_LOST)], [], id="nobody knows which"),
        pytest.param([Cause(CauseKind.NODE_LOST, node=name) for name in "bab"], ["a", "b"], id="each once"),
    ],
)
def test_which_failures_lie_with_their_node(causes: list[Cause], expected: list[str]) -> None:
    assert [one.node for one in quarantine.add_failed_nodes(Ledger(), causes, NOW).avoided] == expected


def test_one_that_fails_again_is_remembered_once_and_anew() -> None:
    before = Ledger(avoided=(bad("a", until=later(9)), bad("b")))

    after = quarantine.add_failed_nodes(before, [Cause(CauseKind.NODE_LOST, node="a")], later(5))

    assert after.avoided == (bad("b"), bad("a", later(5)))


def test_only_so_many_are_remembered_and_a_suspect_never_makes_room() -> None:
    suspect = Avoided("suspect", NOW, CauseKind.DEVICE)
    full = (suspect, *(bad(f"n{i}") for i in range(KEPT_NODES - 1)))

    after = quarantine.add_failed_nodes(Ledger(avoided=full), [Cause(CauseKind.NODE_LOST, node="new")], NOW).avoided

    assert len(after) == KEPT_NODES
    assert after[0] is suspect
    assert [one.node for one in after[1:3]] == ["n1", "n2"]
    assert after[-1] == bad("new")
    suspects = tuple(Avoided(f"n{i}", NOW, CauseKind.DEVICE) for i in range(KEPT_NODES))
    assert (
        quarantine.add_failed_nodes(Ledger(avoided=suspects), [Cause(CauseKind.NODE_LOST, node="new")], NOW).avoided
        == suspects
    )


# -- kept away from --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param({}, "required", id="another node is known"),
        pytest.param({"elsewhere": node("elsewhere", ready=False)}, "preferred", id="no other answers"),
        pytest.param({"elsewhere": node("elsewhere", closed=True)}, "preferred", id="the other is closed"),
    ],
)
def test_a_pod_is_kept_off_if_there_is_another_node(nodes: dict[str, Node], expected: str) -> None:
    plan = look(avoiding(bad()), nodes={"node-1": node(ready=False)} | nodes, site=SITE)

    required, preferred = {"nodeSelectorTerms": [not_in("node-1")]}, [{"weight": 100, "preference": not_in("node-1")}]
    assert affinity(plan) == ({REQUIRED: required} if expected == "required" else {PREFERRED: preferred})


def test_two_bad_nodes_are_no_choice_between_each_other() -> None:
    given = avoiding(bad("b"), bad("elsewhere"))

    plan = look(given, nodes={"b": node("b", ready=False)}, site=SITE)

    assert affinity(plan) == {PREFERRED: [{"weight": 100, "preference": not_in("b", "elsewhere")}]}


def test_where_nodes_are_not_known_it_is_only_a_wish() -> None:
    assert PREFERRED in affinity(look(avoiding(bad()), site=SITE))


def test_a_node_goes_by_its_label() -> None:
    known = {"node-1": node(ready=False, labels={"kubernetes.io/hostname": "ip-10-0-0-1"})}

    (term,) = affinity(look(avoiding(bad()), nodes=known, site=SITE))[REQUIRED]["nodeSelectorTerms"]

    assert term == not_in("ip-10-0-0-1")


def test_a_suspect_is_not_avoided_yet() -> None:
    known = {"node-1": node(sick="XIDErrors")}

    assert affinity(look(avoiding(Avoided("node-1", NOW, CauseKind.DEVICE)), nodes=known, site=SITE)) == {}


TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
FIELD = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
OURS = not_in("x")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(None, [OURS], id="none of its own"),
        pytest.param([], [OURS], id="an empty list"),
        pytest.param([TERM], [{"matchExpressions": [*TERM["matchExpressions"], *OURS["matchExpressions"]]}], id="one"),
        pytest.param([FIELD], [FIELD | OURS], id="by a field"),
        pytest.param(
            [TERM, FIELD, {}],
            [{"matchExpressions": [*TERM["matchExpressions"], *OURS["matchExpressions"]]}, FIELD | OURS, {}],
            id="each of several, but for one that matches nothing",
        ),
    ],
)
def test_the_demand_is_added_to_each_of_the_templates_alternatives(given: Any, expected: Any) -> None:
    spec = {"a": 1, "affinity": {"podAffinity": {"x": "y"}, "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": given}}}}

    found = with_node_terms(spec, {REQUIRED: {"nodeSelectorTerms": [OURS]}})

    assert found == {
        "a": 1,
        "affinity": {"podAffinity": {"x": "y"}, "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": expected}}},
    }
    assert spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] is given  # type: ignore[index] # a test's own


def test_the_wish_is_added_to_the_templates_own() -> None:
    ours = {PREFERRED: [{"weight": 100, "preference": OURS}]}
    theirs = {PREFERRED: [{"weight": 1, "preference": TERM}], REQUIRED: {"nodeSelectorTerms": [TERM]}}

    found = with_node_terms({"affinity": {"nodeAffinity": theirs}}, ours)["affinity"]["nodeAffinity"]

    assert found == {PREFERRED: [*theirs[PREFERRED], *ours[PREFERRED]], REQUIRED: theirs[REQUIRED]}
    assert with_node_terms({}, ours) == {"affinity": {"nodeAffinity": ours}}
    assert with_node_terms({"affinity": None}, ours) == {"affinity": {"nodeAffinity": ours}}


# -- forgotten -------------------------------------------------------------------------------------------------------

RUNS = RoleLedger("worker", reached=1)


def kept(*entries: Avoided, known: Node | None = None, seconds: float = 0, **more: Any) -> tuple[Avoided, ...]:
    nodes = {"node-1": known} if known is not None else {}
    given = job(role(restart=NODE), ledger=lived(RUNS, avoided=entries))
    return look(given, pod(node="elsewhere"), nodes=nodes, site=SITE, now=later(seconds), **more).status.ledger.avoided


@pytest.mark.parametrize(
    ("one", "known", "seconds", "expected"),
    [
        pytest.param(bad(), node(ready=False), 999, bad(), id="it is still silent"),
        pytest.param(bad(), node(sick="XIDErrors"), 999, bad(), id="its GPUs are still sick"),
        pytest.param(bad(), node(), 5, bad(until=later(105)), id="it is well: for so long"),
        pytest.param(bad(), None, 5, bad(until=later(105)), id="it is gone: likewise"),
        pytest.param(bad(until=later(105)), node(), 104.9, bad(until=later(105)), id="not long enough yet"),
        pytest.param(bad(until=later(105)), node(), 105, None, id="long enough"),
        pytest.param(bad(until=later(105)), node(ready=False), 105, bad(), id="it has failed again"),
        pytest.param(bad(until=later(9999)), node(), 0, bad(until=later(100)), id="a clock was wrong"),
        pytest.param(Avoided("node-1", NOW, CauseKind.DEVICE), node(), 1, None, id="a suspect is cleared at once"),
    ],
)
def test_when_a_node_is_trusted_again(one: Avoided, known: Node | None, seconds: float, expected: Any) -> None:
    assert kept(one, known=known, seconds=seconds) == (() if expected is None else (expected,))


def test_it_is_looked_at_again_when_a_node_may_be_trusted() -> None:
    given = job(role(restart=NODE), ledger=lived(RUNS, avoided=(bad(until=later(50)),)))

    plan = look(given, pod(node="elsewhere"), nodes={"node-1": node()}, site=SITE)

    assert (plan.wake, plan.write) == (later(50), Write.NOT)


def test_that_it_is_well_again_need_not_be_stored_at_once() -> None:
    given = job(role(restart=NODE), ledger=lived(RUNS, avoided=(bad(),)))

    assert look(given, pod(node="elsewhere"), nodes={"node-1": node()}, site=SITE).write is Write.LATER


@pytest.mark.parametrize("causes", [(), (CauseKind.DELETED,)], ids=["", "a deleted pod restarts the role"])
def test_a_pod_that_was_made_to_avoid_a_node_which_is_trusted_again_is_made_anew(causes: tuple[CauseKind, ...]) -> None:
    entries = (RoleLedger("worker", reached=3), RoleLedger("ps", reached=1))
    given = job(
        role(replicas=3, restart=on(CauseKind.NODE_LOST, *causes, scope=RestartScope.ROLE)),
        role("ps"),
        ledger=lived(*entries, avoided=(bad(until=later(5)),)),
    )
    pods = (pod(0), pod(1, "Pending", node=""), pod(2, "Pending", node="elsewhere"), pod(0, role="ps"))

    plan = look(given, *pods, nodes={"node-1": node(), "elsewhere": node("elsewhere")}, site=SITE, now=later(5))

    assert plan.status.ledger.avoided == ()
    assert [one.name for one in plan.deletes] == ["job-worker-1"]
    assert [entry.retries for entry in plan.status.ledger.roles] == ["1:1", ""]
    assert plan.status.ledger.roles[0].restarts == {}
    before = look(given, *pods, nodes={"node-1": node(), "elsewhere": node("elsewhere")}, site=SITE, now=later(4))
    assert before.deletes == ()


def test_where_a_node_is_trusted_again_there_may_be_room_soon() -> None:
    held = replace(RUNS, ceiling=SizeCap(NOW, 1, tries=3))
    elastic = role(replicas=2, restart=NODE, elastic=Elastic(1, 2, auto=True))
    given = job(elastic, ledger=lived(held, avoided=(bad(until=later(5)),)))

    plan = look(given, pod(node="elsewhere"), nodes={"node-1": node()}, site=SITE, now=later(5))

    assert plan.status.ledger.roles[0].ceiling == SizeCap(NOW, 1)


def test_a_suspect_that_is_cleared_disturbs_nobody() -> None:
    given = job(role(replicas=2, gpus=1), ledger=lived(RUNS, avoided=(Avoided("node-1", NOW, CauseKind.DEVICE),)))

    plan = look(given, pod(0), pod(1, "Pending", node=""), nodes={"node-1": node()}, site=SITE)

    assert plan.status.ledger.avoided == ()
    assert plan.deletes == ()


def test_a_job_that_has_ended_keeps_no_watch() -> None:
    given = job(role(gpus=1, restart=NODE), ledger=lived(RUNS))

    plan = look(given, pod(phase="Succeeded"), nodes={"node-1": node(sick="XIDErrors")}, site=SITE)

    assert plan.status.ledger.avoided == ()
