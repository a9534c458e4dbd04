# SPDX-License-Identifier: Apache-2.0
"""Calls of the official Python client and of Kubeflow's TrainingClient for jobs, and what they return.

`python_main` runs these with an interpreter that has the clients. Nothing of Trainwright is imported here.
"""

import os
from typing import Any

from kubeflow.training import KubeflowOrgV1ReplicaSpec, KubeflowOrgV1RunPolicy, KubeflowOrgV1TFJob, TrainingClient
from kubeflow.training.models import KubeflowOrgV1TFJobSpec
from kubernetes import client, dynamic, watch
from kubernetes.client.exceptions import ApiException
from python_core import Result, pod, refusal, refused

Body = dict[str, Any]
_GENERIC = ("batch.tensorstack.dev", "v1beta1")
_TF = ("kubeflow.org", "v1")


def _template(script: str, container: str) -> Body:
    body: Body = client.ApiClient().sanitize_for_serialization(pod("", script, "node-0").spec)
    body.pop("restartPolicy")
    body["containers"][0]["name"] = container
    return {"spec": body}


def _jobs() -> dict[str, Body]:
    """One job of each kind, by the plural of its kind."""
    policy = {"policy": "Never", "limit": 0}
    role = {"type": "worker", "replicas": 1, "restartPolicy": policy, "template": _template("exec sleep 1000", "main")}
    tf = {"replicas": 1, "restartPolicy": "Never", "template": _template("exec sleep 1000", "tensorflow")}
    trainer = {"replicas": 1, "template": _template("exec sleep 1000", "aitj-trainer")}
    worker = {"replicas": 1, "template": _template("exec sleep 1000", "paddle")}
    return {
        "genericjobs": _job("batch.tensorstack.dev/v1beta1", "GenericJob", {"replicaSpecs": [role]}),
        "tfjobs": _job("kubeflow.org/v1", "TFJob", {"tfReplicaSpecs": {"Worker": tf}}),
        "paddlejobs": _job("batch.paddlepaddle.org/v1", "PaddleJob", {"worker": worker}),
        "aitrainingjobs": _job("elasticdeeplearning.ai/v1", "AITrainingJob", {"replicaSpecs": {"trainer": trainer}}),
    }


def _job(api_version: str, kind: str, spec: Body) -> Body:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": kind.lower()}, "spec": spec}


def custom_objects(namespace: str) -> Result:
    """Create, get, list, patch, replace and delete a job of each kind."""
    api = client.CustomObjectsApi()
    return {plural: _custom_object(api, namespace, plural, body) for plural, body in _jobs().items()}


def _custom_object(api: client.CustomObjectsApi, namespace: str, plural: str, body: Body) -> Result:
    group, version = body["apiVersion"].split("/")
    where, name = (group, version, namespace, plural), body["metadata"]["name"]
    made = api.create_namespaced_custom_object(*where, body)
    again = refused(api.create_namespaced_custom_object, *where, body)
    _wait_for_status(api, where, name)
    stale = api.get_namespaced_custom_object(*where, name)
    patched = api.patch_namespaced_custom_object(*where, name, {"metadata": {"labels": {"team": "blue"}}})
    conflict = refused(api.replace_namespaced_custom_object, *where, name, stale)
    listed = api.list_namespaced_custom_object(*where, label_selector="team=blue")
    anywhere = api.list_cluster_custom_object(group, version, plural, label_selector="team=blue")
    dry = api.delete_namespaced_custom_object(*where, name, dry_run="All")
    gone = api.delete_namespaced_custom_object(
        *where, name, body=client.V1DeleteOptions(propagation_policy="Background")
    )
    return {
        "made": [made["kind"], made["metadata"]["generation"], "status" in made],
        "again": again,
        "patched": [patched["metadata"]["labels"], patched["metadata"]["generation"]],
        "replaced": _replaced(api, namespace),
        "conflict": conflict,
        "listed": [listed["kind"], [(one["kind"], one["metadata"]["name"]) for one in listed["items"]]],
        "anywhere": [one["metadata"]["name"] for one in anywhere["items"]],
        "dry": dry["kind"],
        "gone": [gone["status"], gone["details"]["name"], gone["details"]["kind"]],
        "absent": refused(api.get_namespaced_custom_object, *where, "absent"),
        "invalid": refused(
            api.create_namespaced_custom_object, *where, {**body, "spec": {"replicaSpecs": 5, "worker": 5}}
        ),
    }


def _wait_for_status(api: client.CustomObjectsApi, where: tuple[str, ...], name: str) -> None:
    """Watch a job until it has a status with conditions or a phase."""
    follower = watch.Watch()
    options = {"field_selector": f"metadata.name={name}", "timeout_seconds": 20}
    for event in follower.stream(api.list_namespaced_custom_object, *where, **options):
        status = event["object"].get("status") or {}
        if status.get("conditions") or status.get("phase"):
            follower.stop()


