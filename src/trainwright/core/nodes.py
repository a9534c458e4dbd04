# SPDX-License-Identifier: Apache-2.0
"""When a node is lost. Called by `conclude` for pods that have not ended, and by `run` to know when to look again.

A node is lost when it has not been ready for longer than the grace. One that nobody knows is not judged: an engine that
has not listed its nodes must not declare them dead, and keeps one that was removed as not ready since it went.
"""

from collections.abc import Mapping

from trainwright.model.child import Node, Observed, Pod
from trainwright.model.site import Site
from trainwright.model.units import Time, after

UNREACHABLE = frozenset({"node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"})


def silent(observed: Observed) -> frozenset[str]:
    """The nodes that hold pods of the job and do not answer; few jobs ever have any."""
    known = observed.nodes
    if known is None:
        return frozenset()
    names = {pod.spec.node_name for pod in observed.pods}
    return frozenset([name for name in names if (node := known.get(name)) is not None and not _ready(node)])


def lost(pod: Pod, known: Mapping[str, Node], site: Site, now: Time) -> bool:
    """Whether this pod's node is lost to it."""
    due = doubtful_until(pod, known, site)
    return due is not None and now >= due


def _ready(node: Node) -> bool:
    """It says so itself; kubelets write that condition last."""
    for condition in reversed(node.status.conditions or ()):
        if condition.type == "Ready":
            return condition.status == "True"
    return False


def silent_since(node: Node) -> Time | None:
    """Since when the node has not answered."""
    times = [c.last_transition_time for c in node.status.conditions or () if c.type == "Ready" and c.status != "True"]
    times += [taint.time_added for taint in node.spec.taints or () if taint.key in UNREACHABLE]
    return min((moment for moment in times if moment is not None), default=node.metadata.creation_timestamp)


def doubtful_until(pod: Pod, known: Mapping[str, Node], site: Site) -> Time | None:
    """When a node that is silent now will count as lost, if it stays silent."""
    node = known.get(pod.spec.node_name)
    if node is None or _ready(node):
        return None
    silent = silent_since(node)
    return None if silent is None else after(silent, site.node_grace)
