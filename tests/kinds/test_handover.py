# SPDX-License-Identifier: Apache-2.0
"""Jobs of every kind that another controller had: those that ended stay ended, whatever else it left in their status;
those that did not are left alone until somebody hands them over.
"""

import json
from typing import Any

import pytest

from trainwright.kinds.aitrainingjob import AITRAININGJOB
from trainwright.kinds.base import Kind, load, reload
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.kinds.paddlejob import PADDLEJOB
from trainwright.kinds.registry import KINDS
from trainwright.kinds.tfjob import TFJOB
from trainwright.model.ledger import Ledger, Phase
from trainwright.model.meta import ADOPT
from trainwright.model.plan import Status
from trainwright.model.units import EARLIEST_TIME, rfc3339

#: Go writes a time that nobody has set as null.
DONE = {"type": "Succeeded", "status": "True", "lastTransitionTime": None, "lastUpdateTime": None}
ENDS: dict[str, tuple[Kind, dict[str, Any]]] = {
    "AITrainingJob": (AITRAININGJOB, {"phase": "Succeed"}),
    "GenericJob": (GENERICJOB, {"phase": "Succeeded"}),
    "PaddleJob": (PADDLEJOB, {"phase": "Completed"}),
    "TFJob": (TFJOB, {"conditions": [DONE]}),
}
LEFT: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a time that nobody has set": {"startTime": None, "conditions": [DONE]},
    "an entry that is none": {"conditions": [None, 7, DONE]},
    "a time that is none": {"startTime": 7, "conditions": [DONE]},
    "what nobody knows": {"restarts": "many", "replicaStatuses": 7, "conditions": [DONE]},
}


@pytest.mark.parametrize("left", LEFT.values(), ids=LEFT)
@pytest.mark.parametrize(("kind", "end"), ENDS.values(), ids=ENDS)
def test_it_is_not_run_again(kind: Kind, end: dict[str, Any], left: dict[str, Any]) -> None:
    document = {"metadata": {"name": "demo", "uid": "1"}, "spec": {}, "status": left | end}
    document["status"] |= {"conditions": left["conditions"]} if "conditions" in left else {}

    assert load(kind, document).job.ledger.phase is Phase.SUCCEEDED


#: What the original leaves in the status of a job that it still looks after.
UNFINISHED: dict[str, tuple[Kind, dict[str, Any]]] = {
    "AITrainingJob": (AITRAININGJOB, {"phase": "Running"}),
    "GenericJob": (GENERICJOB, {"phase": "Pending", "aggregate": {"creating": 2}}),
    "PaddleJob": (PADDLEJOB, {"phase": "Starting", "mode": "Collective"}),
    "TFJob": (TFJOB, {"conditions": [{"type": "Created", "status": "True"}], "replicaStatuses": {"Worker": {}}}),
    "TFJob, restarting": (TFJOB, {"conditions": [DONE | {"status": "False"}], "startTime": "2026-01-01T00:00:00Z"}),
    "a shape that nobody knows": (TFJOB, {"conditions": 7}),
}
WRITERS = [
    {"manager": "kubectl", "operation": "Update"},
    {"manager": "manager", "operation": "Update", "subresource": "status"},
    {"manager": "training-operator.v1", "operation": "Update", "subresource": "status"},
]


def begun(status: Any, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "demo", "uid": "1", **metadata}, "spec": {}, "status": status}


@pytest.mark.parametrize(("kind", "said"), UNFINISHED.values(), ids=UNFINISHED)
def test_an_unfinished_job_of_another_controller_is_that_ones(kind: Kind, said: dict[str, Any]) -> None:
    job = load(kind, begun(said)).job

    assert (job.foreign, job.handed_over, job.ledger) == ("another controller", False, Ledger())
    assert load(kind, begun(said, managedFields=WRITERS)).job.foreign == "manager and training-operator.v1"


