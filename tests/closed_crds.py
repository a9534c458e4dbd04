# SPDX-License-Identifier: Apache-2.0
"""Definitions whose status is described field by field, as Trainwright installed them before the status became open.

API servers drop the fields that such a definition lacks, so the operator must compare it with the whole ledger.
"""

from copy import deepcopy

from trainwright.crd.schema import crd, schema
from trainwright.kinds.base import Kind
from trainwright.model.job import Body


def closed_crd(kind: Kind) -> Body:
    """The definition of a kind; every version has the whole schema of the status."""
    definition = deepcopy(crd(kind))
    close_status(kind, definition)
    return definition


def close_status(kind: Kind, definition: Body) -> None:
    """Replace the open status of every version by the whole schema, in place."""
    for version in definition["spec"]["versions"]:
        whole = version["schema"]["openAPIV3Schema"]
        whole["properties"]["status"] = deepcopy(schema(kind.wire)["properties"]["status"])


def status_of(version: Body) -> Body:
    """The schema of the status in one version of a definition."""
    found: Body = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    return found


def ledger_of(version: Body) -> Body:
    """The schema of `status.trainwright` in one version of a definition."""
    found: Body = status_of(version)["properties"]["trainwright"]
    return found
