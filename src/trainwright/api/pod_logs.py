# SPDX-License-Identifier: Apache-2.0
"""`GET …/pods/NAME/log`: the log of one container, as `kubectl logs` asks for it.

A pod that is gone has no log here: only `trainwright logs` shows the logs of earlier pods. As in kubelet, a followed
log ends when the container ends, even if the container is then restarted.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from pathlib import Path

from aiohttp import web

from trainwright.api.pod_containers import container_name, container_status, is_running
from trainwright.errors import BadRequestError, InvalidError, NotFoundError, UnavailableError
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.node import submission, timed_logs
from trainwright.node.log_server import log_part
from trainwright.node.logs import log_path
from trainwright.runtime.ports import PODS, Clock, Cluster, LogPart

_WHOLE = PODS.whole()


class PodLogs:
    """Serves the logs of the pods of one engine; `folder` is the folder of the engine."""

    def __init__(self, cluster: Cluster, clock: Clock, folder: Path) -> None:
        self._cluster, self._clock, self._folder = cluster, clock, str(folder)

    async def serve(self, request: web.BaseRequest, pod: Body) -> web.StreamResponse:
        """Answer a request for a log of this pod, to a client that may read it. Raises ApiError before it answers."""
        part = log_part(request.query, self._clock.now())
        if "stream" in request.query:
            raise InvalidError("stream: the output and the errors of a container are in one log; omit `stream`")
        name = container_name(pod, request.query.get("container", ""))
        if not pod["spec"].get("nodeName"):
            return web.Response(status=204)  # as the real server
        chunks = self.read(pod, name, part, lambda: _is_connected(request))
        async with aclosing(chunks):
            first = await anext(chunks, b"")
            response = web.StreamResponse(headers={"Content-Type": "text/plain"})
            response.enable_chunked_encoding()
            await response.prepare(request)
            with suppress(ConnectionError):  # the client has disconnected
                await response.write(first)
                async for chunk in chunks:
                    await response.write(chunk)
                await response.write_eof()
        return response

    async def read(
        self, pod: Body, name: str, part: LogPart, wanted: Callable[[], bool] = lambda: True
    ) -> AsyncGenerator[bytes, None]:
        """The log of a container. It ends early if `wanted` returns False. Raises BadRequestError.

        The first item comes at once, and is empty if the log is empty.
        """
        meta, status = pod["metadata"], container_status(pod, name)
        restarts = int(status.get("restartCount", 0)) - part.previous
        folder = submission.folder_of(self._folder, meta.get("annotations"))
        path = log_path(folder, meta["name"], meta["uid"], name, restarts)
        live = self._liveness(pod, name, restarts)

        async def proceeds() -> bool:
            return wanted() and await live()

        if restarts < 0 or not Path(path).exists():
            raise BadRequestError(_no_log(pod, name, status, previous=part.previous))
        yield b""
        with suppress(FileNotFoundError):  # the log was removed in the meantime
            async with aclosing(timed_logs.read(path, part, proceeds)) as chunks:
                async for chunk in chunks:
                    yield chunk

    def _liveness(self, pod: Body, name: str, restarts: int) -> Callable[[], Awaitable[bool]]:
        """A function that tells whether this start of the container still runs."""
        meta = pod["metadata"]
        key, uid = Key(meta["namespace"], meta["name"]), meta["uid"]

        async def live() -> bool:
            try:
                found = await self._cluster.get(_WHOLE, key)
            except NotFoundError:
                return False
            except UnavailableError:  # the disk is full: the pod runs on
                return True
            status = container_status(found, name)
            same = found["metadata"]["uid"] == uid and status.get("restartCount", 0) == restarts
            return bool(same and is_running(status))

        return live


def _no_log(pod: Body, name: str, status: Body, *, previous: bool) -> str:
    """Why there is no log."""
    what = f'container "{name}" in pod "{pod["metadata"]["name"]}"'
    if previous:
        return f"previous terminated {what} not found"
    state = status.get("state") or {}
    if "running" in state or "terminated" in state:
        return f"{what} has no log any more"
    reason = (state.get("waiting") or {}).get("reason") or "ContainerCreating"
    return f"{what} is waiting to start: {reason}"


def _is_connected(request: web.BaseRequest) -> bool:
    return request.transport is not None and not request.transport.is_closing()
