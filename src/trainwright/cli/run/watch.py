# SPDX-License-Identifier: Apache-2.0
"""Watching a resource for as long as a run lasts, also across gaps. `session` runs one of these per resource."""

from collections.abc import Callable

from trainwright.errors import ApiError, GoneError
from trainwright.model.job import Body
from trainwright.runtime.listwatch import ListWatch
from trainwright.runtime.ports import Change, Cluster, Happened, Page, Resource

#: Objects as they now are, and whether they have just gone.
Seen = list[tuple[Body, bool]]


async def watch(cluster: Cluster, resource: Resource, act: Callable[[Seen], None]) -> None:
    """Hand over everything that is there, then everything that happens, for ever."""
    known: dict[str, Body] = {}

    def listed(page: Page) -> None:
        found = {item["metadata"]["uid"] for item in page.items}
        told([(item, True) for uid, item in known.items() if uid not in found] + [(item, False) for item in page.items])

    def told(seen: Seen) -> None:
        _keep(known, seen)
        act(seen)

    def changed(changes: tuple[Change, ...]) -> None:
        told([(one.item, one.what is Happened.DELETED) for one in changes if one.item is not None])

    async def rest(error: ApiError | None) -> None:
        if error is not None and not isinstance(error, GoneError):
            raise error

    await ListWatch(cluster, resource).run(listed, changed, rest)


def _keep(known: dict[str, Body], seen: Seen) -> None:
    for item, gone in seen:
        if gone:
            known.pop(item["metadata"]["uid"], None)
        else:
            known[item["metadata"]["uid"]] = item
