# SPDX-License-Identifier: Apache-2.0
"""Terms of ours for a pod's node, beside the user's own. `quarantine` names them, `render` adds them to the pod.

Replica → the objects to create. The kind's dialect spells them; here they get what all kinds share.

That is: name, namespace, owner, and our own labels, by which informers find children and `observe` places them.
Bodies share the user's template where nothing differs; whoever carries a plan out must not edit them.
"""

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

import msgspec

from trainwright.model.job import Body, Job, Replica
from trainwright.model.meta import ATTEMPT, DIGEST, INDEX, JOB_UID, KIND, PLACES, ROLE, SPARE, WORLD, Owner
from trainwright.model.plan import Create
from trainwright.model.site import Site

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def merged(spec: Body, wanted: Body) -> Body:
    """A pod's spec with these terms beside the user's own: of their alternatives each gets the demand."""
    affinity: Mapping[str, Any] = spec.get("affinity") or {}
    given: Mapping[str, Any] = affinity.get("nodeAffinity") or {}
    node = dict(given)
    if PREFERRED in wanted:
        node[PREFERRED] = [*(given.get(PREFERRED) or ()), *wanted[PREFERRED]]
    if REQUIRED in wanted:
        ours = wanted[REQUIRED]["nodeSelectorTerms"][0]["matchExpressions"]
        theirs = (given.get(REQUIRED) or {}).get("nodeSelectorTerms")
        node[REQUIRED] = {"nodeSelectorTerms": [_both(one, ours) for one in theirs]} if theirs else wanted[REQUIRED]
    return {**spec, "affinity": {**affinity, "nodeAffinity": node}}


def _both(term: Body, ours: list[Body]) -> Body:
    """An alternative that asks for nothing matches no node, and stays so."""
    if not (term.get("matchExpressions") or term.get("matchFields")):
        return term
    return {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *ours]}


#: What the containers of a spare wait for; its name is all that people see of the reason.
_NEVER: Body = {"configMapRef": {"name": "trainwright.spare-holds-a-place-for-growth"}}


def pod(job: Job, replica: Replica, site: Site, terms: Body | None = None) -> Create:
    """The pod of a replica, of its current attempt, with terms for its node besides the user's own."""
    body = job.dialect.pod(job, replica, site)
    ours = _labels(job, replica) | {ATTEMPT: str(replica.attempt)}
    metadata = _metadata(job, replica.name, body.get("metadata", {}), ours)
    spec = merged(body["spec"], terms) if terms else body["spec"]
    return Create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def spare(job: Job, replica: Replica, site: Site, terms: Body) -> Create:
    """A pod that takes the place of a replica and runs nothing: all its containers wait for what nobody makes."""
    spec = job.dialect.pod(job, replica, site)["spec"]
    given = replica.role.template.get("metadata") or {}
    metadata = _metadata(job, replica.name, {**given, "finalizers": []}, _labels(job, replica) | {ATTEMPT: SPARE})
    idle = {
        part: [{**one, "envFrom": [*(one.get("envFrom") or ()), _NEVER]} for one in spec[part]]
        for part in ("initContainers", "containers")
        if spec.get(part)
    }
    spec = merged({**spec, **idle}, terms) if terms else {**spec, **idle}
    return Create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def service(job: Job, replica: Replica, site: Site) -> Create:
    """The headless service of a replica: its name resolves as soon as the pod has an address, ready or not."""
    body = job.dialect.service(job, replica, site)
    metadata = _metadata(job, replica.name, body.get("metadata", {}), _labels(job, replica))
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True} | body["spec"]
    return Create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})


def extra(job: Job, body: Body, places: str = "") -> Create:
    """A child of the whole job, with a digest of what it was made from; a gate, with where the pods are."""
    given = body.get("metadata", {})
    ours = {KIND: job.kind, JOB_UID: job.uid}
    metadata = _metadata(job, address(job, body)[2], given, ours)
    metadata["annotations"] = metadata.get("annotations", {}) | {DIGEST: digest(body)}
    if body["kind"] == "ConfigMap" and any(role.gate == metadata["name"] for role in job.roles):
        metadata["annotations"] |= {WORLD: job.world} | ({PLACES: places} if places else {})
    return Create(body | {"metadata": metadata})


def address(job: Job, body: Body) -> tuple[str, str, str]:
    """API, kind and name of a child of the whole job; unless it says otherwise it is called like the job."""
    return body["apiVersion"], body["kind"], body.get("metadata", {}).get("name", job.key.name)


def digest(body: Body) -> str:
    """A short fingerprint of a body, whatever the order of its keys."""
    return blake2b(msgspec.json.encode(body, order="deterministic"), digest_size=8).hexdigest()


def _labels(job: Job, replica: Replica) -> dict[str, str]:
    return {KIND: job.kind, JOB_UID: job.uid, ROLE: replica.role.name, INDEX: str(replica.index)}


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
    """The owner as children name it, spelled once per job: a thousand pods name the same one."""
    return MappingProxyType(msgspec.to_builtins(owner))
