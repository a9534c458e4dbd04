# SPDX-License-Identifier: Apache-2.0
"""Watching across gaps: what went away unseen is noticed when everything is listed anew."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from patience import PATIENCE
from trainwright.cli.run.follow import watch
from trainwright.errors import GoneError, UnavailableError
from trainwright.model.job import Body
from trainwright.runtime.ports import PODS, Cluster, ListPage, WatchEvent, WatchEventType


def item(uid: str) -> Body:
    return {"metadata": {"uid": uid}}


class Gappy:
    """A cluster whose first watch is cut off after two changes, and whose second fails."""

    def __init__(self) -> None:
        self.lists = 0

    async def list(self, *_: Any, **__: Any) -> ListPage:
        self.lists += 1
        return ListPage(((item("a"), item("b")) if self.lists == 1 else (item("c"),)), str(self.lists))

    async def watch(self, *_: Any, since: str) -> AsyncGenerator[tuple[WatchEvent, ...], None]:
        if since != "1":
            raise UnavailableError("broken")
        yield WatchEvent(WatchEventType.ADDED, "1", item("c")), WatchEvent(WatchEventType.DELETED, "1", item("b"))
        yield (WatchEvent(WatchEventType.BOOKMARK, "1"),)
        raise GoneError("too old")


async def test_what_went_away_unseen_is_noticed() -> None:
    seen: list[tuple[str, bool]] = []

    def act(found: list[tuple[Body, bool]]) -> None:
        seen.extend((body["metadata"]["uid"], gone) for body, gone in found)

    with pytest.raises(UnavailableError):
        await asyncio.wait_for(watch(cast("Cluster", Gappy()), PODS.whole(), act), PATIENCE)
    assert seen == [("a", False), ("b", False), ("c", False), ("b", True), ("a", True), ("c", False)]
