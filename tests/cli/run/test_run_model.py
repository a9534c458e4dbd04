# SPDX-License-Identifier: Apache-2.0
"""What a run knows of its jobs and replicas, and what of it is news."""

from typing import Any

import pytest
from run_objects import STARTED, container, ended, event, job, pod, role, status

from trainwright.cli.condition import condition
from trainwright.cli.run.model import RunModel
from trainwright.cli.show.news import EventNews, ReplicaNews
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.model.job import Body
from trainwright.model.ledger import Phase
from trainwright.model.meta import INDEX, JOB_UID, ROLE, Key

DEMO = Key("default", "demo")
UNPLACED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "needs 8 cpu, 2 are free"}


def run_model(*jobs: Body) -> RunModel:
    """A model that has read these jobs."""
    made = RunModel((GENERICJOB, body) for body in jobs or (job(),))
    for body in jobs or (job(),):
        made.update_job(body)
    return made


def phases(one: RunModel) -> dict[str, str]:
    return {replica.label: replica.phase for replica in one.pick(99)}


@pytest.mark.parametrize(
    ("body", "phase", "reason"),
    [
        pytest.param(pod(phase="Pending", spec={"nodeName": ""}), "Pending", "", id="new"),
        pytest.param(
            pod(phase="Pending", spec={"nodeName": ""}, conditions=[UNPLACED]),
            "Pending",
            "Unschedulable: needs 8 cpu, 2 are free",
            id="no room",
        ),
        pytest.param(pod(phase="Pending"), "Starting", "", id="placed"),
        pytest.param(
            pod(phase="Pending", containers=[container("waiting", reason="ContainerCreating")]),
            "Starting",
            "",
            id="ordinary waiting",
        ),
        pytest.param(
            pod(
                phase="Pending", containers=[container("waiting", reason="CreateContainerConfigError", message="no x")]
            ),
            "Starting",
            "CreateContainerConfigError: no x",
            id="cannot be configured",
        ),
        pytest.param(
            pod(phase="Pending", spec={"initContainers": [{}, {}]}, initContainerStatuses=[ended(0, "a")]),
            "Starting",
            "init 1 of 2 done",
            id="initialising",
        ),
        pytest.param(pod(containers=[container("running")]), "Running", "", id="running"),
        pytest.param(pod(containers=[container("running", ready=False)]), "Running", "not ready", id="not ready"),
        pytest.param(
            pod(containers=[container("waiting", reason="CrashLoopBackOff", message="back-off 10s", restarts=2)]),
            "CrashLoopBackOff",
            "back-off 10s",
            id="crashing in place",
        ),
        pytest.param(
            pod(
                containers=[
                    container("running", "side"),
                    container("waiting", reason="CrashLoopBackOff", message="back-off 10s")
                    | {"lastState": {"terminated": {"exitCode": 137, "containerID": "trainwright://x"}}},
                ]
            ),
            "CrashLoopBackOff",
            "exit code 137: back-off 10s",
            id="one of two crashing in place",
        ),
        pytest.param(
            pod(phase="Failed", containers=[ended(137)]),
            "Failed",
            "SIGKILL, or exit code 137 from the program",
            id="a kubelet does not tell a signal",
        ),
        pytest.param(
            pod(phase="Failed", containers=[ended(137, containerID="trainwright://x")]),
            "Failed",
            "exit code 137",
            id="our supervisor would",
        ),
        pytest.param(pod(meta={"deletionTimestamp": STARTED}), "Terminating", "", id="being deleted"),
        pytest.param(pod(phase="Succeeded", containers=[ended(0)]), "Succeeded", "", id="succeeded"),
        pytest.param(
            pod(phase="Succeeded", meta={"deletionTimestamp": STARTED}), "Succeeded", "", id="succeeded, being deleted"
        ),
        pytest.param(pod(phase="Failed", containers=[ended(3)]), "Failed", "exit code 3", id="exit code"),
        pytest.param(
            pod(phase="Failed", containers=[ended(127, reason="StartError", message="no such file")]),
            "Failed",
            "StartError (exit code 127): no such file",
            id="not found",
        ),
        pytest.param(
            pod(phase="Failed", containers=[ended(137, signal=9, reason="Error")]),
            "Failed",
            "killed by SIGKILL",
            id="kill",
        ),
        pytest.param(
            pod(phase="Failed", containers=[ended(137, signal=9, reason="OOMKilled")]),
            "Failed",
            "OOMKilled (exit code 137)",
            id="memory",
        ),
        pytest.param(
            pod(phase="Failed", containers=[ended(0, "a"), ended(1, "b")]),
            "Failed",
            "b: exit code 1",
            id="which of two",
        ),
        pytest.param(
            pod(phase="Failed", reason="NodeLost", message="node-1 is gone"),
            "Failed",
            "NodeLost: node-1 is gone",
            id="lost",
        ),
        pytest.param(pod(phase="Unknown"), "Unknown", "", id="unknown"),
    ],
)
def test_how_a_pod_is(body: Body, phase: str, reason: str) -> None:
    seen = condition(body)

    assert (seen.phase, seen.reason) == (phase, reason)


