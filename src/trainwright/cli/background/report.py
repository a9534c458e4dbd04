# SPDX-License-Identifier: Apache-2.0
"""What the background engine reports about itself: nodes, devices and jobs by phase."""

from collections import Counter
from collections.abc import Iterable

from trainwright.cli.background.protocol import DeviceReport, NodeReport
from trainwright.kinds.registry import KINDS
from trainwright.local.scheduling.cache import finished
from trainwright.model.job import Body
from trainwright.model.ledger import Phase
from trainwright.node.requests import PODS as POD_COUNT
from trainwright.node.requests import amounts, asks, present, total
from trainwright.runtime.ports import NODES, PODS, Cluster, jobs_of

_BASIC = ("cpu", "memory", "ephemeral-storage", POD_COUNT)


def phase(job: Body) -> str:
    """The phase of a job in the words that all kinds share."""
    return str(((job.get("status") or {}).get("trainwright") or {}).get("phase") or Phase.PENDING.value)


async def count_jobs(cluster: Cluster) -> dict[str, int]:
    """The number of jobs in each phase, in the order of the phases."""
    found: Counter[str] = Counter()
    for kind in KINDS:
        found.update(phase(job) for job in (await cluster.list(jobs_of(kind))).items)
    return {one.value: found[one.value] for one in Phase if found[one.value]}


async def describe_nodes(cluster: Cluster) -> tuple[list[NodeReport], list[DeviceReport]]:
    """The nodes, and the devices of each node."""
    pods = (await cluster.list(PODS.whole())).items
    nodes: list[NodeReport] = []
    devices: list[DeviceReport] = []
    for node in (await cluster.list(NODES.whole())).items:
        name = node["metadata"]["name"]
        own = [pod for pod in pods if pod["spec"].get("nodeName") == name and not finished(pod)]
        nodes.append(_node(node, own))
        devices += _devices(node, own)
    return nodes, devices


def _node(node: Body, pods: list[Body]) -> NodeReport:
    status = node.get("status") or {}
    ready: Body = next((one for one in status.get("conditions") or () if one.get("type") == "Ready"), {})
    is_ready = ready.get("status") == "True"
    return {
        "name": node["metadata"]["name"],
        "ready": is_ready,
        "reason": "" if is_ready else str(ready.get("message") or ready.get("reason") or "not ready"),
        "pods": len(pods),
        "allocatable": dict(status.get("allocatable") or status.get("capacity") or {}),
        "requested": {name: present(name, amount) for name, amount in _requested(pods).items()},
    }


def _devices(node: Body, pods: list[Body]) -> list[DeviceReport]:
    status, used = node.get("status") or {}, _requested(pods)
    offered = amounts(status.get("allocatable") or status.get("capacity"))
    return [
        {
            "node": node["metadata"]["name"],
            "resource": name,
            "total": amount // 1000,
            "used": used.get(name, 0) // 1000,
        }
        for name, amount in offered.items()
        if name not in _BASIC
    ]


def _requested(pods: Iterable[Body]) -> dict[str, int]:
    return total(asks(pod["spec"]) for pod in pods)
