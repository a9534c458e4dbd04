# SPDX-License-Identifier: Apache-2.0
"""Edits that people ask for by name, as merge patches: `suspend`, `resume`, `scale`. Called by the command line."""

from trainwright.kinds.limits import MOST_REPLICAS
from trainwright.kinds.paddlejob.roles import ROLES, WORKER
from trainwright.model.job import Body
from trainwright.model.problem import Problem, nearest


def suspend(_document: Body, on: bool) -> Body:
    """Suspend the job, or let it go on."""
    return {"spec": {"runPolicy": {"suspend": on}}}


def scale(document: Body, role: str, replicas: int) -> Body | Problem:
    """Give a role that many replicas."""
    known = [name for name in ROLES if document["spec"].get(name)]
    name = role.lower()
    if name not in known:
        return Problem("spec", f"there is no role {role!r}; the job has {', '.join(known)}", nearest(role, known))
    least = 1 if name == WORKER else 0
    if not least <= replicas <= MOST_REPLICAS:
        message = f"expected a whole number from {least} to {MOST_REPLICAS}, found the number {replicas}"
        return Problem(f"spec.{name}.replicas", message)
    return {"spec": {name: {"replicas": replicas}}}
