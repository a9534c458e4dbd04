# SPDX-License-Identifier: Apache-2.0
"""A node whose API server does not always answer, whose supervisor does not start, whose pods are replaced."""

import asyncio
import os
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from node_agent import NODE, PACE, agent_rig, container, end, manifest, settings, settle

from trainwright.errors import ConflictError, EngineError, GoneError, UnavailableError
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.store import Store
from trainwright.model.meta import Key
from trainwright.node.context import StatusReport, StatusWriter
from trainwright.node.link import SupervisorLink, SupervisorRefused
from trainwright.node.settings import AgentDelays
from trainwright.runtime.ports import EVERYTHING, PODS, ListPage, Resource, Selection, WallClock, WatchEvent

WHOLE = PODS.whole()


class Troubled(LocalCluster):
    """A cluster that is away for a while, and forgets."""

    def __init__(self, store: Store, failures: int = 0) -> None:
        super().__init__(store)
        self.failures = failures
        self.forgets = False
        self.breaks = asyncio.Event()
        self.lists = 0

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise UnavailableError("nobody is there")

    async def list(self, resource: Resource, scope: Selection = EVERYTHING, *, not_older_than: str = "") -> ListPage:
        self.lists += 1
        if self.lists > 1:
            self._fail()
        return await super().list(resource, scope, not_older_than=not_older_than)

    async def watch(
        self, resource: Resource, scope: Selection = EVERYTHING, *, since: str
    ) -> AsyncGenerator[tuple[WatchEvent, ...], None]:
        inner = super().watch(resource, scope, since=since)
        try:
            while True:
                coming = asyncio.ensure_future(anext(inner))
                broken = asyncio.ensure_future(self.breaks.wait())
                await asyncio.wait({coming, broken}, return_when=asyncio.FIRST_COMPLETED)
                broken.cancel()
                if self.breaks.is_set():
                    coming.cancel()
                    await asyncio.gather(coming, return_exceptions=True)
                    self.breaks.clear()
                    raise GoneError("too old") if self.forgets else UnavailableError("the watch broke")
                yield coming.result()
        finally:
            await inner.aclose()

    async def patch(self, resource: Resource, key: Key, body: Any, **more: Any) -> Any:
        if resource.id == "pods":
            self._fail()
        return await super().patch(resource, key, body, **more)

    async def delete(self, resource: Resource, key: Key, **more: Any) -> Any:
        self._fail()
        return await super().delete(resource, key, **more)


async def test_a_status_is_written_however_often_nobody_answers(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, partial(Troubled, failures=3)) as node:
        node.run(container("exit 3"))
        assert end(await node.phase("Failed"))["exitCode"] == 3


async def test_a_deleted_pod_goes_however_often_nobody_answers(tmp_path: Path) -> None:
    async with agent_rig(tmp_path, Troubled) as node:
        cluster = node.agent.context.cluster
        assert isinstance(cluster, Troubled)
        node.run(container("exec sleep 60"))
        await node.phase("Running")
        cluster.failures = 3
        node.delete()
        await node.gone()


@pytest.mark.parametrize("forgets", [True, False], ids=["410", "no answer"])
async def test_what_a_broken_watch_missed_is_found_by_a_new_list(tmp_path: Path, *, forgets: bool) -> None:
    async with agent_rig(tmp_path, Troubled) as node:
        cluster = node.agent.context.cluster
        assert isinstance(cluster, Troubled)
        cluster.forgets, cluster.failures = forgets, 2
        node.run(container("exec sleep 60"), name="stays")
        node.run(container("exec sleep 60"), name="goes")
        await node.phase("Running", "stays")
        await node.phase("Running", "goes")
        cluster.breaks.set()
        node.delete("goes", grace=0)
        node.run(name="comes")
        await node.phase("Succeeded", "comes")
        await settle(lambda: len(node.agent._workers) == 2)
        assert node.status("stays")["phase"] == "Running"


def compose(text: str) -> dict[str, Any]:
    return {"phase": "Running", "message": text}


async def reported(cluster: LocalCluster, uid: str, words: list[str]) -> StatusReport:
    """One report, marked once per word."""
    reports = StatusWriter(cluster, PACE, words.append)
    report = StatusReport(Key("space", "pod"), uid, lambda: compose(words[-1]))
    reports.mark(report)
    await reports.close()
    return report


async def test_a_report_of_a_pod_that_was_replaced_is_dropped() -> None:
    store = Store(WallClock())
    store.create(WHOLE, manifest())
    report = await reported(LocalCluster(store), "another", ["x"])
    assert report.gone
    assert store.get(WHOLE, Key("space", "pod"))["status"] == {"phase": "Pending"}


async def test_a_report_of_a_pod_that_has_gone_is_dropped() -> None:
    assert (await reported(LocalCluster(Store(WallClock())), "x", ["x"])).gone


