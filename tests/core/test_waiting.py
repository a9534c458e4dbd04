# SPDX-License-Identifier: Apache-2.0
"""What keeps the replicas of a job from running: the class, a sentence with amount and place, who, and since when."""

from typing import Any

import pytest
from msgspec.structs import replace
from passes import group, lived, on, seen, waiting

from trainwright.core.reconcile import reconcile
from trainwright.core.waiting import Obstacle, first_obstacle, obstacles
from trainwright.model.cause import CauseKind
from trainwright.model.child import (
    ContainerState,
    ContainerStatus,
    Extra,
    ObjectCondition,
    Pod,
    Refusal,
    Terminated,
    Waiting,
)
from trainwright.model.job import Gang, Job, Lifecycle, RestartScope, Role
from trainwright.model.ledger import Hold, Phase, RoleLedger
from trainwright.model.site import Site
from trainwright.model.verdict import FailureClass
from trainwright.testing.factories import NOW, container, job, later, pod, role

QUOTA = (
    'pods "job-worker-0" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8,'
    " used: requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=12"
)
NO_ROOM = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
ROLE = on(CauseKind.EXIT, scope=RestartScope.ROLE)
OLD_POD = pod(0, deleting=later(30), node="a")


def unscheduled(index: int = 0, reason: str = "Unschedulable", message: str = NO_ROOM) -> Pod:
    told = ObjectCondition("PodScheduled", "False", reason, message, later(3))
    return pod(index, "Pending", node="", conditions=(told,))


def stuck(reason: str, message: str, index: int = 0, node: str = "a") -> Pod:
    return pod(index, "Pending", node=node, containers=(container(waiting=reason, message=message),))


def crashing(phase: str = "Running", restarts: int = 2, **end: Any) -> Pod:
    last = ContainerState(terminated=Terminated(1, reason="Error", finished_at=later(7), **end))
    back_off = ContainerState(waiting=Waiting("CrashLoopBackOff", "back-off 20s restarting failed container"))
    one = (ContainerStatus("main", restart_count=restarts, state=back_off, last_state=last),)
    return pod(0, phase, node="a", policy="Always", **({"containers": one} if phase == "Running" else {"inits": one}))


def refusal(kind: str = "Pod", name: str = "job-worker-0", message: str = "no", **more: Any) -> Refusal:
    return Refusal(name, "Forbidden", message, kind=kind, since=later(1), **more)


def found(
    given: Job, *pods: Pod, refusals: tuple[Refusal, ...] = (), seconds: float = 10, extras: tuple[Extra, ...] = ()
) -> tuple[Obstacle, ...]:
    """The obstacles after a pass."""
    observed = seen(*pods, refusals=refusals, extras=extras)
    plan = reconcile(given, observed, Site(gangs=frozenset({"gang/v1"})), later(seconds))
    return obstacles(given, plan.status, refusals, later(seconds), extras)


def held(**more: Any) -> Job:
    entry = RoleLedger("worker", retries="0:1", reached=1, holds=(Hold(later(18), "0"),), **more)
    return job(role(restart=on(CauseKind.EXIT)), ledger=lived(entry, phase=Phase.RESTARTING))


def restarted(*roles: Role) -> Job:
    """A role of two replicas that has just begun a new epoch."""
    entry = RoleLedger("worker", epoch=1, reached=2)
    return job(*(roles or (role(replicas=2, restart=ROLE),)), ledger=lived(entry, phase=Phase.RESTARTING))


