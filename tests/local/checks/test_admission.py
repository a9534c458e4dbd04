# SPDX-License-Identifier: Apache-2.0
"""Defaults and checks of new and changed objects in the store, as in an API server."""

from base64 import b64encode
from typing import Any

import pytest

from trainwright.errors import InvalidError
from trainwright.local.checks.admission import install
from trainwright.local.storage.metadata import without_nulls
from trainwright.local.storage.store import Store
from trainwright.model.meta import Key
from trainwright.runtime.ports import CLAIMS, CONFIG_MAPS, JOBS, PODS, SECRETS, SERVICES, Resource, WallClock

JOB = JOBS["genericjob"]
TFJOBS = JOBS["tfjob"]
KEY = Key("default", "x")
CONTAINER = {"name": "main", "image": "busybox", "command": ["true"]}


def store() -> Store:
    made = Store(WallClock())
    install(made)
    return made


def body(name: str = "x", **parts: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, **parts}


def job(**spec: Any) -> dict[str, Any]:
    replicas = [{"type": "worker", "template": {"spec": {"containers": [CONTAINER]}}}]
    return body(spec={"replicaSpecs": replicas} | spec)


def refused(resource: Resource, made: dict[str, Any]) -> str:
    with pytest.raises(InvalidError) as error:
        store().create(resource, made)
    return str(error.value)


def test_a_job_is_kept_without_its_nulls() -> None:
    given = job(runMode=None, service={"ports": None})
    given["spec"]["replicaSpecs"][0]["template"]["metadata"] = {"creationTimestamp": None}
    spec = store().create(JOB, given)["spec"]
    assert spec.keys() == {"replicaSpecs", "service"}
    assert spec["service"] == {}
    assert spec["replicaSpecs"][0]["template"]["metadata"] == {}
    assert given["spec"]["runMode"] is None


def test_entries_of_lists_stay_where_they_are() -> None:
    assert without_nulls({"a": [None, {"b": None, "c": 1}], "d": None}) == {"a": [None, {"c": 1}]}


def test_a_job_that_cannot_be_right_is_refused_with_all_that_is_wrong() -> None:
    said = refused(JOB, job(cleanUpPolicy="Sometimes", successRules=[{"worker": ["7"]}], replicaSpecs=[]))
    assert said.startswith("GenericJob 'x' is invalid: ")
    assert "spec.cleanUpPolicy: expected one of" in said
    assert "spec.replicaSpecs: may not be empty" in said


def test_warnings_do_not_keep_a_job_out() -> None:
    assert store().create(JOB, job(unknown=1))["spec"]["unknown"] == 1


def test_what_may_not_be_edited_is_refused() -> None:
    kept = store()
    kept.create(JOB, job())
    resume = {"enabled": True, "resumeSpecs": [{"type": "worker", "command": ["x"]}]}
    with pytest.raises(InvalidError, match=r"spec.runMode.pause.resumeSpecs: cannot be changed"):
        kept.patch(JOB, KEY, {"spec": {"runMode": {"pause": resume}}})
    kept.patch(JOB, KEY, {"spec": {"runMode": {"pause": {"enabled": True}}}})
    with pytest.raises(InvalidError, match=r"spec.runMode.pause.enabled"):
        kept.patch(JOB, KEY, {"spec": {"runMode": {"pause": {"enabled": "yes"}}}})
    assert kept.get(JOB, KEY)["spec"]["runMode"] == {"pause": {"enabled": True}}


def test_a_job_that_is_wrong_already_can_still_be_labelled_and_mended() -> None:
    kept = Store(WallClock())
    kept.create(JOB, job(replicaSpecs=[]))
    install(kept)
    kept.patch(JOB, KEY, {"metadata": {"labels": {"a": "b"}}})
    kept.patch(JOB, KEY, {"status": {"phase": "Failed"}}, status=True)
    with pytest.raises(InvalidError):
        kept.patch(JOB, KEY, {"spec": {"cleanUpPolicy": "All"}})
    kept.patch(JOB, KEY, {"spec": job()["spec"]})


def test_a_status_that_another_version_wrote_does_not_stop_an_edit() -> None:
    kept = store()
    kept.create(JOB, job())
    kept.patch(JOB, KEY, {"status": {"trainwright": {"phase": "Unheard"}}}, status=True)
    assert kept.patch(JOB, KEY, {"spec": {"cleanUpPolicy": "All"}})["spec"]["cleanUpPolicy"] == "All"


def test_a_pod_gets_what_nobody_should_have_to_guess() -> None:
    spec = store().create(PODS, body(spec={"containers": [CONTAINER], "restartPolicy": None}))["spec"]
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Always", 30)
    assert spec["securityContext"] == {}, "kubectl debug reads it"


