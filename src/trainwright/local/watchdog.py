# SPDX-License-Identifier: Apache-2.0
"""Watches one process that has to answer now and then, and says when it does not any more. `silence` decides.

The engine watches its agents so, and an agent its supervisor. On Linux the kernel tells what a silent process does
(/proc); elsewhere there is only the time.
"""

import asyncio
from collections.abc import Callable

from trainwright.local.silence import Liveness, Look, Silence, SilenceLimits, judge
from trainwright.local.supervisor import tree

_WORDS = {
    Liveness.BLOCKED: "waits for a disk or a network file system",
    Liveness.STOPPED: "is stopped",
    Liveness.HUNG: "hangs",
}


class Watchdog:
    """`answered` is to be called whenever the process has answered; `run` returns when it counts as dead."""

    def __init__(self, pid: int, grace: float) -> None:
        self.pid = pid
        self.limits = SilenceLimits.of(grace)
        self._answered = False
        self._cpu = 0.0

    def answered(self) -> None:
        """The process has just answered."""
        self._answered = True

    async def run(self, blocked: Callable[[Silence], None]) -> Silence:
        """Until the process is stopped or hangs. `blocked` is called once for each time that it waits for a disk."""
        loop = asyncio.get_running_loop()
        silence, last = Silence(), loop.time()
        while True:
            await asyncio.sleep(self.limits.interval)
            now = loop.time()
            before, silence = silence, judge(silence, self._look(now - last), self.limits)
            last = now
            if silence.liveness in (Liveness.STOPPED, Liveness.HUNG):
                return silence
            if silence.liveness is Liveness.BLOCKED is not before.liveness:
                blocked(silence)

    def _look(self, elapsed: float) -> Look:
        answered, self._answered = self._answered, False
        state, cpu = tree.activity(self.pid)
        used, self._cpu = cpu - self._cpu, cpu
        return Look(elapsed, answered, state, max(0.0, used))


def described(silence: Silence) -> str:
    """`is stopped and has not answered for 12 s`."""
    seconds = silence.seconds + silence.blocked
    return f"{_WORDS[silence.liveness]} and has not answered for {seconds:.{0 if seconds >= 2 else 1}f} s"
