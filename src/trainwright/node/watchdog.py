# SPDX-License-Identifier: Apache-2.0
"""Watching a process that must answer regularly, and fencing a supervisor that does not answer.

The engine watches its agents, and an agent watches its supervisor; `silence` decides when a process counts as dead. On
Linux, /proc shows what a silent process does. On other systems, only the time counts.

Fencing kills all processes of a node before its replicas start on another node, since a replica must not run twice.
Usually a supervisor ends its pods and itself after its agent has ended. A supervisor that is stopped, hung or killed
cannot end its pods.
"""

import asyncio
import signal
from collections.abc import Callable, Container
from pathlib import Path

from trainwright.node.silence import Liveness, Look, Silence, SilenceLimits, judge
from trainwright.node.supervisor import journal, tree
from trainwright.node.supervisor.launch import Process
from trainwright.node.supervisor.protocol import JournalEntry

_STATE_TEXTS = {
    Liveness.BLOCKED: "waits for a disk or a network file system",
    Liveness.STOPPED: "is stopped",
    Liveness.HUNG: "hangs",
}


class Watchdog:
    """Watches one process. Call `answered` for every answer; `run` returns when the process counts as dead."""

    def __init__(self, pid: int, grace: float) -> None:
        self.pid = pid
        self.limits = SilenceLimits.of(grace)
        self._answered = False
        self._cpu = 0.0

    def answered(self) -> None:
        """Record that the process has answered."""
        self._answered = True

    async def run(self, on_blocked: Callable[[Silence], None]) -> Silence:
        """Wait until the process counts as stopped or hung. Calls `on_blocked` if the process waits long for a disk."""
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
                on_blocked(silence)

    def _look(self, elapsed: float) -> Look:
        answered, self._answered = self._answered, False
        state, cpu = tree.activity(self.pid)
        used, self._cpu = cpu - self._cpu, cpu
        return Look(elapsed, answered, state, max(0.0, used))


def described(silence: Silence) -> str:
    """The silence as text, such as `is stopped and has not answered for 12 s`."""
    seconds = silence.seconds + silence.blocked
    return f"{_STATE_TEXTS[silence.liveness]} and has not answered for {seconds:.{0 if seconds >= 2 else 1}f} s"


#: A function that is called with the IDs of processes that do not end after SIGKILL.
OnStuck = Callable[[list[int]], None]

_FIRST_WAIT_SECONDS, _MAX_WAIT_SECONDS = 0.01, 0.5
#: A killed process that has not ended after this time is reported: if it waits for a broken disk, it may never end.
_KILL_TIMEOUT_SECONDS = 10.0
_STOPPED_STATES = ("T", "t")
_HAS_PROC = Path("/proc/self").is_dir()


def hold(pid: int, parent: int) -> Process | None:
    """A handle for a child of `parent`, safe against the reuse of its process ID; None if there is no such child."""
    if _HAS_PROC:
        return tree.held(pid, parent)
    try:
        return Process(pid)
    except OSError:
        return None


def unkillable(node: str, left: list[int]) -> str:
    """The message about processes of a node that do not end."""
    which = f"process{'es' * (len(left) != 1)} {', '.join(map(str, left))}"
    return f"{which} of {node} cannot be killed and may wait for a disk; the replicas of {node} wait for their end"


async def see_out(
    supervisor: Process, folder: Path, on_stuck: OnStuck, patience: float = _KILL_TIMEOUT_SECONDS
) -> None:
    """Wait until a supervisor without an agent has ended, with all its pods. Fence it if it does not end in time.

    `folder` is the supervisor's own folder. `on_stuck` is called once if processes do not end for a long time.
    """
    loop = asyncio.get_running_loop()
    deadline, wait = loop.time() + patience, _FIRST_WAIT_SECONDS
    while not supervisor.ended():
        if loop.time() > deadline or tree.activity(supervisor.pid)[0] in _STOPPED_STATES:
            await fence(supervisor, folder, on_stuck)
            return
        await asyncio.sleep(wait)
        wait = min(2 * wait, _MAX_WAIT_SECONDS)
    await _kill_remaining(folder, on_stuck)


async def fence(supervisor: Process, folder: Path, on_stuck: OnStuck) -> None:
    """Kill the processes of all pods of a supervisor, then the supervisor. Returns when none of them runs any more.

    The supervisor is stopped (SIGSTOP) first: it then starts no more processes, and it stays the parent of all
    orphans, so that each orphan is found. SIGKILL also ends stopped processes.
    """
    await _kill_until_none(lambda: _kill_pods(supervisor, folder), on_stuck)
    supervisor.send(signal.SIGKILL)
    await _kill_until_none(lambda: [] if supervisor.ended() or supervisor.pidfd < 0 else [supervisor.pid], on_stuck)
    await _kill_remaining(folder, on_stuck)  # a supervisor that got SIGCONT may have started more processes


def _kill_pods(supervisor: Process, folder: Path) -> list[int]:
    """Stop the supervisor and kill its pods.

    Returns the processes of pods that still ran. If the supervisor is not stopped yet, its process is returned, too.
    """
    supervisor.send(signal.SIGSTOP)
    if not _HAS_PROC:
        for entry in _running_containers(folder).values():
            tree.kill_group(entry["pid"])  # the ID is still valid, since a stopped supervisor reaps no child
        return []
    below = tree.kill_below(supervisor)
    busy = not supervisor.ended() and tree.activity(supervisor.pid)[0] not in (*_STOPPED_STATES, *tree.ENDED)
    return [*below, supervisor.pid] if busy else below


async def _kill_remaining(folder: Path, on_stuck: OnStuck) -> None:
    """Kill the processes of containers whose end is not in the journal of a supervisor that has ended."""
    containers = _running_containers(folder).keys()
    if containers:
        await kill_containers(containers, on_stuck)


async def kill_containers(containers: Container[str], on_stuck: OnStuck) -> None:
    """Kill the processes of containers whose supervisor has ended. Returns when none of them runs any more."""
    await _kill_until_none(lambda: tree.kill_marked(containers), on_stuck)


def _running_containers(folder: Path) -> dict[str, JournalEntry]:
    return {name: one for name, one in journal.read(str(folder / "journal")).items() if not one.get("ended")}


async def _kill_until_none(kill: Callable[[], list[int]], on_stuck: OnStuck) -> None:
    """Call `kill` until no process is left: processes may fork during the search."""
    loop = asyncio.get_running_loop()
    deadline, wait = loop.time() + _KILL_TIMEOUT_SECONDS, _FIRST_WAIT_SECONDS
    while left := kill() or kill():  # the second search finds a process that lost its parent during the first
        await asyncio.sleep(wait)
        wait = min(2 * wait, _MAX_WAIT_SECONDS)
        if loop.time() > deadline:
            on_stuck(left)
            deadline = float("inf")
