# SPDX-License-Identifier: Apache-2.0
"""The jobs that are measured, one shape for each kind: workers that only wait for some seconds.

A shape also says where a kind has its replicas, its template and its phase.
"""

from collections.abc import Callable
from typing import Any

from cluster_pods import PREFIX
from msgspec import Struct

from trainwright.kinds.registry import KINDS
from trainwright.runtime.ports import JOBS, Resource

Body = dict[str, Any]


class Shape(Struct, frozen=True):
    """One kind: how to build a spec from a number of workers and a template, and how to find these in a spec."""

    kind: str
    spec: Callable[[int, Body], Body]
    worker: Callable[[Body], Body]
    #: The part of its status that the floor writes in addition to the ledger.
    status: Callable[[str, list[str]], Body]
    container: str = "main"
    #: An event reports that a job runs.
    has_running_event: bool = True
    #: Every worker has a service; otherwise the job has a ConfigMap with its workers' addresses.
    services: bool = True

    @property
    def resource(self) -> Resource:
        """Return the API resource of the kind."""
        return JOBS[self.kind]

    def phase(self, document: Body) -> str:
        """Return the phase from our ledger, or else the phase that another operator's conditions mean."""
        status = document.get("status") or {}
        ours = (status.get("trainwright") or {}).get("phase")
        return ours or next(kind.phase_of(status) for kind in KINDS if kind.singular == self.kind)

    def manifest(self, name: str, pods: int, runs: str) -> Body:
        """Return a job whose pods do nothing for some seconds."""
        container = {"name": self.container, "image": "none", "command": ["true"]}
        template = {"metadata": {"annotations": {f"{PREFIX}runs": runs}}, "spec": {"containers": [container]}}
        head = {"apiVersion": self.resource.api_version, "kind": self.resource.kind, "metadata": {"name": name}}
        return {**head, "spec": self.spec(pods, template)}


TIME = "2026-11-16T12:00:00Z"
_WORD = {"status": "True", "reason": "-", "message": "All pods are running normally.", "lastTransitionTime": TIME}


def _generic_status(phase: str, names: list[str]) -> Body:
    container = {"name": "main", "state": phase}
    uid = "0" * 36
    return {
        "phase": phase,
        "conditions": [{"type": word, **_WORD} for word in ("Initialized", "Running", "ReplicaFailure")],
        "tasks": [
            {
                "type": "worker",
                "replicas": [{"name": n, "uid": uid, "phase": phase, "containers": [container]} for n in names],
            }
        ],
        "aggregate": dict.fromkeys(("creating", "pending", "running", "succeeded", "failed"), 0),
    }


def _tf_status(phase: str, names: list[str]) -> Body:
    words = {"Pending": ("Created",), "Running": ("Created", "Running")}.get(phase, ("Created", "Running", phase))
    moved = {**_WORD, "lastUpdateTime": TIME}
    return {
        "conditions": [{"type": word, **moved} for word in words],
        "replicaStatuses": {"Worker": {"active": len(names), "selector": "a=b"}},
        "startTime": TIME,
    }


def _paddle_status(phase: str, names: list[str]) -> Body:
    refs = [
        {"kind": "Pod", "apiVersion": "v1", "namespace": "default", "name": name, "uid": "0" * 36} for name in names
    ]
    worker = {phase.lower(): len(names), "refs": refs} if phase != "Pending" else {"pending": len(names)}
    return {"phase": phase, "mode": "Collective", "worker": worker, "conditions": [{"type": "Running", **_WORD}]}


def _training_status(phase: str, names: list[str]) -> Body:
    moved = {**_WORD, "lastProbeTime": TIME}
    words = {"Pending": ("Pending",), "Running": ("Pending", "Running")}.get(phase, ("Pending", "Running", "Succeed"))
    return {
        "phase": words[-1],
        "conditions": [{"type": word, **moved} for word in words],
        "replicaStatuses": {"worker": {"active": len(names)}},
        "RestartReplicaName": "",
        "startTime": TIME,
    }


SHAPES = {
    shape.kind: shape
    for shape in (
        Shape(
            "genericjob",
            lambda pods, template: {
                "replicaSpecs": [{"type": "worker", "replicas": pods, "template": template}],
                "service": {"ports": [{"name": "http", "port": 80}]},
            },
            lambda spec: spec["replicaSpecs"][0],
            _generic_status,
        ),
        Shape(
            "tfjob",
            lambda pods, template: {
                "successPolicy": "AllWorkers",
                "runPolicy": {"cleanPodPolicy": "None"},
                "tfReplicaSpecs": {"Worker": {"replicas": pods, "restartPolicy": "Never", "template": template}},
            },
            lambda spec: spec["tfReplicaSpecs"]["Worker"],
            _tf_status,
            "tensorflow",
            has_running_event=False,
        ),
        Shape(
            "pytorchjob",
            lambda pods, template: {
                "runPolicy": {"cleanPodPolicy": "None"},
                "pytorchReplicaSpecs": {"Worker": {"replicas": pods, "restartPolicy": "Never", "template": template}},
            },
            lambda spec: spec["pytorchReplicaSpecs"]["Worker"],
            _tf_status,
            "pytorch",
            has_running_event=False,
        ),
        Shape(
            "paddlejob",
            lambda pods, template: {"cleanPodPolicy": "Never", "worker": {"replicas": pods, "template": template}},
            lambda spec: spec["worker"],
            _paddle_status,
            "paddle",
            services=False,
        ),
        Shape(
            "aitrainingjob",
            lambda pods, template: {
                "cleanPodPolicy": "None",
                "replicaSpecs": {"worker": {"replicas": pods, "template": template}},
            },
            lambda spec: spec["replicaSpecs"]["worker"],
            _training_status,
            "aitj-main",
        ),
    )
}
