# SPDX-License-Identifier: Apache-2.0
"""A node agent in a process of its own: `python -m trainwright.local.agent.main CONFIG`, a `Config` as JSON.

The engine starts one per node for `--nodes N`. It reaches the store through the engine's socket and ends with it; its
supervisor ends with the agent, so that killing the agent is the death of a node. Notices are lines on stdout.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from trainwright.errors import TrainwrightError
from trainwright.local.agent.agent import Agent
from trainwright.local.agent.link import Link
from trainwright.local.agent.settings import Settings
from trainwright.local.sockets.client import RemoteCluster
from trainwright.local.sockets.wire import connect
from trainwright.runtime.clock import WallClock


class Config(Struct, frozen=True):
    """Which engine to serve, as which node, and how long pods have to end when the agent is asked to."""

    socket: str
    settings: Settings
    grace: float = 30.0
    #: The descriptor of the socket over which the engine hands over leases of devices.
    leases: int | None = None


async def serve(config: Config) -> None:
    """Be a node until the engine has gone (then everything ends at once) or SIGTERM asks for an end."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[float | None] = loop.create_future()
    loop.add_signal_handler(signal.SIGTERM, _settle, ended, config.grace)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # a Ctrl-C is the engine's to answer
    async with RemoteCluster(Path(config.socket)) as cluster:
        reader, writer = await asyncio.open_unix_connection(sock=connect(Path(config.socket)))
        link = await Link.start({**config.settings.supervisor(), "leases": config.leases})
        if config.leases is not None:
            os.close(config.leases)  # it is the supervisor's now
        for notice in link.ready.result().get("notices") or ():
            _say(notice)
        agent = Agent(cluster, link, WallClock(), config.settings, _say)
        gone = asyncio.create_task(_gone(reader, ended))
        try:
            await agent.start()
            grace = await ended
        finally:
            gone.cancel()
            writer.close()
        await (agent.stop(grace) if grace is not None else link.close())


def _settle(ended: "asyncio.Future[float | None]", grace: float | None) -> None:
    if not ended.done():
        ended.set_result(grace)


async def _gone(reader: asyncio.StreamReader, ended: "asyncio.Future[float | None]") -> None:
    """A connection that nothing is said on: when it ends, so has the engine."""
    await reader.read()
    _settle(ended, None)


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    """Be a node agent. The only argument is its configuration, as JSON."""
    try:
        asyncio.run(serve(msgspec.json.decode(sys.argv[1], type=Config)))
    except (TrainwrightError, OSError) as error:
        sys.exit(f"node agent: {error}")


if __name__ == "__main__":
    main()
