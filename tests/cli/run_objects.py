# SPDX-License-Identifier: Apache-2.0
"""Jobs, pods in every state, and events, as a run reads them from the store."""

from typing import Any

from trainwright.model.job import Body
from trainwright.model.meta import ATTEMPT, INDEX, JOB_UID, KIND, ROLE

UID = "11111111-0000-4000-8000-000000000000"
STARTED = "2026-11-15T20:00:00Z"


def job(name: str = "demo", *, namespace: str = "default", uid: str = UID, **more: Any) -> Body:
    """A GenericJob of two workers; `status` and `spec` go where they belong."""
    worker = {"type": "worker", "replicas": 2, "template": template()}
    return {
        "apiVersion": "batch.tensorstack.dev/v1beta1",
        "kind": "GenericJob",
        "metadata": {"name": name, "namespace": namespace, "uid": uid, "generation": more.pop("generation", 1)},
        "spec": {"replicaSpecs": more.pop("roles", [worker]), **more.pop("spec", {})},
        **more,
    }


def role(name: str, replicas: int, **more: Any) -> Body:
    """One entry of `replicaSpecs`."""
    return {"type": name, "replicas": replicas, "template": template(), **more}


def template(**spec: Any) -> Body:
    """A pod template with one container."""
    return {"spec": {"containers": [{"name": "main", "image": "busybox", "command": ["true"]}], **spec}}


def status(phase: str, **ledger: Any) -> Body:
    """A job's status."""
    return {"phase": phase, "trainwright": {"phase": phase, **ledger}}


def pod(
    replica: str = "worker-0",
    phase: str = "Running",
    *,
    owner: Body | None = None,
    uid: str = "",
    attempt: int = 0,
    containers: list[Body] | None = None,
    spec: Body | None = None,
    meta: Body | None = None,
    **status: Any,
) -> Body:
    """A pod of a job; `containers` are its containerStatuses."""
    whole = owner or job()
    name, index = replica.rsplit("-", 1)
    labels = {KIND: "genericjob", JOB_UID: whole["metadata"]["uid"], ROLE: name, INDEX: index, ATTEMPT: str(attempt)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{whole['metadata']['name']}-{replica}",
            "namespace": whole["metadata"]["namespace"],
            "uid": uid or f"{attempt:08d}-{replica}",
            "labels": labels,
            "creationTimestamp": STARTED,
            "ownerReferences": [{"name": whole["metadata"]["name"], "controller": True}],
            **(meta or {}),
        },
        "spec": {"nodeName": "node-0", "containers": [{"name": "main"}], **(spec or {})},
        "status": {"phase": phase, "containerStatuses": containers or [], **status},
    }


def container(state: str, name: str = "main", *, restarts: int = 0, ready: bool = True, **more: Any) -> Body:
    """A containerStatus in one of the three states."""
    return {"name": name, "restartCount": restarts, "ready": ready, "state": {state: more or {"startedAt": STARTED}}}


def ended(code: int, name: str = "main", **more: Any) -> Body:
    """A container that has ended."""
    return container("terminated", name, exitCode=code, ready=False, **more)


def event(about: Body, reason: str, message: str, kind: str = "Normal") -> Body:
    """An event about an object."""
    meta = about["metadata"]
    involved = {"kind": about["kind"], "namespace": meta["namespace"], "name": meta["name"]}
    return {"kind": "Event", "involvedObject": involved, "type": kind, "reason": reason, "message": message}
