# SPDX-License-Identifier: Apache-2.0
"""Edits that people ask for by name, as merge patches: `suspend`, `resume`, `scale`. Called by the command line."""

from trainwright.kinds.limits import MOST_REPLICAS
from trainwright.kinds.paths import under
from trainwright.kinds.tfjob.types import canonical
from trainwright.model.job import Body
from trainwright.model.problem import Problem, nearest


def suspend(_document: Body, on: bool) -> Body:
    """Suspend the job, or let it go on."""
    return {"spec": {"runPolicy": {"suspend": on}}}


def scale(document: Body, role: str, replicas: int) -> Body | Problem:
    """Give a type that many replicas, under the key that the document has for it."""
    path, specs = "spec.tfReplicaSpecs", document["spec"]["tfReplicaSpecs"]
    wanted = canonical(role)
    key = next((one for one in specs if wanted is not None and canonical(one) == wanted), None)
    if key is None:
        listed = ", ".join(specs)
        return Problem(path, f"there is no replica type {role!r}; the job has {listed}", nearest(role, specs))
    if not 0 <= replicas <= MOST_REPLICAS:
        message = f"expected a whole number from 0 to {MOST_REPLICAS}, found the number {replicas}"
        return Problem(f"{under(path, key)}.replicas", message)
    return {"spec": {"tfReplicaSpecs": {key: {"replicas": replicas}}}}
