# SPDX-License-Identifier: Apache-2.0
"""A client for the etcd server that stores the sizes of elastic jobs. The client uses etcd's JSON gateway over HTTP.

This server is not the etcd of the Kubernetes cluster. It needs no credentials. Jobs still run if it does not answer.
"""

from base64 import b64encode
from typing import Any, TypeVar

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout
from msgspec import Struct

from trainwright.errors import UnavailableError

_TIMEOUT_SECONDS = 3.0
_ERRORS = (ClientError, TimeoutError, OSError, msgspec.MsgspecError, UnicodeDecodeError, UnavailableError)
T = TypeVar("T")


class _KeyValue(Struct, frozen=True):
    """A stored key: the revision of its last change, and its value, which etcd sends in base64."""

    mod_revision: str
    value: bytes = b""


class _RangeResponse(Struct, frozen=True):
    kvs: tuple[_KeyValue, ...] = ()


class Etcd:
    """An etcd cluster, given as `host:port,…`. The client uses the first server that answers."""

    def __init__(self, servers: str, timeout: float = _TIMEOUT_SECONDS) -> None:
        addresses = [one.strip().rstrip("/") for one in servers.split(",")]
        self._servers = [one if "://" in one else f"http://{one}" for one in addresses if one]
        self._timeout = ClientTimeout(total=timeout)

    async def revise(self, key: str, value: str) -> str | None:
        """Replace the value of an existing key and return the old value. Return None if the key does not exist.

        Raises UnavailableError if no server answers.
        """
        failures = []
        async with ClientSession(timeout=self._timeout) as session:
            for server in self._servers:
                try:
                    return await _revise(session, server, key, value)
                except _ERRORS as error:
                    failures.append(f"no answer from {server}: {str(error) or type(error).__name__}")
        raise UnavailableError("; ".join(failures) or "no server is given")


async def _revise(session: ClientSession, server: str, key: str, value: str) -> str | None:
    """Read the key, then write it. If another client changes the key in between, do not write."""
    name = _base64(key)
    found = await _post(session, f"{server}/v3/kv/range", {"key": name}, _RangeResponse)
    if not found.kvs:
        return None
    before = found.kvs[0].value.decode(errors="replace")
    if before != value:
        unchanged = {"key": name, "target": "MOD", "result": "EQUAL", "modRevision": found.kvs[0].mod_revision}
        put = {"requestPut": {"key": name, "value": _base64(value), "ignoreLease": True}}
        await _post(session, f"{server}/v3/kv/txn", {"compare": [unchanged], "success": [put]}, dict)
    return before


async def _post(session: ClientSession, url: str, body: dict[str, Any], answer: type[T]) -> T:
    async with session.post(url, data=msgspec.json.encode(body)) as response:
        data = await response.read()
        if response.status != 200:
            raise UnavailableError(f"{response.status}: {data[:200].decode(errors='replace').strip()}")
    return msgspec.json.decode(data, type=answer)


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()
