# SPDX-License-Identifier: Apache-2.0
"""What an explanation takes from events, from the objects of quota systems, and from the job itself."""

from typing import Any

import pytest
from run_objects import job, role

from trainwright.cli.inspect.evidence import JobEvidence
from trainwright.cli.inspect.facts import facts_of, view_of
from trainwright.core.explain import explain
from trainwright.core.explanation import JobFacts
from trainwright.kinds.registry import find
from trainwright.model.job import Body
from trainwright.model.ledger import Phase
from trainwright.testing.factories import NOW

TIMES = {"accepted": "2026-11-15T12:00:00Z", "started": "2026-11-15T12:00:00Z"}


def evidence(*, phase: str = Phase.PENDING, metadata: Body | None = None, **more: Any) -> JobEvidence:
    """A GenericJob of two workers that was accepted and has no pods."""
    body = job(roles=[role("worker", 2)])
    body["metadata"] |= {"uid": "u", **(metadata or {})}
    body["status"] = {"phase": "Pending", "trainwright": {"phase": phase, "times": TIMES}}
    kind = find(body["apiVersion"], body["kind"])
    assert kind is not None
    return JobEvidence(kind=kind, body=body, now=NOW, place="cluster test", **more)


def facts(**more: Any) -> JobFacts:
    found = evidence(**more)
    return facts_of(found, view_of(found))


def event(reason: str, message: str, **more: Any) -> Body:
    about = {"kind": "GenericJob", "name": "demo", "namespace": "default", **more.pop("about", {})}
    return {"type": "Warning", "reason": reason, "message": message, "involvedObject": about, **more}


def test_a_refused_pod_stands_for_its_whole_role_and_quotes_the_quota() -> None:
    said = 'pods "demo-worker-0" is forbidden: exceeded quota: small, requested: cpu=4, limited: cpu=2'
    refused = event("FailedCreate", f"Pod demo-worker-0 could not be created: Forbidden: {said}")

    found = facts(events=(refused,))

    assert [(one.name, one.quota) for one in found.refusals] == [("demo-worker-0", True), ("demo-worker-1", True)]
    assert explain(found).headline == (
        "demo waits: worker-0 and worker-1 (2 of 2 replicas): the API server refuses its pod: Forbidden: " + said
    )


def test_events_of_other_names_and_pods_refuse_nothing() -> None:
    other = event("FailedCreate", "Pod demo-ps-0 could not be created: Forbidden")
    of_pod = event("FailedCreatePodSandBox", "demo-worker-0", about={"kind": "Pod"})

    assert facts(events=(other, of_pod)).refusals == ()


def test_only_warnings_about_pods_that_exist_are_kept() -> None:
    pods: tuple[Body, ...] = (
        {"metadata": {"name": "demo-worker-0", "uid": "new"}, "spec": {}, "status": {"phase": "Pending"}},
    )
    about = {"kind": "Pod", "name": "demo-worker-0"}
    events = (
        event("FailedMount", "first", about={**about, "uid": "new"}),
        event("FailedMount", "last", about={**about, "uid": "new"}),
        event("FailedMount", "of an earlier pod", about={**about, "uid": "old"}),
        event("Scheduled", "normal", about={**about, "uid": "new"}, type="Normal"),
    )

    assert facts(events=events, pods=pods).warnings == {"demo-worker-0": ("FailedMount", "last")}


def workload(*conditions: Body) -> Body:
    return {"kind": "Workload", "metadata": {"name": "job-demo"}, "status": {"conditions": list(conditions)}}


def condition(type_: str, status: str, message: str = "", at: str = "") -> Body:
    return {"type": type_, "status": status, "reason": "R", "message": message, "lastTransitionTime": at}


GROUP = {"kind": "PodGroup", "metadata": {"name": "demo"}}


@pytest.mark.parametrize(
    ("admission", "expected"),
    [
        (
            workload(condition("QuotaReserved", "False", "no quota")),
            "Kueue has not admitted it (Workload job-demo): no quota",
        ),
        (workload(condition("Admitted", "False")), "Kueue has not admitted it (Workload job-demo): R"),
        (workload(condition("QuotaReserved", "False", "old"), condition("Admitted", "True")), ""),
        (workload(), ""),
        (
            {**GROUP, "status": {"conditions": [condition("Unschedulable", "True", "3/3 tasks wait")]}},
            "the gang scheduler holds it back (PodGroup demo): 3/3 tasks wait",
        ),
        (
            {
                **GROUP,
                "status": {
                    "conditions": [
                        condition("Unschedulable", "True", "before", "2026-11-15T12:00:00Z"),
                        condition("Scheduled", "True", "now", "2026-11-15T12:00:05Z"),
                    ]
                },
            },
            "",
        ),
        (
            {**GROUP, "status": {"phase": "Pending"}},
            "the gang scheduler holds it back (PodGroup demo): its phase is Pending",
        ),
        ({**GROUP, "status": {"phase": "Running"}}, ""),
        (GROUP, ""),
    ],
)
def test_the_words_of_quota_systems_and_gang_schedulers(admission: Body, expected: str) -> None:
    assert facts(admission=(admission,)).admission == ((expected,) if expected else ())


def test_who_suspended_the_job_is_in_the_managed_fields() -> None:
    entries = [
        {"manager": "creator", "fieldsV1": {"f:spec": {"f:replicaSpecs": {}}}, "time": "2026-11-15T11:00:00Z"},
        {"manager": "kubectl-patch", "fieldsV1": {"f:spec": {"f:runMode": {"f:pause": {"f:enabled": {}}}}}},
        {"manager": "trainwright", "subresource": "status", "fieldsV1": {"f:spec": {"f:suspend": {}}}},
        "not an entry",
    ]

    assert facts(metadata={"managedFields": entries}).suspended_by == "kubectl-patch"
    entries[1] = {**dict(entries[1]), "time": "2026-11-15T12:00:00Z"}  # type: ignore[arg-type]
    assert facts(metadata={"managedFields": entries}).suspended_by == "kubectl-patch at 2026-11-15T12:00:00Z"
    assert facts(metadata={"managedFields": entries[:1]}).suspended_by == ""


@pytest.mark.parametrize(
    ("runtime", "command"),
    [
        (
            "",
            "kubectl patch genericjobs.batch.tensorstack.dev/demo -n default --type merge"
            """ -p '{"spec":{"runMode":{"pause":{"enabled":false}}}}'""",
        ),
        ("process", "trainwright resume default/demo"),
    ],
)
def test_how_to_resume_the_job_depends_on_where_it_runs(runtime: str, command: str) -> None:
    assert facts(runtime=runtime).resume_command == command


def test_a_status_that_cannot_be_read_is_explained() -> None:
    found = evidence()
    found.body["status"]["trainwright"] = {"phase": 7}

    explained = explain(facts_of(found, view_of(found)))

    assert explained.headline.startswith("demo is left alone: status.trainwright: cannot be read")
