# SPDX-License-Identifier: Apache-2.0
"""The process of the background engine: it runs the engine, keeps the records, and answers `status`, `submit`, `down`.

SIGTERM and SIGINT end the engine like `trainwright down --keep-running`: pods continue, and the next engine finds them.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trainwright import __version__, open_files
from trainwright.cli.background import jobs
from trainwright.cli.background.options import EngineOptions
from trainwright.cli.background.place import LOG, STORE, EngineProcess
from trainwright.cli.background.protocol import (
    DeviceReport,
    DownRequest,
    DownResult,
    EngineStatus,
    NodeReport,
    StatusRequest,
    SubmitRequest,
    SubmitResult,
)
from trainwright.cli.background.recorder import JobRecords
from trainwright.cli.background.report import count_jobs, describe_nodes
from trainwright.cli.background.retention import Retention
from trainwright.cli.registry import registry
from trainwright.cli.state import API_SOCKET, VOLUMES, home
from trainwright.errors import ConflictError, EngineError, TrainwrightError, UnavailableError
from trainwright.local.engine import Engine, EngineSettings
from trainwright.local.settings import SOCKET
from trainwright.local.sockets.server import Verb
from trainwright.model.units import rfc3339
from trainwright.runtime.ports import WallClock

if TYPE_CHECKING:
    from trainwright.cli.background.api import EngineApi

_LOG = logging.getLogger(__name__)
#: At most this many notices of the engine are shown by `status`.
_MAX_NOTICES = 20
#: The answer to `down` must reach the client before the engine closes the socket.
_ANSWER_SECONDS = 0.1
#: At its end, the engine waits this many seconds for submissions that it has begun to store.
_SUBMISSION_SECONDS = 5.0
#: The maximum size of the log of the engine in bytes, and the number of older files.
_LOG_BYTES, _LOG_FILES = 10 << 20, 2


class Daemon:
    """The background engine of one user."""

    def __init__(self, folder: Path, lock: int, options: EngineOptions) -> None:
        self._folder, self._options = folder, options
        self._clock = WallClock()
        self._process = EngineProcess(os.getpid(), __version__, rfc3339(self._clock.now()))
        os.ftruncate(lock, 0)
        os.pwrite(lock, msgspec.json.encode(self._process), 0)
        self._notices: list[str] = []
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._engine = Engine(self._settings())
        self._engine.verbs = {
            "status": Verb(StatusRequest, self._status),
            "submit": Verb(SubmitRequest, self._submit),
            "down": Verb(DownRequest, self._down),
        }
        cluster = self._engine.cluster
        self._recorder = JobRecords(cluster, self._clock, home(), folder, self._engine.cleaned_up)
        self._retention = Retention(cluster, self._clock, home(), folder, options)
        self._tasks: list[asyncio.Task[None]] = []
        self._api: EngineApi | None = None
        self._submissions: set[asyncio.Task[SubmitResult]] = set()
        #: Whether pods that run when the engine ends continue.
        self._keep_running = True

    async def run(self, ready: Callable[[], None]) -> None:
        """Run until `down` or a signal. `ready` is called when the engine accepts jobs. Raises EngineError."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)  # the terminal that started the engine was closed
        # The socket of a killed engine. Without it, commands use the private socket until the API is ready.
        (self._folder / API_SOCKET).unlink(missing_ok=True)
        try:
            self._recorder.settle(self._engine.store)
            await self._engine.start()
            self._recorder.runtime = self._engine.runtime
            self._start(self._recorder.run(), self._retention.run())
            await self._start_api()
            self._engine.broken.add_done_callback(self._part_ended)
            _LOG.warning("the engine is up: process %d, runtime %s", os.getpid(), self._engine.runtime)
            ready()
            await self._ended
        finally:
            await self._stop()

    async def _start_api(self) -> None:
        """Start the Kubernetes API. Without it, the engine works all the same."""
        if not self._options.api:
            return
        from trainwright.cli.background.api import EngineApi  # noqa: PLC0415 - imports aiohttp's server, which is slow

        api = EngineApi(self._engine.cluster, self._clock, self._folder, self._notify)
        try:
            await api.start(self._options.api_port)
        except EngineError as error:
            if self._options.api_port:
                raise  # the user has asked for this port
            self._notify(f"there is no Kubernetes API: {error}")
            return
        self._api = api

    def _settings(self) -> EngineSettings:
        options = self._options
        return EngineSettings(
            folder=self._folder,
            volumes=home() / VOLUMES,
            working=Path.home(),
            runtime=options.runtime,
            nodes=options.nodes,
            silence_grace=options.node_grace,
            devices=options.devices,
            resync=options.resync,
            elastic_server=options.etcd_server,
            registry=registry(options.etcd_server),
            notify=self._notify,
            detached=True,
            journal=self._folder / STORE,
        )

    def _notify(self, text: str) -> None:
        if text not in self._notices:
            self._notices = [*self._notices, text][-_MAX_NOTICES:]
            _LOG.warning(text)

    def _start(self, *coroutines: Coroutine[Any, Any, None]) -> None:
        for coroutine in coroutines:
            task = asyncio.get_running_loop().create_task(coroutine)
            task.add_done_callback(self._part_ended)
            self._tasks.append(task)

    def _part_ended(self, part: asyncio.Future[None]) -> None:
        """End the engine if a part of it fails: the next engine continues with the pods."""
        if part.cancelled() or self._ended.done():
            return
        error = part.exception()
        failure = (
            error if isinstance(error, TrainwrightError) else EngineError(f"a part of the engine failed: {error!r}")
        )
        self._ended.set_exception(failure)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    async def _stop(self) -> None:
        if self._submissions:
            await asyncio.wait(self._submissions, timeout=_SUBMISSION_SECONDS)
        if self._api is not None:
            await self._api.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._recorder.flush()
        await self._engine.stop(keep_running=self._keep_running and await self._anything_runs())

    async def _anything_runs(self) -> bool:
        try:
            return await jobs.any_unfinished(self._engine.cluster)
        except UnavailableError:  # the disk accepts no writes
            return True

    # -- verbs -------------------------------------------------------------------------------------------------------

    async def _status(self, _: StatusRequest) -> EngineStatus:
        cluster = self._engine.cluster
        nodes: list[NodeReport] = []
        devices: list[DeviceReport] = []
        counts: dict[str, int] = {}
        pods = 0
        problems = [text for text in (self._engine.trouble, self._recorder.trouble) if text]
        try:
            nodes, devices = await describe_nodes(cluster)
            counts = await count_jobs(cluster)
            pods = len(await jobs.lone_pods(cluster))
        except UnavailableError as error:
            problems = problems or [str(error)]
        return {
            "pid": os.getpid(),
            "version": __version__,
            "since": self._process.since,
            "socket": str(self._folder / SOCKET),
            "folder": str(self._folder),
            "runtime": self._engine.runtime,
            "choice": self._engine.choice,
            "nodes": nodes,
            "devices": devices,
            "jobs": counts,
            "pods": pods,
            "problems": problems,
            "notices": self._notices,
            "api": self._api.url if self._api is not None else "",
            "kubeconfig": self._api.kubeconfig if self._api is not None else "",
        }

    async def _submit(self, request: SubmitRequest) -> SubmitResult:
        # A client that goes away does not cancel its submission: the job may be stored already.
        return await asyncio.shield(
            self._submitting(jobs.submit(self._engine.cluster, self._clock, self._folder, request))
        )

    def _submitting(self, work: Coroutine[Any, Any, SubmitResult]) -> asyncio.Task[SubmitResult]:
        task = asyncio.get_running_loop().create_task(work)
        self._submissions.add(task)
        task.add_done_callback(self._submissions.discard)
        return task

    async def _down(self, request: DownRequest) -> DownResult:
        cluster = self._engine.cluster
        unfinished, pods = await jobs.unfinished(cluster), await jobs.lone_pods(cluster)
        if request["jobs"] == "idle" and (unfinished or pods):
            raise ConflictError(f"{len(unfinished)} jobs and {len(pods)} pods of no job are unfinished")
        if request["jobs"] in ("end", "idle"):
            await jobs.end_all(cluster, [*unfinished, *pods], request.get("grace"))
            self._keep_running = False
            self._recorder.flush()
        asyncio.get_running_loop().call_later(_ANSWER_SECONDS, self._end)
        return {"jobs": [str(key) for _, key, _ in unfinished], "pods": [str(key) for _, key, _ in pods]}


async def serve(folder: Path, lock: int, options: EngineOptions, ready: Callable[[], None]) -> None:
    """Run the background engine until it is told to end. Raises EngineError."""
    open_files.raise_limit()  # clients of the API may need more than a thousand files
    logging.raiseExceptions = False  # otherwise `logging` would print a traceback for each message on a full disk
    handler = RotatingFileHandler(folder / LOG, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES, delay=True)
    formatter = logging.Formatter("%(asctime)sZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    await Daemon(folder, lock, options).run(ready)
