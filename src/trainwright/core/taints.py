# SPDX-License-Identifier: Apache-2.0
"""Taints: whether a node keeps pods of a role off. `nodes` asks before it counts on one.

What an admission plugin adds to pods is not in their template, so two more are taken for tolerated: those of nodes
where such pods have been, and one that is called like a resource which the pods ask for.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any

from trainwright.model.child import Node, Taint
from trainwright.model.job import Body

_KEEPING_OFF = frozenset({"NoSchedule", "NoExecute"})


def repelled(node: Node, spec: Body, known: Container[str]) -> bool:
    """Whether a node keeps pods of this spec off; taints of these keys do not."""
    hard = [one for one in node.spec.taints or () if one.effect in _KEEPING_OFF and one.key not in known]
    return any(not _tolerated(one, spec.get("tolerations") or ()) for one in hard)


def keys(nodes: Iterable[Node | None]) -> frozenset[str]:
    """The keys of the taints of these nodes."""
    return frozenset(one.key for node in nodes if node is not None for one in node.spec.taints or ())


def _tolerated(taint: Taint, given: Iterable[Mapping[str, Any]]) -> bool:
    """By key and effect; values are not looked at, for a doubt must not keep pods on a sick node."""
    return any(
        one.get("effect") in (None, "", taint.effect)
        and (one.get("key") == taint.key or (not one.get("key") and one.get("operator") == "Exists"))
        for one in given
    )
