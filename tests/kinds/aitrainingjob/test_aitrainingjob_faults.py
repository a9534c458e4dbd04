# SPDX-License-Identifier: Apache-2.0
"""Nodes, GPUs and room that are missing, as an AITrainingJob lives through it: policies, sizes, what is said."""

import pytest
from aitrainingjob_driver import Driver, container, last, manifest, replicas, told
from msgspec.structs import replace

from trainwright.kinds.aitrainingjob import AITRAININGJOB
from trainwright.kinds.base import load
from trainwright.model.child import ObjectCondition
from trainwright.model.job import Body, Elastic, RestartScope

NODES = ("trainer-0", "trainer-1", "trainer-2", "spare")
GPU: Body = {"containers": [container(resources={"limits": {"nvidia.com/gpu": 1}})]}
SICK = "GPUs of node trainer-1 have failed"


def fail_gpus(world: Driver, name: str) -> None:
    """A detector says so, for long enough."""
    assert world.nodes is not None
    node = world.nodes[name]
    sick = ObjectCondition("XIDErrors", "True", "Xid79", "GPU has fallen off the bus", world.clock)
    conditions = (*(node.status.conditions or ()), sick)
    world.nodes = world.nodes | {name: replace(node, status=replace(node.status, conditions=conditions))}
    world.go()
    world.pass_by(61)


@pytest.mark.parametrize(
    ("policy", "restarted"),
    [
        ("OnNodeFail", True),
        ("OnNodeFailWithExitCode", True),
        ("Always", True),
        ("OnFailure", False),
        ("ExitCode", False),
        ("Never", False),
    ],
)
def test_policies_that_answer_a_lost_node_answer_failed_gpus(policy: str, restarted: bool) -> None:
    spec = {"restartingExitCode": "137"}
    one = replicas(3, pod=GPU, restartPolicy=policy, restartScope="Pod")
    world = Driver(manifest(trainer=one, spec=spec), nodes=NODES).running()
    fail_gpus(world, "trainer-1")

    # A pod that may not be tried again is left alone: its own program will say if its GPU is dead.
    assert world.status.get("RestartCount") == ({"trainer": 1} if restarted else None)
    assert any(SICK in message for _, message in told(world.status)) is restarted
    assert any(SICK in message for _, message in world.said()) is restarted


def test_failed_gpus_that_use_up_the_limit_end_the_job_in_node_fail() -> None:
    one = replicas(3, pod=GPU, restartPolicy="OnNodeFail", restartLimit=0)
    world = Driver(manifest(trainer=one, spec={"cleanPodPolicy": "None"}), nodes=NODES).running()
    fail_gpus(world, "trainer-1")

    assert world.status["phase"] == "NodeFail"
    assert last(world.status)[1].startswith(f"pod demo-trainer-1 is failed, {SICK}: ")
    assert world.names() == []


def test_a_finished_pod_stays_finished_when_its_gpus_fail() -> None:
    world = Driver(manifest(trainer=replicas(3, pod=GPU, restartPolicy="Always")), nodes=NODES).running()
    world.end("trainer-1")
    fail_gpus(world, "trainer-1")

    assert "RestartCount" not in world.status


@pytest.mark.parametrize("fault", ["node", "gpu"])
def test_the_node_that_failed_is_avoided_by_the_next_attempt(fault: str) -> None:
    one = replicas(3, pod=GPU, restartPolicy="OnNodeFail", restartScope="Pod")
    world = Driver(manifest(trainer=one), nodes=NODES).running()
    if fault == "node":
        world.lose_node("trainer-1")
        world.pass_by(61)
    else:
        fail_gpus(world, "trainer-1")
    world.pass_by(60)

    affinity = world.body("Pod", "trainer-1")["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["trainer-1"]}]}
    ]


@pytest.mark.parametrize(
    ("one", "elastic", "resize"),
    [
        pytest.param(replicas(4), None, RestartScope.ROLE, id="free"),
        pytest.param(replicas(4, minReplicas=2), Elastic(2, 10_000), RestartScope.ROLE, id="at least"),
        pytest.param(replicas(4, maxReplicas=6), Elastic(1, 6), RestartScope.ROLE, id="at most"),
        pytest.param(
            replicas(4, minReplicas=2, maxReplicas=6, edlPolicy="Manual"), Elastic(2, 6), RestartScope.ROLE, id="Manual"
        ),
        pytest.param(
            replicas(4, minReplicas=2, maxReplicas=6, edlPolicy="Auto"),
            Elastic(2, 6, auto=True),
            RestartScope.ROLE,
            id="Auto",
        ),
        pytest.param(
            replicas(4, edlPolicy="Auto"), Elastic(1, 4, auto=True), RestartScope.ROLE, id="Auto without bounds"
        ),
        pytest.param(
            replicas(4, minReplicas=0, edlPolicy="Auto"),
            Elastic(1, 4, auto=True),
            RestartScope.ROLE,
            id="Auto, at least one",
        ),
        pytest.param(replicas(4, minReplicas=2, edlPolicy="Never"), None, RestartScope.ROLE, id="Never"),
    ],
)
def test_bounds_and_edl_policy(one: Body, elastic: Elastic | None, resize: RestartScope | None) -> None:
    role = load(AITRAININGJOB, manifest(trainer=one)).job.roles[0]

    assert (role.elastic, role.resize) == (elastic, resize)