def test_a_reason_is_one_line_of_bearable_length() -> None:
    seen = condition(pod(phase="Failed", reason="Odd", message="two\nlines " + "x" * 999))

    assert seen.reason.startswith("Odd: two lines x")
    assert len(seen.reason) == 300


def test_replicas_wait_until_they_have_pods() -> None:
    one = run_model()

    assert phases(one) == {"worker-0": "Waiting", "worker-1": "Waiting"}
    told = one.update_pod(pod("worker-1", containers=[container("running", restarts=1)], attempt=2))
    assert told == ReplicaNews(
        DEMO, "worker", 1, "worker-1", "Running", "demo-worker-1", "00000002-worker-1", 2, "node-0", 3, "", STARTED
    )
    assert one.jobs()[0].counts == {"Waiting": 1, "Running": 1}


def test_what_does_not_show_is_no_news() -> None:
    one = run_model()
    one.update_pod(pod())

    assert one.update_pod(pod(podIP="10.0.0.1")) is None
    assert one.update_pod(pod(phase="Succeeded")) is not None
    assert one.update_pod(pod(phase="Succeeded")) is None


def test_a_predecessor_on_its_way_out_is_no_news() -> None:
    one = run_model()
    one.update_pod(pod(attempt=1))

    assert one.update_pod(pod(attempt=0, phase="Failed")) is None
    assert one.update_pod(pod(attempt=0), deleted=True) is None
    assert phases(one)["worker-0"] == "Running"


@pytest.mark.parametrize(
    ("phase", "after"),
    [("Running", "Waiting"), ("Succeeded", "Succeeded"), ("Failed", "Failed"), ("Pending", "Waiting")],
)
def test_a_pod_that_is_gone(phase: str, after: str) -> None:
    one = run_model()
    one.update_pod(pod(phase=phase))
    one.update_pod(pod(phase=phase), deleted=True)

    assert phases(one)["worker-0"] == after
    assert one.alive() == []
    assert sum(one.jobs()[0].counts.values()) == 2


def test_a_pod_that_is_gone_is_news_only_if_more_was_to_come() -> None:
    one = run_model()
    one.update_pod(pod("worker-0", phase="Failed"))
    one.update_pod(pod("worker-1"))

    assert one.update_pod(pod("worker-0", phase="Failed"), deleted=True) is None
    told = one.update_pod(pod("worker-1"), deleted=True)
    assert told is not None
    assert (told.phase, told.reason) == ("Waiting", "its pod was deleted")


def test_a_pod_that_goes_with_its_job_has_stopped() -> None:
    one = run_model()
    one.update_pod(pod())
    leaving = job()
    one.update_job(leaving | {"metadata": leaving["metadata"] | {"deletionTimestamp": STARTED}})
    told = one.update_pod(pod(), deleted=True)

    assert told is not None
    assert (told.phase, told.reason) == ("Stopped", "")


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param({}, "Stopped", id="asked to end"),
        pytest.param({"phase": "Failed"}, "Failed", id="failed before it was deleted"),
    ],
)
def test_what_was_asked_to_end_has_not_failed(first: dict[str, Any], then: str) -> None:
    one = run_model()
    one.update_pod(pod(**first))
    one.update_pod(pod(phase="Failed", meta={"deletionTimestamp": STARTED}, containers=[ended(143, signal=15)]))

    assert phases(one)["worker-0"] == then
    assert one.alive() == []


