# SPDX-License-Identifier: Apache-2.0
"""Elastic PaddleJobs under the real controller: what their replicas look up is kept in step with `worker.replicas`."""

import asyncio
import logging
from itertools import pairwise
from typing import Any

import pytest
from runtime_rig import VIRTUAL, ControllerRig, Run, key

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


class FakeEtcd:
    """An etcd in memory, which may be unreachable."""

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


class ElasticRig(ControllerRig):
    """A job of three workers that never ends, and an etcd."""

    def __init__(self, etcd: FakeEtcd) -> None:
        self.etcd = etcd
        super().__init__(lambda _: Run(lasts=None))
        self.site = Site(elastic_server="etcd:2379")
        admission.install(self.store)
        self.store.create(PADDLEJOBS, paddlejob(3))

    def made(self) -> Controller:
        self.controller = Controller(
            self.wire, self.clock, lambda _job: self.site, ControllerSettings(**self.knobs), registry=self.etcd
        )
        return self.controller

    def scale(self, replicas: int) -> None:
        self.store.patch(PADDLEJOBS, key(), {"spec": {"worker": {"replicas": replicas}}})

    def told(self, reason: str) -> list[tuple[str, int]]:
        events = [one for one in self.store.list(EVENTS)[0] if one["reason"] == reason]
        return [(one["message"], one.get("count", 1)) for one in events]


async def test_a_value_that_replicas_keep_follows_the_size() -> None:
    rig = ElasticRig(etcd := FakeEtcd(**{NP: "3"}))
    async with rig.running():
        await rig.until(lambda: len(rig.pods()) == 3)
        rig.scale(2)
        await rig.until(lambda: etcd.held == {NP: "2"})
        await rig.until(lambda: len(rig.pods()) == 2)
        rig.scale(9)
        await rig.until(lambda: etcd.held == {NP: "4"})
        await rig.until(lambda: len(rig.pods()) == 4)

    assert rig.told("Scaled") == [("scaled replicas to 2", 1), ("scaled replicas to 4", 1)]
    assert rig.told("FailedSync") == []


async def test_nothing_is_written_where_replicas_keep_no_value() -> None:
    rig = ElasticRig(etcd := FakeEtcd())
    async with rig.running():
        rig.scale(2)
        await asyncio.sleep(60)

    assert etcd.asked
    assert etcd.held == {}


async def test_a_value_that_a_replica_puts_back_is_put_right_again() -> None:
    rig = ElasticRig(etcd := FakeEtcd())
    async with rig.running():
        await asyncio.sleep(5)
        etcd.held[NP] = "1"  # a launcher that has just started, with what it was told when its pod was made
        await rig.until(lambda: etcd.held == {NP: "3"}, 60)


async def test_a_controller_that_was_killed_in_between_leaves_it_to_the_next() -> None:
    rig = ElasticRig(etcd := FakeEtcd(**{NP: "3"}))
    async with rig.running():
        await rig.until(lambda: len(rig.pods()) == 3)
        etcd.away = True
        rig.scale(2)
        await rig.until(lambda: len(rig.pods()) == 2)
    assert etcd.held == {NP: "3"}
    etcd.away = False
    rig.made()
    async with rig.running():
        await rig.until(lambda: etcd.held == {NP: "2"})
        await asyncio.sleep(20)

    assert rig.told("Scaled") == [("scaled replicas to 2", 1)]


async def test_a_server_that_is_away_holds_up_nothing_and_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = ElasticRig(etcd := FakeEtcd(**{NP: "3"}))
    etcd.away = True
    with caplog.at_level(logging.ERROR):
        async with rig.running():
            await rig.until(lambda: len(rig.pods()) == 3, 5)
            await asyncio.sleep(300)
            asked = list(etcd.asked)
            etcd.away = False
            rig.scale(2)
            await rig.until(lambda: etcd.held == {NP: "2"}, 60)

    said = (
        "the new size cannot be written to the elastic server, and the operator retries: "
        "no answer from http://etcd:2379: it is away"
    )
    assert rig.told("FailedSync") == [(said, 1)]
    waits = [later - earlier for earlier, later in pairwise(asked)]
    assert waits[0] >= 1
    assert 20 < waits[-1] <= 31
    assert len(asked) < 20
    assert caplog.records == []


async def test_other_jobs_cost_no_look() -> None:
    etcd = FakeEtcd(**{NP: "3"})
    rig = ElasticRig(etcd)
    rig.store.delete(PADDLEJOBS, key())
    plain: Any = paddlejob(3)
    del plain["spec"]["elastic"]
    rig.store.create(PADDLEJOBS, plain)
    async with rig.running():
        await asyncio.sleep(30)

    assert etcd.asked == []
