# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes API of the background engine: starts its server, and keeps its address over restarts.

Clients that watch must find the next engine at the same address, so the port is kept in a file. If another program has
taken the port meanwhile, the engine takes a new one and writes a new kubeconfig.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from trainwright.api.credentials import ApiCredentials
from trainwright.api.handlers import ResourceHandlers
from trainwright.api.server import ApiAddress, ApiHttpServer
from trainwright.cli.state import API_SOCKET
from trainwright.errors import EngineError
from trainwright.local.cluster import LocalCluster
from trainwright.runtime.ports import Clock

ADDRESS = "api.json"
LOOPBACK = "127.0.0.1"


class StoredAddress(Struct, frozen=True):
    """Where the API listens, or has listened."""

    host: str
    port: int


def last_address(folder: Path) -> StoredAddress | None:
    """Where the API listens, or has listened; None if there was none."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((folder / ADDRESS).read_bytes(), type=StoredAddress)
    return None


def last_url(folder: Path) -> str:
    """The URL of the API; empty if there was none."""
    found = last_address(folder)
    if found is None:
        return ""
    return f"https://{f'[{found.host}]' if ':' in found.host else found.host}:{found.port}"


class EngineApi:
    """The API server of one engine. `folder` is the folder of the engine."""

    def __init__(self, cluster: LocalCluster, clock: Clock, folder: Path, notify: Callable[[str], None]) -> None:
        self._folder, self._notify = folder, notify
        self._credentials = ApiCredentials(folder, clock)
        self._handlers = ResourceHandlers(cluster, clock, folder)
        self._server = ApiHttpServer(self._handlers, self._credentials.identify)
        self._renewal: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The URL of the API; empty if it does not run."""
        return self._server.url

    @property
    def kubeconfig(self) -> str:
        """The path of the kubeconfig; empty if the API does not run."""
        return str(self._credentials.kubeconfig) if self._server.url else ""

    async def start(self, port: int) -> None:
        """Listen on the loopback interface and on a Unix socket in the folder of the engine, and write the kubeconfig.

        With port 0, the port of the last engine is used. Raises EngineError.
        """
        tls = await asyncio.to_thread(self._credentials.prepare)
        await self._handlers.prepare()
        last = last_address(self._folder)
        wanted = port or (last.port if last is not None and last.host == LOOPBACK else 0)
        try:
            await self._server.start(ApiAddress(LOOPBACK, wanted, tls))
        except EngineError as error:
            if port or not wanted:
                raise
            self._notify(f"{error}; the API gets another port, so a kubeconfig that you have copied must be made anew")
            await self._server.start(ApiAddress(LOOPBACK, 0, tls))
        try:
            await self._server.start_socket(self._folder / API_SOCKET)
        except EngineError as error:
            self._notify(f"commands of this machine use the private socket instead of the API: {error}")
        self._store_address(StoredAddress(LOOPBACK, self._server.port))
        self._write_kubeconfig()
        self._renewal = asyncio.create_task(self._credentials.keep_renewed(self._write_kubeconfig))

    async def stop(self) -> None:
        """End all connections."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
        await self._server.stop()

    def _write_kubeconfig(self) -> None:
        try:
            self._credentials.write_kubeconfig(self._server.url)
        except OSError as error:
            self._notify(f"the kubeconfig cannot be written: {error.strerror or error}")

    def _store_address(self, address: StoredAddress) -> None:
        path, unfinished = self._folder / ADDRESS, self._folder / f".{ADDRESS}"
        with suppress(OSError):  # a full disk: the next engine takes another port
            file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(file, "wb") as stream:
                stream.write(msgspec.json.encode(address))
            unfinished.replace(path)
