# SPDX-License-Identifier: Apache-2.0
"""`…/pods/NAME/exec` and `…/pods/NAME/attach`, as `kubectl exec`, `cp` and `attach` use them.

exec: the supervisor of the pod's node runs the command, as for `trainwright exec`. If the client goes away, the
supervisor kills the command.

attach: the client gets the output of the running container from now on, until the container ends. Output and errors of
a container are one stream here. A container has neither standard input nor terminal: attach refuses `stdin` and `tty`.
"""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing, suppress
from pathlib import Path

from aiohttp import web

from trainwright.api import channels as outcomes
from trainwright.api.channels import STDERR, STDOUT, Channels
from trainwright.api.exec_streams import CommandStreams, StreamOptions
from trainwright.api.pod_containers import container_name, container_status, is_running
from trainwright.api.pod_logs import PodLogs
from trainwright.errors import BadRequestError, EngineError
from trainwright.model.job import Body
from trainwright.node.exec_client import CommandNotStarted, ExecConnection, container_id, exec_request
from trainwright.node.log_server import flag
from trainwright.node.supervisor.protocol import TerminalExec
from trainwright.node.watches import end_tasks
from trainwright.runtime.ports import LogPart

#: The terminal type that container runtimes use: the API does not pass on the type of the client.
_TERMINAL = "xterm"


class PodStreams:
    """Serves exec and attach for the pods of one engine; `folder` is the folder of the engine."""

    def __init__(self, folder: Path, logs: PodLogs) -> None:
        self._folder, self._logs = folder, logs

    async def exec(self, request: web.BaseRequest, pod: Body) -> web.StreamResponse:
        """Run a command in a container, for a client that may do this. Raises BadRequestError before it answers.

        The server must pass both GET and POST on: see `Channels.open`.
        """
        name, options = container_name(pod, request.query.get("container", "")), _options(request.query)
        status = _running(pod, name)
        argv = request.query.getall("command", [])
        if not argv:
            raise BadRequestError("you must specify at least 1 command for the container")
        wanted = exec_request(container_id(status), list(argv), terminal=_TERMINAL if options.tty else "")
        channels = Channels()
        await channels.open(request)
        try:
            code = await self._run(channels, self._supervisor(pod), wanted, options)
        except CommandNotStarted as error:
            with suppress(ConnectionError):
                await channels.send(STDOUT if options.tty else STDERR, f"{error}\n".encode())
            await channels.finish(outcomes.exit_code(error.exit_code))
        except (EngineError, OSError) as error:
            await channels.finish(outcomes.failure(str(error)))
        else:
            await channels.finish(outcomes.exit_code(code))
        return channels.response

    async def attach(self, request: web.BaseRequest, pod: Body) -> web.StreamResponse:
        """Send the output of a running container, for a client that may do this. Raises BadRequestError."""
        name, options = container_name(pod, request.query.get("container", "")), _options(request.query)
        _running(pod, name)
        for wanted, what in ((options.stdin, "standard input"), (options.tty, "terminal")):
            if wanted:
                raise BadRequestError(f"container {name} has no {what}; attach without -i and -t shows its output")
        channels = Channels()
        await channels.open(request)
        output = asyncio.get_running_loop().create_task(self._copy_output(channels, pod, name, options))
        client = asyncio.get_running_loop().create_task(_discard(channels))
        try:
            await asyncio.wait({output, client}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(output, client)
        await channels.finish(outcomes.success())
        return channels.response

    def _supervisor(self, pod: Body) -> str:
        return str(self._folder / "nodes" / pod["spec"]["nodeName"])

    async def _run(self, channels: Channels, supervisor: str, wanted: TerminalExec, options: StreamOptions) -> int:
        """Run the command and return its exit code. Raises CommandNotStarted, EngineError, OSError."""
        connection = await asyncio.to_thread(ExecConnection, supervisor)
        try:
            streams = CommandStreams(options)
            try:
                await connection.begin(wanted, streams.theirs)
                streams.close_theirs()
                return await _relay(channels, streams, connection)
            finally:
                streams.close()
        finally:
            connection.close()

    async def _copy_output(self, channels: Channels, pod: Body, name: str, options: StreamOptions) -> None:
        chunks = self._logs.read(pod, name, LogPart(follow=True, tail=0))
        channel = STDOUT if options.stdout else STDERR
        with suppress(ConnectionError):
            async with aclosing(chunks):
                async for chunk in chunks:
                    if chunk:
                        await channels.send(channel, chunk)


async def _relay(channels: Channels, streams: CommandStreams, connection: ExecConnection) -> int:
    """Copy all streams until the command has ended. Raises ConnectionError if the client goes away before."""
    loop = asyncio.get_running_loop()
    ended = loop.create_task(connection.ended())
    client = loop.create_task(streams.receive(channels))
    output = loop.create_task(streams.send_output(channels, ended))
    try:
        await asyncio.wait({ended, client}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            raise ConnectionError("the client has closed the connection")
        await output
        return await ended
    finally:
        await end_tasks(ended, client, output)


async def _discard(channels: Channels) -> None:
    """Read the messages of the client, so that pings are answered, until it closes the WebSocket."""
    async for _ in channels.messages():
        pass


def _options(query: Mapping[str, str]) -> StreamOptions:
    """The streams of a request. A terminal has one stream for output and errors. Raises BadRequestError."""
    tty = flag(query, "tty")
    stdin, stdout, stderr = (flag(query, name) for name in ("stdin", "stdout", "stderr"))
    if not (stdin or stdout or stderr):
        raise BadRequestError("you must specify at least 1 of stdin, stdout, stderr")
    return StreamOptions(stdin=stdin, stdout=stdout, stderr=stderr and not tty, tty=tty)


def _running(pod: Body, name: str) -> Body:
    """The status of a container, which must run. Raises BadRequestError."""
    node, status = pod["spec"].get("nodeName"), container_status(pod, name)
    if not node:
        raise BadRequestError(f"pod {pod['metadata']['name']} does not have a host assigned")
    if not is_running(status) or "/" in node or node == "..":
        raise BadRequestError(f'container "{name}" in pod "{pod["metadata"]["name"]}" is not running')
    return status
