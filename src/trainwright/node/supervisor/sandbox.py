# SPDX-License-Identifier: Apache-2.0
"""The sandbox runtime: a pod has its own network address, host name and IPC; a container has its own PIDs and mounts.

Descriptors keep the namespaces of a pod alive; a container's init keeps the container's namespaces alive. Namespaces
have no names on the host, so the kernel removes them even if the supervisor is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, NamedTuple

from trainwright import kernel
from trainwright.node.supervisor import init, mounts
from trainwright.node.supervisor.launch import MARKER, NOT_FOUND, Descriptors, Process, StartRefused, launch
from trainwright.node.supervisor.mounts import MountOverlay
from trainwright.node.supervisor.network import SPARE, Network
from trainwright.node.supervisor.outside import OutsideConnection, resolver

if TYPE_CHECKING:
    from trainwright.node.supervisor.protocol import Config, Exec, OpenPod, StartContainer

_POD_NAMESPACES = {"uts": kernel.NEWUTS, "ipc": kernel.NEWIPC, "mnt": kernel.NEWNS, "net": kernel.NEWNET}
_ALL_NAMESPACES = sum(_POD_NAMESPACES.values()) | kernel.NEWPID
_MAX_HOST_NAME = 63
_TMP, _PROC = "/tmp/", "/proc/"  # noqa: S108 - paths in the container
_LOW_PORTS = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
_DENIED = (
    "this machine does not allow trainwright to create namespaces ({}). Without CAP_SYS_ADMIN it needs user namespaces,"
    " which these sysctls can forbid: kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns,"
    " user.max_user_namespaces."
)
_HOST_PROC = "containers see all processes of the machine in /proc, since a new /proc cannot be mounted here ({})"


class SandboxPod(NamedTuple):
    """What the containers of a pod share."""

    request: OpenPod
    resolver: str | None  # the path of the pods' own resolv.conf; None: they use the machine's file
    namespaces: dict[str, int]  # the descriptors of the namespaces, by name
    memory: set[str]  # the paths of the memory volumes that are mounted


class SandboxContainer(NamedTuple):
    """A running container: its pod, a pidfd of its init, and the environment and working directory for `enter`."""

    pod: str
    init: int
    env: dict[str, str]
    cwd: str


class SandboxRuntime:
    """A `Runtime`. The constructor raises StartRefused if namespaces cannot be created."""

    def __init__(self, config: Config) -> None:
        self.notices: list[str] = []
        self._pods: dict[str, SandboxPod] = {}
        self._containers: dict[str, SandboxContainer] = {}
        self._cwd = os.getcwd()
        network = config["network"]
        assert network is not None  # noqa: S101 - required for sandboxes
        holder = network.get("holder") or {}
        self._root = kernel.is_privileged()
        self._outside = OutsideConnection(root=self._root, wanted=bool(config.get("outside")) and not holder)
        try:
            if not self._root:
                kernel.enter_user_namespace(holder.get("user"))
            self._network = Network(network["subnet"], holder.get("net"))
            self._lifeline = init.Lifeline(ambient=not self._root)
            self._mounts = kernel.in_thread(_prepare_mounts)
            self._self_test()
        except OSError as error:
            raise StartRefused(_DENIED.format(error)) from None
        self._outside.connect(self._network)
        self.outside = self._network.connected
        self._resolver = resolver() if self.outside else None
        self.notices += self._outside.notices
        if holder and config.get("outside") and not self.outside:
            self.notices.append("pods cannot reach the outside network: the shared network is not connected to it")

    def _self_test(self) -> None:
        """Open a test pod, to find out what this machine allows before the first real pod."""
        address = ".".join(map(str, self._network.at(SPARE)))
        pod = self._create({"pod": "try", "host": "try", "network": "own", "address": address}, None)
        try:
            errno = kernel.in_thread(lambda: self._test_init(pod))
        finally:
            _release(pod)
        if errno:
            self.notices.append(_HOST_PROC.format(os.strerror(errno)))

    def _test_init(self, pod: SandboxPod) -> int:
        before = os.stat("/")
        _join(pod)
        if not os.path.samestat(before, os.stat("/")):
            raise StartRefused("sandboxes cannot be created in a chroot: they would see outside it.")
        pidfd, errno = self._lifeline.start()
        init.end(pidfd)
        return errno

    def open(self, pod: OpenPod) -> None:
        """Create the namespaces that the containers of a pod share. Does nothing if the pod is already open."""
        if pod["pod"] in self._pods:
            return
        try:
            tmp = pod.get("tmp")
            if tmp:
                os.makedirs(tmp, exist_ok=True)
                os.chmod(tmp, 0o1777)  # noqa: S103 - the mode of /tmp
            own = pod["network"] != "host"
            self._pods[pod["pod"]] = self._create(pod, self._resolver if own else None)
        except OSError as error:
            raise StartRefused(f'no sandbox for the pod "{pod["host"]}": {error}.') from None

    def _create(self, request: OpenPod, resolver: str | None) -> SandboxPod:
        pod = SandboxPod(request, resolver, {}, set())
        try:
            kernel.in_thread(lambda: self._create_namespaces(pod))
        except BaseException:
            _release(pod)
            raise
        return pod

    def _create_namespaces(self, pod: SandboxPod) -> None:
        names = [name for name in _POD_NAMESPACES if name != "net" or pod.request["network"] != "host"]
        kernel.setns(self._mounts, kernel.NEWNS)
        kernel.unshare(sum(_POD_NAMESPACES[name] for name in names))
        for name in names:
            pod.namespaces[name] = kernel.current_namespace(name)
        kernel.sethostname(pod.request["host"][:_MAX_HOST_NAME])
        if "net" in pod.namespaces:
            self._network.attach(pod.namespaces["net"], pod.request["address"])
            if not self._root:  # let pods listen on ports below 1024 of their own address, as other engines do
                with contextlib.suppress(OSError), open(_LOW_PORTS, "w", encoding="ascii") as file:
                    file.write("0")

    def spawn(self, start: StartContainer, fds: Descriptors) -> Process:
        """Start a container's main process, as the second process of its PID namespace."""
        pod = self._pods.get(start["pod"])
        if pod is None:
            raise StartRefused(f'there is no pod "{start["pod"]}".')
        container = SandboxContainer(
            start["pod"], -1, {**start["env"], MARKER: start["container"]}, start.get("cwd") or self._cwd
        )
        try:
            return kernel.in_thread(lambda: self._spawn(pod, container, start, fds))
        except StartRefused as refused:
            raise _explained(refused, pod, container.env, container.cwd) from None
        except OSError as error:
            raise StartRefused(f"no sandbox for the container: {error}.") from None

    def _spawn(self, pod: SandboxPod, container: SandboxContainer, start: StartContainer, fds: Descriptors) -> Process:
        _join(pod)
        plan = mounts.plan_mounts(pod.request, pod.resolver, start)
        _check(plan)
        mounts.mount_shared_memory(plan, pod.memory)
        kernel.unshare(kernel.NEWNS)
        mounts.mount_all(plan, _overlay(pod, container, start["container"]))
        pidfd, _ = self._lifeline.start()
        try:
            process = launch(start["argv"], container.env, container.cwd, fds)
        except BaseException:
            init.end(pidfd)
            raise
        self._containers[start["container"]] = container._replace(init=pidfd)
        return process

    def enter(self, request: Exec, fds: Descriptors) -> Process:
        """Start another process in a running container."""
        container = request["container"]
        if container not in self._containers:
            raise StartRefused(f'there is no running container "{container}".')
        found = self._containers[container]
        env, cwd = {**found.env, **(request.get("env") or {})}, request.get("cwd") or found.cwd

        def enter() -> Process:
            kernel.setns(found.init, _ALL_NAMESPACES)
            return launch(request["argv"], env, cwd, fds)

        try:
            return kernel.in_thread(enter)
        except StartRefused as refused:
            raise _explained(refused, self._pods[found.pod], env, cwd) from None
        except OSError as error:
            raise StartRefused(f'the container "{container}" cannot be entered: {error}.') from None

    def kill(self, container: str) -> None:
        """SIGKILL all processes of a container, by killing its init."""
        if container in self._containers:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._containers[container].init, signal.SIGKILL)

    def ended(self, container: str) -> None:
        """Kill the other processes of a container whose main process has ended."""
        found = self._containers.pop(container, None)
        if found is not None:
            init.end(found.init)

    def orphaned(self) -> None:
        """Do nothing: no process can leave its PID namespace."""

    def close(self, pod: str) -> None:
        """Kill the remaining processes of a pod and close its namespaces; the kernel removes empty namespaces."""
        found = self._pods.pop(pod, None)
        if found is None:
            return
        for name in [name for name, container in self._containers.items() if container.pod == pod]:
            self.kill(name)
        _release(found)

    def stop(self) -> None:
        """Kill all processes and release everything."""
        for name in [*self._containers]:
            self.ended(name)
        for name in [*self._pods]:
            self.close(name)
        self._lifeline.close()
        os.close(self._mounts)
        self._outside.close()
        self._network.close()


