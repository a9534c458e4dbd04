# SPDX-License-Identifier: Apache-2.0
"""Every event in the words of every kind. Programs match on reasons and texts: none of them may change."""

from typing import Any

import pytest
from msgspec.structs import replace

from trainwright.kinds.base import Kind
from trainwright.kinds.kubeflow.wire import KubeflowStatus
from trainwright.kinds.registry import KINDS
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.event import (
    ChildEvent,
    EventReason,
    JobEnded,
    JobEvent,
    JobStep,
    Notice,
    PodExited,
    PodWaiting,
    Resized,
    Restarting,
)
from trainwright.model.job import RequestedEnd
from trainwright.model.ledger import Failure, Ledger, Outcome, Phase, Reason, RoleLedger, Times
from trainwright.model.plan import Status
from trainwright.model.rule import Result
from trainwright.testing.factories import NOW, job, role

SOURCES = {"tfjob": "tfjob-controller", "paddlejob": "paddlejob-controller", "aitrainingjob": "TrainingJobOperator"}
FAILURE = Failure("worker", 0, "job-worker-0", 0, NOW, Cause(CauseKind.EXIT, 1, container="main", node="n1"))
BEFORE = Ledger(Phase.RUNNING, roles=(RoleLedger("worker", reached=1, size=2),), times=Times(NOW, NOW, NOW))
AFTER = replace(BEFORE, roles=(replace(BEFORE.roles[0], restarts={"Exit": 1}, size=3),), failures=(FAILURE,))
ASKED = RequestedEnd("Preempted", "too bad", by="annotation Preempted")


def ended(reason: Reason, result: Result = Result.FAILED, ending: RequestedEnd | None = None, **more: Any) -> JobEnded:
    return JobEnded(Outcome(result, reason, NOW, message="too bad", **more), ending)


