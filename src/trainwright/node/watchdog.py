# SPDX-License-Identifier: Apache-2.0
"""Watches one process that has to answer now and then, and says when it does not any more. `silence` decides.

The engine watches its agents so, and an agent its supervisor. On Linux the kernel tells what a silent process does
(/proc); elsewhere there is only the time.

Fencing: nothing of a node may run any more before its replicas are started elsewhere, since none may run twice.

A supervisor whose agent has gone ends its pods and itself. One that is stopped, hangs or was killed does not; then its
processes are found and killed from outside, and only when none of them is left the node counts as lost.
"""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from trainwright.node.silence import Liveness, Look, Silence, SilenceLimits, judge
from trainwright.node.supervisor import journal, tree
from trainwright.node.supervisor.launch import Process
from trainwright.node.supervisor.protocol import JournalEntry

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


#: Told which processes do not end although they were killed.
Stuck = Callable[[list[int]], None]

_FIRST_WAIT, _LONGEST_WAIT = 0.01, 0.5
#: Seconds until processes that were killed should have ended; one that waits for a broken disk may never do that.
_KILL_PATIENCE = 10.0
_STOPPED = ("T", "t")
_PROC = Path("/proc/self").is_dir()


def hold(pid: int, parent: int) -> Process | None:
    """A hold on a child of another process, which no other process of that number can take over; None if it is not."""
    if _PROC:
        return tree.held(pid, parent)
    try:
        return Process(pid)
    except OSError:
        return None


def unkillable(node: str, left: list[int]) -> str:
    """What to tell when processes of a node do not end."""
    which = f"process{'es' * (len(left) != 1)} {', '.join(map(str, left))}"
    return f"{which} of {node} cannot be killed and may wait for a disk; the replicas of {node} wait for their end"


async def see_out(supervisor: Process, folder: Path, stuck: Stuck, patience: float = _KILL_PATIENCE) -> None:
    """Wait until a supervisor whose agent has gone has ended with all its pods; fence one that does not.

    `folder` is the supervisor's own. `stuck` is called once if that takes long.
    """
    loop = asyncio.get_running_loop()
    deadline, wait = loop.time() + patience, _FIRST_WAIT
    while not supervisor.ended():
        if loop.time() > deadline or tree.activity(supervisor.pid)[0] in _STOPPED:
            await fence(supervisor, folder, stuck)
            return
        await asyncio.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT)
    await _sweep(folder, stuck)


async def fence(supervisor: Process, folder: Path, stuck: Stuck) -> None:
    """Kill the processes of all pods of a supervisor, then itself. Returns when none of them runs any more.

    The supervisor is stopped before: then it starts nothing more, and it stays the parent of what containers leave
    behind, so that nobody gets away. SIGKILL ends processes that are stopped, too.
    """
    await _emptied(lambda: _kill_pods(supervisor, folder), stuck)
    supervisor.send(signal.SIGKILL)
    await _emptied(lambda: [] if supervisor.ended() or supervisor.pidfd < 0 else [supervisor.pid], stuck)
    await _sweep(folder, stuck)  # somebody may have let it go on meanwhile


def _kill_pods(supervisor: Process, folder: Path) -> list[int]:
    """What is still to be waited for: pods, or the supervisor itself if it may still start some."""
    supervisor.send(signal.SIGSTOP)
    if not _PROC:
        for entry in _running(folder).values():
            tree.kill_group(entry["pid"])  # not reaped, as the supervisor is stopped
        return []
    below = tree.kill_below(supervisor)
    busy = not supervisor.ended() and tree.activity(supervisor.pid)[0] not in (*_STOPPED, *tree.ENDED)
    return [*below, supervisor.pid] if busy else below


async def _sweep(folder: Path, stuck: Stuck) -> None:
    """Kill what is left of containers whose end the supervisor has not written down, without a supervisor."""
    containers = _running(folder).keys()
    if containers:
        await _emptied(lambda: tree.kill_marked(containers), stuck)


def _running(folder: Path) -> dict[str, JournalEntry]:
    return {name: one for name, one in journal.read(str(folder / "journal")).items() if not one.get("ended")}


async def _emptied(kill: Callable[[], list[int]], stuck: Stuck) -> None:
    """Kill again and again until nothing is left: processes may fork while they are looked for."""
    loop = asyncio.get_running_loop()
    deadline, wait = loop.time() + _KILL_PATIENCE, _FIRST_WAIT
    while left := kill() or kill():  # one that lost its parent during the first look is found by the second
        await asyncio.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT)
        if loop.time() > deadline:
            stuck(left)
            deadline = float("inf")
