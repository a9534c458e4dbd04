# SPDX-License-Identifier: Apache-2.0
"""One pod → the state of its replica, and why."""

from datetime import timedelta, timezone
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from trainwright.core.classify import CREATE_ERRORS, DISRUPTIONS, awaits_restart, classify_pod
from trainwright.core.nodes import unhealthy_nodes
from trainwright.model.cause import LONGEST_MESSAGE, Cause, CauseKind
from trainwright.model.child import ContainerState, ContainerStatus, Node, ObjectCondition, Observed, Pod, Terminated
from trainwright.model.job import Role
from trainwright.model.plan import State
from trainwright.model.site import Site
from trainwright.testing.factories import NOW, container, job, later, node, pod, role

COMPLETED = (State.SUCCEEDED, Cause(CauseKind.COMPLETED))
STOPPING = (State.STOPPING, None)
RUNNING = (State.RUNNING, None)
STARTING = (State.STARTING, None)
TARGET = ObjectCondition("DisruptionTarget", "True", "PreemptionByScheduler", "made room")
_KUBELET = "TerminationByKubelet"
BY_KUBELET = ObjectCondition("DisruptionTarget", "True", _KUBELET, "low")
SIDECAR = container("sidecar")
CUT = "x" * (LONGEST_MESSAGE - 1) + "…"


def exited(code: int, name: str = "main", **more: Any) -> Cause:
    return Cause(CauseKind.EXIT, code=code, container=name, node="node-1", **more)


def failed(cause: Cause) -> tuple[State, Cause]:
    return State.FAILED, cause


def concluded(
    one: Pod, of: Role | None = None, nodes: dict[str, Node] | None = None, seconds: float = 0
) -> tuple[State, Cause | None]:
    nodes = nodes and {"other": node("other")} | nodes
    unhealthy = unhealthy_nodes(job(), Observed((one,), nodes=nodes), Site(), later(seconds))
    return classify_pod(one, of or role(), unhealthy.get(one.spec.node_name), Site(), later(seconds))


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        pytest.param(pod(phase="Pending"), STARTING, id="pending"),
        pytest.param(pod(phase="Unknown"), STARTING, id="unknown is not running"),
        pytest.param(pod(phase="Running"), RUNNING, id="running"),
        pytest.param(pod(phase="Running", reason="Evicted", conditions=(TARGET,)), RUNNING, id="about to be disrupted"),
        pytest.param(pod(phase="Succeeded"), COMPLETED, id="succeeded"),
        pytest.param(
            pod(phase="Succeeded", reason="Evicted", conditions=(TARGET,)), COMPLETED, id="success is success"
        ),
        pytest.param(pod(phase="Failed"), failed(Cause(CauseKind.REJECTED, node="node-1")), id="failed without a word"),
        pytest.param(
            pod(phase="Failed", reason="UnexpectedAdmissionError", message="no GPU", node=""),
            failed(Cause(CauseKind.DISRUPTED, reason="UnexpectedAdmissionError", message="no GPU")),
            id="refused by its node",
        ),
        pytest.param(
            pod(phase="Failed", reason="SysctlForbidden", message="no", node=""),
            failed(Cause(CauseKind.REJECTED, reason="SysctlForbidden", message="no")),
            id="refused for what it is",
        ),
        pytest.param(
            pod(phase="Failed", reason="Evicted", message="memory", code=137),
            failed(Cause(CauseKind.EVICTED, reason="Evicted", message="memory", node="node-1")),
            id="evicted, whatever its containers say",
        ),
        pytest.param(
            pod(phase="Failed", reason="Preempting", message="room", code=137),
            failed(Cause(CauseKind.DISRUPTED, reason="Preempting", message="room", node="node-1")),
            id="disrupted by the kubelet",
        ),
        pytest.param(
            pod(phase="Failed", reason="Evicted", conditions=(ObjectCondition("Ready", "True"), TARGET), code=137),
            failed(Cause(CauseKind.DISRUPTED, reason="PreemptionByScheduler", message="made room", node="node-1")),
            id="DisruptionTarget comes before the pod's reason",
        ),
        *(
            pytest.param(
                pod(phase="Failed", reason=reason, message="memory", conditions=(BY_KUBELET,), code=137),
                failed(Cause(CauseKind.DISRUPTED, reason=reason or _KUBELET, message="low", node="node-1")),
                id=f"terminated by its kubelet, {reason or 'without a reason'}",
            )
            for reason in ("Evicted", "Terminated", "Preempting", "")
        ),
        pytest.param(
            pod(phase="Failed", conditions=(ObjectCondition("DisruptionTarget", "False", "no"),), code=3),
            failed(exited(3, reason="Error")),
            id="DisruptionTarget that is not true",
        ),
        pytest.param(
            pod(phase="Failed", conditions=(ObjectCondition("Ready", "True"),), code=3),
            failed(exited(3, reason="Error")),
            id="another condition that is true",
        ),
    ],
)
def test_phase_and_reason(one: Pod, expected: tuple[State, Cause | None]) -> None:
    assert expected == concluded(one)