def test_attempts_after_a_suspension_are_no_restarts() -> None:
    one = run_model()
    restarts = []
    for attempt, resumes in ((0, 0), (1, 0), (4, 1), (5, 1), (9, 2)):
        one.update_job(job(status=status("Running", resumes=resumes)))
        told = one.update_pod(pod(attempt=attempt))
        assert told is not None
        restarts.append(told.restarts)

    assert restarts == [0, 1, 1, 2, 2]


def test_attempts_at_another_size_are_no_restarts() -> None:
    one = run_model()
    restarts = []
    for attempt, size in ((0, 2), (1, 2), (1, 1), (3, 1), (4, 1), (4, 2), (5, 2), (6, 2)):
        entry = {"name": "worker", "size": size}
        one.update_job(job(status=status("Running", roles=[entry])))
        one.update_pod(pod(attempt=attempt))
        restarts.append(next(replica.restarts for replica in one.pick(99) if replica.label == "worker-0"))

    assert restarts == [0, 1, 1, 1, 2, 2, 2, 3]


def test_a_restart_of_the_whole_role_is_one_for_each_replica() -> None:
    """It begins above the attempts of all of them."""
    one = run_model()
    for attempt in (0, 1, 5):
        one.update_pod(pod(attempt=attempt))

    assert next(replica.restarts for replica in one.pick(99) if replica.label == "worker-0") == 2


def shown(one: RunModel) -> int:
    (state,) = one.jobs()
    return state.restarts


def test_a_restart_is_shown_once_its_pod_exists() -> None:
    one = run_model()
    one.update_pod(pod("worker-1"))
    entry = {"name": "worker", "restarts": {"Exit": 3}, "retries": "1:3"}
    waits = {"pending": [{"cause": "Exit", "indexes": "1"}], "hidden": {"Exit": 1}}
    one.update_job(job(status=status("Running", roles=[entry | waits])))
    assert shown(one) == 2

    one.update_pod(pod("worker-1", attempt=3, uid="next"))
    assert shown(one) == 3
    one.update_job(job(status=status("Running", roles=[entry])))
    assert shown(one) == 3


def test_a_restart_that_never_happened_is_not_shown() -> None:
    one = run_model()
    entry = {"name": "worker", "restarts": {"Exit": 3}, "retries": "0:1,1:2", "hidden": {"Exit": 2}}
    one.update_job(job(status=status("Succeeded", roles=[entry], **outcome("Succeeded"))))

    assert shown(one) == 1


def test_restarts_inside_pods_are_shown_and_counted_once() -> None:
    one = run_model()
    one.update_pod(pod("worker-0", containers=[container("running", restarts=2)]))
    one.update_pod(pod("worker-1", containers=[container("running", restarts=1)]))
    one.update_job(job(status=status("Running", roles=[{"name": "worker"}])))
    assert shown(one) == 3

    # The pod of worker 0 is to be replaced: the ledger keeps its count.
    entry = {"name": "worker", "restarts": {"Exit": 1, "InPlace": 2}, "retries": "0:1"}
    waits = {"pending": [{"cause": "Exit", "indexes": "0"}], "hidden": {"Exit": 1}}
    one.update_job(job(status=status("Running", roles=[entry | waits])))
    assert shown(one) == 3
    one.update_pod(pod("worker-0", attempt=1, uid="next"))
    assert shown(one) == 4

    # The end keeps those of all pods.
    one.update_job(job(status=status("Succeeded", roles=[entry | {"inside": 1}], **outcome("Succeeded"))))
    assert shown(one) == 4


def test_a_pod_may_be_seen_before_its_job() -> None:
    one = RunModel([(GENERICJOB, job())])

    assert one.update_pod(pod()) is not None
    assert one.replica_of(pod()) is not None


def test_foreign_pods_are_none_of_ours() -> None:
    one = run_model()
    foreign = pod(owner=job("other", uid="2"))

    assert one.update_pod(foreign) is None
    assert one.replica_of(foreign) is None
    assert one.update_job(job("other", uid="2")) is None


def test_alive_is_what_has_a_pod_that_is_not_over() -> None:
    one = run_model(job(roles=[role("worker", 4)]))
    one.update_pod(pod("worker-0"))
    one.update_pod(pod("worker-1", phase="Failed"))
    one.update_pod(pod("worker-2", meta={"deletionTimestamp": STARTED}))

    assert [replica.name for replica in one.alive()] == ["worker-0", "worker-2"]


