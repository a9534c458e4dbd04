# SPDX-License-Identifier: Apache-2.0
"""The CustomResourceDefinitions of our kinds, which clients can read. They are part of the program and never change."""

import hashlib
from datetime import datetime

from trainwright.api.field_labels import JOB_PHASE
from trainwright.crd.schema import crd
from trainwright.errors import NotFoundError
from trainwright.kinds.registry import KINDS
from trainwright.local.storage.selectors import compiled
from trainwright.model.job import Body
from trainwright.model.units import rfc3339
from trainwright.runtime.ports import DEFINITIONS, Selection


class Definitions:
    """The definitions as objects: with a UID that is the same after a restart, and the time of the engine's start."""

    def __init__(self, started: datetime) -> None:
        self._all = {body["metadata"]["name"]: body for body in (_definition(crd(kind), started) for kind in KINDS)}

    def get(self, name: str) -> Body:
        """One definition."""
        if name not in self._all:
            raise NotFoundError(f"{DEFINITIONS.id} {name!r} not found")
        return self._all[name]

    def list(self, scope: Selection) -> tuple[Body, ...]:
        """The definitions that a scope selects, sorted by name."""
        test = compiled(scope)
        return tuple(body for _, body in sorted(self._all.items()) if test is None or test(body))


def _definition(body: Body, started: datetime) -> Body:
    names, time = body["spec"]["names"], rfc3339(started)
    digits = hashlib.sha256(body["metadata"]["name"].encode()).hexdigest()
    uid = f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:32]}"
    conditions = [
        {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found"},
        {"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "message": "accepted"},
    ]
    stored = [one["name"] for one in body["spec"]["versions"] if one["storage"]]
    selectable = [{"jsonPath": f".{JOB_PHASE}"}]
    versions = [{**one, "selectableFields": selectable} for one in body["spec"]["versions"]]
    return {
        **body,
        "spec": {**body["spec"], "versions": versions},
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
