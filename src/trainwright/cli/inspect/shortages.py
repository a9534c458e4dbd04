# SPDX-License-Identifier: Apache-2.0
"""What is missing on which node for pods that kube-scheduler cannot place. Pure.

The message of kube-scheduler counts nodes, but it contains no amounts. The embedded scheduler computes the same reason
with amounts, so this module runs it with the nodes of the cluster.
"""

from collections.abc import Iterable, Sequence

from trainwright.local.scheduling.cache import NodeUsage, node_info, pod_info
from trainwright.local.scheduling.reasons import NEVER, FreeRoom, never_fits, pod_reason
from trainwright.model.job import Body


def find_shortages(waiting: Iterable[Body], nodes: Sequence[Body], used: Iterable[Body] | None) -> dict[str, str]:
    """The reason with amounts, by the name of the pod; a pod has none if its requests are not the reason.

    `used` are the pods that use resources of the nodes; None: they are not known, so only total amounts are compared.
    """
    infos, usage = [node_info(node) for node in nodes], NodeUsage()
    for body in used or ():
        usage.take(pod_info(body), body["spec"]["nodeName"])
    room = FreeRoom(infos, usage.used)
    found = {}
    for body in waiting:
        pod = pod_info(body)
        reason = never_fits(pod.requests, {node.name: node.total for node in infos})
        if not reason and used is not None and not pod.terms.unsupported:
            reason = pod_reason(pod, room)
        if ": needs " in reason:
            found[body["metadata"]["name"]] = (
                reason.removeprefix(NEVER).partition(" nodes are available: ")[2] or reason
            )
    return found