BY_THE_NODE = [
    "NodeShutdown",
    "Terminated",
    "Shutdown",
    "Preempting",
    "NodeLost",
    "SupervisorLost",
    "NodeAffinity",
    "NodePorts",
    "OutOfcpu",
    "OutOfmemory",
    "OutOfephemeral-storage",
    "OutOfpods",
    "UnexpectedAdmissionError",
]


@pytest.mark.parametrize("reason", BY_THE_NODE)
def test_these_pod_reasons_are_the_nodes_doing(reason: str) -> None:
    expected = failed(Cause(CauseKind.DISRUPTED, reason=reason, node="node-1"))

    assert expected == concluded(pod(phase="Failed", reason=reason, code=1))
    assert set(BY_THE_NODE) == DISRUPTIONS


@pytest.mark.parametrize(
    ("code", "signal", "expected"),
    [
        pytest.param(1, 0, UNSET, id="a plain code"),
        pytest.param(255, 0, UNSET, id="the largest code"),
        pytest.param(-1, 0, UNSET, id="a code below zero"),
        pytest.param(128, 0, UNSET, id="128 is no signal"),
        pytest.param(137, 0, UNSET, id="SIGKILL, or the program's own code: a kubelet does not tell"),
        pytest.param(160, 0, UNSET, id="beyond the signals"),
        pytest.param(1, 11, 11, id="the runtime's word"),
        pytest.param(137, 15, 15, id="the runtime's word before the code's"),
    ],
)
def test_the_signal_of_an_exit(code: int, signal: int, expected: object) -> None:
    state, cause = concluded(pod(phase="Failed", containers=(container(exit_code=code, signal=signal),)))

    assert state is State.FAILED
    assert cause is not None
    assert (code, expected) == (cause.code, cause.signal)


@pytest.mark.parametrize(
    ("code", "signal", "expected"),
    [
        pytest.param(137, 9, "was killed by SIGKILL (exit code 137)", id="killed"),
        pytest.param(137, 0, "exited with code 137", id="the program's own code"),
        pytest.param(127, 0, "exited with code 127", id="the program's own 127"),
    ],
)
def test_our_own_supervisor_knows_how_a_program_ended(code: int, signal: int, expected: str) -> None:
    ours = container(exit_code=code, signal=signal, reason="Error", container_id="trainwright://x-main-0")
    theirs = container(exit_code=code, reason="Error", container_id="containerd://abc")

    assert str(concluded(pod(phase="Failed", containers=(ours,)))[1]) == f"container main {expected}"
    hedged = "ended with SIGKILL, or exit code 137 from the program" if code == 137 else expected
    assert str(concluded(pod(phase="Failed", containers=(theirs,)))[1]) == f"container main {hedged}"


