# SPDX-License-Identifier: Apache-2.0
"""Calls of the official Python client and of Kubeflow's TrainingClient for jobs, and what they return.

`python_main` runs these with an interpreter that has the clients. Nothing of Trainwright is imported here.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from kubeflow.training import TrainingClient, models
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


class Shape(NamedTuple):
    """A kind of Kubeflow v1: the container that trains, the argument with its replicas, and the replicas by type."""

    container: str
    specs: str
    types: dict[str, int]


#: The kinds of Kubeflow's client.
KUBEFLOW = {
    "TFJob": Shape("tensorflow", "tf_replica_specs", {"Worker": 2}),
    "XGBoostJob": Shape("xgboost", "xgb_replica_specs", {"Master": 1, "Worker": 1}),
    "JAXJob": Shape("jax", "jax_replica_specs", {"Worker": 2}),
    "PyTorchJob": Shape("pytorch", "pytorch_replica_specs", {"Master": 1, "Worker": 1}),
    "PaddleJob": Shape("paddle", "paddle_replica_specs", {"Worker": 2}),
}


def training(namespace: str) -> Result:
    """Kubeflow's client with a job of each kind, at the same time."""
    with ThreadPoolExecutor(len(KUBEFLOW)) as pool:
        return dict(zip(KUBEFLOW, pool.map(lambda kind: _trained(namespace, kind), KUBEFLOW), strict=True))


def _trained(namespace: str, kind: str) -> Result:
    """Create, list, wait for, read the logs of, change and delete a job."""
    api = TrainingClient(config_file=os.environ["KUBECONFIG"], namespace=namespace, job_kind=kind)
    shape, name = KUBEFLOW[kind], f"trained-{kind.lower()}"
    body = _training_job(kind, client.V1ObjectMeta(name=name, namespace=namespace))
    api.create_job(body)
    again = _failure(lambda: api.create_job(body))
    api.wait_for_job_conditions(name, expected_conditions={"Running", "Succeeded"}, wait_timeout=60, polling_interval=1)
    followed, _ = api.get_job_logs(name, is_master=False, follow=True)
    job = api.wait_for_job_conditions(name, wait_timeout=60, polling_interval=1)
    last = shape.types["Worker"] - 1
    logs, events = api.get_job_logs(name, is_master=False, replica_type="worker", replica_index=last, verbose=True)
    found = {
        "again": again,
        "followed": followed,
        "kind": job.kind,
        "conditions": [[one.type, one.status, one.reason] for one in api.get_job_conditions(name)],
        "succeeded": [api.is_job_succeeded(name), api.is_job_failed(name), api.is_job_running(name)],
        "statuses": sorted(job.status.replica_statuses),
        "listed": [one.metadata.name for one in api.list_jobs()],
        "pods": sorted(api.get_job_pod_names(name)),
        "master": api.get_job_pod_names(name, is_master=True),
        "logs": logs,
        "events": sorted(one for one in events if one.startswith(kind)),
    }
    job.metadata.annotations = {**(job.metadata.annotations or {}), "note": "seen"}
    job.metadata.resource_version = None
    api.update_job(job, name)
    noted = api.get_job(name).metadata.annotations["note"]
    api.delete_job(name)
    return {**found, "noted": noted, "gone": _failure(lambda: api.get_job(name)), "left": len(api.list_jobs())}


def _training_job(kind: str, metadata: client.V1ObjectMeta) -> Any:
    """A job of two replicas, as an object of Kubeflow's models."""
    shape = KUBEFLOW[kind]
    template = _template("for i in 1 2 3; do echo step $i; sleep 0.7; done", shape.container)
    replicas = {
        type_: models.KubeflowOrgV1ReplicaSpec(replicas=count, restart_policy="Never", template=template)
        for type_, count in shape.types.items()
    }
    policy = models.KubeflowOrgV1RunPolicy(clean_pod_policy="None")
    spec = getattr(models, f"KubeflowOrgV1{kind}Spec")(run_policy=policy, **{shape.specs: replicas})
    whole = {"api_version": "kubeflow.org/v1", "kind": kind, "metadata": metadata, "spec": spec}
    return getattr(models, f"KubeflowOrgV1{kind}")(**whole)


def _failure(call: Any) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""
