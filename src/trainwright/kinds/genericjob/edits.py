# SPDX-License-Identifier: Apache-2.0
"""Edits that people ask for by name, as merge patches: `suspend`, `resume`, `scale`. Called by the command line.

They are made from the document as it is stored, and change nothing of it but what was asked for. Whether the edited
job still makes sense as a whole is for `checks` to say.
"""

from trainwright.kinds.limits import MOST_REPLICAS
from trainwright.model.job import Body
from trainwright.model.problem import Problem, nearest


def suspend(document: Body, on: bool) -> Body:
    """Pause the job, or let it go on; the old spelling of `enabled` must not contradict."""
    mode = document["spec"].get("runMode") or {}
    old = {"enable": None} if "enable" in (mode.get("pause") or {}) else {}
    return {"spec": {"runMode": {"pause": {"enabled": on, **old}}}}


def scale(document: Body, role: str, replicas: int) -> Body | Problem:
    """Give a type of replica that many; a merge patch can only replace the list that it stands in."""
    specs = document["spec"]["replicaSpecs"]
    names = [one["type"] for one in specs]
    if role not in names:
        listed = ", ".join(names)
        return Problem(
            "spec.replicaSpecs", f"there is no replica type {role!r}; the job has {listed}", nearest(role, names)
        )
    path = f"spec.replicaSpecs[{names.index(role)}].replicas"
    if not 0 <= replicas <= MOST_REPLICAS:
        return Problem(path, f"expected a whole number from 0 to {MOST_REPLICAS}, found the number {replicas}")
    return {"spec": {"replicaSpecs": [one | {"replicas": replicas} if one["type"] == role else one for one in specs]}}