def test_scaling_changes_what_should_be_there() -> None:
    one = run_model()
    one.update_pod(pod("worker-1"))
    told = one.update_job(job(roles=[role("worker", 1), role("ps", 2)], generation=2))

    assert told is not None
    assert told.total == 3
    assert list(phases(one)) == ["worker-0", "worker-1", "ps-0", "ps-1"]
    one.update_pod(pod("worker-1"), deleted=True)
    assert list(phases(one)) == ["worker-0", "ps-0", "ps-1"]
    assert one.jobs()[0].counts == {"Waiting": 3}


def test_a_job_is_told_when_its_phase_changes() -> None:
    one = RunModel([(GENERICJOB, job())])
    first = one.update_job(job())
    assert first is not None
    assert (first.phase, first.step, first.total) == ("Pending", Phase.PENDING, 2)

    assert one.update_job(job(status=status("Pending"))) is None
    running = one.update_job(
        job(status=status("Running", roles=[{"name": "worker", "restarts": {"Exit": 2, "NodeLost": 1}}]))
    )
    assert running is not None
    assert (running.phase, running.restarts, running.over) == ("Running", 3, False)
    assert one.update_job(job(status=status("Running", generation=7))) is None


def outcome(result: str) -> dict[str, Any]:
    return {"outcome": {"result": result, "reason": "Rule", "at": STARTED}}


def test_it_is_over_when_every_job_is() -> None:
    first, second = job(), job("other", uid="2")
    one = run_model(first, second)
    assert not one.over

    one.update_job(first | {"status": status("Succeeded", **outcome("Succeeded"))})
    assert [one.over, len(one.alive())] == [False, 0]
    told = one.update_job(second, deleted=True)
    assert told is not None
    assert told.deleted
    assert [one.over, len(one.alive())] == [True, 0]


def test_several_jobs_are_told_apart() -> None:
    assert list(phases(run_model(job(), job("other", uid="2"))))[::2] == ["demo/worker-0", "other/worker-0"]
    assert list(phases(run_model(job(), job(namespace="lab", uid="2"))))[::2] == [
        "default/demo/worker-0",
        "lab/demo/worker-0",
    ]


def test_of_many_those_that_need_a_look_are_picked() -> None:
    one = run_model(job(roles=[role("ps", 1), role("worker", 99)]))
    for index in range(99):
        one.update_pod(pod(f"worker-{index}", phase="Succeeded" if index < 90 else "Running"))
    one.update_pod(pod("worker-50", phase="Failed"))

    picked = one.pick(5)
    assert [replica.label for replica in picked] == ["ps-0", "worker-50", "worker-90", "worker-91", "worker-92"]
    assert one.count() == 100


def test_events_are_told_of_whom_they_are_about() -> None:
    one = run_model()
    one.update_pod(pod())

    assert one.event_news(event(pod(), "Unhealthy", "probe failed", "Warning")) == EventNews(
        DEMO, "worker-0", "Unhealthy", "probe failed", warning=True
    )
    assert one.event_news(event(job(), "Running", "demo is running.")) == EventNews(
        DEMO, "demo", "Running", "demo is running."
    )
    assert one.event_news(event(job("other"), "Running", "other is running.")) is None


def test_a_job_takes_the_time_until_it_is_decided() -> None:
    now = 10.0
    one = RunModel([(GENERICJOB, job())], lambda: now)
    assert one.took(DEMO) == 0
    one.update_job(job())
    now = 10.25
    assert one.took(DEMO) == 0.25
    one.update_job(job(status=status("Succeeded", outcome={"result": "Succeeded", "reason": "Rule", "at": STARTED})))
    now = 70.0

    assert one.took(DEMO) == 0.25
    assert one.jobs()[0].took == 0.25


@pytest.mark.parametrize("labels", [{}, {ROLE: "worker"}, {ROLE: "worker", INDEX: "x"}, {ROLE: "worker", INDEX: "²"}])
def test_a_pod_with_labels_that_somebody_else_wrote_is_no_replica(labels: dict[str, str]) -> None:
    one = run_model()
    foreign = pod()
    foreign["metadata"]["labels"] = {JOB_UID: foreign["metadata"]["labels"][JOB_UID], **labels}
    before = phases(one)
    one.update_pod(foreign)
    assert phases(one) == before
