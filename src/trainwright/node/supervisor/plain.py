# SPDX-License-Identifier: Apache-2.0
"""The `process` runtime (see `launch`): a container is a plain process in a session of its own, wherever Python runs.

Whole trees are found by adoption: orphans become the supervisor's children, and the mark in their environment says
whose they are. Every death of an orphan is a reason to look again, so whoever forks to get away is met again here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trainwright.node.supervisor import tree
from trainwright.node.supervisor.launch import MARKER, NOT_POSSIBLE, Process, StartRefused, Stdio, launch

# pathlib would cost the supervisor a tenth of its start.


if TYPE_CHECKING:
    from trainwright.node.supervisor.protocol import Config, Mount, OpenPod, StartContainer

_STRAYS = "a process that leaves its container's process group outlives it: this system has no /proc to find it by"


class ProcessRuntime:
    """Bare processes on the host's network and files."""

    def __init__(self, config: Config) -> None:  # noqa: ARG002 - every runtime is made like this
        self.notices: list[str] = [] if os.path.isdir("/proc/self") else [_STRAYS]
        self.outside = True
        self._opened = False
        self._adopts = False
        self._stopped = False
        self._running: dict[str, tuple[Process, dict[str, str], str | None]] = {}
        self._mains: dict[int, str] = {}
        self._haunted: dict[int, str] = {}  # sessions of containers that have ended, while somebody is left in them

    def open(self, pod: OpenPod) -> None:  # noqa: ARG002 - containers of a pod share nothing that must be made
        """Be ready to adopt orphans, from the first pod on: before `ready` it would only keep the agent waiting."""
        if not self._opened:
            self._opened, self._adopts = True, tree.adopt()

    def spawn(
        self, start: StartContainer, stdio: Stdio, entries: tuple[int, ...], inherited: tuple[int, ...]
    ) -> Process:
        """Start a container's main process."""
        for mount in start.get("mounts") or ():
            _check(mount)
        container, cwd = start["container"], start.get("cwd")
        env = {**start["env"], MARKER: container}
        process = launch(start["argv"], env, cwd, stdio, entries=entries, inherited=inherited)
        self._running[container] = process, env, cwd
        self._mains[process.pid] = container
        return process

    def enter(
        self,
        container: str,
        argv: list[str],
        env: dict[str, str] | None,
        cwd: str | None,
        stdio: Stdio,
        *,
        tty: bool,
    ) -> Process:
        """One more process, with the container's environment and working directory."""
        if container not in self._running:
            raise StartRefused(NOT_POSSIBLE, f'the container "{container}" is not running.')
        _, usual, home = self._running[container]
        return launch(argv, {**usual, **(env or {}), MARKER: container}, cwd or home, stdio, tty=tty)

    def kill(self, container: str) -> None:
        """SIGKILL the main process, what descends from it, and its daemons."""
        if container in self._running:
            tree.kill(self._running[container][0])
            self._sweep(container)

    def ended(self, container: str) -> None:
        """Kill what the main process left behind."""
        if container not in self._running:
            return
        process, *_ = self._running.pop(container)
        del self._mains[process.pid]
        self._haunted[process.pid] = container
        tree.kill_group(process.pid)
        self._sweep(container, process.pid)

    def orphaned(self) -> None:
        """The children of an orphan that died are orphans now."""
        self._sweep()

    def close(self, pod: str) -> None:
        """Nothing is shared, so nothing is dropped."""

    def stop(self) -> None:
        """Kill every child that is left, marked or not: none of them has any business without us."""
        self._stopped = True
        for container in [*self._running]:
            self.kill(container)
        self._sweep()

    def _sweep(self, container: str | None = None, zombie: int = 0) -> None:
        """Kill the strays: of a container, and of all that no longer run."""
        if not self._adopts:
            if container is not None:
                tree.kill_marked({container})
            return
        sessions = {pid: _session(pid) for pid in set(tree.adopted()).difference(self._mains, (zombie,))}
        for pid, session in sessions.items():
            # Some programs write their title over their environment.
            owner = tree.container(pid) or self._mains.get(session) or self._haunted.get(session)
            if self._stopped or (owner is not None and (owner == container or owner not in self._running)):
                tree.kill_child(pid)
        here = {*sessions.values()}
        self._haunted = {session: name for session, name in self._haunted.items() if session in here}


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return 0


def _check(mount: Mount) -> None:
    """A plain process sees the host's files: a mount is possible only where there is nothing to do."""
    source, target = mount.get("source"), mount["target"]
    if target == "/dev/shm" or (source is not None and os.path.realpath(source) == os.path.realpath(target)):  # noqa: S108 - compared, not used
        return
    text = f'"{target}" cannot be mounted by the process runtime; run it with `--runtime sandbox`.'
    raise StartRefused(NOT_POSSIBLE, text)
