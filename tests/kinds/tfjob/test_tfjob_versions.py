# SPDX-License-Identifier: Apache-2.0
"""Two versions, one stored form: what each stamps, what that means later, and that neither changes the other's jobs."""

from typing import Any

import pytest
from tfjob_driver import Driver, conditions, manifest, policy, replicas

from trainwright.kinds.base import load, stored
from trainwright.kinds.registry import find
from trainwright.kinds.scalars import with_defaults
from trainwright.kinds.tfjob import TFJOB
from trainwright.model.job import Body, CleanPods

VERSIONS = ("v1", "v1alpha2")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_kind_is_found_by_any_version_that_it_serves(version: str) -> None:
    assert find(f"kubeflow.org/{version}", "TFJob") is TFJOB


@pytest.mark.parametrize("version", ["v1beta1", "v2", ""])
def test_and_by_no_other(version: str) -> None:
    assert find(f"kubeflow.org/{version}", "TFJob") is None


@pytest.mark.parametrize(
    ("version", "restart", "clean"), [("v1", "Never", CleanPods.NONE), ("v1alpha2", "Always", CleanPods.UNFINISHED)]
)
def test_each_version_has_its_defaults(version: str, restart: str, clean: CleanPods) -> None:
    document = stored(TFJOB, manifest(version=version, Worker=1))

    assert document["apiVersion"] == "kubeflow.org/v1"
    assert document["spec"]["trainwright"] == {"defaults": version}
    assert document["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] == restart
    assert load(TFJOB, document).job.lifecycle.clean.succeeded is clean


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_user_says_stays(version: str) -> None:
    given = manifest(
        version=version, spec=policy(cleanPodPolicy="All"), Worker=replicas(restartPolicy="ExitCode"), PS=2
    )
    document = stored(TFJOB, given)

    assert document["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] == "ExitCode"
    assert load(TFJOB, document).job.lifecycle.clean.failed is CleanPods.ALL


@pytest.mark.parametrize("other", VERSIONS)
@pytest.mark.parametrize("version", VERSIONS)
def test_an_edit_through_the_other_version_changes_nothing(version: str, other: str) -> None:
    first = stored(TFJOB, manifest(version=version, Worker=1, PS=replicas(restartPolicy="")))

    assert stored(TFJOB, first | {"apiVersion": f"kubeflow.org/{other}"}) == first


@pytest.mark.parametrize(("version", "expected"), [("v1", "Never"), ("v1alpha2", "Always")])
def test_an_empty_word_is_filled_in_by_the_version_the_job_was_created_in(version: str, expected: str) -> None:
    driver = Driver(manifest(version=version, Worker=1, PS=replicas(restartPolicy="")))
    driver.go()

    assert driver.body("Pod", "ps-0")["spec"]["restartPolicy"] == expected


@pytest.mark.parametrize("types", [{"Worker": 2, "PS": 1}, {"Chief": 1, "PS": 1}, {"Master": 1, "PS": 1}], ids=str)
def test_a_job_of_the_old_version_that_says_nothing_comes_to_its_end(types: dict[str, Any]) -> None:
    """Its default is Always, and its design says that a job whose replicas terminate in success has succeeded."""
    driver = Driver(manifest(version="v1alpha2", **types)).running()
    leader = f"{min(types).lower()}-0" if "Worker" not in types else "worker-0"

    assert driver.body("Pod", leader)["spec"]["restartPolicy"] == "OnFailure"
    assert driver.body("Pod", "ps-0")["spec"]["restartPolicy"] == "Always"
    assert conditions(driver.end(leader)) == ["Created", "Running=False(TFJobRunning)", "Succeeded"]
    assert driver.names() == [leader]


def test_whoever_asks_for_always_in_v1_gets_it() -> None:
    driver = Driver(manifest(Worker=replicas(restartPolicy="Always"))).running()

    assert driver.body("Pod", "worker-0")["spec"]["restartPolicy"] == "Always"
    driver.end("worker-0")
    assert conditions(driver.pass_by(5)) == ["Created", "Running"]


@pytest.mark.parametrize("seconds", [2**31, 2**63 - 1])
def test_a_deadline_beyond_every_calendar_is_none(seconds: int) -> None:
    driver = Driver(manifest(spec=policy(activeDeadlineSeconds=seconds), Worker=1)).running()

    assert conditions(driver.pass_by(365 * 86400)) == ["Created", "Running"]


MOVED: list[tuple[str, Any, str, Any]] = [
    ("cleanPodPolicy", "Running", "clean", CleanPods.UNFINISHED),
    ("cleanPodPolicy", "", "clean", CleanPods.ALL),
    ("ttlSecondsAfterFinished", 7, "ttl", 7),
    ("activeDeadlineSeconds", 7, "deadline", 7),
    ("backoffLimit", 7, "restarts_allowed", 6),
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "value", "field", "expected"), MOVED)
def test_the_places_of_old_are_heeded(version: str, name: str, value: Any, field: str, expected: Any) -> None:
    """trainer#1241, #1627: they were passed over in silence."""
    life = load(TFJOB, manifest(version=version, spec={name: value}, Worker=1)).job.lifecycle
    found = {"clean": life.clean.succeeded, "deadline": life.deadline and life.deadline.seconds}

    assert found.get(field, getattr(life, field)) == expected


def test_the_new_place_wins() -> None:
    both = {"ttlSecondsAfterFinished": 7} | policy(ttlSecondsAfterFinished=9)

    assert load(TFJOB, manifest(spec=both, Worker=1)).job.lifecycle.ttl == 9


def test_a_document_of_another_version_is_left_as_it_is() -> None:
    document = manifest(version="v9", Worker=1)

    assert stored(TFJOB, document) is document


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({}, {}),
        ({"spec": None}, {"spec": None}),
        ({"spec": []}, {"spec": []}),
        ({"spec": {}}, {"spec": {"own": {"a": "x"}}}),
        ({"spec": {"own": None, "many": None}}, {"spec": {"own": {"a": "x"}, "many": None}}),
        ({"spec": {"own": "odd"}}, {"spec": {"own": "odd"}}),
        ({"spec": {"own": {"a": None}}}, {"spec": {"own": {"a": "x"}}}),
        ({"spec": {"own": {"a": "y", "c": 1}}}, {"spec": {"own": {"a": "y", "c": 1}}}),
        (
            {"spec": {"own": {"a": "y"}, "many": {"one": {}, "two": {"b": "q"}, "three": None, "four": 4}}},
            {"spec": {"own": {"a": "y"}, "many": {"one": {"b": "z"}, "two": {"b": "q"}, "three": None, "four": 4}}},
        ),
    ],
    ids=str,
)
def test_stamps_fill_what_is_not_said_and_nothing_else(document: Body, expected: Body) -> None:
    before = repr(document)

    assert with_defaults(document, {"spec.own.a": "x", "spec.many.*.b": "z"}) == expected
    assert repr(document) == before


def test_what_needs_no_stamp_is_shared() -> None:
    document = {"spec": {"own": {"a": "y"}}}

    assert with_defaults(document, {"spec.own.a": "x"}) is document
