# SPDX-License-Identifier: Apache-2.0
"""What all pod workers of an agent share: `AgentContext`, the writer of pod statuses, and the sender of notices."""

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct, field

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
#: A retry can succeed after these errors. After a 403, somebody may grant the right, or the agent may renew its token.
_RETRIABLE_ERRORS = (UnavailableError, TooManyRequestsError, ForbiddenError)
#: Creates a token for a pod. Arguments: the pod, the audience (empty: the API server), the lifetime in seconds.
Tokens = Callable[[Body, str, int], Awaitable[str]]


class StatusReport(Struct, eq=False):
    """The status of one pod: `compose` makes the newest status, `stored` is the status that the API has."""

    key: Key
    uid: str
    compose: Callable[[], Body]
    dirty: bool = False
    #: Whether the pod object is gone. If so, there is no status to write.
    gone: bool = False
    stored: Body | None = None
    #: What to do after the next write, which says what happened until now.
    on_stored: list[Callable[[], None]] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class StatusWriter:
    """Writes the statuses of all pods of an agent. Changes of a pod within `delays.debounce` seconds become one write.

    For each report, the writer sends one request at a time. It retries until the write succeeds or the pod is gone.
    `notify` receives a message when the API refuses a status.
    """

    def __init__(self, cluster: Cluster, delays: AgentDelays, notify: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._delays = delays
        self._notify = notify
        #: Whether the agent is ending: a write that fails now is not retried.
        self.closing = False
        self._loop = asyncio.get_running_loop()
        self._timers: dict[StatusReport, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[bool]] = set()

    def mark(self, report: StatusReport) -> None:
        """Plan a write of the report after a short delay. That write also contains the changes during the delay."""
        if report.dirty or report.gone:
            return
        report.dirty = True
        if report not in self._timers:
            self._timers[report] = self._loop.call_later(self._delays.debounce, self._write_due, report)

    def _write_due(self, report: StatusReport) -> None:
        del self._timers[report]
        if report.dirty:
            task = self._loop.create_task(self.store(report))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def store(self, report: StatusReport) -> bool:
        """Write the report now if it has changed; retry until it is written. Returns False if the agent ends first."""
        async with report.lock:
            return await self.retry(lambda: self._write(report), f"pod {report.key}: its status was refused")

    async def retry(self, request: Callable[[], Awaitable[None]], refusal: str) -> bool:
        """Send a request until it succeeds. Raises errors that a retry cannot repair. False: the agent ended first."""
        wait = self._delays.api_retry
        while True:
            try:
                await request()
            except _RETRIABLE_ERRORS as error:
                if isinstance(error, ForbiddenError):
                    self._notify(f"{refusal}, retrying: {error}")
                if self.closing:
                    return False
                await asyncio.sleep(error.retry_after or wait)
                wait = min(2 * wait, self._delays.max_api_retry)
            else:
                return True

    async def _write(self, report: StatusReport) -> None:
        """Write the newest status. If the status changes during the write, write the new status, too."""
        while not report.gone:
            report.dirty = False
            body, actions = report.compose(), len(report.on_stored)
            if body == report.stored:
                return
            try:
                await self._cluster.patch(_PODS, report.key, {"status": body}, uid=report.uid, status=True)
                report.stored = body
                for action in report.on_stored[:actions]:
                    action()
                del report.on_stored[:actions]
            except NotFoundError:
                report.gone = True
            except ConflictError:
                report.gone = await self._is_replaced(report)
            except _RETRIABLE_ERRORS:
                raise
            except ApiError as error:
                self._notify(f"pod {report.key}: its status was refused: {error}")
                report.stored = body
            if not report.dirty:
                return

    async def _is_replaced(self, report: StatusReport) -> bool:
        """After a conflict: whether the pod is gone, or a new pod has its name. If neither, `_write` tries again."""
        try:
            found = await self._cluster.get(_PODS, report.key)
        except NotFoundError:
            return True
        report.dirty = True
        return bool(found["metadata"]["uid"] != report.uid)

    async def close(self) -> None:
        """Write all reports that have changed."""
        for timer in self._timers.values():
            timer.cancel()
        await asyncio.gather(*(self.store(report) for report in self._timers if report.dirty), *self._tasks)


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
    #: The hosts files; None if pods have no hosts file of their own (process runtime).
    hosts: HostsFiles | None = None
    #: The addresses that this agent assigns to its pods; None if it assigns no addresses.
    addresses: SubnetPool | None = None
    #: Creates tokens of service accounts; None if there are no service accounts.
    tokens: Tokens | None = None
