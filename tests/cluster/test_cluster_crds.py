# SPDX-License-Identifier: Apache-2.0
"""A real API server takes the CRDs that `trainwright crds` prints, and kubectl shows what is in them."""

import json
from typing import Any

import pytest
from cluster_bodies import Body, job
from cluster_install import install_crds
from cluster_plane import ControlPlane

from trainwright.kinds.registry import KINDS

pytest_plugins = ("cluster_fixtures",)
GENERICJOBS = "/apis/batch.tensorstack.dev/v1beta1/namespaces/{}/genericjobs"


def test_the_crds_are_established_with_nothing_to_complain_of(plane: ControlPlane) -> None:
    found = plane.call("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]

    assert {one["spec"]["names"]["kind"] for one in found} == {kind.name for kind in KINDS}
    for one in found:
        so = {condition["type"]: condition["status"] for condition in one["status"]["conditions"]}
        assert so == {"Established": "True", "NamesAccepted": "True"}  # no NonStructuralSchema, for one


def test_the_crds_can_be_applied_again_and_change_nothing(plane: ControlPlane) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    before = {one["metadata"]["name"]: one["metadata"]["generation"] for one in plane.call("GET", path)["items"]}

    said = install_crds(plane)

    after = {one["metadata"]["name"]: one["metadata"]["generation"] for one in plane.call("GET", path)["items"]}
    assert after == before
    assert said.count("serverside-applied") == len(KINDS)


def test_get_shows_how_a_job_does(plane: ControlPlane, namespace: str) -> None:
    plane.call("POST", GENERICJOBS.format(namespace), job("demo"))
    status = {"phase": "Running", "aggregate": {"running": 3, "succeeded": 2, "failed": 1}}
    plane.call("PATCH", f"{GENERICJOBS.format(namespace)}/demo/status", {"status": status})

    short = plane.kubectl("get", "gj", "-n", namespace).stdout.splitlines()
    wide = plane.kubectl("get", "genericjobs", "-n", namespace, "-o", "wide").stdout.splitlines()

    assert short[0].split() == ["NAME", "PHASE", "AGE", "REASON"]
    assert short[1].split()[:2] == ["demo", "Running"]
    assert wide[0].split() == ["NAME", "PHASE", "AGE", "REASON", "RUNNING", "SUCCEEDED", "FAILED", "MESSAGE"]
    assert wide[1].split()[3:] == ["3", "2", "1"]


def test_a_status_is_a_subresource(plane: ControlPlane, namespace: str) -> None:
    path = GENERICJOBS.format(namespace)
    plane.call("POST", path, {**job("demo"), "status": {"phase": "Succeeded"}})

    changed = plane.call("PATCH", f"{path}/demo/status", {"status": {"phase": "Running"}, "spec": {"replicaSpecs": []}})
    wrong = plane.call("PATCH", f"{path}/demo", {"status": {"phase": "Failed"}})

    assert changed["spec"] == wrong["spec"]
    assert wrong["status"] == {"phase": "Running"}
    assert wrong["metadata"]["generation"] == 1


@pytest.mark.parametrize("verb", ["PATCH", "PUT"])
def test_a_status_keeps_every_field_and_is_recorded_as_one_field(
    plane: ControlPlane, namespace: str, verb: str
) -> None:
    """Recording who manages which field of a status costs the API server more than the write itself."""
    path = GENERICJOBS.format(namespace)
    made = plane.call("POST", path, job("demo"))
    status: Body = {
        "phase": "Running",
        "anything": {"at": ["all", {"and": 1}]},
        "trainwright": {"phase": "Running", "roles": [{"name": "worker", "newer": True}], "newer": {"a": 1}},
    }
    changed = plane.call(
        verb, f"{path}/demo/status", {"status": status} if verb == "PATCH" else {**made, "status": status}
    )

    assert changed["status"] == plane.call("GET", f"{path}/demo")["status"] == status
    entries: list[Any] = [one for one in changed["metadata"]["managedFields"] if one.get("subresource") == "status"]
    assert [one["fieldsV1"] for one in entries] == [{"f:status": {}}]


def test_describe_shows_what_was_asked_for(plane: ControlPlane, namespace: str) -> None:
    plane.call("POST", GENERICJOBS.format(namespace), job("demo"))

    said = plane.kubectl("describe", "gj", "demo", "-n", namespace).stdout

    for text in ("Name:         demo", "Kind:         GenericJob", "Clean Up Policy:", "Replica Specs:"):
        assert text in said, said


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("gj", "GenericJob"),
        ("gj.spec.service", "each replica has a headless service with the replica's name"),
        ("gj.spec.replicaSpecs.type", "Lower-case letters, digits and `-`, with a letter or digit at both ends."),
        ("gj.spec.replicaSpecs.restartPolicy", "When, and how often, replicas of a type are restarted."),
        ("gj.status", "The status that the controller writes."),
        ("gj.status.trainwright", "The durable state of a job, which only the operator writes."),
    ],
)
def test_explain_shows_the_texts_of_the_types(plane: ControlPlane, path: str, text: str) -> None:
    said = plane.kubectl("explain", path).stdout

    assert text in " ".join(said.split())


def test_defaults_are_filled_in_by_the_server(plane: ControlPlane, namespace: str) -> None:
    made = plane.kubectl("create", "-n", namespace, "-o", "json", "-f", "-", given=json.dumps(job("demo"))).stdout

    spec = json.loads(made)["spec"]
    assert spec["cleanUpPolicy"] == "None"
    assert spec["replicaSpecs"][0]["restartPolicy"] == {"policy": "OnFailure", "limit": 0}
