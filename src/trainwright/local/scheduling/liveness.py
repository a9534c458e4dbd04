# SPDX-License-Identifier: Apache-2.0
"""Nodes whose agent no longer answers are said to be Unknown. The pods on them stay as they are: `core` judges those.

`crew` calls `node_lost` when an agent has ended and nothing of its pods runs any more. An agent that hangs is killed
first (`local.watchdog`).
"""

from trainwright.errors import NotFoundError
from trainwright.local.scheduling.terms import ready_condition
from trainwright.model.meta import Key
from trainwright.model.units import rfc3339
from trainwright.runtime.ports import Clock, Cluster
from trainwright.runtime.resources import NODES

_WHOLE = NODES.whole()


async def node_lost(cluster: Cluster, name: str, clock: Clock, why: str = "the node agent went away") -> None:
    """Nothing is known of the node any more. One that is not there, or not ready already, is left as it is."""
    try:
        node = await cluster.get(_WHOLE, Key("", name))
    except NotFoundError:
        return
    conditions = (node.get("status") or {}).get("conditions") or []
    ready = ready_condition(node)
    if ready.get("status") in ("Unknown", "False"):
        return
    unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": why}
    unknown |= {key: ready[key] for key in ("lastHeartbeatTime",) if key in ready}
    unknown["lastTransitionTime"] = rfc3339(clock.now())
    others = [one for one in conditions if one.get("type") != "Ready"]
    await cluster.patch(_WHOLE, Key("", name), {"status": {"conditions": [*others, unknown]}}, status=True)