def test_what_a_pod_says_stays() -> None:
    own = {"restartPolicy": "Never", "securityContext": {"runAsUser": 7}, "terminationGracePeriodSeconds": 0}
    given = {"containers": [CONTAINER], **own}
    made = store().create(PODS, body(spec=given))
    assert made["spec"] is given


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (body("a.b", spec={"containers": [CONTAINER]}), "metadata.name: 'a.b' becomes a host name"),
        (body("a" * 64, spec={"containers": [CONTAINER]}), "at most 63"),
        (body(spec={"containers": []}), "spec.containers: may not be empty"),
        (body(spec={}), "spec.containers: may not be empty"),
        (body(), "spec: expected a mapping, found nothing (null)"),
        (body("a.b", spec={}), "spec.containers"),
    ],
)
def test_a_pod_that_could_not_run_is_refused(made: dict[str, Any], expected: str) -> None:
    assert expected in refused(PODS, made)


def test_a_pod_is_not_looked_at_again() -> None:
    kept = store()
    kept.create(PODS, body(spec={"containers": [CONTAINER]}))
    kept.patch(PODS, KEY, {"metadata": {"labels": {"a": "b"}}})


def test_a_service_has_a_host_name_and_defaults() -> None:
    assert "metadata.name: 'a.b' becomes a host name" in refused(SERVICES, body("a.b", spec={}))
    made = store().create(SERVICES, body(spec={"clusterIP": "None", "ports": [{"port": 80}]}))
    assert made["spec"]["ports"] == [{"protocol": "TCP", "targetPort": 80, "port": 80}]
    assert (made["spec"]["type"], made["spec"]["clusterIPs"]) == ("ClusterIP", ["None"])
    assert made["status"] == {"loadBalancer": {}}


def test_plain_texts_of_a_secret_become_data() -> None:
    old = b64encode(b"old").decode()
    made = store().create(SECRETS, body(stringData={"a": "new", "b": "ü"}, data={"a": old, "c": old}))
    assert made["data"] == {"a": "bmV3", "b": "w7w=", "c": old}
    assert "stringData" not in made


def test_a_secret_can_be_changed_by_plain_text_too() -> None:
    kept = store()
    kept.create(SECRETS, body(data={"a": "YQ=="}))
    assert kept.patch(SECRETS, KEY, {"stringData": {"b": "x"}})["data"] == {"a": "YQ==", "b": "eA=="}


@pytest.mark.parametrize(
    ("resource", "parts", "expected"),
    [
        (SECRETS, {"data": {"a": "plain!"}}, "data.a: expected text in base64; `stringData` takes plain text"),
        (SECRETS, {"data": {"a": 1}}, "data.a: expected text, found the number 1; put it in quotes"),
        (SECRETS, {"stringData": {"a": True}}, "stringData.a: expected text, found true; put it in quotes"),
        (SECRETS, {"data": ["a"]}, "data: expected a mapping, found a list of 1"),
        (CONFIG_MAPS, {"data": {"a": 1.5}}, "data.a: expected text, found the number 1.5; put it in quotes"),
        (CONFIG_MAPS, {"data": {"a": {}}}, "data.a: expected text, found a mapping with 0 keys"),
        (CONFIG_MAPS, {"data": {"a/b": "x"}}, 'data["a/b"]: a key may have letters, digits'),
        (CONFIG_MAPS, {"binaryData": {"a": "?"}}, "binaryData.a: expected text in base64"),
    ],
)
def test_data_that_is_no_text_is_refused(resource: Resource, parts: dict[str, Any], expected: str) -> None:
    assert expected in refused(resource, body(**parts))


def test_a_config_map_is_kept_as_it_is_and_a_claim_gets_defaults() -> None:
    kept = store()
    assert kept.create(CONFIG_MAPS, body(data={"a.txt": "x"}, binaryData={"b": "AA=="}))["data"] == {"a.txt": "x"}
    assert kept.create(CONFIG_MAPS, body("empty"))["metadata"]["name"] == "empty"
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    made = kept.create(CLAIMS, body(spec=claim))
    assert (made["spec"], made["status"]) == ({**claim, "volumeMode": "Filesystem"}, {"phase": "Pending"})


# -- a kind with several versions -------------------------------------------------------------------------------------


def tfjob(version: str, **specs: Any) -> dict[str, Any]:
    trains = {"template": {"spec": {"containers": [CONTAINER | {"name": "tensorflow"}]}}}
    spec = {"tfReplicaSpecs": {"Worker": trains} | specs}
    return body(apiVersion=f"kubeflow.org/{version}", kind="TFJob", spec=spec)


@pytest.mark.parametrize(("version", "policy"), [("v1", "Never"), ("v1alpha2", "Always")])
def test_a_job_of_either_version_is_stored_as_one_with_its_own_defaults(version: str, policy: str) -> None:
    kept = store()
    made = kept.create(TFJOBS, tfjob(version))
    spec = made["spec"]

    assert made["apiVersion"] == "kubeflow.org/v1"
    assert spec["trainwright"] == {"defaults": version}
    assert spec["tfReplicaSpecs"]["Worker"]["restartPolicy"] == policy


def test_a_version_that_is_not_served_is_refused() -> None:
    assert refused(TFJOBS, tfjob("v9")).startswith("apiVersion: 'kubeflow.org/v9'; expected 'kubeflow.org/v1'")


def test_nothing_in_the_place_of_a_replica_is_refused_not_dropped() -> None:
    assert "spec.tfReplicaSpecs.PS: expected a mapping, found nothing (null)" in refused(TFJOBS, tfjob("v1", PS=None))
