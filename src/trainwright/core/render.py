# SPDX-License-Identifier: Apache-2.0
"""Build the objects to create for a replica or a job.

The kind's dialect builds the body. This module adds what all kinds share: name, namespace, owner, our labels, and node
affinity. Bodies share parts with the user's template, so an executor must not change them.
"""

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

import msgspec

from trainwright.model.job import Body, Job, Replica
from trainwright.model.meta import ADDRESS_HASHES, ATTEMPT, DIGEST, INDEX, JOB_UID, KIND, ROLE, SPARE, WORLD, Owner
from trainwright.model.plan import Create
from trainwright.model.site import Site

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def with_node_terms(spec: Body, wanted: Body) -> Body:
    """Return the pod spec with our node affinity. Each of the user's `nodeSelectorTerms` gets our expressions."""
    affinity: Mapping[str, Any] = spec.get("affinity") or {}
    given: Mapping[str, Any] = affinity.get("nodeAffinity") or {}
    node = dict(given)
    if PREFERRED in wanted:
        node[PREFERRED] = [*(given.get(PREFERRED) or ()), *wanted[PREFERRED]]
    if REQUIRED in wanted:
        ours = wanted[REQUIRED]["nodeSelectorTerms"][0]["matchExpressions"]
        theirs = (given.get(REQUIRED) or {}).get("nodeSelectorTerms")
        node[REQUIRED] = (
            {"nodeSelectorTerms": [_with_expressions(one, ours) for one in theirs]} if theirs else wanted[REQUIRED]
        )
    return {**spec, "affinity": {**affinity, "nodeAffinity": node}}


def _with_expressions(term: Body, ours: list[Body]) -> Body:
    """Add expressions to a term. An empty term matches no node and stays empty."""
    if not (term.get("matchExpressions") or term.get("matchFields")):
        return term
    return {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *ours]}


#: The ConfigMap that containers of a spare wait for. Its name explains to users why the pod waits.
_MISSING_CONFIG_MAP: Body = {"configMapRef": {"name": "trainwright.spare-holds-a-place-for-growth"}}


def pod(job: Job, replica: Replica, site: Site, terms: Body | None = None) -> Create:
    """Return the pod of a replica with its current attempt."""
    body = job.dialect.pod(job, replica, site)
    metadata = _metadata(job, replica.name, body.get("metadata", {}), _pod_labels(job, replica, str(replica.attempt)))
    spec = with_node_terms(body["spec"], terms) if terms else body["spec"]
    return Create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def spare(job: Job, replica: Replica, site: Site, terms: Body) -> Create:
    """Return a pod that reserves a node for a replica and runs nothing: its containers wait for a missing ConfigMap."""
    spec = job.dialect.pod(job, replica, site)["spec"]
    given = replica.role.template.get("metadata") or {}
    metadata = _metadata(job, replica.name, {**given, "finalizers": []}, _pod_labels(job, replica, SPARE))
    idle = {
        part: [{**one, "envFrom": [*(one.get("envFrom") or ()), _MISSING_CONFIG_MAP]} for one in spec[part]]
        for part in ("initContainers", "containers")
        if spec.get(part)
    }
    spec = with_node_terms({**spec, **idle}, terms) if terms else {**spec, **idle}
    return Create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def service(job: Job, replica: Replica, site: Site) -> Create:
    """Return the headless service of a replica. Its name resolves before the pod is ready."""
    body = job.dialect.service(job, replica, site)
    metadata = _metadata(job, replica.name, body.get("metadata", {}), _labels(job, replica))
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True} | body["spec"]
    return Create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})


def extra(job: Job, body: Body, places: str = "") -> Create:
    """Return a child of the whole job, annotated with a digest; a gate also with its attempt and address hashes."""
    given = body.get("metadata", {})
    ours = {KIND: job.kind, JOB_UID: job.uid}
    metadata = _metadata(job, extra_key(job, body)[2], given, ours)
    metadata["annotations"] = metadata.get("annotations", {}) | {DIGEST: digest(body)}
    if body["kind"] == "ConfigMap" and any(role.gate == metadata["name"] for role in job.roles):
        metadata["annotations"] |= {WORLD: job.world} | ({ADDRESS_HASHES: places} if places else {})
    return Create(body | {"metadata": metadata})


def extra_key(job: Job, body: Body) -> tuple[str, str, str]:
    """Return API, kind and name of a child of the whole job. The default name is the name of the job."""
    return body["apiVersion"], body["kind"], body.get("metadata", {}).get("name", job.key.name)


def digest(body: Body) -> str:
    """Return a short hash of a body, independent of key order."""
    return blake2b(msgspec.json.encode(body, order="deterministic"), digest_size=8).hexdigest()


def _labels(job: Job, replica: Replica) -> dict[str, str]:
    return {KIND: job.kind, JOB_UID: job.uid, ROLE: replica.role.name, INDEX: str(replica.index)}


def _pod_labels(job: Job, replica: Replica, attempt: str) -> dict[str, str]:
    """Return the labels of a pod. This repeats `_labels`, because merging two dictionaries for each pod is slower."""
    index = str(replica.index)
    return {KIND: job.kind, JOB_UID: job.uid, ROLE: replica.role.name, INDEX: index, ATTEMPT: attempt}


def _metadata(job: Job, name: str, given: dict[str, Any], ours: dict[str, str]) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": job.key.namespace,
        "labels": (given.get("labels") or {}) | ours,
        "ownerReferences": [_owner(job.owner).copy()],
    }
    for key in ("annotations", "finalizers"):
        if given.get(key):
            metadata[key] = given[key]
    return metadata


@lru_cache(maxsize=64)
def _owner(owner: Owner) -> MappingProxyType[str, Any]:
    """Return the owner reference of a job, cached because all children share it."""
    return MappingProxyType(msgspec.to_builtins(owner))
