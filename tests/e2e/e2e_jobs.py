# SPDX-License-Identifier: Apache-2.0
"""Minimal manifests for end-to-end tests, so that a test shows only what it is about.

Everything is a plain mapping; `Workspace.write` makes a file of it, since JSON is YAML.
"""

from typing import Any

Body = dict[str, Any]


def container(*command: str, name: str = "main", **more: Any) -> Body:
    return {"name": name, "image": "none", "command": list(command), **more}


def shell(script: str, **more: Any) -> Body:
    """A container that runs one line of shell."""
    return container("sh", "-c", script, **more)


def python(program: str, **more: Any) -> Body:
    """A container that runs a Python program with unbuffered output."""
    return container("python3", "-uSc", program, **more)


def role(name: str, *containers: Body, replicas: int = 1, restarts: int | None = None, **pod: Any) -> Body:
    """Replicas of one type. `pod` is added to the template's spec."""
    spec = {"terminationGracePeriodSeconds": 2, "containers": list(containers), **pod}
    policy = {} if restarts is None else {"restartPolicy": {"policy": "OnFailure", "limit": restarts}}
    return {"type": name, "replicas": replicas, "template": {"spec": spec}, **policy}


def job(*roles: Body, name: str = "e2e", port: int | None = None, **spec: Any) -> Body:
    service = {} if port is None else {"service": {"ports": [{"name": "talk", "port": port}]}}
    return {
        "apiVersion": "batch.tensorstack.dev/v1beta1",
        "kind": "GenericJob",
        "metadata": {"name": name},
        "spec": {"replicaSpecs": list(roles), **service, **spec},
    }


def worker(script: str, *, name: str = "e2e", **more: Any) -> Body:
    """A job of one worker that runs one line of shell. `more` goes to its role."""
    return job(role("worker", shell(script), **more), name=name)


def beside(kind: str, name: str, **fields: Any) -> Body:
    """A Secret, a ConfigMap or a PersistentVolumeClaim."""
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **fields}