def _prepare_mounts() -> int:
    kernel.unshare(kernel.NEWNS)
    mounts.prepare()
    return kernel.current_namespace("mnt")


def _join(pod: SandboxPod) -> None:
    for name, fd in pod.namespaces.items():
        kernel.setns(fd, _POD_NAMESPACES[name])


def _release(pod: SandboxPod) -> None:
    for fd in pod.namespaces.values():
        os.close(fd)
    pod.namespaces.clear()


def _check(plan: list[mounts.ContainerMount]) -> None:
    """Refuse mounts in /proc: the container's own /proc would hide them, or they would hide /proc."""
    for one in plan:
        if f"{os.path.realpath(one.target)}/".startswith(_PROC):
            why = "nothing can be mounted in /proc, where a container sees its processes"
            raise StartRefused(f'cannot mount anything at "{one.target}": {why}.')


def _explained(refused: StartRefused, pod: SandboxPod, env: dict[str, str], cwd: str) -> StartRefused:
    """Add an explanation if a path in a refusal exists on the host, but the pod's private /tmp hides the path."""
    named = str(refused).split('"')[1::2]
    paths = [os.path.join(cwd, name) for name in named if "/" in name]
    if refused.code == NOT_FOUND and not paths:  # the paths in PATH at which the program could be
        paths = [os.path.join(cwd, folder, name) for name in named for folder in os.get_exec_path(env)]
    keep = [f"{os.path.normpath(path)}/" for path in pod.request.get("keep") or ()]
    private = bool(pod.request.get("tmp")) and _TMP not in keep
    hidden = [path for path in map(os.path.normpath, paths) if path.startswith(_TMP)]
    hidden = [path for path in hidden if not any(f"{path}/".startswith(one) for one in keep)]
    if not private or not any(map(os.path.exists, hidden)):
        return refused
    return StartRefused(f"{str(refused).removesuffix('.')}; /tmp is the pod's own in the sandbox.", refused.code)


def _overlay(pod: SandboxPod, container: SandboxContainer, name: str) -> MountOverlay:
    """The overlay may create folders in a working directory that is in `keep`, and a new root in the pod's folder."""
    tmp, keep = pod.request.get("tmp"), pod.request.get("keep") or ()
    root = os.path.join(os.path.dirname(tmp), f"root-{name.replace('/', '_')}") if tmp else None
    return MountOverlay(root, container.cwd if container.cwd in keep else None)
