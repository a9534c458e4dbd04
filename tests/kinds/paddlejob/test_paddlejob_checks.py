# SPDX-License-Identifier: Apache-2.0
"""What is said of a PaddleJob's manifest: what is refused, and what is warned of."""

from typing import Any

import pytest
from paddlejob_driver import container, manifest, role

from trainwright.kinds.base import load
from trainwright.kinds.paddlejob import PADDLEJOB


def env(*names: str) -> dict[str, Any]:
    return role(1, pod={"containers": [container(env=[{"name": name, "value": "x"} for name in names])]})


@pytest.mark.parametrize(
    ("spec", "path", "text"),
    [
        ({}, "spec.worker", "missing; a job needs at least one worker"),
        ({"worker": 0}, "spec.worker.replicas", "a job needs at least one worker"),
        ({"worker": role(-1)}, "spec.worker.replicas", "expected a whole number from 0 to 10000"),
        ({"worker": {"replicas": 1}}, "spec.worker.template", "missing; expected the pod of each replica"),
        ({"worker": {"template": role()["template"]}}, "spec.worker.replicas", "missing"),
        ({"worker": 6000, "ps": 6000}, "spec", "a job may have 10000 replicas; this one has 12000"),
        ({"worker": role(2, requests=3, limits=2)}, "spec.worker.requests", "3 is more than limits, which is 2"),
        ({"worker": 1, "withGloo": 3}, "spec.withGloo", "from 0 to 2"),
        ({"worker": 1, "runPolicy": {"successPolicy": "Worker"}}, "spec.runPolicy.successPolicy", "Workers"),
        (
            {"worker": role(1, pod={"containers": [{"name": "paddle"}]})},
            "spec.worker.template.spec.containers[0].image",
            "missing; expected the name of an image",
        ),
        (
            {"worker": role(1, pod={"restartPolicy": "onfailure"})},
            "spec.worker.template.spec.restartPolicy",
            "expected one of Always, Never, OnFailure, found the text 'onfailure'; did you mean `OnFailure`?",
        ),
    ],
    ids=str,
)
def test_refused(spec: dict[str, Any], path: str, text: str) -> None:
    errors = load(PADDLEJOB, manifest(**spec)).errors

    assert [one.path for one in errors] == [path], errors
    assert text in str(errors[0])


@pytest.mark.parametrize(
    ("spec", "path", "text"),
    [
        ({"worker": 1, "withGloo": 1}, "spec.withGloo", "Gloo needs a parameter server"),
        ({"worker": 1, "elastic": 0}, "spec.elastic", "0 makes the job elastic"),
        ({"worker": 1, "ps": 1, "elastic": 1}, "spec.elastic", "has no effect"),
        ({"worker": role(1, requests=1)}, "spec.worker.requests", "only the workers of an elastic job"),
        ({"worker": role(1, requests=2), "elastic": 1}, "spec.worker.replicas", "an elastic job runs with 2"),
        ({"worker": role(5, limits=4), "elastic": 1}, "spec.worker.replicas", "an elastic job runs with 4"),
        (
            {"worker": 1, "schedulingPolicy": {"minAvailable": 2}},
            "spec.schedulingPolicy.minAvailable",
            "never admitted",
        ),
        (
            {"worker": 1, "runPolicy": {"successPolicy": "Workers"}},
            "spec.runPolicy.successPolicy",
            "the job has only workers",
        ),
        ({"worker": 7000}, "spec.worker.replicas", "5954 are safe"),
        ({"worker": 7000, "intranet": "Service"}, "spec.worker.replicas", "4851 are safe"),
        (
            {"worker": role(1, pod={"restartPolicy": "Always"})},
            "spec.worker.template.spec.restartPolicy",
            "did you mean `OnFailure`?",
        ),
        (
            {"worker": role(1, pod={"hostNetwork": True})},
            "spec.worker.template.spec.hostNetwork",
            "`intranet: Host` gives each pod its own ports",
        ),
        ({"worker": env("POD_IP")}, "spec.worker.template.spec.containers[0].env[0]", "whose value comes after"),
        ({"worker": env("A", "PADDLE_PORT")}, "spec.worker.template.spec.containers[0].env[1]", "overrides the value"),
        ({"worker": 1, "sampleSetRef": {"name": "x"}}, "spec.sampleSetRef", "unknown field"),
    ],
    ids=str,
)
def test_warned_of(spec: dict[str, Any], path: str, text: str) -> None:
    loaded = load(PADDLEJOB, manifest(**spec))

    assert loaded.errors == ()
    assert [one.path for one in loaded.problems] == [path], loaded.problems
    assert text in str(loaded.problems[0])


@pytest.mark.parametrize(
    "spec",
    [
        {"worker": 1},
        {"worker": 3, "ps": 0, "heter": 0},
        {"worker": role(3, requests=2, limits=4), "elastic": 1},
        {"worker": 7000, "elastic": 1},
        {"worker": 1, "ps": 1, "withGloo": 2, "intranet": "Host", "cleanPodPolicy": "OnFailure"},
        {"worker": role(1, pod={"hostNetwork": True}), "intranet": "Host"},
        {"worker": env("PADDLE_ELASTIC_TIMEOUT", "PADDLE_MASTER"), "elastic": 1},
    ],
    ids=str,
)
def test_nothing_is_said_of_what_is_right(spec: dict[str, Any]) -> None:
    assert load(PADDLEJOB, manifest(**spec)).problems == ()


def test_a_scheduler_that_starts_no_gangs_is_told_and_keeps_the_job_from_being_one() -> None:
    other = role(1, pod={"schedulerName": "mine"})
    job = load(PADDLEJOB, manifest(worker=other, schedulingPolicy={"queue": "q"})).job
    volcano = load(PADDLEJOB, manifest(worker=role(1, pod={"schedulerName": "volcano"}), schedulingPolicy={})).job

    assert (job.gang, [reason for reason, _ in job.remarks]) == (None, ["OtherScheduler"])
    assert volcano.gang is not None
    assert volcano.gang.asked
    assert volcano.remarks == ()
