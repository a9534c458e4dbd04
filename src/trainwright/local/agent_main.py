# SPDX-License-Identifier: Apache-2.0
"""A node agent in its own process: `python -m trainwright.local.agent_main CONFIG`. CONFIG is an `AgentConfig` as JSON.

Standard input is a JSON object with variables for all containers. Their values can be secrets, which must not be in a
command line. The engine starts one such process per node for `--nodes N`. The agent uses the store through the engine's
socket and ends with the engine. The supervisor ends with the agent, so killing the agent has the effect of a failed
node. Only if the engine is detached (`orphans: keep`), the supervisor and its pods go on, and the next agent attaches
to them. The agent prints notices as lines on stdout and sends heartbeats; without them, the engine kills the agent.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trainwright.errors import ApiError, EngineError, TrainwrightError
from trainwright.local.sockets.client import RemoteCluster
from trainwright.local.sockets.protocol import HeartbeatRequest
from trainwright.node import adoption
from trainwright.node.agent import Agent
from trainwright.node.link import SupervisorLink
from trainwright.node.node_object import AgentNode
from trainwright.node.settings import HEARTBEAT, AgentSettings
from trainwright.node.silence import SilenceLimits
from trainwright.runtime import purity
from trainwright.runtime.ports import WallClock
from trainwright.unix_sockets import connect

#: On this signal the agent ends and leaves its pods to the next agent, if the engine is detached.
DETACH_SIGNAL = signal.SIGUSR1


class AgentConfig(Struct, frozen=True):
    """The engine's socket, the node's settings, and the seconds that pods get to end when the agent gets SIGTERM."""

    socket: str
    settings: AgentSettings
    grace: float = 30.0
    #: The file descriptor of the socket through which the engine leases devices to the node.
    leases: int | None = None
    #: The process ID of the engine. An agent whose engine has already ended must not serve the next engine.
    engine: int | None = None


class _SupervisorLostError(EngineError):
    """The node can no longer run pods; the agent has sent a notice with the reason."""


async def serve(config: AgentConfig) -> None:
    """Run a node until the engine has ended (then the pods are killed at once) or until this process gets SIGTERM."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[float | None] = loop.create_future()
    loop.add_signal_handler(signal.SIGTERM, _set_ended, ended, config.grace)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # the engine handles Ctrl-C
    loop.add_signal_handler(DETACH_SIGNAL, _set_ended, ended, None)
    async with RemoteCluster(Path(config.socket)) as cluster, RemoteCluster(Path(config.socket)) as engine:
        reader, writer = await asyncio.open_unix_connection(sock=connect(Path(config.socket)))
        heartbeat: HeartbeatRequest = {"node": config.settings.node, "pid": os.getpid(), "supervisor": 0}
        interval = SilenceLimits.of(config.settings.silence_grace).interval
        background = [
            asyncio.create_task(_wait_engine_gone(reader, ended)),
            asyncio.create_task(_send_heartbeats(engine, heartbeat, interval)),
        ]
        try:
            link = await _unless_ended(_connect(config, cluster), ended)
            if link is not None:
                heartbeat["supervisor"], heartbeat["start"] = link.process.pid, link.process.start
                await _send_heartbeat(engine, heartbeat)  # the engine must know the supervisor before the node has pods
                await _run_agent(config, cluster, link, ended)
        finally:
            for task in background:
                task.cancel()
            writer.close()


async def _connect(config: AgentConfig, cluster: RemoteCluster) -> SupervisorLink:
    settings = config.settings
    if settings.orphans == "keep":
        node = AgentNode(cluster, WallClock(), settings)
        link = await adoption.connect_or_drain(settings.supervisor(config.leases), node, _print_notice)
    else:
        link = await SupervisorLink.begin(settings.supervisor(config.leases))
    if config.leases is not None:
        os.close(config.leases)  # the supervisor has the descriptor now
    return link


async def _unless_ended(
    connecting: Coroutine[Any, Any, SupervisorLink], ended: "asyncio.Future[float | None]"
) -> SupervisorLink | None:
    """Wait for the supervisor, which can take long if an older one is drained; None if the agent must end before."""
    task = asyncio.get_running_loop().create_task(connecting)
    ended.add_done_callback(lambda _: task.cancel())
    with suppress(asyncio.CancelledError):
        return await task
    return None


async def _run_agent(
    config: AgentConfig, cluster: RemoteCluster, link: SupervisorLink, ended: "asyncio.Future[float | None]"
) -> None:
    """Run the agent until it must end."""
    for notice in link.ready.result()["notices"]:
        _print_notice(notice)
    agent = Agent(cluster, link, WallClock(), config.settings, _print_notice)
    link.on_lost = partial(_supervisor_lost, link.on_lost, ended)
    try:
        await agent.start()
        grace = await ended
        if grace is not None:
            await agent.stop(grace)
        elif config.settings.orphans == "keep":
            await agent.detach()
        else:
            await link.close()
    except _SupervisorLostError:
        await agent.leave(0, remove=False)
        raise


def _set_ended(ended: "asyncio.Future[float | None]", grace: float | None) -> None:
    if not ended.done():
        ended.set_result(grace)


def _supervisor_lost(tell_agent: Callable[[], None], ended: "asyncio.Future[float | None]") -> None:
    """The supervisor has ended. Tell the agent, so that it marks its pods as failed; then end this process."""
    tell_agent()
    if not ended.done():
        ended.set_exception(_SupervisorLostError("its supervisor has ended"))


async def _wait_engine_gone(reader: asyncio.StreamReader, ended: "asyncio.Future[float | None]") -> None:
    """Wait until the engine has ended. The engine sends nothing on this connection; its end closes the connection."""
    await reader.read()
    _set_ended(ended, None)


async def _send_heartbeats(engine: RemoteCluster, heartbeat: HeartbeatRequest, interval: float) -> None:
    """Send heartbeats to the engine, on a connection that no other request can block.

    Each heartbeat waits for the answer to the previous heartbeat, so a stopped engine gets only one heartbeat.
    """
    while True:
        await asyncio.sleep(interval)
        await _send_heartbeat(engine, heartbeat)


async def _send_heartbeat(engine: RemoteCluster, heartbeat: HeartbeatRequest) -> None:
    with suppress(ApiError):  # if the engine has ended, `_wait_engine_gone` ends this process
        await engine.call(HEARTBEAT, heartbeat)


def _print_notice(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    """Run a node agent. The argument is an `AgentConfig` as JSON. Standard input has variables for all containers."""
    purity.enforce()
    if sys.platform == "linux":
        from trainwright import kernel  # noqa: PLC0415 - Linux only

        kernel.die_with_parent()
    try:
        config = msgspec.json.decode(sys.argv[1], type=AgentConfig)
        if config.engine is not None and os.getppid() != config.engine:  # it ended before `die_with_parent`
            sys.exit("node agent: its engine has ended")
        env = msgspec.json.decode(sys.stdin.buffer.read() or b"{}", type=dict[str, str])
        asyncio.run(serve(replace(config, settings=replace(config.settings, env=env))))
    except _SupervisorLostError:
        sys.exit(3)
    except (TrainwrightError, OSError) as error:
        sys.exit(f"node agent: {error}")


if __name__ == "__main__":
    main()