@pytest.mark.parametrize(
    ("inits", "containers", "expected"),
    [
        pytest.param(
            None,
            (container(exit_code=1, reason="OOMKilled", message="y" + "x" * LONGEST_MESSAGE),),
            exited(1, reason="OOMKilled", message="x" * LONGEST_MESSAGE),
            id="reason and the end of a message",
        ),
        pytest.param(
            (container("setup", exit_code=2),),
            (container(waiting="PodInitializing"),),
            exited(2, "setup"),
            id="an init container",
        ),
        pytest.param(
            (container("setup", exit_code=0), container("fetch", exit_code=4)),
            None,
            exited(4, "fetch"),
            id="the second init",
        ),
        pytest.param(
            None,
            (container("a", exit_code=0), container("b", exit_code=5)),
            exited(5, "b"),
            id="not one that ended well",
        ),
        pytest.param(
            None,
            (container("a", exit_code=1, finished_at=later(5)), container("b", exit_code=2, finished_at=later(4))),
            exited(2, "b"),
            id="the first to end, by time",
        ),
        pytest.param(
            None,
            (container("a", exit_code=1, finished_at=later(4)), container("b", exit_code=2, finished_at=later(4))),
            exited(1, "a"),
            id="the first in the list, at the same time",
        ),
        pytest.param(
            None,
            (container("a", exit_code=1), container("b", exit_code=2, finished_at=later(-9))),
            exited(1, "a"),
            id="the first in the list, where one has no time",
        ),
        pytest.param(
            (container("i", exit_code=9, finished_at=later(9)),),
            (
                container("a", exit_code=1, finished_at=later(1)),
                ContainerStatus("b"),
                ContainerStatus("c", state=ContainerState()),
            ),
            exited(1, "a"),
            id="containers without a state say nothing",
        ),
        pytest.param(
            None,
            (container("a", exit_code=0),),
            Cause(CauseKind.REJECTED, node="node-1"),
            id="failed though all ended well",
        ),
        pytest.param(None, (container("a"),), Cause(CauseKind.REJECTED, node="node-1"), id="failed though one runs"),
    ],
)
def test_the_container_that_explains_a_failed_pod(
    inits: tuple[ContainerStatus, ...] | None, containers: tuple[ContainerStatus, ...] | None, expected: Cause
) -> None:
    assert failed(expected) == concluded(pod(phase="Failed", inits=inits, containers=containers))


@pytest.mark.parametrize(
    ("phase", "containers", "expected"),
    [
        pytest.param("Running", None, RUNNING, id="nothing is known of its containers"),
        pytest.param("Running", (container(), SIDECAR), RUNNING, id="both run"),
        pytest.param("Running", (container(exit_code=0), SIDECAR), COMPLETED, id="main ended well, the sidecar runs"),
        pytest.param(
            "Running", (container(exit_code=3), SIDECAR), failed(exited(3)), id="main ended badly, the sidecar runs"
        ),
        pytest.param("Running", (container(), container("sidecar", exit_code=1)), RUNNING, id="only the sidecar ended"),
        pytest.param("Pending", (container(exit_code=0),), COMPLETED, id="main ended before the pod ran as a whole"),
        pytest.param("Running", (ContainerStatus("main"), SIDECAR), RUNNING, id="main has no state"),
        pytest.param(
            "Running", (ContainerStatus("main", state=ContainerState()),), RUNNING, id="main has an empty state"
        ),
        pytest.param("Succeeded", (container(exit_code=0),), COMPLETED, id="the pod ended"),
        pytest.param(
            "Failed",
            (
                container("sidecar", exit_code=1, finished_at=later(1)),
                container(exit_code=3, finished_at=later(2)),
            ),
            failed(exited(3)),
            id="main explains a failed pod, though the sidecar ended first",
        ),
        pytest.param(
            "Failed",
            (container("sidecar", exit_code=1), container(exit_code=0)),
            COMPLETED,
            id="main ended well, and what its sidecar did then is no matter",
        ),
        pytest.param(
            "Running",
            (container(exit_code=1), SIDECAR),
            failed(exited(1)),
            id="main decides alone",
        ),
    ],
)
def test_a_main_container_decides_although_sidecars_run(
    phase: str, containers: tuple[ContainerStatus, ...] | None, expected: tuple[State, Cause | None]
) -> None:
    assert expected == concluded(pod(phase=phase, containers=containers), role(main_containers=frozenset({"main"})))


