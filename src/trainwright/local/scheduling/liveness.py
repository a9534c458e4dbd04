# SPDX-License-Identifier: Apache-2.0
"""Nodes whose agent no longer answers are said to be Unknown. The pods on them stay as they are: `core` judges those.

The engine calls `node_lost` when an agent's connection breaks; `Watchman` finds those that only fell silent, where
agents say in their Ready condition when they were last heard of.
"""

import asyncio
from collections.abc import Mapping

from trainwright.errors import ApiError, NotFoundError
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.units import after, moment, rfc3339
from trainwright.runtime.ports import Clock, Cluster
from trainwright.runtime.resources import NODES

_WHOLE = NODES.whole()


async def node_lost(cluster: Cluster, name: str, clock: Clock, why: str = "the node agent went away") -> None:
    """Nothing is known of the node any more. One that is not there, or was lost before, is left as it is."""
    try:
        node = await cluster.get(_WHOLE, Key("", name))
    except NotFoundError:
        return
    conditions = (node.get("status") or {}).get("conditions") or []
    ready = _ready(node)
    if ready.get("status") == "Unknown":
        return
    unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": why}
    unknown |= {key: ready[key] for key in ("lastHeartbeatTime",) if key in ready}
    unknown["lastTransitionTime"] = rfc3339(clock.now())
    others = [one for one in conditions if one.get("type") != "Ready"]
    await cluster.patch(_WHOLE, Key("", name), {"status": {"conditions": [*others, unknown]}}, status=True)


class Watchman:
    """Looks at every node's heartbeat, and gives up those that are older than `limit` seconds."""

    def __init__(self, cluster: Cluster, nodes: Mapping[str, Body], clock: Clock, limit: float) -> None:
        self._cluster, self._nodes, self._clock, self._limit = cluster, nodes, clock, limit

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._limit / 4)
            for name in [name for name, node in self._nodes.items() if self._silent(node)]:
                await self._give_up(name)

    def _silent(self, node: Body) -> bool:
        ready = _ready(node)
        heard = moment(ready.get("lastHeartbeatTime") or "")
        # Heartbeats are written in whole seconds.
        overdue = heard is not None and self._clock.now() > after(heard, self._limit + 1)
        return overdue and ready.get("status") != "Unknown"

    async def _give_up(self, name: str) -> None:
        try:
            await node_lost(
                self._cluster, name, self._clock, f"the node agent has said nothing for {self._limit:g} seconds"
            )
        except ApiError:
            return  # Asked again in a moment.


def _ready(node: Body) -> Body:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == "Ready"), {})
