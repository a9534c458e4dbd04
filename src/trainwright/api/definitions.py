# SPDX-License-Identifier: Apache-2.0
"""The CustomResourceDefinitions of jobs, PodGroups and Queues, which clients can read. They never change."""

import hashlib
from datetime import datetime

from trainwright.api.columns import CUSTOM_COLUMNS
from trainwright.api.field_labels import JOB_PHASE
from trainwright.api.queues import SCHEMA
from trainwright.crd.schema import column, crd
from trainwright.errors import NotFoundError
from trainwright.kinds.registry import KINDS
from trainwright.local.storage.selectors import compiled
from trainwright.model.job import Body
from trainwright.model.units import rfc3339
from trainwright.runtime.ports import DEFINITIONS, POD_GROUPS, QUEUES, Resource, Selection


class Definitions:
    """The definitions as objects: with a UID that is the same after a restart, and the time of the engine's start."""

    def __init__(self, started: datetime) -> None:
        jobs, others = (_with_selectable(crd(kind)) for kind in KINDS), (_custom(one) for one in (POD_GROUPS, QUEUES))
        self._all = {body["metadata"]["name"]: _definition(body, started) for body in (*jobs, *others)}

    def get(self, name: str) -> Body:
        """One definition."""
        if name not in self._all:
            raise NotFoundError(f"{DEFINITIONS.id} {name!r} not found")
        return self._all[name]

    def list(self, scope: Selection) -> tuple[Body, ...]:
        """The definitions that a scope selects, sorted by name."""
        test = compiled(scope)
        return tuple(body for _, body in sorted(self._all.items()) if test is None or test(body))


def _with_selectable(body: Body) -> Body:
    """The definition of a kind of job, with the field by which clients can select jobs."""
    selectable = [{"jsonPath": f".{JOB_PHASE}"}]
    versions = [{**one, "selectableFields": selectable} for one in body["spec"]["versions"]]
    return {**body, "spec": {**body["spec"], "versions": versions}}


def _custom(resource: Resource) -> Body:
    """The definition of a custom resource that is no job. A PodGroup may have any field."""
    names = {"plural": resource.plural, "singular": resource.kind.lower(), "kind": resource.kind}
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [column(one) for one in CUSTOM_COLUMNS[resource.id]],
        "schema": {"openAPIV3Schema": SCHEMA if resource.id == QUEUES.id else anything},
    }
    return {
        "apiVersion": DEFINITIONS.api_version,
        "kind": DEFINITIONS.kind,
        "metadata": {"name": resource.id},
        "spec": {
            "group": resource.group,
            "names": names | {"listKind": f"{resource.kind}List"},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def _definition(body: Body, started: datetime) -> Body:
    names, time = body["spec"]["names"], rfc3339(started)
    digits = hashlib.sha256(body["metadata"]["name"].encode()).hexdigest()
    uid = f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:32]}"
    conditions = [
        {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found"},
        {"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "message": "accepted"},
    ]
    stored = [one["name"] for one in body["spec"]["versions"] if one["storage"]]
    return {
        **body,
        "metadata": {
            **body["metadata"],
            "uid": uid,
            "resourceVersion": "1",
            "generation": 1,
            "creationTimestamp": time,
        },
        "status": {
            "acceptedNames": names,
            "conditions": [{**one, "lastTransitionTime": time} for one in conditions],
            "storedVersions": stored,
        },
    }