def test_a_pod_that_was_thrown_out_has_not_done_its_work_although_main_ended_with_0() -> None:
    one = pod(phase="Failed", reason="Evicted", containers=(container(exit_code=0), container("sidecar", exit_code=1)))

    assert concluded(one, role(main_containers=frozenset({"main"})))[0] is State.FAILED


def test_of_several_main_containers_all_must_have_ended_well() -> None:
    one = pod(phase="Failed", containers=(container("a", exit_code=0), container("sidecar", exit_code=1)))

    assert concluded(one, role(main_containers=frozenset({"a", "b"})))[0] is State.FAILED


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        pytest.param((container("a", exit_code=0), container("b")), RUNNING, id="one of two ended"),
        pytest.param((container("a", exit_code=1), container("b")), RUNNING, id="one of two ended badly"),
        pytest.param((container("a", exit_code=0),), RUNNING, id="the other is not there"),
        pytest.param((container("a", exit_code=0), container("b", exit_code=0)), COMPLETED, id="both ended well"),
        pytest.param(
            (container("a", exit_code=0), container("b", exit_code=7), SIDECAR),
            failed(exited(7, "b")),
            id="one ended badly",
        ),
    ],
)
def test_several_main_containers_decide_once_all_have_ended(
    containers: tuple[ContainerStatus, ...], expected: tuple[State, Cause | None]
) -> None:
    assert expected == concluded(pod(containers=containers), role(main_containers=frozenset({"a", "b"})))


@pytest.mark.parametrize(
    ("policy", "code", "expected"),
    [
        pytest.param("Never", 0, COMPLETED, id="never, well"),
        pytest.param("Never", 3, failed(exited(3)), id="never, badly"),
        pytest.param("OnFailure", 0, COMPLETED, id="on failure, well"),
        pytest.param("OnFailure", 3, RUNNING, id="on failure, badly: the kubelet restarts it"),
        pytest.param("Always", 0, RUNNING, id="always, well: the kubelet restarts it"),
        pytest.param("Always", 3, RUNNING, id="always, badly: the kubelet restarts it"),
    ],
)
def test_an_end_that_the_kubelet_answers_with_a_restart_is_none(
    policy: str, code: int, expected: tuple[State, Cause | None]
) -> None:
    one = pod(policy=policy, containers=(container(exit_code=code), SIDECAR))

    assert expected == concluded(one, role(main_containers=frozenset({"main"})))


@pytest.mark.parametrize(
    ("patience", "one", "seconds", "expected"),
    [
        pytest.param(None, pod(born=NOW), 1e9, State.STARTING, id="for ever"),
        pytest.param(10.0, pod(born=NOW), 10.9, State.STARTING, id="not yet"),
        pytest.param(10.0, pod(born=NOW), 11, State.FAILED, id="in its second, from its birth"),
        pytest.param(10.0, pod(born=NOW, started=later(5)), 15.9, State.STARTING, id="not yet, from its start"),
        pytest.param(10.0, pod(born=NOW, started=later(5)), 16, State.FAILED, id="in its second, from its start"),
        pytest.param(10.0, pod(born=None), 1e9, State.STARTING, id="nobody knows since when"),
    ],
)
def test_a_container_that_cannot_be_made_is_waited_for_as_long_as_its_role_has_patience(
    patience: float | None, one: Pod, seconds: float, expected: State
) -> None:
    stuck = replace(one.status, phase="Pending", container_statuses=(container(waiting="ErrImagePull"),))
    healthy = replace(one.status, phase="Pending", container_statuses=(container(waiting="ContainerCreating"),))
    cause = Cause(CauseKind.CREATE_ERROR, reason="ErrImagePull", container="main", node="node-1")

    assert (expected, cause) == concluded(replace(one, status=stuck), role(patience=patience), None, seconds)
    assert concluded(replace(one, status=healthy), role(patience=patience), None, seconds) == STARTING


