# SPDX-License-Identifier: Apache-2.0
"""A node agent in a process of its own: `python -m trainwright.local.agent_main CONFIG`, an `AgentConfig` as JSON.
Standard input is a JSON object, the variables that containers are given.

The engine starts one per node for `--nodes N`. It reaches the store through the engine's socket and ends with it; its
supervisor ends with the agent, so that killing the agent is the death of a node. Notices are lines on stdout. It tells
the engine regularly that it is alive: one that falls silent is killed.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trainwright.errors import ApiError, EngineError, TrainwrightError
from trainwright.local.sockets.client import RemoteCluster
from trainwright.local.sockets.protocol import HeartbeatRequest, connect
from trainwright.node.agent import Agent
from trainwright.node.link import SupervisorLink
from trainwright.node.settings import HEARTBEAT, AgentSettings
from trainwright.node.silence import SilenceLimits
from trainwright.runtime import purity
from trainwright.runtime.ports import WallClock


class AgentConfig(Struct, frozen=True):
    """Which engine to serve, as which node, and how long pods have to end when the agent is asked to."""

    socket: str
    settings: AgentSettings
    grace: float = 30.0
    #: The descriptor of the socket over which the engine hands over leases of devices.
    leases: int | None = None


class _SupervisorLostError(EngineError):
    """The node can run nothing any more; the agent has told why."""


async def serve(config: AgentConfig) -> None:
    """Be a node until the engine has gone (then everything ends at once) or SIGTERM asks for an end."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[float | None] = loop.create_future()
    loop.add_signal_handler(signal.SIGTERM, _settle, ended, config.grace)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # a Ctrl-C is the engine's to answer
    async with RemoteCluster(Path(config.socket)) as cluster, RemoteCluster(Path(config.socket)) as engine:
        reader, writer = await asyncio.open_unix_connection(sock=connect(Path(config.socket)))
        link = await SupervisorLink.begin(config.settings.supervisor(config.leases))
        if config.leases is not None:
            os.close(config.leases)  # it is the supervisor's now
        for notice in link.ready.result()["notices"]:
            _say(notice)
        agent = Agent(cluster, link, WallClock(), config.settings, _say)
        link.lost = partial(_lose, link.lost, ended)
        heartbeat: HeartbeatRequest = {
            "node": config.settings.node,
            "pid": os.getpid(),
            "supervisor": link.process.pid,
        }
        await _tell(engine, heartbeat)  # the engine has to know the supervisor before there are pods
        interval = SilenceLimits.of(config.settings.node_grace).interval
        beside = [
            asyncio.create_task(_gone(reader, ended)),
            asyncio.create_task(_beat(engine, heartbeat, interval)),
        ]
        try:
            await agent.start()
            grace = await ended
            await (agent.stop(grace) if grace is not None else link.close())
        except _SupervisorLostError:
            await agent.leave(0, remove=False)
            raise
        finally:
            for task in beside:
                task.cancel()
            writer.close()


def _settle(ended: "asyncio.Future[float | None]", grace: float | None) -> None:
    if not ended.done():
        ended.set_result(grace)


def _lose(told: Callable[[], None], ended: "asyncio.Future[float | None]") -> None:
    """The supervisor has gone: the agent gives its pods up, and then it is of no more use."""
    told()
    if not ended.done():
        ended.set_exception(_SupervisorLostError("its supervisor has gone"))


async def _gone(reader: asyncio.StreamReader, ended: "asyncio.Future[float | None]") -> None:
    """A connection that nothing is said on: when it ends, so has the engine."""
    await reader.read()
    _settle(ended, None)


async def _beat(engine: RemoteCluster, heartbeat: HeartbeatRequest, interval: float) -> None:
    """Tell the engine regularly that we are alive, on a connection that nothing else can block.

    The next one waits for the answer to the one before: an engine that is stopped finds no heap of them.
    """
    while True:
        await asyncio.sleep(interval)
        await _tell(engine, heartbeat)


async def _tell(engine: RemoteCluster, heartbeat: HeartbeatRequest) -> None:
    with suppress(ApiError):  # `_gone` notices an engine that has ended
        await engine.call(HEARTBEAT, heartbeat)


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    """Be a node agent. The only argument is its configuration, as JSON; but secrets come on standard input."""
    purity.enforce()
    if sys.platform == "linux":
        from trainwright.node.supervisor import kernel  # noqa: PLC0415 - Linux only

        kernel.die_with_parent()
    try:
        config = msgspec.json.decode(sys.argv[1], type=AgentConfig)
        env = msgspec.json.decode(sys.stdin.buffer.read() or b"{}", type=dict[str, str])
        asyncio.run(serve(replace(config, settings=replace(config.settings, env=env))))
    except _SupervisorLostError:
        sys.exit(3)
    except (TrainwrightError, OSError) as error:
        sys.exit(f"node agent: {error}")


if __name__ == "__main__":
    main()
