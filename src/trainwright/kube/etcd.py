# SPDX-License-Identifier: Apache-2.0
"""The elastic server of a site, if it is etcd: its JSON gateway over HTTP. `runtime.job_state` puts values right there.

It is the jobs' own, not the cluster's: it takes no credentials, may be away, and is asked for one key at a time.
"""

from base64 import b64encode
from typing import Any, TypeVar

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout
from msgspec import Struct

from trainwright.errors import UnavailableError

#: Seconds for one answer.
_TIMEOUT = 3.0
_TROUBLES = (ClientError, TimeoutError, OSError, msgspec.MsgspecError, UnavailableError)
T = TypeVar("T")


class _Pair(Struct, frozen=True):
    """A key that there is: its value, which arrives in base64, and the revision of its last change."""

    mod_revision: str
    value: bytes = b""


class _Found(Struct, frozen=True):
    kvs: tuple[_Pair, ...] = ()


class Etcd:
    """A cluster of servers, `host:port,…`; whichever answers first will do."""

    def __init__(self, servers: str, timeout: float = _TIMEOUT) -> None:
        given = [one.strip().rstrip("/") for one in servers.split(",")]
        self._servers = [one if "://" in one else f"http://{one}" for one in given if one]
        self._limits = ClientTimeout(total=timeout)

    async def revise(self, key: str, value: str) -> str | None:
        """Put the value in place of another; which one was there. UnavailableError."""
        troubles = []
        async with ClientSession(timeout=self._limits) as session:
            for server in self._servers:
                try:
                    return await _revise(session, server, key, value)
                except _TROUBLES as error:
                    troubles.append(f"no answer from {server}: {str(error) or type(error).__name__}")
        raise UnavailableError("; ".join(troubles) or "no server is given")


async def _revise(session: ClientSession, server: str, key: str, value: str) -> str | None:
    """Look, and put only if nobody else did meanwhile: what they put is looked at next time."""
    name = _wire(key)
    found = await _ask(session, f"{server}/v3/kv/range", {"key": name}, _Found)
    if not found.kvs:
        return None
    before = found.kvs[0].value.decode(errors="replace")
    if before != value:
        unchanged = {"key": name, "target": "MOD", "result": "EQUAL", "modRevision": found.kvs[0].mod_revision}
        put = {"requestPut": {"key": name, "value": _wire(value), "ignoreLease": True}}
        await _ask(session, f"{server}/v3/kv/txn", {"compare": [unchanged], "success": [put]}, dict)
    return before


async def _ask(session: ClientSession, url: str, body: dict[str, Any], answer: type[T]) -> T:
    async with session.post(url, data=msgspec.json.encode(body)) as response:
        data = await response.read()
        if response.status != 200:
            raise UnavailableError(f"{response.status}: {data[:200].decode(errors='replace').strip()}")
    return msgspec.json.decode(data, type=answer)


def _wire(text: str) -> str:
    return b64encode(text.encode()).decode()