@pytest.mark.parametrize(
    ("inits", "containers", "expected"),
    [
        pytest.param(None, None, None, id="nothing is known yet"),
        pytest.param(None, (ContainerStatus("main"),), None, id="no state"),
        pytest.param(None, (container(),), None, id="one runs"),
        pytest.param(None, (container(waiting="ContainerCreating"),), None, id="being made"),
        pytest.param(None, (container(waiting="CrashLoopBackOff"),), None, id="a crash loop was made before"),
        pytest.param(
            None,
            (container("a"), container("b", waiting="ImagePullBackOff", message="not found")),
            Cause(CauseKind.CREATE_ERROR, reason="ImagePullBackOff", message="not found", container="b", node="node-1"),
            id="no image",
        ),
        pytest.param(
            (container("setup", waiting="ErrImagePull"),),
            (container(waiting="CreateContainerError"),),
            Cause(CauseKind.CREATE_ERROR, reason="ErrImagePull", container="setup", node="node-1"),
            id="an init container first",
        ),
    ],
)
def test_a_pending_pod_says_why_it_cannot_start(
    inits: tuple[ContainerStatus, ...] | None, containers: tuple[ContainerStatus, ...] | None, expected: Cause | None
) -> None:
    assert (State.STARTING, expected) == concluded(pod(phase="Pending", inits=inits, containers=containers))


@pytest.mark.parametrize(
    "reason",
    [
        "CreateContainerConfigError",
        "CreateContainerError",
        "ImagePullBackOff",
        "ImageInspectError",
        "ErrImagePull",
        "ErrImageNeverPull",
        "RegistryUnavailable",
        "InvalidImageName",
    ],
)
def test_these_waiting_reasons_mean_a_container_cannot_be_made(reason: str) -> None:
    expected = Cause(CauseKind.CREATE_ERROR, reason=reason, container="main", node="node-1")

    assert (State.STARTING, expected) == concluded(pod(phase="Pending", containers=(container(waiting=reason),)))
    assert len(CREATE_ERRORS) == 8


def ended(code: int, seconds: float | None, name: str = "main") -> ContainerStatus:
    """A container that ended so many seconds after NOW."""
    when = None if seconds is None else later(seconds)
    return ContainerStatus(name, state=ContainerState(terminated=Terminated(code, finished_at=when)))


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        pytest.param(pod(phase="Pending", deleting=NOW), STOPPING, id="before it ran"),
        pytest.param(pod(phase="Running", deleting=NOW), STOPPING, id="while it runs"),
        pytest.param(pod(phase="Succeeded", deleting=NOW), COMPLETED, id="after it succeeded"),
        pytest.param(
            pod(phase="Failed", deleting=later(30), grace=30, containers=(ended(1, -1),)),
            failed(exited(1)),
            id="after it failed",
        ),
        pytest.param(
            pod(phase="Failed", deleting=later(30), grace=30, containers=(ended(143, 0),)),
            STOPPING,
            id="it fell in the second it was asked to go",
        ),
        pytest.param(
            pod(phase="Failed", deleting=later(30), grace=30, containers=(ended(143, 10),)),
            STOPPING,
            id="it fell because it was asked to go",
        ),
        pytest.param(
            pod(phase="Failed", deleting=NOW, containers=(ended(1, -1),)),
            failed(exited(1)),
            id="no grace, it failed before",
        ),
        pytest.param(
            pod(phase="Failed", deleting=NOW, containers=(ended(1, 0),)), STOPPING, id="no grace, it fell then"
        ),
        pytest.param(
            pod(phase="Failed", deleting=later(30), grace=0, takes=30, containers=(ended(143, -10),)),
            STOPPING,
            id="it fell because it was asked to go, and its kubelet has said so",
        ),
        pytest.param(
            pod(phase="Failed", deleting=later(30), grace=0, takes=30, containers=(ended(1, -11),)),
            failed(exited(1)),
            id="it failed before it was asked to go, and its kubelet has said so",
        ),
        pytest.param(pod(phase="Failed", deleting=NOW, containers=(ended(1, None),)), STOPPING, id="nobody knows when"),
        pytest.param(pod(phase="Failed", deleting=NOW), STOPPING, id="nothing is known of its containers"),
        pytest.param(
            pod(phase="Failed", deleting=NOW, containers=(ended(0, -9), ended(143, 5, "b"))),
            STOPPING,
            id="one had ended well before, the other fell because of it",
        ),
        pytest.param(
            pod(phase="Failed", deleting=NOW, containers=(ended(3, -9), ended(143, 5, "b"))),
            failed(exited(3)),
            id="one had failed before, the other fell because of it",
        ),
        pytest.param(
            pod(phase="Failed", deleting=NOW, inits=(ended(3, -9, "i"),), containers=(ended(143, 5),)),
            failed(exited(3, "i")),
            id="an init container had failed before",
        ),
    ],
)
def test_a_pod_that_is_being_deleted_has_failed_only_if_it_had_before(
    one: Pod, expected: tuple[State, Cause | None]
) -> None:
    assert expected == concluded(one)


