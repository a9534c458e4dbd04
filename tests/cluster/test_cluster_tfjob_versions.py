# SPDX-License-Identifier: Apache-2.0
"""TFJobs of both versions on a real API server: what is stamped and refused, and that neither changes the other."""

from typing import Any

import pytest
from cluster_plane import ControlPlane

pytest_plugins = ("cluster_fixtures",)
VERSIONS = ("v1", "v1alpha2")
DEFAULTS = {"v1": "Never", "v1alpha2": "Always"}


def path(version: str, namespace: str) -> str:
    return f"/apis/kubeflow.org/{version}/namespaces/{namespace}/tfjobs"


def tfjob(version: str, **spec: Any) -> dict[str, Any]:
    replica = {"template": {"spec": {"containers": [{"name": "tensorflow", "image": "x"}]}}}
    return {
        "apiVersion": f"kubeflow.org/{version}",
        "kind": "TFJob",
        "metadata": {"name": "demo"},
        "spec": {"tfReplicaSpecs": {"Worker": replica, "PS": replica | {"restartPolicy": "OnFailure"}}} | spec,
    }


@pytest.mark.parametrize("other", VERSIONS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_label_through_either_version_changes_nothing(
    plane: ControlPlane, namespace: str, version: str, other: str
) -> None:
    made = plane.call("POST", path(version, namespace), tfjob(version, cleanPodPolicy="All", backoffLimit=3))
    plane.kubectl("label", "-n", namespace, f"tfjobs.{other}.kubeflow.org/demo", "a=b")
    after = plane.call("GET", f"{path('v1', namespace)}/demo")

    assert made["spec"]["trainwright"] == {"defaults": version}
    assert made["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] == DEFAULTS[version]
    assert (after["spec"], after["metadata"]["labels"]) == (made["spec"], {"a": "b"})
    assert after["metadata"]["generation"] == 1


def test_get_shows_the_last_condition(plane: ControlPlane, namespace: str) -> None:
    plane.call("POST", path("v1", namespace), tfjob("v1"))
    conditions = [{"type": kind, "status": "True"} for kind in ("Created", "Running")]
    plane.call("PATCH", f"{path('v1', namespace)}/demo/status", {"status": {"conditions": conditions}})

    for version in VERSIONS:
        head, row = plane.kubectl("get", "-n", namespace, f"tfjobs.{version}.kubeflow.org").stdout.splitlines()
        assert head.split() == ["NAME", "STATE", "AGE", "REASON"]
        assert row.split()[:2] == ["demo", "Running"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tfReplicaSpecs": {"Wroker": tfjob("v1")["spec"]["tfReplicaSpecs"]["PS"]}}, "may only have the types"),
        ({"tfReplicaSpecs": {"worker": tfjob("v1")["spec"]["tfReplicaSpecs"]["PS"]}}, "may have Worker once"),
        ({"tfReplicaSpecs": {"Worker": {"replicas": -1}}}, "should be greater than or equal to 0"),
        ({"runPolicy": {"managedBy": "kubeflow.org/training-operator"}}, "managedBy is immutable"),
    ],
    ids=["unknown type", "one type twice", "negative", "managedBy"],
)
def test_what_cannot_be_right_is_refused(
    plane: ControlPlane, namespace: str, change: dict[str, Any], said: str
) -> None:
    plane.call("POST", path("v1", namespace), tfjob("v1"))

    with pytest.raises(Exception, match=said):
        plane.call("PATCH", f"{path('v1', namespace)}/demo", {"spec": change})