def _replaced(api: client.CustomObjectsApi, namespace: str) -> list[Any]:
    """Replace a suspended TFJob, whose status nobody else writes, and its status."""
    where, body = (*_TF, namespace, "tfjobs"), _jobs()["tfjobs"]
    body["metadata"]["name"] = "replaced"
    body["spec"]["runPolicy"] = {"suspend": True}
    api.create_namespaced_custom_object(*where, body)
    _wait_for_status(api, where, "replaced")
    found = api.get_namespaced_custom_object(*where, "replaced")
    found["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = 2
    changed = api.replace_namespaced_custom_object(*where, "replaced", found)
    status = api.get_namespaced_custom_object_status(*where, "replaced")["status"]
    patch = {
        "status": {"lastReconcileTime": "2026-01-01T00:00:00Z"},
        "spec": {"tfReplicaSpecs": {"Worker": {"replicas": 7}}},
    }
    noted = api.patch_namespaced_custom_object_status(*where, "replaced", patch)
    api.delete_namespaced_custom_object(*where, "replaced")
    workers = noted["spec"]["tfReplicaSpecs"]["Worker"]["replicas"]
    return [changed["metadata"]["generation"], [one["type"] for one in status["conditions"]], workers]


def dynamic_client(namespace: str) -> Result:
    """The dynamic client, which reads discovery, with a ConfigMap and a GenericJob."""
    api = dynamic.DynamicClient(client.ApiClient())
    maps = api.resources.get(api_version="v1", kind="ConfigMap")
    jobs = api.resources.get(api_version="/".join(_GENERIC), kind="GenericJob")
    body: Body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dynamic"}, "data": {"a": "1"}}
    made = maps.create(body=body, namespace=namespace)
    merge = "application/merge-patch+json"
    patched = maps.patch(body={"data": {"b": "2"}}, name="dynamic", namespace=namespace, content_type=merge)
    body["data"], body["metadata"]["resourceVersion"] = {"c": "3"}, patched.metadata.resourceVersion
    replaced = maps.replace(body=body, name="dynamic", namespace=namespace)
    watched = next(iter(maps.watch(namespace=namespace, field_selector="metadata.name=dynamic", timeout=5)))
    job = jobs.create(body=_jobs()["genericjobs"], namespace=namespace)
    found = {
        "made": made.data.to_dict(),
        "patched": patched.data.to_dict(),
        "replaced": replaced.data.to_dict(),
        "watched": [watched["type"], watched["object"].metadata.name],
        "job": [job.kind, job.metadata.name],
        "status": jobs.status.get(name="genericjob", namespace=namespace).kind,
        "listed": [one.metadata.name for one in jobs.get(namespace=namespace).items],
        "short": [one.kind for one in api.resources.search(short_names=["gj"])],
        "subresources": sorted(jobs.subresources),
        "deleted": jobs.delete(name="genericjob", namespace=namespace).status,
        "absent": _dynamic_refusal(lambda: jobs.get(name="absent", namespace=namespace)),
    }
    maps.delete(name="dynamic", namespace=namespace)
    return found


def server_side_apply(namespace: str) -> Result:
    """Server-side apply with the dynamic client."""
    maps = dynamic.DynamicClient(client.ApiClient()).resources.get(api_version="v1", kind="ConfigMap")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"a": "1"}}
    call = maps.server_side_apply
    return {"code": _dynamic_refusal(lambda: call(body=body, name="applied", namespace=namespace, field_manager="me"))}


def _dynamic_refusal(call: Any) -> Any:
    try:
        return call().kind
    except ApiException as error:
        return refusal(error)


def training(namespace: str) -> Result:
    """Kubeflow's client: create, list, wait for, read the logs of, change and delete a TFJob."""
    api = TrainingClient(config_file=os.environ["KUBECONFIG"], namespace=namespace, job_kind="TFJob")
    script = "for i in 1 2 3; do echo step $i; sleep 0.7; done"
    template = _template(script, "tensorflow")
    spec = KubeflowOrgV1TFJobSpec(
        run_policy=KubeflowOrgV1RunPolicy(clean_pod_policy="None"),
        tf_replica_specs={"Worker": KubeflowOrgV1ReplicaSpec(replicas=2, restart_policy="Never", template=template)},
    )
    metadata = client.V1ObjectMeta(name="trained", namespace=namespace)
    api.create_job(KubeflowOrgV1TFJob(api_version="kubeflow.org/v1", kind="TFJob", metadata=metadata, spec=spec))
    again = _failure(
        lambda: api.create_job(
            KubeflowOrgV1TFJob(api_version="kubeflow.org/v1", kind="TFJob", metadata=metadata, spec=spec)
        )
    )
    api.wait_for_job_conditions(
        "trained", expected_conditions={"Running", "Succeeded"}, wait_timeout=30, polling_interval=1
    )
    followed, _ = api.get_job_logs("trained", is_master=False, follow=True)
    job = api.wait_for_job_conditions("trained", wait_timeout=30, polling_interval=1)
    logs, events = api.get_job_logs("trained", is_master=False, replica_type="worker", replica_index=1, verbose=True)
    found = {
        "again": again,
        "followed": followed,
        "kind": job.kind,
        "conditions": [[one.type, one.status, one.reason] for one in api.get_job_conditions("trained")],
        "succeeded": [api.is_job_succeeded("trained"), api.is_job_failed("trained"), api.is_job_running("trained")],
        "statuses": {name: one.succeeded for name, one in job.status.replica_statuses.items()},
        "listed": [one.metadata.name for one in api.list_jobs()],
        "pods": sorted(api.get_job_pod_names("trained")),
        "master": api.get_job_pod_names("trained", is_master=True),
        "logs": logs,
        "events": sorted(name for name in events if name.startswith("TFJob")),
    }
    job.metadata.annotations = {**(job.metadata.annotations or {}), "note": "seen"}
    job.metadata.resource_version = None
    api.update_job(job, "trained")
    noted = api.get_job("trained").metadata.annotations["note"]
    api.delete_job("trained")
    return {**found, "noted": noted, "gone": _failure(lambda: api.get_job("trained")), "left": len(api.list_jobs())}


def _failure(call: Any) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""
