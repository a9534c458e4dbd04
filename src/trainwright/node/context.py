# SPDX-License-Identifier: Apache-2.0
"""Writing the status of pods: changes within a few milliseconds are one write, the newest is never lost.

Workers `mark` a report when something changed and `store` it where it must be stored before they go on. One report is
never written twice at once; an API that does not answer is asked again until the pod is gone.

What every worker of an agent shares. Made by `agent`, handed to each `PodState`.
"""

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
#: Another time the answer may be another: also to whom it was not allowed, or whose token had run out.
PASSING = (UnavailableError, TooManyRequestsError, ForbiddenError)


class StatusReport:
    """What the store should know about one pod: `compose` says it when it is asked."""

    __slots__ = ("compose", "dirty", "gone", "key", "lock", "stored", "uid")

    def __init__(self, key: Key, uid: str, compose: Callable[[], Body]) -> None:
        self.key = key
        self.uid = uid
        self.compose = compose
        self.dirty = False
        #: The object is not there any more: nothing is to be told.
        self.gone = False
        self.stored: Body | None = None
        self.lock = asyncio.Lock()


class StatusReports:
    """All reports of an agent. `complain` hears of a status that the API will not take."""

    def __init__(self, cluster: Cluster, pace: AgentDelays, complain: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._pace = pace
        self._complain = complain
        #: The agent ends: what nobody answers to now is not tried again.
        self.closing = False
        self._loop = asyncio.get_running_loop()
        #: All wait equally long, so the first in is the first out, and one timer does for all.
        self._queue: deque[tuple[float, StatusReport]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[bool]] = set()

    def mark(self, report: StatusReport) -> None:
        """Something changed: it is written soon, with whatever else changes until then."""
        if report.dirty or report.gone:
            return
        report.dirty = True
        due = self._loop.time() + self._pace.debounce
        self._queue.append((due, report))
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._ring)

    def _ring(self) -> None:
        """Write what is due."""
        self._timer = None
        now = self._loop.time()
        while self._queue:
            due, report = self._queue[0]
            if report.dirty and due > now:
                self._timer = self._loop.call_at(due, self._ring)
                return
            self._queue.popleft()
            if report.dirty:
                task = self._loop.create_task(self.store(report))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def store(self, report: StatusReport) -> bool:
        """Write it now, if there is anything new, and until it is written. False: that could not be waited for."""
        async with report.lock:
            wait = self._pace.unavailable
            while not report.gone:
                report.dirty = False
                body = report.compose()
                if body == report.stored:
                    return True
                try:
                    await self._write(report, body)
                except PASSING as error:
                    if isinstance(error, ForbiddenError):
                        self._complain(f"pod {report.key}: its status was refused, and is told again: {error}")
                    if self.closing:
                        return False
                    await asyncio.sleep(error.retry_after or wait)
                    wait = min(2 * wait, self._pace.patience)
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
            report.gone = await self._replaced(report)
        except PASSING:
            raise
        except ApiError as error:
            self._complain(f"pod {report.key}: its status was refused: {error}")
            report.stored = body
        else:
            report.stored = body

    async def _replaced(self, report: StatusReport) -> bool:
        """Whether another pod bears that name now; else somebody else only wrote at the same time."""
        try:
            found = await self._cluster.get(_PODS, report.key)
        except NotFoundError:
            return True
        report.dirty = True
        return bool(found["metadata"]["uid"] != report.uid)

    async def close(self) -> None:
        """Write what is still to be written."""
        if self._timer is not None:
            self._timer.cancel()
        reports = [report for _, report in self._queue if report.dirty]
        self._queue.clear()
        await asyncio.gather(*(self.store(report) for report in reports), *self._tasks)


#: A token for a pod: from the pod, the audience (empty: the API server) and the seconds that it should last.
Tokens = Callable[[Body, str, int], Awaitable[str]]


class OnceNotices:
    """Things people should be told once, not once per pod; `tell` is for those that come again."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.tell = notify
        self._told: set[str] = set()

    def once(self, text: str, about: str = "") -> None:
        """Tell it, unless it (or something else about the same) was told already."""
        if (about or text) not in self._told:
            self._told.add(about or text)
            self.tell(text)


class AgentContext(Struct, frozen=True):
    """The place an agent works in."""

    cluster: Cluster
    link: SupervisorLink
    clock: Clock
    settings: AgentSettings
    reports: StatusReports
    devices: NodeDevices
    notices: OnceNotices
    awaited: ConfigMapWaiter
    #: None where pods have no hosts file of their own.
    hosts: HostsFiles | None = None
    #: Where addresses come from, where this agent gives them.
    pool: SubnetPool | None = None
    #: None where there are no service accounts.
    tokens: Tokens | None = None
