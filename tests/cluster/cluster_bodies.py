# SPDX-License-Identifier: Apache-2.0
"""What the tests here send to a real API server: bodies as small as they may be."""

from collections.abc import Sequence
from typing import Any

from cluster_pods import PREFIX

Body = dict[str, Any]


def pod(name: str, *, node: str = "", owners: Sequence[Body] = (), **script: Any) -> Body:
    """A pod; `script` is how fake nodes play it: `exit="3"`."""
    notes = {PREFIX + key: value for key, value in script.items()}
    metadata = {"name": name, "annotations": notes, "ownerReferences": list(owners)}
    spec: Body = {"containers": [{"name": "main", "image": "none"}], **({"nodeName": node} if node else {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def job(name: str, **spec: Any) -> Body:
    """A GenericJob of one worker."""
    template = {"spec": {"containers": [{"name": "main", "image": "none"}]}}
    roles = [{"type": "worker", "replicas": 1, "template": template}]
    head = {"apiVersion": "batch.tensorstack.dev/v1beta1", "kind": "GenericJob", "metadata": {"name": name}}
    return {**head, "spec": {"replicaSpecs": roles, **spec}}
