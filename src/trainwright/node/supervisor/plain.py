# SPDX-License-Identifier: Apache-2.0
"""The `process` runtime: a container is a plain process in its own session. This works on every system.

Orphans become children of the supervisor. `MARKER` in the environment of an orphan is the name of its container. When
an orphan ends, the runtime looks again for orphans, so it also finds a process that forks to escape.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trainwright.node.supervisor import tree
from trainwright.node.supervisor.launch import MARKER, Descriptors, Process, StartRefused, launch

if TYPE_CHECKING:
    from trainwright.node.supervisor.protocol import Config, Exec, OpenPod, StartContainer

_NO_PROC = "a process that leaves its container's process group outlives it: this system has no /proc to find it by"


class ProcessRuntime:
    """Plain processes with the network and the files of the host."""

    def __init__(self, config: Config) -> None:  # noqa: ARG002 - every runtime gets it
        self.notices: list[str] = [] if os.path.isdir("/proc/self") else [_NO_PROC]
        self.outside = True
        self._opened = False
        self._adopts = False
        self._stopped = False
        self._running: dict[str, tuple[Process, dict[str, str], str | None]] = {}
        self._mains: dict[int, str] = {}
        #: Sessions of ended containers in which a process still runs.
        self._ended_sessions: dict[int, str] = {}

    def open(self, pod: OpenPod) -> None:  # noqa: ARG002 - containers of a pod share nothing here
        """Begin to adopt orphans at the first pod. Doing that at the start of the supervisor would delay `ready`."""
        if not self._opened:
            self._opened, self._adopts = True, tree.adopt()

    def spawn(self, start: StartContainer, fds: Descriptors) -> Process:
        """Start a container's main process. Refuse mounts, unless source and target are the same file of the host."""
        for mount in start.get("mounts") or ():
            source, target = mount.get("source"), mount["target"]
            same = source is not None and os.path.realpath(source) == os.path.realpath(target)
            if not same and target != "/dev/shm":  # noqa: S108 - compared, not used
                text = f'"{target}" cannot be mounted by the process runtime; run it with `--runtime sandbox`.'
                raise StartRefused(text)
        container, cwd = start["container"], start.get("cwd")
        env = {**start["env"], MARKER: container}
        process = launch(start["argv"], env, cwd, fds)
        self._running[container] = process, env, cwd
        self._mains[process.pid] = container
        return process

    def enter(self, request: Exec, fds: Descriptors) -> Process:
        """Start another process with the container's environment and working directory."""
        container = request["container"]
        if container not in self._running:
            raise StartRefused(f'the container "{container}" is not running.')
        _, env, cwd = self._running[container]
        env = {**env, **(request.get("env") or {}), MARKER: container}
        return launch(request["argv"], env, request.get("cwd") or cwd, fds)

    def kill(self, container: str) -> None:
        """SIGKILL the main process, its descendants, and the orphans of the container."""
        if container in self._running:
            tree.kill(self._running[container][0])
            self._sweep(container)

    def ended(self, container: str) -> None:
        """Kill the processes that still run after the main process has ended."""
        if container not in self._running:
            return
        process, *_ = self._running.pop(container)
        del self._mains[process.pid]
        self._ended_sessions[process.pid] = container
        tree.kill_group(process.pid)
        self._sweep(container, process.pid)

    def orphaned(self) -> None:
        """Kill new orphans: the children of an orphan that ended."""
        self._sweep()

    def close(self, pod: str) -> None:
        """Do nothing: the containers of a pod share nothing."""

    def stop(self) -> None:
        """Kill all remaining children, including children without `MARKER`."""
        self._stopped = True
        for container in [*self._running]:
            self.kill(container)
        self._sweep()

    def _sweep(self, container: str | None = None, zombie: int = 0) -> None:
        """Kill the orphans of this container and of all containers that have ended, except the process `zombie`."""
        if not self._adopts:
            if container is not None:
                tree.kill_marked({container})
            return
        sessions = {pid: _session(pid) for pid in set(tree.adopted()).difference(self._mains, (zombie,))}
        for pid, session in sessions.items():
            # Some programs overwrite their environment with their title; then the session shows the container.
            owner = tree.container(pid) or self._mains.get(session) or self._ended_sessions.get(session)
            if self._stopped or (owner is not None and (owner == container or owner not in self._running)):
                tree.kill_child(pid)
        alive = {*sessions.values()}
        self._ended_sessions = {session: name for session, name in self._ended_sessions.items() if session in alive}


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return 0
