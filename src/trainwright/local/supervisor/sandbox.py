# SPDX-License-Identifier: Apache-2.0
"""The sandbox runtime: every pod has a network address, a host name and IPC of its own, every container its own PIDs
and mounts. The supervisor's loop calls it (see `runtimes`); `namespaces`, `holder`, `init` and `mounts` do the work.

A pod's namespaces are held open by descriptors, a container's by its init process. Nothing is named anywhere on the
host, so nothing is left behind, however the supervisor ends.
"""
# ruff: noqa: PTH - pathlib would cost the supervisor a tenth of its start

import os
from typing import Any, NamedTuple

from trainwright.local.supervisor import init, kernel, mounts, namespaces
from trainwright.local.supervisor.holder import Holder
from trainwright.local.supervisor.launch import launch
from trainwright.local.supervisor.places import Places
from trainwright.local.supervisor.runtimes import MARKER, Process, Refused, Stdio

_SHARED = {"uts": kernel.NEWUTS, "ipc": kernel.NEWIPC, "net": kernel.NEWNET, "mnt": kernel.NEWNS}


class Pod(NamedTuple):
    """What the containers of a pod share: the request, and descriptors of the namespaces by name."""

    request: dict[str, Any]
    spaces: dict[str, int]
    containers: set[str]
    folder: str | None


class Container(NamedTuple):
    """A running container: its pod, its init and what `enter` starts from."""

    pod: str
    init: int
    env: dict[str, str]
    cwd: str


class Sandbox:
    """A `Runtime`. Raises Refused where namespaces are not to be had."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.notices: list[str] = []
        self.outside = False
        network = config["network"]
        given = network.get("holder") or {}
        try:
            if not namespaces.privileged():
                namespaces.acquire(given.get("user"))
            self._holder = Holder(network["subnet"], given.get("net"))
        except OSError as error:
            raise Refused(128, f"namespaces cannot be used here: {error}.") from None
        self._cwd = os.getcwd()
        self._lifeline = init.Lifeline(ambient=os.geteuid()!=0)
        self._pods: dict[str, Pod] = {}
        self._containers: dict[str, Container] = {}

    def open(self, pod: dict[str, Any]) -> None:
        spaces: dict[str, int] = {}
        namespaces.elsewhere(lambda: self._opened(pod, spaces))
        tmp=pod.get("tmp")
        self._pods[pod["pod"]] = Pod(pod, spaces, set(), os.path.dirname(tmp) if tmp else None)

    def _opened(self, pod: dict[str, Any], spaces: dict[str, int]) -> None:
        names = [name for name in _SHARED if name != "net" or pod["network"] == "own"]
        kernel.unshare(sum(_SHARED[name] for name in names))
        for name in names:
            spaces[name] = namespaces.current(name)
        kernel.sethostname(pod["host"])
        if "net" in spaces:
            self._holder.attach(spaces["net"], pod["address"])

    def spawn(self, start: dict[str, Any], stdio: Stdio, pass_fds: tuple[int, ...]) -> Process:
        pod = self._pods[start["pod"]]
        name = start["container"]
        env = start["env"] | {MARKER: name}
        cwd = start.get("cwd") or self._cwd

        def work() -> Process:
            for kind, fd in pod.spaces.items():
                kernel.setns(fd, _SHARED[kind])
            _furnish(pod, start, cwd)
            pidfd, bad = self._lifeline.start()
            if bad: print("proc",bad)
            try:
                process = launch(start["argv"], env, cwd, stdio, entries=pass_fds)
            except BaseException:
                init.end(pidfd)
                raise
            self._containers[name] = Container(start["pod"], pidfd, env, cwd)
            pod.containers.add(name)
            return process

        return namespaces.elsewhere(work)

    def enter(self, container, argv, env, cwd, stdio, *, tty):
        one = self._containers[container]
        def work():
            kernel.setns(one.init, kernel.NEWNS | kernel.NEWPID|kernel.NEWNET|kernel.NEWUTS|kernel.NEWIPC)
            return launch(argv, one.env | (env or {}), cwd or one.cwd, stdio, tty=tty)
        return namespaces.elsewhere(work)

    def kill(self, container):
        one = self._containers.pop(container, None)
        if one: init.end(one.init)
    ended=kill
    def close(self, pod):
        one = self._pods.pop(pod)
        for c in list(one.containers): self.kill(c)
        for fd in one.spaces.values(): os.close(fd)

def _furnish(pod: Pod, start: dict[str, Any], cwd: str) -> None:
    kernel.unshare(kernel.NEWNS)
    kernel.mount("none", "/", None, kernel.REC | kernel.PRIVATE)
    plan = mounts.planned(pod.request, start, None)
    mounts.furnish(plan, Places(None, None))
