# SPDX-License-Identifier: Apache-2.0
"""The elastic server as it must not be: away, or not etcd. What it does for a real one is in tests/cluster."""

import pytest
from aiohttp import web

from trainwright.errors import UnavailableError
from trainwright.kube.etcd import Etcd


async def served(status: int, text: str) -> tuple[web.AppRunner, str]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_post("/v3/kv/range", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, "127.0.0.1:{1}".format(*runner.addresses[0][:2])


@pytest.mark.parametrize(
    ("status", "text", "why"),
    [
        pytest.param(503, "no leader", "503: no leader", id="it is not well"),
        pytest.param(200, "<html>", "JSON is malformed", id="a web page"),
        pytest.param(200, "[]", "Expected `object`, got `array`", id="another shape"),
        pytest.param(
            200, '{"kvs": [{"value": "MQ=="}]}', "Object missing required field `mod_revision`", id="half a key"
        ),
        pytest.param(200, '{"kvs": [{"mod_revision": "1", "value": "?"}]}', "Invalid base64", id="no base64"),
    ],
)
async def test_an_answer_that_means_nothing_is_no_answer(status: int, text: str, why: str) -> None:
    runner, where = await served(status, text)
    try:
        with pytest.raises(UnavailableError, match="no answer from") as caught:
            await Etcd(where).revise("/np", "2")
    finally:
        await runner.cleanup()

    assert f"http://{where}: {why}" in str(caught.value)


@pytest.mark.parametrize("servers", ["127.0.0.1:1", "http://127.0.0.1:1/", "127.0.0.1:1,127.0.0.1:2"])
async def test_whoever_is_not_there_is_named(servers: str) -> None:
    with pytest.raises(UnavailableError) as caught:
        await Etcd(servers).revise("/np", "2")

    for server in servers.split(","):
        assert f"no answer from {server if '://' in server else 'http://' + server}".rstrip("/") in str(caught.value)


async def test_without_a_key_nothing_is_put() -> None:
    runner, where = await served(200, '{"header": {"revision": "7"}}')
    try:
        assert await Etcd(f"127.0.0.1:1,{where}").revise("/np", "2") is None
    finally:
        await runner.cleanup()
