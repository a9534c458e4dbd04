# SPDX-License-Identifier: Apache-2.0
"""The few calls that a kubelet makes, as quick as Python makes them. `cluster_kubelet` lives on them."""

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
from cluster_pods import Body, Pod
from msgspec import Struct

_MERGE = "application/merge-patch+json"
#: Each costs the server a TLS handshake.
CONNECTIONS = 64
#: Seconds after which a connection that is not used is closed.
_KEPT = 60.0
_GONE = 410
#: Before something is tried again.
PAUSE = 0.2


class _Event(Struct):
    type: str
    object: msgspec.Raw


class _ListMeta(Struct, rename="camel"):
    resource_version: str = ""


class _Pods(Struct):
    metadata: _ListMeta
    items: list[Pod] = []


_events = msgspec.json.Decoder(_Event)
_pod = msgspec.json.Decoder(Pod)
_list = msgspec.json.Decoder(_Pods)
encode = msgspec.json.encode


def note(*words: object) -> None:
    """To the log."""
    print(*words, file=sys.stderr, flush=True)


class Api:
    """The few calls that a kubelet makes."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def send(self, verb: str, path: str, body: Body) -> int:
        """A write; 404 and 409 are told by the code, since pods come and go. Anything else is on the log."""
        headers = {"Content-Type": _MERGE if verb == "PATCH" else "application/json"}
        while True:
            try:
                async with self._session.request(verb, path, data=encode(body), headers=headers) as answer:
                    text = await answer.read()  # aiohttp would close a connection whose answer is not read
                    if answer.status >= 400 and answer.status not in (404, 409):
                        note(verb, path, answer.status, text.decode())
                    return answer.status
            except aiohttp.ClientError as error:  # the server is away; a kubelet waits
                note(verb, path, error)
                await asyncio.sleep(PAUSE)

    async def list(self) -> tuple[str, list[Pod]]:
        """All pods, and since when to watch."""
        async with self._session.get("/api/v1/pods") as answer:
            found = _list.decode(await answer.read())
            return found.metadata.resource_version, found.items

    async def watch(self, since: str) -> AsyncIterator[tuple[str, Pod]]:
        """What happens to pods, until the server ends it."""
        path = f"/api/v1/pods?watch=1&resourceVersion={since}"
        async with self._session.get(path, timeout=aiohttp.ClientTimeout(total=None)) as answer:
            if answer.status == _GONE:
                return
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = _events.decode(line)
                    if event.type == "ERROR":
                        return
                    yield event.type, _pod.decode(event.object)


def session_for(kubeconfig: Path, connections: int = CONNECTIONS) -> aiohttp.ClientSession:
    """At most that many connections as the user of a kubeconfig that `cluster_users` wrote."""
    config = json.loads(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
    return aiohttp.ClientSession(
        cluster["server"],
        headers={"Authorization": f"Bearer {user['token']}", "User-Agent": "kubelet-fake"},
        connector=aiohttp.TCPConnector(ssl=tls, limit=connections, keepalive_timeout=_KEPT),
    )
