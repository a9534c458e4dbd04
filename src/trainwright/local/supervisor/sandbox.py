# SPDX-License-Identifier: Apache-2.0
"""The sandbox runtime: each pod has its network address, host name and IPC, each container its PIDs and mounts.

The supervisor's loop calls it (see `runtimes`); `namespaces`, `holder`, `init` and `mounts` do the work. A pod's
namespaces are held by descriptors, a container's by its init. None has a name on the host, so none is left behind,
however the supervisor ends.
"""
# pathlib would cost the supervisor a tenth of its start.
# ruff: noqa: PTH109, PTH120

import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from trainwright.local.supervisor import holder, init, kernel, mounts, namespaces
from trainwright.local.supervisor.launch import NOT_POSSIBLE, launch
from trainwright.local.supervisor.outside import Outside
from trainwright.local.supervisor.places import Places
from trainwright.local.supervisor.runtimes import MARKER, Process, Refused, Stdio

_SHARED = {"uts": kernel.NEWUTS, "ipc": kernel.NEWIPC, "mnt": kernel.NEWNS, "net": kernel.NEWNET}
_ALL = kernel.NEWUTS | kernel.NEWIPC | kernel.NEWNS | kernel.NEWNET | kernel.NEWPID
_HOST_NAME = 63
_LOW_PORTS = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
_DENIED = (
    "namespaces are not to be had here: {}. Without being root it takes user namespaces, which may be switched off: see"
    " the sysctls kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns and"
    " user.max_user_namespaces"
)
_PROC = "containers see the processes of the whole machine in /proc: it cannot be mounted anew here ({})"

Result = TypeVar("Result")


class Pod(NamedTuple):
    """What the containers of a pod share: the request, its namespaces by name, its memory volumes."""

    request: dict[str, Any]
    spaces: dict[str, int]
    memory: set[str]


class Container(NamedTuple):
    """One that runs: its pod, a pidfd of its init, and what `enter` starts from."""

    pod: str
    init: int
    env: dict[str, str]
    cwd: str


class Sandbox:
    """A `Runtime`. Raises Refused where there are no namespaces to be had."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.notices: list[str] = []
        self._pods: dict[str, Pod] = {}
        self._containers: dict[str, Container] = {}
        self._cwd = os.getcwd()
        network = config["network"]
        given = network.get("holder") or {}
        self._rooted = namespaces.privileged()
        outside = Outside(rooted=self._rooted, wanted=bool(config.get("outside")))
        try:
            if not self._rooted:
                namespaces.acquire(given.get("user"))
            self._holder = holder.Holder(network["subnet"], given.get("net"))
            self._lifeline = init.Lifeline(ambient=not self._rooted)
            self._try()
        except OSError as error:
            raise Refused(NOT_POSSIBLE, _DENIED.format(error.strerror or error)) from None
