# SPDX-License-Identifier: Apache-2.0
"""One container of a pod in an agent's charge: what it asks for, how it is, and when its process is to be killed."""

import asyncio
import signal
from datetime import UTC, datetime
from typing import Any

from trainwright.local.agent.link import End, Link
from trainwright.local.agent.status import CREATING, INITIALIZING, Seen
from trainwright.model.cause import SIGNALS
from trainwright.model.job import Body
from trainwright.model.meta import CONTAINER_SCHEME
from trainwright.model.units import rfc3339


class Container:
    """A container over all its restarts. Its states are in the words of the API: see `status.Seen`."""

    __slots__ = (
        "_timer",
        "_waiting",
        "begun",
        "body",
        "id",
        "index",
        "init",
        "live",
        "log",
        "message",
        "path",
        "pause",
        "seen",
        "since",
        "started",
        "why",
    )

    def __init__(self, body: Body, index: int, *, init: bool, alone: bool = True) -> None:
        self.body = body
        self.index = index
        self.init = init
        self.path = f"spec.{'initContainers' if init else 'containers'}[{index}]"
        self.seen = Seen(body["name"], CREATING if alone else INITIALIZING, body.get("image") or "")
        self.id = ""
        self.log = ""
        #: The file that its last words are expected in, where there is one.
        self.message = ""
        #: It has a process, or is just getting one.
        self.live = False
        #: Done when it is known whether the process of this time runs.
        self.begun: asyncio.Future[None] | None = None
        self._waiting: list[asyncio.Future[None]] = []
        #: How long the next restart waits.
        self.pause = 0.0
        #: When it was last started, by the loop's clock and by everybody's.
        self.since = 0.0
        self.started = ""
        #: Why we end it, if it is us.
        self.why = ""
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, reason: str, message: str) -> bool:
        """It cannot be started now. Says whether that is news."""
        state = {"waiting": {"reason": reason, "message": message}}
        news, self.seen.state = self.seen.state != state, state
        return news

    def launch(self, name: str, now: datetime) -> None:
        """It is being started, under that name."""
        loop = asyncio.get_running_loop()
        self.id, self.since, self.started, self.why = name, loop.time(), rfc3339(now), ""
        self.seen.id = f"{CONTAINER_SCHEME}{name}"
        self.begun, self.live = loop.create_future(), True

    def begin(self) -> None:
        """Its start was answered: it runs, unless it has ended already."""
        if self.live:
            self.seen.state = {"running": {"startedAt": self.started}}
            if not self.attended:
                self.seen.ready = self.seen.started = True
        if self.begun is not None and not self.begun.done():
            self.begun.set_result(None)

    @property
    def attended(self) -> bool:
        """Somebody looks after it while it runs: hooks or probes."""
        body = self.body
        return any(body.get(word) for word in ("lifecycle", "startupProbe", "readinessProbe", "livenessProbe"))

    def end(self, end: End, reason: str, message: str) -> None:
        """It has ended."""
        finished = rfc3339(datetime.fromtimestamp(end.at, UTC))
        state: dict[str, Any] = {
            "exitCode": end.code,
            "reason": reason,
            "startedAt": self.started or finished,
            "finishedAt": finished,
            "containerID": self.seen.id,
        }
        if end.signal:
            state["signal"] = _linux(end.signal)
        if message:
            state["message"] = message
        self.seen.state = {"terminated": state}
        self.seen.ready = self.seen.started = False
        self.kill_at(None)
        self.live = False
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def over(self) -> None:
        """Until it has ended. Everybody waits by a future of their own: who is cancelled must not cancel the rest."""
        if self.live:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def renew(self) -> None:
        """It is about to be started once more."""
        if "terminated" in self.seen.state:
            self.seen.last = self.seen.state
        self.seen.state = CREATING
        self.seen.restarts += 1

    def kill_at(self, when: float | None, link: Link | None = None) -> None:
        """Kill the whole tree at that time of the loop's clock; None: not at all."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when is not None and link is not None and self.live:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(when, lambda: link.kill({"container": self.id}))


def _linux(number: int) -> int:
    """The number that Linux has for a signal of this machine: those who read a status know no others."""
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal
        return number
    return next((known for known, one in SIGNALS.items() if one == name), number)