@pytest.mark.parametrize(
    ("containers", "more", "expected"),
    [
        pytest.param((ended(0, -0.001),), {"deleting": later(30), "grace": 30}, COMPLETED, id="a moment before"),
        pytest.param((ended(0, 0),), {"deleting": later(30), "grace": 30}, STOPPING, id="in the moment it was asked"),
        pytest.param((ended(0, 10),), {"deleting": later(30), "grace": 30}, STOPPING, id="it saved its work and went"),
        pytest.param((ended(0, -0.001),), {"deleting": NOW}, COMPLETED, id="no grace, a moment before"),
        pytest.param((ended(0, 0),), {"deleting": NOW}, STOPPING, id="no grace, in that moment"),
        pytest.param((ended(0, -0.001),), {"deleting": NOW, "grace": 0}, COMPLETED, id="grace of 0, a moment before"),
        pytest.param((ended(0, 0),), {"deleting": NOW, "grace": 0}, STOPPING, id="grace of 0, in that moment"),
        pytest.param(
            (ended(0, -10),), {"deleting": later(30), "grace": 0, "takes": 30}, STOPPING, id="its kubelet has said so"
        ),
        pytest.param(
            (ended(0, -11),), {"deleting": later(30), "grace": 0, "takes": 30}, COMPLETED, id="said so, but done before"
        ),
        pytest.param((ended(0, None),), {"deleting": NOW}, COMPLETED, id="nobody knows when"),
        pytest.param((ended(0, 10),), {}, COMPLETED, id="nobody deletes it"),
    ],
)
@pytest.mark.parametrize("counts", [False, True], ids=["the whole pod", "the containers that count"])
def test_a_pod_that_is_being_deleted_has_succeeded_only_if_it_had_before(
    counts: bool, containers: tuple[ContainerStatus, ...], more: dict[str, Any], expected: tuple[State, Cause | None]
) -> None:
    if counts:
        one = pod(containers=(*containers, SIDECAR), **more)
        assert expected == concluded(one, role(main_containers=frozenset({"main"})))
    else:
        assert expected == concluded(pod(phase="Succeeded", containers=containers, **more))


@pytest.mark.parametrize(
    ("inits", "containers", "expected"),
    [
        pytest.param((), (ended(0, -9), ended(0, -1, "b")), COMPLETED, id="both before"),
        pytest.param((), (ended(0, -9), ended(0, 5, "b")), STOPPING, id="the last one after"),
        pytest.param((), (ended(0, 5), ended(0, -9, "b")), STOPPING, id="the last one after, listed first"),
        pytest.param((), (ended(0, None), ended(0, -1, "b")), COMPLETED, id="one before, one nobody knows"),
        pytest.param((), (ended(0, None), ended(0, 0, "b")), STOPPING, id="one after, one nobody knows"),
        pytest.param((ended(0, -9, "i"),), (ended(0, 0),), STOPPING, id="an init container long before"),
    ],
)
def test_a_pod_that_is_being_deleted_has_succeeded_when_its_last_container_had(
    inits: tuple[ContainerStatus, ...], containers: tuple[ContainerStatus, ...], expected: tuple[State, Cause | None]
) -> None:
    assert expected == concluded(pod(phase="Succeeded", deleting=NOW, inits=inits, containers=containers))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(-9, -1, COMPLETED), (-9, 0, STOPPING), (0, -9, STOPPING), (None, -1, COMPLETED), (None, None, COMPLETED)],
)
def test_of_two_containers_that_count_the_last_decides(
    first: float | None, second: float | None, expected: tuple[State, Cause | None]
) -> None:
    one = pod(deleting=NOW, containers=(ended(0, first), ended(0, second, "b"), SIDECAR))

    assert expected == concluded(one, role(main_containers=frozenset({"main", "b"})))


