# SPDX-License-Identifier: Apache-2.0
"""Edits that people ask for by name, as merge patches: `suspend`, `resume`, `scale`. Called by the command line."""

from trainwright.kinds.aitrainingjob.checks import SPECS
from trainwright.kinds.limits import MOST_REPLICAS
from trainwright.kinds.paths import under
from trainwright.model.job import Body
from trainwright.model.problem import Problem, nearest


def suspend(_document: Body, on: bool) -> Body:
    """Suspend the job, or let it go on."""
    return {"spec": {"suspend": on}}


def scale(document: Body, role: str, replicas: int) -> Body | Problem:
    """Give a replica type that many, within its bounds and if its policy lets people."""
    specs = document["spec"]["replicaSpecs"]
    key = next((one for one in specs if one.lower() == role.lower()), None)
    if key is None:
        listed = ", ".join(specs)
        return Problem(SPECS, f"there is no replica type {role!r}; the job has {listed}", nearest(role, specs))
    spec, path = specs[key], f"{under(SPECS, key)}.replicas"
    if spec.get("edlPolicy") == "Never":
        return Problem(path, "cannot be changed while edlPolicy is Never")
    least, most = spec.get("minReplicas") or 0, spec.get("maxReplicas")
    most = MOST_REPLICAS if most is None else most
    if not least <= replicas <= most:
        return Problem(path, f"expected a whole number from {least} to {most}, found the number {replicas}")
    return {"spec": {"replicaSpecs": {key: {"replicas": replicas}}}}
