# SPDX-License-Identifier: Apache-2.0
"""Short functions that make pods, nodes and groups for the scheduler's tests."""

from typing import Any

from trainwright.kinds.gangs import T9K_GROUP_LABEL

_SHORT = {"gpu": "nvidia.com/gpu", "amd": "amd.com/gpu", "disk": "ephemeral-storage"}


def node(
    name: str = "node-0", *, ready: bool = True, labels: dict[str, str] | None = None, **has: Any
) -> dict[str, Any]:
    """A node with 2 CPUs and 4Gi, unless other amounts are given; `gpu` and `disk` are abbreviations."""
    given = {_SHORT.get(key, key): str(value) for key, value in has.items()}
    conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
    allocatable = {"cpu": "2", "memory": "4Gi", "pods": "1000"} | given
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}},
        "status": {"allocatable": allocatable, "capacity": allocatable, "conditions": conditions},
    }


def pod(name: str = "p", *, group: str = "", spec: dict[str, Any] | None = None, **amounts: Any) -> dict[str, Any]:
    """A pod with these requests."""
    requests = {_SHORT.get(key, key): value for key, value in amounts.items()}
    containers = [{"name": "main", "image": "x", "command": ["true"], "resources": {"requests": requests}}]
    labels = {T9K_GROUP_LABEL: group} if group else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"containers": containers} | (spec or {}),
    }
