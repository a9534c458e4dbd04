# SPDX-License-Identifier: Apache-2.0
"""Elastic PaddleJobs under the real controller: what their replicas look up is kept in step with `worker.replicas`."""

import asyncio
import logging
from itertools import pairwise
from typing import Any

import pytest
from runtime_rig import VIRTUAL, Run, Stage, key

from trainwright.errors import UnavailableError
from trainwright.local.checks import admission
from trainwright.model.job import Body
from trainwright.model.site import Site
from trainwright.runtime.controller import Controller
from trainwright.runtime.ports import EVENTS, JOBS
from trainwright.runtime.settings import ControllerSettings

pytestmark = VIRTUAL
PADDLEJOBS = JOBS["paddlejob"]
NP = "/paddle/default-train/np"


class Shelf:
    """An elastic server in memory, which may be away."""

    def __init__(self, **held: str) -> None:
        self.held = held
        self.away = False
        self.asked: list[float] = []

    async def revise(self, name: str, value: str) -> str | None:
        self.asked.append(asyncio.get_running_loop().time())
        if self.away:
            raise UnavailableError("no answer from http://etcd:2379: it is away")
        before = self.held.get(name)
        if before is not None:
            self.held[name] = value
        return before


def paddlejob(replicas: int) -> Body:
    template = {"spec": {"containers": [{"name": "paddle", "image": "x"}]}}
    worker = {"replicas": replicas, "requests": 1, "limits": 4, "template": template}
    metadata = {"name": "train", "namespace": "default"}
    head = {"apiVersion": PADDLEJOBS.api_version, "kind": PADDLEJOBS.kind, "metadata": metadata}
    return {**head, "spec": {"elastic": 1, "worker": worker}}


class Elastic(Stage):
    """A job of three workers that never ends, and a shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        super().__init__(lambda _: Run(lasts=None))
        self.site = Site(elastic_server="etcd:2379")
        admission.install(self.store)
        self.store.create(PADDLEJOBS, paddlejob(3))

    def made(self) -> Controller:
        self.controller = Controller(
            self.wire, self.clock, lambda _job: self.site, ControllerSettings(**self.knobs), registry=self.shelf
        )
        return self.controller

    def scale(self, replicas: int) -> None:
        self.store.patch(PADDLEJOBS, key(), {"spec": {"worker": {"replicas": replicas}}})

    def told(self, reason: str) -> list[tuple[str, int]]:
        events = [one for one in self.store.list(EVENTS)[0] if one["reason"] == reason]
        return [(one["message"], one.get("count", 1)) for one in events]


async def test_a_value_that_replicas_keep_follows_the_size() -> None:
    stage = Elastic(shelf := Shelf(**{NP: "3"}))
    async with stage.running():
        await stage.until(lambda: len(stage.pods()) == 3)
        stage.scale(2)
        await stage.until(lambda: shelf.held == {NP: "2"})
        await stage.until(lambda: len(stage.pods()) == 2)
        stage.scale(9)
        await stage.until(lambda: shelf.held == {NP: "4"})
        await stage.until(lambda: len(stage.pods()) == 4)

    assert stage.told("Scaled") == [("scaled replicas to 2", 1), ("scaled replicas to 4", 1)]
    assert stage.told("FailedSync") == []


async def test_nothing_is_written_where_replicas_keep_no_value() -> None:
    stage = Elastic(shelf := Shelf())
    async with stage.running():
        stage.scale(2)
        await asyncio.sleep(60)

    assert shelf.asked
    assert shelf.held == {}


async def test_a_value_that_a_replica_puts_back_is_put_right_again() -> None:
    stage = Elastic(shelf := Shelf())
    async with stage.running():
        await asyncio.sleep(5)
        shelf.held[NP] = "1"  # a launcher that has just started, with what it was told when its pod was made
        await stage.until(lambda: shelf.held == {NP: "3"}, 60)


async def test_a_controller_that_was_killed_in_between_leaves_it_to_the_next() -> None:
    stage = Elastic(shelf := Shelf(**{NP: "3"}))
    async with stage.running():
        await stage.until(lambda: len(stage.pods()) == 3)
        shelf.away = True
        stage.scale(2)
        await stage.until(lambda: len(stage.pods()) == 2)
    assert shelf.held == {NP: "3"}
    shelf.away = False
    stage.made()
    async with stage.running():
        await stage.until(lambda: shelf.held == {NP: "2"})
        await asyncio.sleep(20)

    assert stage.told("Scaled") == [("scaled replicas to 2", 1)]


async def test_a_server_that_is_away_holds_up_nothing_and_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    stage = Elastic(shelf := Shelf(**{NP: "3"}))
    shelf.away = True
    with caplog.at_level(logging.ERROR):
        async with stage.running():
            await stage.until(lambda: len(stage.pods()) == 3, 5)
            await asyncio.sleep(300)
            asked = list(shelf.asked)
            shelf.away = False
            stage.scale(2)
            await stage.until(lambda: shelf.held == {NP: "2"}, 60)

    said = (
        "the new size cannot be written to the elastic server, and the operator retries: "
        "no answer from http://etcd:2379: it is away"
    )
    assert stage.told("FailedSync") == [(said, 1)]
    waits = [later - earlier for earlier, later in pairwise(asked)]
    assert waits[0] >= 1
    assert 20 < waits[-1] <= 31
    assert len(asked) < 20
    assert caplog.records == []


async def test_other_jobs_cost_no_look() -> None:
    shelf = Shelf(**{NP: "3"})
    stage = Elastic(shelf)
    stage.store.delete(PADDLEJOBS, key())
    plain: Any = paddlejob(3)
    del plain["spec"]["elastic"]
    stage.store.create(PADDLEJOBS, plain)
    async with stage.running():
        await asyncio.sleep(30)

    assert shelf.asked == []