def test_auto_goes_on_with_what_can_run_and_says_why() -> None:
    one = replicas(4, minReplicas=2, edlPolicy="Auto")
    world = Driver(manifest(trainer=one))
    world.go()
    world.start_all("trainer-0", "trainer-1", "trainer-2")
    world.unschedulable("trainer-3")
    world.pass_by(31)
    world.start_all()

    assert world.status["phase"] == "Running"
    assert world.status["replicaStatuses"] == {"trainer": {"active": 3}}
    assert {world.env(f"trainer-{place}")["TRAINER_INSTANCES_NUM"] for place in range(3)} == {"3"}
    told_of = [message for kind, message in told(world.status) if kind == "Restarting"]
    assert told_of[-1].startswith("trainer is scaled from 4 to 3 replicas: ")
    assert ("TrainingJobScaled", told_of[-1]) in world.said()
    assert "RestartCount" not in world.status


def test_what_somebody_asks_for_after_that_is_not_told_with_the_old_reason() -> None:
    world = Driver(manifest(trainer=replicas(4, minReplicas=1, edlPolicy="Auto")))
    world.go()
    world.start_all("trainer-0", "trainer-1", "trainer-2")
    world.unschedulable("trainer-3")
    world.pass_by(31)
    world.start_all()
    world.scale("trainer", 2)
    world.start_all()

    assert ("Restarting", "trainer is scaled from 3 to 2 replicas") in told(world.status)


def test_auto_never_goes_below_its_least() -> None:
    world = Driver(manifest(trainer=replicas(4, minReplicas=3, edlPolicy="Auto")))
    world.go()
    world.start_all("trainer-0")
    for place in (1, 2, 3):
        world.unschedulable(f"trainer-{place}")
    world.pass_by(31)
    world.pass_by(31)

    assert world.names("Service") == ["trainer-0", "trainer-1", "trainer-2"]
    assert world.status["phase"] in ("Pending", "Restarting")


def test_an_edit_of_the_size_of_one_type_leaves_the_other_alone() -> None:
    world = Driver(manifest(a=2, b=2)).running()
    before = {name: pod.metadata.uid for name, pod in world.pods().items() if "-b-" in name}
    world.scale("a", 3)
    world.again()

    assert world.status["phase"] == "Running"
    assert {name: pod.metadata.uid for name, pod in world.pods().items() if "-b-" in name} == before
    assert world.names() == ["a-0#1", "a-1#1", "a-2#1", "b-0", "b-1"]


def test_a_size_that_is_edited_together_with_the_policy_is_told_to_everybody() -> None:
    world = Driver(manifest(trainer=replicas(2, edlPolicy="Never"))).running()
    world.document["spec"]["replicaSpecs"]["trainer"]["edlPolicy"] = "Manual"
    world.scale("trainer", 4)

    assert {world.env(name.split("#")[0])["TRAINER_INSTANCES_NUM"] for name in world.names()} == {"4"}


def test_while_old_pods_go_for_a_new_size_the_job_restarts() -> None:
    world = Driver(manifest(trainer=2)).running()
    world.document["spec"]["replicaSpecs"]["trainer"]["replicas"] = 1
    world.go(reaps=False)

    assert last(world.status) == ("Restarting", "trainer is scaled from 2 to 1 replica")


@pytest.mark.parametrize("reason", ["NodeShutdown", "Terminated", "NodeLost", "SupervisorLost"])
@pytest.mark.parametrize(
    ("policy", "phase"), [("OnNodeFail", "Terminating"), ("OnFailure", "Terminating"), ("Never", "Failed")]
)
def test_a_pod_that_went_down_with_its_node_has_failed_and_has_lost_its_node(
    policy: str, phase: str, reason: str
) -> None:
    """Nodes that are shut down, or whose agent is started anew, say so of their pods before anybody misses them."""
    world = Driver(manifest(trainer=replicas(3, restartPolicy=policy, restartScope="Pod")), nodes=NODES).running()
    world.change("demo-trainer-1", phase="Failed", reason=reason, message="it went down", container_statuses=None)
    status = world.go()

    assert status["phase"] == phase
    assert f"{reason}, it went down on node trainer-1" in last(status)[1]


def test_a_pod_that_was_collected_because_its_node_is_gone_has_lost_its_node() -> None:
    world = Driver(manifest(trainer=replicas(3, restartPolicy="OnNodeFail", restartScope="Pod")), nodes=NODES).running()
    said = ObjectCondition("DisruptionTarget", "True", "DeletionByPodGC", "PodGC: node no longer exists")
    world.change("demo-trainer-1", phase="Failed", conditions=(said,))

    assert world.go()["RestartCount"] == {"trainer": 1}


@pytest.mark.parametrize("scope", ["Pod", "All"])
def test_under_auto_a_node_that_is_shut_down_uses_up_no_limit(scope: str) -> None:
    world = Driver(manifest(trainer=replicas(2, edlPolicy="Auto", restartLimit=1, restartScope=scope))).running()
    for times in (1, 2, 3):
        world.change("demo-trainer-1", phase="Failed", reason="NodeShutdown")
        assert world.go()["RestartCount"] == {"trainer": times}
        assert world.again()["phase"] == "Running"

    assert world.status["trainwright"]["roles"][0]["restarts"] == {"NodeLost": 3}


def test_a_pod_that_was_preempted_has_not_lost_its_node() -> None:
    world = Driver(manifest(trainer=replicas(3, restartPolicy="OnNodeFail")), nodes=NODES).running()
    world.evict("demo-trainer-1")

    assert world.go()["phase"] == "Failed"