#: By case: the event, whether it warns, and by kind its reason and text. Without an entry, a kind has those of "";
#: None: it has no such child.
CASES: dict[str, tuple[JobEvent, bool, dict[str, tuple[str, str] | None]]] = {
    "running": (
        JobStep(EventReason.RUNNING, "job"),
        False,
        {
            "": ("Running", "job is running."),
            "tfjob": ("TFJobRunning", "TFJob default/job is running."),
            "xgboostjob": ("XGBoostJobRunning", "XGBoostJob job is running."),
            "aitrainingjob": ("TrainingJobRunning", "all pods are running"),
        },
    ),
    "suspended": (
        JobStep(EventReason.SUSPENDED, "job"),
        False,
        {
            "": ("Suspended", "job is suspended."),
            "tfjob": ("TFJobSuspended", "TFJob job is suspended."),
            "aitrainingjob": ("TrainingJobSuspended", "job is suspended."),
        },
    ),
    "resumed": (
        JobStep(EventReason.RESUMED, "job"),
        False,
        {
            "": ("Resumed", "job is resumed."),
            "tfjob": ("TFJobResumed", "TFJob job is resumed."),
            "aitrainingjob": ("TrainingJobResumed", "job is resumed."),
        },
    ),
    "a failure is answered": (
        Restarting(FAILURE),
        True,
        {
            "": ("Restarting", "restarting after job-worker-0: container main exited with code 1"),
            "tfjob": ("TFJobRestarting", "job job is restarting because worker replica(s) failed."),
            "aitrainingjob": (
                "TrainingJobRestarting",
                "restart times is 1, pod job-worker-0: container main on node n1 exited with reason Error exitcode 1",
            ),
        },
    ),
    "success is restarted": (
        Restarting(),
        False,
        {
            "": ("Restarting", "restarting what had completed, as its policy says"),
            "tfjob": ("TFJobRestarting", "restarting what had completed, as its policy says"),
            "aitrainingjob": ("TrainingJobRestarting", "restarting what had completed, as its policy says"),
        },
    ),
    "resized": (
        Resized("worker", 2, 3, "there is room"),
        False,
        {
            "": ("Scaled", "worker is scaled from 2 to 3 replicas: there is room"),
            "aitrainingjob": ("TrainingJobScaled", "worker is scaled from 2 to 3 replicas: there is room"),
        },
    ),
    "resized to a size": (
        Resized("worker", -1, 3),
        False,
        {
            "": ("Scaled", "worker is scaled to 3 replicas"),
            "aitrainingjob": ("TrainingJobScaled", "worker is scaled to 3 replicas"),
        },
    ),
    "resized to full size": (
        Resized("worker", -1, -1),
        False,
        {
            "": ("Scaled", "worker is scaled to its full size"),
            "aitrainingjob": ("TrainingJobScaled", "worker is scaled to its full size"),
        },
    ),
    "a pod is created": (
        ChildEvent(EventReason.CREATED, "Pod", "job-worker-0"),
        False,
        {
            "": ("SuccessfulCreate", "Created pod: job-worker-0"),
            "tfjob": ("SuccessfulCreatePod", "Created pod: job-worker-0"),
            "paddlejob": ("Created", "created Pod job-worker-0"),
            "aitrainingjob": ("SuccessfulCreatePod", "Created pod: job-worker-0"),
        },
    ),
    "a service is created": (
        ChildEvent(EventReason.CREATED, "Service", "job-worker-0"),
        False,
        {
            "": ("SuccessfulCreate", "Created service: job-worker-0"),
            "tfjob": ("SuccessfulCreateService", "Created service: job-worker-0"),
            "paddlejob": ("Created", "created Service job-worker-0"),
            "aitrainingjob": ("SuccessfulCreateService", "Created service: job-worker-0"),
        },
    ),
    "a group is created": (
        ChildEvent(EventReason.CREATED, "PodGroup", "job"),
        False,
        {
            "": ("SuccessfulCreate", "Created podgroup: job"),
            "tfjob": ("SuccessfulCreatePodGroup", "Created PodGroup: job"),
            "paddlejob": ("Created", "created PodGroup job"),
            "aitrainingjob": None,
        },
    ),
    "a ConfigMap is created": (
        ChildEvent(EventReason.CREATED, "ConfigMap", "job"),
        False,
        {
            "": ("SuccessfulCreate", "Created configmap: job"),
            "tfjob": None,
            "paddlejob": ("Created", "created ConfigMap job"),
            "aitrainingjob": None,
        },
    ),
    "a pod is deleted": (
        ChildEvent(EventReason.DELETED, "Pod", "job-worker-0", "the job has failed"),
        False,
        {
            "": ("SuccessfulDelete", "Deleted pod: job-worker-0 (the job has failed)"),
            "tfjob": ("SuccessfulDeletePod", "Deleted pod: job-worker-0"),
            "paddlejob": ("Deleted", "deleted Pod job-worker-0"),
            "aitrainingjob": ("SuccessfulDeletePod", "Deleted pod: job-worker-0"),
        },
    ),
    "a group is deleted": (
        ChildEvent(EventReason.DELETED, "PodGroup", "job", "the job has failed"),
        False,
        {
            "": ("SuccessfulDelete", "Deleted podgroup: job (the job has failed)"),
            "tfjob": ("SuccessfulDeletePodGroup", "Deleted PodGroup: job"),
            "paddlejob": ("Deleted", "deleted PodGroup job"),
            "aitrainingjob": None,
        },
    ),
    "a pod is refused": (
        ChildEvent(EventReason.REFUSED, "Pod", "job-worker-0", "Forbidden: quota"),
        True,
        {
            "": ("FailedCreate", "Pod job-worker-0 could not be created: Forbidden: quota"),
            "tfjob": ("FailedCreatePod", "Error creating: Pod job-worker-0 could not be created: Forbidden: quota"),
            "paddlejob": ("Create", "create failed Pod job-worker-0: Forbidden: quota"),
            "aitrainingjob": (
                "FailedCreatePod",
                "Error creating: Pod job-worker-0 could not be created: Forbidden: quota",
            ),
        },
    ),
    "a group is refused": (
        ChildEvent(EventReason.REFUSED, "PodGroup", "job", "Forbidden: quota"),
        True,
        {
            "": ("FailedCreate", "PodGroup job could not be created: Forbidden: quota"),
            "tfjob": ("FailedCreatePodGroup", "Error creating: PodGroup job could not be created: Forbidden: quota"),
            "paddlejob": ("Create", "create failed PodGroup job: Forbidden: quota"),
            "aitrainingjob": None,
        },
    ),
    "a pod has exited": (
        PodExited("job-worker-0", 3),
        False,
        {
            "": ("ExitedWithCode", "job-worker-0 exited with code 3"),
            "tfjob": ("ExitedWithCode", "Pod: default.job-worker-0 exited with code 3"),
        },
    ),
    "a container waits": (
        PodWaiting("job-worker-0", "ErrImagePull", "no image", "main"),
        True,
        {
            "": ("ErrImagePull", "job-worker-0 container main waiting message: no image"),
            "tfjob": ("ErrImagePull", "Error pod job-worker-0 container main waiting message: no image"),
        },
    ),
    "a pod waits": (
        PodWaiting("job-worker-0", "Unschedulable", "no node"),
        True,
        {
            "": ("Unschedulable", "job-worker-0 condition message: no node"),
            "tfjob": ("Unschedulable", "Error pod job-worker-0 condition message: no node"),
        },
    ),
    "succeeded": (
        ended(Reason.RULE, Result.SUCCEEDED),
        False,
        {
            "": ("Succeeded", "too bad"),
            "tfjob": ("TFJobSucceeded", "TFJob default/job successfully completed."),
            "xgboostjob": ("XGBoostJobSucceeded", "XGBoostJob job is successfully completed."),
            "paddlejob": ("Completed", "PaddleJob job is completed: too bad."),
            "aitrainingjob": ("TrainingJobSucceed", "job job completed"),
        },
    ),
    "failed": (
        ended(Reason.RULE, failure=FAILURE),
        True,
        {
            "": ("Failed", "too bad; job-worker-0: container main exited with code 1"),
            "tfjob": ("TFJobFailed", "TFJob default/job has failed because 1 worker replica(s) failed."),
            "jaxjob": ("JAXJobFailed", "JAXJob job is failed because 1 worker replica(s) failed."),
            "pytorchjob": ("PyTorchJobFailed", "PyTorchJob job is failed because 1 worker replica(s) failed."),
            "paddlejob.kubeflow.org": (
                "PaddleJobFailed",
                "PaddleJob job is failed because 1 worker replica(s) failed.",
            ),
            "xgboostjob": ("XGBoostJobFailed", "XGBoostJob job is failed because 1 worker replica(s) failed."),
            "paddlejob": ("Failed", "PaddleJob job has failed: job-worker-0: container main exited with code 1"),
            "aitrainingjob": (
                "TrainingJobFailed",
                "pod job-worker-0 is failed, container main on node n1 exited with reason Error exitcode 1",
            ),
        },
    ),
    "deadline": (
        ended(Reason.DEADLINE),
        True,
        {
            "": ("Failed", "too bad"),
            "tfjob": ("TFJobFailed", "Job job has failed because it was active longer than specified deadline"),
            "paddlejob": ("Failed", "PaddleJob job has failed: too bad"),
            "aitrainingjob": (
                "TrainingJobTimeout",
                "job job has been running since 2026-11-15T12:00:00Z, and at 2026-11-15T12:00:00Z"
                " for longer than 0 seconds",
            ),
        },
    ),
    "too many restarts": (
        ended(Reason.BACKOFF_LIMIT, failure=FAILURE),
        True,
        {
            "": ("Failed", "too bad; job-worker-0: container main exited with code 1"),
            "tfjob": ("TFJobFailed", "Job job has failed because it has reached the specified backoff limit"),
            "paddlejob": (
                "Failed",
                "PaddleJob job has failed: too bad; the last failure is of job-worker-0: container main exited"
                " with code 1",
            ),
            "aitrainingjob": (
                "TrainingJobFailed",
                "pod job-worker-0 is failed, container main on node n1 exited with reason Error exitcode 1; too bad",
            ),
        },
    ),
    "invalid": (
        ended(Reason.INVALID),
        True,
        {
            "": ("Failed", "too bad"),
            "tfjob": ("TFJobFailedValidation", "TFJob failed validation because too bad"),
            "paddlejob": ("Failed", "PaddleJob job has failed: too bad"),
            "aitrainingjob": ("TrainingJobFailed", "too bad"),
        },
    ),
    "somebody asked for the end": (
        ended(Reason.EXTERNAL, word="Preempted", ending=ASKED),
        True,
        {
            "": ("Failed", "annotation Preempted asked for this end: too bad"),
            "tfjob": ("TFJobFailed", "TFJob default/job has failed: too bad"),
            "paddlejob": ("Failed", "PaddleJob job has failed: too bad"),
            "aitrainingjob": ("TrainingJobPreempted", "annotation Preempted asked for this end: too bad"),
        },
    ),
    "remark": (
        Notice(EventReason.REMARK, "it is odd", "Odd"),
        True,
        {
            "": ("Odd", "it is odd"),
        },
    ),
    "unfit": (
        Notice(EventReason.UNFIT, "spec: bad"),
        True,
        {
            "": ("Invalid", "spec: bad"),
        },
    ),
    "stuck": (
        Notice(EventReason.STUCK, "refused"),
        True,
        {
            "": ("FailedSync", "refused"),
        },
    ),
    "the job is removed": (
        Notice(EventReason.REMOVED, "Deleted job: job", warning=False),
        False,
        {
            "": ("SuccessfulDeleteJob", "Deleted job: job"),
            "jaxjob": ("SuccessfulDeletePod", "Deleted job: job"),
            "pytorchjob": ("SuccessfulDeletePod", "Deleted job: job"),
            "paddlejob.kubeflow.org": ("SuccessfulDeletePod", "Deleted job: job"),
        },
    ),
    "no gang scheduler": (
        Notice(EventReason.GANG_MISSING, "none"),
        True,
        {
            "": ("GangUnavailable", "none"),
        },
    ),
    "another scheduler": (
        Notice(EventReason.OTHER_SCHEDULER, "other"),
        True,
        {
            "": ("OtherScheduler", "other"),
            "tfjob": (
                "SetPodTemplateSchedulerName",
                "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten",
            ),
        },
    ),
}