LOST = (State.LOST, Cause(CauseKind.NODE_LOST, node="node-1"))
SILENT = {"node-1": node(ready=False)}


@pytest.mark.parametrize(
    ("one", "nodes", "seconds", "expected"),
    [
        pytest.param(pod(), {"node-1": node()}, 1e6, RUNNING, id="ready"),
        pytest.param(pod(), None, 1e6, RUNNING, id="where nodes are not known none is judged"),
        pytest.param(pod(), SILENT, 59.999, RUNNING, id="silent within the grace"),
        pytest.param(pod(), SILENT, 60, LOST, id="silent for the grace"),
        pytest.param(pod(phase="Pending"), SILENT, 60, LOST, id="not yet running"),
        pytest.param(pod(), {}, 1e6, RUNNING, id="a node that nobody knows is not judged"),
        pytest.param(pod(node=""), {}, 1e6, RUNNING, id="not put anywhere"),
        pytest.param(pod(phase="Succeeded"), SILENT, 60, COMPLETED, id="it had succeeded"),
        pytest.param(pod(phase="Failed", code=3), SILENT, 60, failed(exited(3, reason="Error")), id="it had failed"),
        pytest.param(pod(deleting=NOW), SILENT, 60, STOPPING, id="being deleted"),
        pytest.param(pod(containers=(container(exit_code=0),)), SILENT, 60, COMPLETED, id="what counts had succeeded"),
        pytest.param(pod(containers=(container(exit_code=1),)), SILENT, 60, LOST, id="what counts had failed"),
        pytest.param(
            pod(deleting=NOW, containers=(container(exit_code=0),)), {}, 0, COMPLETED, id="deleted after it succeeded"
        ),
        pytest.param(
            pod(deleting=NOW, containers=(container(exit_code=1),)), {}, 0, STOPPING, id="deleted, so it failed"
        ),
    ],
)
def test_a_lost_node_takes_what_had_not_ended_with_it(
    one: Pod, nodes: dict[str, Node] | None, seconds: float, expected: tuple[State, Cause | None]
) -> None:
    assert expected == concluded(one, role(main_containers=frozenset({"main"})), nodes, seconds)


def test_a_lost_node_is_told_with_its_reason() -> None:
    words = "its agent (process 12) is stopped and has not answered for 10 s; it and its pods were killed"
    silent = node(ready=False)
    told = tuple(replace(one, message=words) for one in silent.status.conditions or ())
    nodes = {"node-1": replace(silent, status=replace(silent.status, conditions=told))}

    _, cause = concluded(pod(), role(), nodes, 60)

    assert str(cause) == f"node node-1 is lost ({words})"


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(pod(phase="Failed", reason="Evicted", message="x" * 100_000), id="evicted"),
        pytest.param(pod(phase="Failed", reason="Preempting", message="x" * 100_000), id="disrupted"),
        pytest.param(
            pod(phase="Failed", conditions=(replace(TARGET, message="x" * 100_000),)), id="disrupted by condition"
        ),
        pytest.param(pod(phase="Failed", reason="OutOfcpu", message="x" * 100_000), id="refused by its node"),
        pytest.param(pod(phase="Failed", reason="SysctlForbidden", message="x" * 100_000), id="rejected"),
        pytest.param(
            pod(phase="Pending", containers=(container(waiting="ErrImagePull", message="x" * 100_000),)),
            id="create error",
        ),
    ],
)
def test_no_message_is_kept_longer_than_a_ledger_has_room_for(one: Pod) -> None:
    _, cause = concluded(one)

    assert cause is not None
    assert cause.message == CUT


