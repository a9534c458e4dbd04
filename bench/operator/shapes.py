# SPDX-License-Identifier: Apache-2.0
"""The jobs that are measured, one shape for each kind: so many workers that do nothing for a while.

`drive` submits them; `floor` reads from a shape where a kind keeps its replicas, its template and its phase.
"""

from collections.abc import Callable
from typing import Any

from cluster_pods import PREFIX
from msgspec import Struct

from trainwright.kinds.registry import KINDS
from trainwright.runtime.ports import JOBS, Resource

Body = dict[str, Any]


class Shape(Struct, frozen=True):
    """One kind: its spec for so many workers of a template, and where that is found again."""

    kind: str
    spec: Callable[[int, Body], Body]
    worker: Callable[[Body], Body]
    #: Of its status: what the floor writes beside the ledger.
    status: Callable[[str, list[str]], Body]
    container: str = "main"
    #: Every worker has a service; else the job has a config map with its workers' addresses.
    services: bool = True

    @property
    def resource(self) -> Resource:
        """Where its jobs are."""
        return JOBS[self.kind]

    def phase(self, document: Body) -> str:
        """Where a job is, in our words; else as another operator has it in its conditions."""
        status = document.get("status") or {}
        ours = (status.get("trainwright") or {}).get("phase")
        return ours or next(kind.phase_of(status) for kind in KINDS if kind.singular == self.kind)

    def manifest(self, name: str, pods: int, runs: str) -> Body:
        """A job whose pods do nothing for some seconds."""
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