def ledger_after(event: JobEvent) -> Ledger:
    """What a pass concluded that tells of this event."""
    if isinstance(event, JobEnded):
        return replace(BEFORE, outcome=event.outcome)
    return AFTER if event == Restarting(FAILURE) else BEFORE


def source_of(kind: Kind) -> str:
    """The component that the events of a kind name."""
    return f"{kind.singular}-controller" if kind.status is KubeflowStatus else SOURCES.get(kind.id, "")


def words_of(kind: Kind, words: dict[str, tuple[str, str] | None]) -> tuple[str, str] | None:
    """The reason and text of a kind. The other kinds of Kubeflow v1 have those of TFJob, with their own name."""
    if kind.id in words or kind.status is not KubeflowStatus:
        return words.get(kind.id, words[""])
    told = words.get("tfjob", words[""])
    return None if told is None else (told[0].replace("TFJob", kind.name), told[1].replace("TFJob", kind.name))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.id)
@pytest.mark.parametrize(("event", "warning", "words"), CASES.values(), ids=CASES)
def test_each_kind_has_its_own_words(
    event: JobEvent, warning: bool, words: dict[str, tuple[str, str] | None], kind: Kind
) -> None:
    expected = words_of(kind, words)

    emit = kind.event(job(role(), ledger=BEFORE), Status(ledger_after(event), ()), event)

    assert (emit.warning, emit.source) == (warning, source_of(kind))
    assert expected is None or (emit.reason or str(emit.event_reason), emit.message) == expected


def test_every_moment_is_in_the_table() -> None:
    assert {event.event_reason for event, _, _ in CASES.values()} == set(EventReason) - {EventReason.FOREIGN}, (
        "no kind has words for it"
    )


def test_a_name_that_looks_like_a_kind_is_left_alone() -> None:
    tfjob = next(kind for kind in KINDS if kind.singular == "tfjob")
    event = ChildEvent(EventReason.CREATED, "PodGroup", "podgroup-test")

    assert tfjob.event(job(role()), Status(BEFORE, ()), event).message == "Created PodGroup: podgroup-test"