class Contended(LocalCluster):
    """Somebody else writes at the same time, once."""

    conflicts = 1

    async def patch(self, resource: Resource, key: Key, body: Any, **more: Any) -> Any:
        if self.conflicts:
            self.conflicts -= 1
            raise ConflictError("try again")
        return await super().patch(resource, key, body, **more)


async def test_a_conflict_about_the_same_pod_is_tried_again() -> None:
    store = Store(WallClock())
    uid = store.create(WHOLE, manifest())["metadata"]["uid"]
    report = await reported(Contended(store), uid, ["x"])
    assert not report.gone
    assert store.get(WHOLE, Key("space", "pod"))["status"]["message"] == "x"


async def test_many_marks_are_one_write_and_the_newest_is_the_one_that_is_stored() -> None:
    store = Store(WallClock())
    uid = store.create(WHOLE, manifest())["metadata"]["uid"]
    words = ["first"]
    reports = StatusWriter(LocalCluster(store), PACE, words.append)
    report = StatusReport(Key("space", "pod"), uid, lambda: compose(words[-1]))
    before = int(store.version)
    for index in range(5):
        words.append(f"word {index}")
        reports.mark(report)
    await settle(lambda: int(store.version) > before)
    await asyncio.sleep(0.05)
    assert store.get(WHOLE, Key("space", "pod"))["status"]["message"] == "word 4"
    assert int(store.version) == before + 1
    await reports.close()


@pytest.mark.looptime
async def test_every_report_waits_as_long_as_the_others() -> None:
    store = Store(WallClock())
    reports = StatusWriter(LocalCluster(store), AgentDelays(debounce=10), print)

    def report(name: str) -> StatusReport:
        uid = store.create(WHOLE, manifest(name=name))["metadata"]["uid"]
        return StatusReport(Key("space", name), uid, lambda: compose(name))

    early, late = report("early"), report("late")
    reports.mark(early)
    await asyncio.sleep(5)
    reports.mark(late)
    await asyncio.sleep(6)
    assert early.stored
    assert not late.stored
    await asyncio.sleep(5)
    assert late.stored
    await reports.close()


async def test_a_supervisor_that_cannot_start_says_why(tmp_path: Path) -> None:
    config = settings(tmp_path).supervisor() | {"runtime": "magic"}
    with pytest.raises(EngineError, match=r"the supervisor did not start: .*`sandbox` or `process`, found 'magic'"):
        await SupervisorLink.begin(config)


async def test_a_request_that_is_refused_raises_its_sentence_and_code(tmp_path: Path) -> None:
    link = await SupervisorLink.begin(settings(tmp_path).supervisor())
    try:
        assert os.getsid(link.process.pid) == link.process.pid  # a Ctrl-C that is meant for us does not reach it
        with pytest.raises(SupervisorRefused, match='the container "x" is not running') as refusal:
            await link.exec({"container": "x", "argv": ["true"]})
        assert refusal.value.code == 128
    finally:
        await link.close()
    with pytest.raises(SupervisorRefused, match="has ended"):
        await link.ping()


async def test_a_supervisor_of_another_version_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(tmp_path).supervisor()
    config["protocol"] = 7  # what this agent would say if its files were replaced while it ran
    with pytest.raises(
        EngineError, match=r"did not start: the agent is of version .+ \(protocol 7\), the supervisor of"
    ):
        await SupervisorLink.begin(config)
    monkeypatch.setattr("trainwright.node.link.SUPERVISOR_PROTOCOL", 7)
    expected = r"the supervisor is of version .+ \(protocol 1\), the agent of version .+ \(protocol 7\); both must come"
    with pytest.raises(EngineError, match=expected):
        await SupervisorLink.begin(settings(tmp_path).supervisor())


async def test_a_full_disk_is_an_error_that_is_told_and_tried_again(tmp_path: Path) -> None:
    async with agent_rig(tmp_path) as node:
        (tmp_path / "blocked").write_text("a file where a folder should be")
        volume = {"name": "v", "hostPath": {"path": f"{tmp_path}/blocked/x", "type": "DirectoryOrCreate"}}
        mount = {"name": "v", "mountPath": f"{tmp_path}/blocked/x"}
        node.run(container(volumeMounts=[mount]), volumes=[volume])
        status = await node.until(lambda status: "containerStatuses" in status)
        told = status["containerStatuses"][0]["state"]["waiting"]
        assert told["reason"] == "CreateContainerError"
        assert "blocked" in told["message"]
        (tmp_path / "blocked").unlink()
        await node.phase("Succeeded")


async def test_pods_of_other_nodes_are_left_alone(tmp_path: Path) -> None:
    async with agent_rig(tmp_path) as node:
        body = manifest(name="theirs")
        body["spec"]["nodeName"] = f"not-{NODE}"
        node.create(PODS, body)
        node.run()
        await node.phase("Succeeded")
        assert node.status("theirs") == {"phase": "Pending"}
