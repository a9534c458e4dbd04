# SPDX-License-Identifier: Apache-2.0
"""`GET …/log`: the logs of real containers, over HTTP."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from api_rig import ApiRig, api_rig, open_logs
from node_agent import container, manifest, settle

from patience import PATIENCE
from trainwright.runtime.ports import PODS


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ApiRig]:
    async with api_rig(tmp_path) as made:
        yield made


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session:
        yield session


async def text(client: aiohttp.ClientSession, url: str) -> str:
    async with client.get(url) as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain"), await answer.text()
        return await answer.text()


async def refusal(client: aiohttp.ClientSession, url: str) -> tuple[int, str, str]:
    async with client.get(url) as answer:
        body: dict[str, Any] = await answer.json()
        return answer.status, body["reason"], body["message"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "one\ntwo\nthree\n"),
        ("container=main", "one\ntwo\nthree\n"),
        ("tailLines=2", "two\nthree\n"),
        ("tailLines=0", ""),
        ("limitBytes=5", "one\nt"),
        ("sinceSeconds=3600&follow=True", "one\ntwo\nthree\n"),
        ("sinceTime=2099-01-01T00%3A00%3A00Z", ""),
        ("follow=false", "one\ntwo\nthree\n"),
        ("follow=true&tailLines=1", "three\n"),
        ("insecureSkipTLSVerifyBackend=true", "one\ntwo\nthree\n"),
    ],
)
async def test_options(rig: ApiRig, client: aiohttp.ClientSession, query: str, expected: str) -> None:
    rig.agent.run(container("echo one; echo two; echo three"))
    await rig.agent.ended()
    assert await text(client, rig.path(f"log?{query}")) == expected


async def test_the_log_of_a_job_is_in_the_folder_of_its_run(
    rig: ApiRig, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    body = manifest(container("echo one"))
    body["metadata"]["annotations"]["trainwright.dev/run"] = "20261117-093000-a"
    rig.agent.create(PODS, body)
    await rig.agent.ended()
    assert (tmp_path / "jobs/20261117-093000-a/logs/pod").is_dir()
    assert await text(client, rig.path("log")) == "one\n"


async def test_timestamps(rig: ApiRig, client: aiohttp.ClientSession) -> None:
    rig.agent.run(container("echo one; sleep 0.1; echo two"))
    await rig.agent.ended()
    found = await text(client, rig.path("log?timestamps=true"))
    assert re.fullmatch(r"(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (one|two)\n){2}", found)
    first, second = (line.split()[0] for line in found.splitlines())
    assert first < second
    assert await text(client, rig.path(f"log?sinceTime={second}")) == "two\n"


@pytest.mark.parametrize(
    ("query", "code", "reason", "message"),
    [
        ("", 400, "BadRequest", "a container name must be specified for pod pod, choose one of: [init a b]"),
        ("container=zz", 400, "BadRequest", "container zz is not valid for pod pod"),
        (
            "container=a&previous=true",
            400,
            "BadRequest",
            'previous terminated container "a" in pod "pod" not found',
        ),
        ("container=a&tailLines=x", 400, "BadRequest", "tailLines: 'x'; expected a number from 0 on"),
        ("container=a&tailLines=-1", 422, "Invalid", "tailLines: '-1'; expected a number from 0 on"),
        ("container=a&limitBytes=0", 422, "Invalid", "limitBytes: '0'; expected a number from 1 on"),
        (
            "container=a&sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z",
            422,
            "Invalid",
            "at most one of `sinceTime` or `sinceSeconds` may be specified",
        ),
        (
            "container=a&stream=Stdout",
            422,
            "Invalid",
            "stream: the output and the errors of a container are in one log; omit `stream`",
        ),
    ],
)
async def test_refusals(
    rig: ApiRig, client: aiohttp.ClientSession, query: str, code: int, reason: str, message: str
) -> None:
    containers = container("sleep 1000", name="a"), container("sleep 1000", name="b")
    rig.agent.run(*containers, initContainers=[container("echo ready", name="init")])
    await rig.agent.phase("Running")
    assert await refusal(client, rig.path(f"log?{query}")) == (code, reason, message)
    assert await text(client, rig.path("log?container=init")) == "ready\n"


async def test_a_container_that_waits(rig: ApiRig, client: aiohttp.ClientSession) -> None:
    rig.agent.run(container(), initContainers=[container("sleep 1000", name="init")])
    await settle(lambda: rig.agent.status().get("initContainerStatuses"))
    found = await refusal(client, rig.path("log?container=main&follow=true"))
    assert found == (400, "BadRequest", 'container "main" in pod "pod" is waiting to start: PodInitializing')


async def test_a_pod_without_a_node_has_no_content(rig: ApiRig, client: aiohttp.ClientSession) -> None:
    rig.agent.run(container(), nodeName="")
    async with client.get(rig.path("log")) as answer:
        assert (answer.status, await answer.read()) == (204, b"")


async def test_a_pod_that_is_gone_has_no_log(rig: ApiRig, client: aiohttp.ClientSession) -> None:
    rig.agent.run(container("echo one"))
    await rig.agent.ended()
    rig.agent.delete()
    await rig.agent.gone()
    assert (await refusal(client, rig.path("log")))[:2] == (404, "NotFound")


async def test_a_log_that_was_removed(rig: ApiRig, client: aiohttp.ClientSession) -> None:
    rig.agent.run(container("echo one"))
    await rig.agent.ended()
    for path in (rig.agent.folder / "logs/pod").iterdir():
        path.unlink()
    found = await refusal(client, rig.path("log"))
    assert found == (400, "BadRequest", 'container "main" in pod "pod" has no log any more')


async def test_follow_ends_with_the_container_although_it_is_restarted(
    rig: ApiRig, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    script = (
        f"echo begin; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo end; mv {tmp_path}/go {tmp_path}/gone"
    )
    rig.agent.run(container(script), restartPolicy="Always")
    await rig.agent.phase("Running")
    async with client.get(rig.path("log?follow=true")) as answer:
        assert await answer.content.readline() == b"begin\n"
        (tmp_path / "go").touch()
        assert await answer.content.readline() == b"end\n"
        assert await answer.content.read() == b""
    await rig.agent.until(lambda status: status["containerStatuses"][0]["restartCount"] == 1)
    await rig.agent.until(lambda status: "running" in status["containerStatuses"][0]["state"])
    assert await text(client, rig.path("log?previous=true")) == "begin\nend\n"
    await settle(lambda: rig.agent.log(restart=1))
    assert await text(client, rig.path("log")) == "begin\n"


async def test_follow_ends_when_the_pod_is_deleted(rig: ApiRig, client: aiohttp.ClientSession) -> None:
    rig.agent.run(container("echo begin; sleep 1000"))
    await rig.agent.phase("Running")
    async with client.get(rig.path("log?follow=true")) as answer:
        assert await answer.content.readline() == b"begin\n"
        rig.agent.delete(grace=0)
        assert await answer.content.read() == b""


@pytest.mark.parametrize("number", [1, 50])
async def test_follow_ends_when_the_client_goes_away(rig: ApiRig, client: aiohttp.ClientSession, number: int) -> None:
    rig.agent.run(container("echo begin; sleep 1000"))
    await rig.agent.phase("Running")
    before = len(open_logs())
    answers = [await client.get(rig.path("log?follow=true")) for _ in range(number)]
    for answer in answers:
        assert await answer.content.readline() == b"begin\n"
    assert len(open_logs()) == before + number
    for answer in answers:
        answer.close()
    await settle(lambda: len(open_logs()) == before)


async def test_a_client_that_does_not_read_does_not_block_others(rig: ApiRig, client: aiohttp.ClientSession) -> None:
    rig.agent.run(container("yes | head -c 30000000; echo done; sleep 1000"))
    await settle(lambda: rig.agent.status().get("phase") == "Running" and rig.agent.log().endswith("done\n"))
    async with client.get(rig.path("log?follow=true")):
        async with asyncio.timeout(PATIENCE):
            assert await text(client, rig.path("log?tailLines=1")) == "done\n"