@pytest.mark.parametrize(("kind", "said"), UNFINISHED.values(), ids=UNFINISHED)
def test_it_is_ours_once_it_is_handed_over(kind: Kind, said: dict[str, Any]) -> None:
    job = load(kind, begun(said, annotations={ADOPT: "true"})).job

    assert (job.foreign, job.handed_over) == ("", True)
    for other in ("false", "True ", "", None):
        assert load(kind, begun(said, annotations={ADOPT: other})).job.foreign


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.group == "kubeflow.org"], ids=lambda kind: kind.name)
@pytest.mark.parametrize("result", ["Succeeded", "Failed"])
def test_the_status_of_a_job_that_ended_stays_as_the_other_controller_wrote_it(kind: Kind, result: str) -> None:
    at = "2026-01-01T00:00:00Z"
    about = {"lastTransitionTime": at, "lastUpdateTime": at, "message": "its own words", "reason": "Its"}
    said = {
        "completionTime": at,
        "conditions": [{"type": "Created", "status": "True", **about}, {"type": result, "status": "True", **about}],
        "replicaStatuses": {"Worker": {"selector": "training.kubeflow.org/job-name=demo", "succeeded": 1}},
        "startTime": at,
    }
    loaded = load(kind, begun(said))
    result_of_pass = Status(loaded.job.ledger, ())
    rendered = json.loads(
        json.dumps(kind.render(loaded.status, loaded.job, result_of_pass, EARLIEST_TIME), default=str)
    )

    assert {name: part for name, part in rendered.items() if name != "trainwright" and part is not None} == said


SUSPENDED = {"conditions": [{"type": "Running", "status": "False"}, {"type": "Suspended", "status": "True"}]}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.group == "kubeflow.org"], ids=lambda kind: kind.name)
def test_a_job_that_the_other_controller_suspended_has_no_pods_and_continues_suspended(kind: Kind) -> None:
    created = "2026-01-01T00:00:00Z"
    job = load(kind, begun(SUSPENDED, managedFields=WRITERS, creationTimestamp=created)).job

    assert (job.foreign, job.ledger.phase) == ("", Phase.SUSPENDED)
    assert rfc3339(job.ledger.times.accepted or EARLIEST_TIME) == created
    resumed = {"conditions": [*SUSPENDED["conditions"][:1], {"type": "Suspended", "status": "False"}]}
    assert load(kind, begun(resumed)).job.foreign


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    "nothing",
    [None, {}, {"conditions": None, "replicaStatuses": {}}, {"phase": "", "tasks": []}, {"trainwright": {}}],
    ids=["null", "empty", "nulls", "empty texts and lists", "an empty ledger"],
)
def test_a_status_that_says_nothing_is_nobodys(kind: Kind, nothing: Any) -> None:
    assert not load(kind, begun(nothing)).job.foreign


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_job_with_a_ledger_of_ours_is_ours_whoever_else_wrote(kind: Kind) -> None:
    said = {"conditions": [{"type": "Created", "status": "True"}], "trainwright": {"phase": "Running"}}

    assert not load(kind, begun(said, managedFields=WRITERS)).job.foreign


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_unknown_fields_of_a_status_are_no_mistake_of_the_user(kind: Kind) -> None:
    assert load(kind, begun({"theirs": 1})).problems == load(kind, begun({})).problems


def test_a_job_that_is_read_again_with_another_status_is_as_foreign_as_it_should_be() -> None:
    said = {"conditions": [{"type": "Created", "status": "True"}]}
    whole = tfjob_manifest(Worker=1)
    new = load(TFJOB, whole)
    theirs = load(TFJOB, whole | {"status": said})
    assert not new.job.foreign
    assert theirs.job.foreign

    assert reload(TFJOB, new, said) is None  # a whole load says who wrote it
    again = reload(TFJOB, theirs, {"conditions": [DONE]})
    assert again is not None
    assert (again.job.foreign, again.job.ledger.phase) == ("", Phase.SUCCEEDED)
    ours = reload(TFJOB, load(TFJOB, handed(whole)), said | {"trainwright": {"phase": "Running"}})
    assert ours is not None
    assert (ours.job.foreign, ours.job.handed_over) == ("", True)


def tfjob_manifest(**workers: int) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "x"}]}}
    specs = {name: {"replicas": count, "template": template} for name, count in workers.items()}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "demo", "uid": "1"},
        "spec": {"tfReplicaSpecs": specs},
    }


def handed(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"metadata": document["metadata"] | {"annotations": {ADOPT: "true"}}}