GPUS = role(gpus=8)
GANG = Gang("gang/v1", frozenset({"Inqueue", "Running"}))
STAGES = (role("ps", stage=0), role("worker", stage=1, awaits_running=True))
NEW = job(ledger=waiting())
NONE = FailureClass.NONE
ROWS: dict[str, tuple[Job, tuple[Pod, ...], dict[str, Any], tuple[FailureClass, str, Any]]] = {
    "refused by a quota": (
        NEW,
        (),
        {"refusals": (refusal(message=QUOTA, quota=True),)},
        (FailureClass.QUOTA, f"the API server refuses its pod: {QUOTA}", later(1)),
    ),
    "refused otherwise": (
        NEW,
        (),
        {"refusals": (refusal(message="admission webhook says no"),)},
        (FailureClass.REFUSED, "the API server refuses its pod: admission webhook says no", later(1)),
    ),
    "its service is refused, and its pod": (
        job(role(service=True), ledger=waiting()),
        (),
        {"refusals": (refusal(message="pod no"), refusal("Service", message="service no"))},
        (FailureClass.REFUSED, "the API server refuses its pod: pod no", later(1)),
    ),
    "its pod group is refused": (
        NEW,
        (),
        {"refusals": (refusal("PodGroup", "job", "no such queue"),)},
        (FailureClass.REFUSED, "the API server refuses the job's PodGroup job: no such queue", later(1)),
    ),
    "its name is taken": (
        NEW,
        (pod(0, owners=None, labels={}),),
        {},
        (
            FailureClass.REFUSED,
            "its pod cannot be created: AlreadyExists: a pod that is not this job's has its name",
            None,
        ),
    ),
    "unschedulable": (
        job(GPUS, ledger=waiting()),
        (unscheduled(),),
        {},
        (FailureClass.UNSCHEDULABLE, f"{NO_ROOM} (each requests nvidia.com/gpu 8)", later(3)),
    ),
    "held by a scheduling gate": (
        NEW,
        (unscheduled(reason="SchedulingGated", message="Scheduling is blocked"),),
        {},
        (NONE, "it is not scheduled (Scheduling is blocked)", later(3)),
    ),
    "not scheduled yet": (NEW, (pod(0, "Pending", node=""),), {}, (NONE, "its pod waits for a node", NOW)),
    "starts": (NEW, (pod(0, "Pending", node="a"),), {}, (NONE, "its containers start, on node a", NOW)),
    "its image is pulled": (
        NEW,
        (stuck("ContainerCreating", "pulling image"),),
        {},
        (NONE, "container main waits (ContainerCreating: pulling image), on node a", NOW),
    ),
    "its image cannot be pulled": (
        NEW,
        (stuck("ImagePullBackOff", 'Back-off pulling image "trian:1"'),),
        {},
        (
            FailureClass.IMAGE,
            'container main cannot be created (ImagePullBackOff: Back-off pulling image "trian:1"), on node a',
            NOW,
        ),
    ),
    "a Secret is missing": (
        NEW,
        (stuck("CreateContainerConfigError", 'secret "token" not found'),),
        {},
        (
            FailureClass.MISSING_OBJECT,
            'container main cannot be created (CreateContainerConfigError: secret "token" not found), on node a',
            NOW,
        ),
    ),
    "a ConfigMap is missing": (
        NEW,
        (stuck("CreateContainerConfigError", 'configmap "settings" not found'),),
        {},
        (
            FailureClass.MISSING_OBJECT,
            'container main cannot be created (CreateContainerConfigError: configmap "settings" not found), on node a',
            NOW,
        ),
    ),
    "it waits for the addresses of its peers": (
        job(role(gate="peers"), ledger=waiting()),
        (stuck("CreateContainerConfigError", 'configmap "peers" not found'),),
        {},
        (NONE, "its pod starts when every replica has an address", NOW),
    ),
    "back-off": (
        held(),
        (pod(0, "Failed", code=1),),
        {},
        (NONE, "its restart waits for its back-off: 8 s, until 2026-11-15T12:00:18Z", None),
    ),
    "its old pod still ends": (
        restarted(role(restart=ROLE)),
        (OLD_POD,),
        {},
        (NONE, "its old pod still ends, on node a", later(30)),
    ),
    "somebody deletes its pod": (
        job(ledger=lived()),
        (OLD_POD,),
        {},
        (NONE, "its old pod still ends, on node a", later(30)),
    ),
    "CrashLoopBackOff in place": (
        job(ledger=lived()),
        (crashing(),),
        {},
        (
            FailureClass.PROGRAM_ERROR,
            "container main exited with code 1; its node waits before it restarts it (restart 3), on node a",
            later(7),
        ),
    ),
    "CrashLoopBackOff with a message of the program": (
        job(ledger=lived()),
        (crashing(message="ModuleNotFoundError: No module named 'torch'"),),
        {},
        (
            FailureClass.IMPORT_ERROR,
            "container main exited with code 1: ModuleNotFoundError: No module named 'torch'; its node waits before it"
            " restarts it (restart 3), on node a",
            later(7),
        ),
    ),
    "CrashLoopBackOff of an init container": (
        NEW,
        (crashing("Pending", 0),),
        {},
        (
            FailureClass.PROGRAM_ERROR,
            "container main exited with code 1; its node waits before it restarts it (restart 1), on node a",
            later(7),
        ),
    ),
    "not created yet": (NEW, (), {}, (NONE, "its pod is not created yet", None)),
    "its gang is not admitted": (
        job(gang=GANG, ledger=waiting()),
        (),
        {"extras": (group(phase="Pending"),)},
        (NONE, "its pod is created when the scheduler admits the PodGroup job, which is in phase Pending", None),
    ),
    "its gang has no place at once": (
        NEW,
        (unscheduled(message="gang needs 4 pods at once: 0/1 nodes are available: a: 1 GPU is free, 4 are needed"),),
        {},
        (
            FailureClass.UNSCHEDULABLE,
            "gang needs 4 pods at once: 0/1 nodes are available: a: 1 GPU is free, 4 are needed",
            later(3),
        ),
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_every_obstacle_says_why_where_and_since_when(row: str) -> None:
    given, pods, more, expected = ROWS[row]

    (one,) = found(given, *pods, **more)

    assert ((one.failure_class, one.message, one.since), one.replicas) == (expected, ("worker-0",))
    assert bool(one.action) == (one.failure_class is not NONE)


def test_a_role_waits_for_the_roles_before_it() -> None:
    given = job(*STAGES, ledger=waiting(RoleLedger("ps"), RoleLedger("worker")))

    first, second = found(given, pod(role="ps", phase="Pending", node="a"))

    assert (first.replicas, first.message) == (("ps-0",), "its containers start, on node a")
    assert (second.replicas, second.message) == (("worker-0",), "its pod is created when ps-0 runs")


def test_a_new_pod_waits_for_old_pods_of_its_role() -> None:
    (ending, waits) = found(restarted(), OLD_POD)

    assert (ending.replicas, ending.message) == (("worker-0",), "its old pod still ends, on node a")
    assert (waits.replicas, waits.message) == (
        ("worker-1",),
        "its pod is created when the old pods of worker-0 have ended",
    )


def test_replicas_with_the_same_obstacle_are_one_and_their_nodes_are_named() -> None:
    pods = [stuck("ErrImagePull", "no such image", index, f"node-{index % 5}") for index in range(9)]

    (one, other) = found(job(role(replicas=10), ledger=waiting()), *pods)

    assert one.replicas == tuple(f"worker-{index}" for index in range(9))
    assert one.message.endswith("no such image), on nodes node-0, node-1, node-2 and 2 more")
    assert other.replicas == ("worker-9",)


def test_all_requests_of_a_replica_are_named() -> None:
    spec = {
        "containers": [
            {"name": "a", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": 2}}},
            {"name": "b", "resources": {"limits": {"cpu": "1"}}},
        ]
    }
    given = job(replace(role(), template={"spec": spec}), ledger=waiting())

    (one,) = found(given, unscheduled())

    assert one.message == f"{NO_ROOM} (each requests cpu 500m + 1, memory 1Gi)"


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(job(lifecycle=Lifecycle(suspended=True), ledger=waiting()), id="suspended"),
        pytest.param(job(unmanaged=True), id="another controller manages it"),
        pytest.param(job(invalid="no"), id="it cannot be run, so it has ended"),
    ],
)
def test_a_job_that_should_not_run_has_no_obstacles(given: Job) -> None:
    assert found(given, refusals=(refusal(),)) == ()


def test_replicas_that_run_or_have_finished_have_no_obstacles() -> None:
    entry = RoleLedger("worker", succeeded="1", reached=2)

    assert found(job(role(replicas=2), ledger=lived(entry)), pod(0)) == ()


def test_texts_are_bounded() -> None:
    told = refusal(message="x" * 5000)
    given = job(ledger=waiting())
    status = reconcile(given, seen(refusals=(told,)), Site(), NOW).status

    (one,) = obstacles(given, status, (told,), NOW)

    assert len(one.message) <= 1024


def test_the_first_obstacle_in_a_sentence() -> None:
    given = job(role(replicas=5), ledger=waiting())
    status = reconcile(given, seen(*map(unscheduled, range(4)), pod(4)), Site(), NOW).status

    assert first_obstacle(given, status.roles, (), NOW) == f"worker-0, worker-1, worker-2 and 1 more: {NO_ROOM}"