def test_who_ended_first_is_told_by_the_moment_not_by_its_spelling() -> None:
    east = timezone(timedelta(hours=8))
    first = ContainerStatus("b", state=ContainerState(terminated=Terminated(2, finished_at=later(-1).astimezone(east))))

    assert failed(exited(2, "b")) == concluded(pod(phase="Failed", containers=(ended(1, 0, "a"), first)))


@pytest.mark.parametrize(("main", "expected"), [(-9, COMPLETED), (2, STOPPING)], ids=["before", "after"])
def test_a_sidecar_that_ends_with_the_deletion_does_not_undo_a_success(main: int, expected: Any) -> None:
    one = pod(
        phase="Succeeded",
        deleting=later(30),
        grace=30,
        containers=(
            container("main", exit_code=0, finished_at=later(main)),
            container("side", exit_code=0, finished_at=later(2)),
        ),
    )

    assert expected == concluded(one, role(main_containers=frozenset({"main"})))


# -- restarts in place -------------------------------------------------------------------------------------------------

BACKING_OFF = replace(container(waiting="CrashLoopBackOff"), restart_count=3)
#: The first crash: its kubelet counts a restart once it has started the container again.
FIRST = replace(container(waiting="CrashLoopBackOff"), last_state=ContainerState(terminated=Terminated(1)))
AGAIN = replace(container(), restart_count=3, last_state=ContainerState(terminated=Terminated(1)))


def live(*containers: ContainerStatus, policy: str = "OnFailure", phase: str = "Running", **more: Any) -> Pod:
    return pod(phase=phase, policy=policy, containers=containers, **more)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        pytest.param(live(BACKING_OFF), True, id="backing off"),
        pytest.param(live(FIRST), True, id="backing off after its first end"),
        pytest.param(live(container("sidecar"), BACKING_OFF), True, id="backing off beside one that runs"),
        pytest.param(live(BACKING_OFF, policy="Never"), True, id="a sidecar may have a policy of its own"),
        pytest.param(live(container(exit_code=1)), True, id="failed a moment ago"),
        pytest.param(live(container(exit_code=0), policy="Always"), True, id="ended well under Always"),
        pytest.param(live(container(exit_code=1), policy="Always"), True, id="failed under Always"),
        pytest.param(
            live(container(waiting="PodInitializing"), inits=(container("prepare", exit_code=1),), phase="Pending"),
            True,
            id="an init container failed",
        ),
        pytest.param(live(AGAIN), False, id="runs again"),
        pytest.param(live(container()), False, id="runs"),
        pytest.param(live(container(waiting="ContainerCreating"), phase="Pending"), False, id="starts"),
        pytest.param(live(container(waiting="ImagePullBackOff"), phase="Pending"), False, id="cannot start"),
        pytest.param(live(container(exit_code=0), container("other")), False, id="ended well under OnFailure"),
        pytest.param(live(container(exit_code=1), container("other"), policy="Never"), False, id="failed under Never"),
        pytest.param(
            live(container(), inits=(container("prepare", exit_code=0),), policy="Always"),
            False,
            id="an init container that succeeded is not run again",
        ),
        pytest.param(live(container(exit_code=1), phase="Failed"), False, id="the pod has failed"),
        pytest.param(live(container(exit_code=0), phase="Succeeded", policy="Always"), False, id="it has succeeded"),
        pytest.param(live(ContainerStatus("main")), False, id="nothing is told"),
        pytest.param(pod(phase="Pending", policy="Always"), False, id="no container is told of"),
    ],
)
def test_which_pods_their_kubelet_will_restart(one: Pod, expected: bool) -> None:
    assert awaits_restart(one) is expected
