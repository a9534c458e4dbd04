# SPDX-License-Identifier: Apache-2.0
"""What all pod workers of an agent share: `AgentContext`, the writer of pod statuses, and the sender of notices."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from msgspec import Struct

from trainwright.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    TooManyRequestsError,
    UnavailableError,
)
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.node.hosts import HostsFiles
from trainwright.node.link import SupervisorLink
from trainwright.node.network.pools import SubnetPool
from trainwright.node.pod_devices import NodeDevices
from trainwright.node.settings import AgentDelays, AgentSettings
from trainwright.node.watches import ConfigMapWaiter
from trainwright.runtime.ports import PODS, Clock, Cluster

_PODS = PODS.whole()
#: Errors that may pass: also a 403, since rights may be granted and an expired token may be renewed.
RETRIABLE_ERRORS = (UnavailableError, TooManyRequestsError, ForbiddenError)
#: Creates a token for a pod. Arguments: the pod, the audience (empty: the API server), the lifetime in seconds.
Tokens = Callable[[Body, str, int], Awaitable[str]]


class StatusReport:
    """The status of one pod: `compose` makes the newest one, `stored` is what the API has."""

    __slots__ = ("compose", "dirty", "gone", "key", "lock", "stored", "uid")

    def __init__(self, key: Key, uid: str, compose: Callable[[], Body]) -> None:
        self.key = key
        self.uid = uid
        self.compose = compose
        self.dirty = False
        #: The pod object is gone, so there is no status to write.
        self.gone = False
        self.stored: Body | None = None
        self.lock = asyncio.Lock()


class StatusWriter:
    """Writes the statuses of all pods of an agent; changes of a pod within `delays.debounce` are one write.

    The writer never writes one report twice at the same time, and retries until the write succeeds or the pod is gone.
    `notify` receives a message when the API refuses a status.
    """

    def __init__(self, cluster: Cluster, delays: AgentDelays, notify: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._delays = delays
        self._notify = notify
        #: The agent ends: a write that fails now is not retried.
        self.closing = False
        self._loop = asyncio.get_running_loop()
        #: Reports with the times at which they are due. The delay is constant, so the queue is in order of these times.
        self._queue: deque[tuple[float, StatusReport]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[bool]] = set()

    def mark(self, report: StatusReport) -> None:
        """Write the report soon, together with the changes that follow until then."""
        if report.dirty or report.gone:
            return
        report.dirty = True
        due = self._loop.time() + self._delays.debounce
        self._queue.append((due, report))
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._write_due)

    def _write_due(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._queue:
            due, report = self._queue[0]
            if report.dirty and due > now:
                self._timer = self._loop.call_at(due, self._write_due)
                return
            self._queue.popleft()
            if report.dirty:
                task = self._loop.create_task(self.store(report))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def store(self, report: StatusReport) -> bool:
        """Write the report now if it has changed, and retry until it is written. False: the agent ended before."""
        async with report.lock:
            wait = self._delays.api_retry
            while not report.gone:
                report.dirty = False
                body = report.compose()
                if body == report.stored:
                    return True
                try:
                    await self._write(report, body)
                except RETRIABLE_ERRORS as error:
                    if isinstance(error, ForbiddenError):
                        self._notify(f"pod {report.key}: its status was refused, retrying: {error}")
                    if self.closing:
                        return False
                    await asyncio.sleep(error.retry_after or wait)
                    wait = min(2 * wait, self._delays.max_api_retry)
                    continue
                if not report.dirty:
                    break
        return True

    async def _write(self, report: StatusReport, body: Body) -> None:
        try:
            await self._cluster.patch(_PODS, report.key, {"status": body}, uid=report.uid, status=True)
        except NotFoundError:
            report.gone = True
        except ConflictError:
            report.gone = await self._is_replaced(report)
        except RETRIABLE_ERRORS:
            raise
        except ApiError as error:
            self._notify(f"pod {report.key}: its status was refused: {error}")
            report.stored = body
        else:
            report.stored = body

    async def _is_replaced(self, report: StatusReport) -> bool:
        """After a conflict: whether the pod is gone or replaced by another of its name. If not, write again."""
        try:
            found = await self._cluster.get(_PODS, report.key)
        except NotFoundError:
            return True
        report.dirty = True
        return bool(found["metadata"]["uid"] != report.uid)

    async def close(self) -> None:
        """Write all reports that have changed."""
        if self._timer is not None:
            self._timer.cancel()
        reports = [report for _, report in self._queue if report.dirty]
        self._queue.clear()
        await asyncio.gather(*(self.store(report) for report in reports), *self._tasks)


class OnceNotices:
    """Sends notices to the user: `send_once` drops repetitions, `send` does not."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.send = notify
        self._sent: set[str] = set()

    def send_once(self, text: str, subject: str = "") -> None:
        """Send the text, unless this text (or, with a subject, any text about that subject) was sent before."""
        if (subject or text) not in self._sent:
            self._sent.add(subject or text)
            self.send(text)


class AgentContext(Struct, frozen=True):
    """The parts of an agent that all its pod workers use."""

    cluster: Cluster
    link: SupervisorLink
    clock: Clock
    settings: AgentSettings
    reports: StatusWriter
    devices: NodeDevices
    notices: OnceNotices
    config_maps: ConfigMapWaiter
    #: None if pods have no hosts file of their own (process runtime).
    hosts: HostsFiles | None = None
    #: The addresses that this agent assigns to its pods; None if it assigns none.
    addresses: SubnetPool | None = None
    #: None if there are no service accounts.
    tokens: Tokens | None = None
