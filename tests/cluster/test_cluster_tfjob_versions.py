# SPDX-License-Identifier: Apache-2.0
"""TFJobs of both versions on a real API server: what is stamped and refused, and that neither changes the other."""

import asyncio
import json
from typing import Any

import pytest
from cluster_client import RefusedError
from cluster_plane import ControlPlane

from trainwright.kube.cluster import connected
from trainwright.kube.config import ConnectionOptions, load
from trainwright.model.meta import Key
from trainwright.runtime.ports import JOBS

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


@pytest.mark.parametrize("version", VERSIONS)
def test_a_status_takes_no_field_from_those_who_applied_the_job(
    plane: ControlPlane, namespace: str, version: str
) -> None:
    text = json.dumps(tfjob(version, cleanPodPolicy="All") | {"metadata": {"name": "demo", "labels": {"a": "b"}}})
    plane.kubectl("apply", "-n", namespace, "--server-side", "-f", "-", given=text)
    where = f"{path('v1', namespace)}/demo"
    before = plane.call("GET", where)["metadata"]["managedFields"]

    async def store() -> None:
        async with connected(load(ConnectionOptions(kubeconfig=str(plane.kubeconfig())))) as cluster:
            document = await cluster.get(JOBS["tfjob"], Key(namespace, "demo"))
            await cluster.replace_status(JOBS["tfjob"], {**document, "status": {"startTime": "2026-11-17T12:00:00Z"}})

    asyncio.run(store())
    after = plane.call("GET", where)
    assert after["status"] == {"startTime": "2026-11-17T12:00:00Z"}
    assert [one for one in after["metadata"]["managedFields"] if "subresource" not in one] == before


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


TYPES = "tfReplicaSpecs may only have the types Chief, Evaluator, Master, PS, Worker"
CHIEFS = "must not have more than 1 Chief or Master role"
NONE = "tfReplicaSpecs must have at least one replica in all"


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ({"Worker": 1}, ""),
        ({"worker": 1, "pS": 1, "CHIEF": 1, "eval": 0}, ""),
        ({"wor\u212aer": 1}, ""),  # the Kelvin sign, which is a K in another case
        ({"Master": 1, "Worker": 1, "PS": 1, "Evaluator": 1}, ""),
        ({"Worker": 0, "PS": 1}, ""),
        ({"Worker": 1, "worker": 1}, "tfReplicaSpecs may have Worker once"),
        ({"Eval": 1, "Evaluator": 1}, "tfReplicaSpecs may have Evaluator once"),
        ({"chief": 1, "master": 1}, CHIEFS),
        ({"Chief": 1, "Master": 1}, CHIEFS),
        ({"Chief": 1, "Workers": 1}, TYPES),
        ({"": 1}, TYPES),
        ({"Worker": 0, "PS": 0}, NONE),
        ({"Other": 0, "PS": 0, "ps": 0}, f"{TYPES}; tfReplicaSpecs may have PS once; {NONE}"),
    ],
    ids=ascii,
)
@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_rules_say_to_every_spelling_of_types(
    plane: ControlPlane, namespace: str, version: str, types: dict[str, int], said: str
) -> None:
    replica = tfjob(version)["spec"]["tfReplicaSpecs"]["Worker"]
    specs = {name: replica | {"replicas": count} for name, count in types.items()}
    answer = ""
    try:
        plane.call("POST", f"{path(version, namespace)}?dryRun=All", tfjob(version, tfReplicaSpecs=specs))
    except RefusedError as error:
        answer = json.loads(str(error).removeprefix("422: "))["message"]

    assert answer.endswith(said)
    assert bool(answer) == bool(said)


MANAGED = "spec.runPolicy.managedBy is immutable"
QUEUE = "spec.runPolicy.schedulingPolicy.queue is immutable"
MANAGER = {"managedBy": "kubeflow.org/training-operator"}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (None, {"suspend": True}, ""),
        (MANAGER, MANAGER | {"suspend": True}, ""),
        (None, MANAGER, MANAGED),
        (MANAGER, None, MANAGED),
        ({}, {"schedulingPolicy": {"queue": "a"}}, ""),
        ({"schedulingPolicy": {"queue": "a"}}, {"schedulingPolicy": {"queue": ""}}, ""),
        ({"schedulingPolicy": {"queue": "a"}}, None, ""),
        ({"schedulingPolicy": {"queue": "a"}}, {"schedulingPolicy": {"queue": "b"}}, QUEUE),
        (
            {"schedulingPolicy": {"queue": "a"}},
            MANAGER | {"schedulingPolicy": {"queue": "b"}},
            f"{MANAGED}; {QUEUE}",
        ),
    ],
    ids=str,
)
def test_what_the_rules_say_to_every_edit_of_a_run_policy(
    plane: ControlPlane, namespace: str, before: dict[str, Any] | None, after: dict[str, Any] | None, said: str
) -> None:
    given = {} if before is None else {"runPolicy": before}
    made = plane.call("POST", path("v1", namespace), tfjob("v1", **given))
    del made["spec"]["trainwright"]
    spec = {name: value for name, value in made["spec"].items() if name != "runPolicy"}
    edited = {**made, "spec": spec | ({} if after is None else {"runPolicy": after})}
    answer = ""
    try:
        plane.call("PUT", f"{path('v1', namespace)}/demo", edited)
    except RefusedError as error:
        answer = json.loads(str(error).removeprefix("422: "))["message"]

    assert answer.endswith(said)
    assert bool(answer) == bool(said)
