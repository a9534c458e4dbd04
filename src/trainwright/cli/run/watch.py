# SPDX-License-Identifier: Apache-2.0
"""Watching a resource for as long as a run lasts, also across gaps. `session` runs one of these per resource."""

from collections.abc import Callable

from trainwright.errors import GoneError
from trainwright.model.job import Body
from trainwright.runtime.ports import Cluster, Happened, Resource

#: Objects as they now are, and whether they have just gone.
Seen = list[tuple[Body, bool]]


async def watch(cluster: Cluster, resource: Resource, act: Callable[[Seen], None]) -> None:
    """Hand over everything that is there, then everything that happens, for ever."""
    known: dict[str, Body] = {}
    while True:
        page = await cluster.list(resource)
        found = {item["metadata"]["uid"]: item for item in page.items}
        act([(known[uid], True) for uid in known if uid not in found] + [(item, False) for item in page.items])
        known = found
        try:
            async for changes in cluster.watch(resource, since=page.version):
                seen = [(one.item, one.what is Happened.DELETED) for one in changes if one.item is not None]
                _keep(known, seen)
                act(seen)
        except GoneError:
            continue


def _keep(known: dict[str, Body], seen: Seen) -> None:
    for item, gone in seen:
        if gone:
            known.pop(item["metadata"]["uid"], None)
        else:
            known[item["metadata"]["uid"]] = item
