# SPDX-License-Identifier: Apache-2.0
"""The sandbox runtime: each pod has its network address, host name and IPC, each container its PIDs and mounts.

The supervisor's loop calls it (see `launch`); `kernel`, `network`, `init` and `mounts` do the work. A pod's
namespaces are held by descriptors, a container's by its init. None has a name on the host, so none is left behind,
however the supervisor ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, NamedTuple

from trainwright.node.supervisor import init, kernel, mounts
from trainwright.node.supervisor.launch import MARKER, NOT_POSSIBLE, Process, StartRefused, Stdio, launch, sought
from trainwright.node.supervisor.mounts import MountOverlay
from trainwright.node.supervisor.network import SPARE, Network
from trainwright.node.supervisor.outside import OutsideConnection, resolver

if TYPE_CHECKING:
    from trainwright.node.supervisor.protocol import Config, OpenPod, StartContainer

_SHARED = {"uts": kernel.NEWUTS, "ipc": kernel.NEWIPC, "mnt": kernel.NEWNS, "net": kernel.NEWNET}
_ALL = sum(_SHARED.values()) | kernel.NEWPID
_LONGEST_NAME = 63
_TMP, _PROCESSES = "/tmp/", "/proc/"  # noqa: S108 - these very paths are meant
_LOW_PORTS = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
_DENIED = (
    "this machine does not let us make namespaces ({}). Without CAP_SYS_ADMIN that takes user namespaces, which these"
    " sysctls can forbid: kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns,"
    " user.max_user_namespaces."
)
_PROC = "containers see all processes of the machine in /proc, since it cannot be mounted anew here ({})"


class SandboxPod(NamedTuple):
    """What the containers of a pod share: the request, the resolv.conf where it is not the machine's, its namespaces
    by name, the memory volumes that there are."""

    request: OpenPod
    resolver: str | None
    spaces: dict[str, int]
    memory: set[str]


class SandboxContainer(NamedTuple):
    """One that runs: its pod, a pidfd of its init, and what `enter` starts from."""

    pod: str
    init: int
    env: dict[str, str]
    cwd: str


class SandboxRuntime:
    """A `Runtime`. Raises Refused where there are no namespaces to be had."""

    def __init__(self, config: Config) -> None:
        self.notices: list[str] = []
        self._pods: dict[str, SandboxPod] = {}
        self._containers: dict[str, SandboxContainer] = {}
        self._cwd = os.getcwd()
        network = config["network"]
        assert network is not None  # noqa: S101 - every sandbox has one
        given = network.get("holder") or {}
        self._root = kernel.is_privileged()
        self._outside = OutsideConnection(root=self._root, wanted=bool(config.get("outside")) and not given)
        try:
            if not self._root:
                kernel.enter_user_namespace(given.get("user"))
            self._network = Network(network["subnet"], given.get("net"))
            self._lifeline = init.Lifeline(ambient=not self._root)
            self._tree = kernel.in_thread(_prepared)
            self._try()
        except OSError as error:
            raise StartRefused(NOT_POSSIBLE, _DENIED.format(error)) from None
        self._outside.connect(self._network)
        self.outside = self._network.connected
        self._resolver = resolver() if self.outside else None
        self.notices += self._outside.notices
        if given and config.get("outside") and not self.outside:
            self.notices.append("pods cannot reach the outside network: the network of all nodes has no way out")

    def _try(self) -> None:
        """See in a pod of our own what can be had, before anybody relies on it."""
        address = ".".join(map(str, self._network.at(SPARE)))
        pod = self._made({"pod": "try", "host": "try", "network": "own", "address": address}, None)
        try:
            number = kernel.in_thread(lambda: self._tried(pod))
        finally:
            _let_go(pod)
        if number:
            self.notices.append(_PROC.format(os.strerror(number)))

    def _tried(self, pod: SandboxPod) -> int:
        before = os.stat("/")
        _join(pod)
        if not os.path.samestat(before, os.stat("/")):
            raise StartRefused(NOT_POSSIBLE, "sandboxes cannot be made from within a chroot: they would see beyond it.")
        pidfd, number = self._lifeline.start()
        init.end(pidfd)
        return number

    def open(self, pod: OpenPod) -> None:
        """Make the namespaces that the containers of a pod share. One that is open stays as it is."""
        if pod["pod"] in self._pods:
            return
        try:
            tmp = pod.get("tmp")
            if tmp:
                os.makedirs(tmp, exist_ok=True)
                os.chmod(tmp, 0o1777)  # noqa: S103 - as any /tmp
            own = pod["network"] != "host"
            self._pods[pod["pod"]] = self._made(pod, self._resolver if own else None)
        except OSError as error:
            raise StartRefused(NOT_POSSIBLE, f'no sandbox for the pod "{pod["host"]}": {error}.') from None

    def _made(self, request: OpenPod, resolver: str | None) -> SandboxPod:
        pod = SandboxPod(request, resolver, {}, set())
        try:
            kernel.in_thread(lambda: self._open(pod))
        except BaseException:
            _let_go(pod)
            raise
        return pod

    def _open(self, pod: SandboxPod) -> None:
        names = [name for name in _SHARED if name != "net" or pod.request["network"] != "host"]
        kernel.setns(self._tree, kernel.NEWNS)
        kernel.unshare(sum(_SHARED[name] for name in names))
        for name in names:
            pod.spaces[name] = kernel.current_namespace(name)
        kernel.sethostname(pod.request["host"][:_LONGEST_NAME])
        if "net" in pod.spaces:
            self._network.attach(pod.spaces["net"], pod.request["address"])
            if not self._root:
                _open_low_ports()

    def spawn(
        self, start: StartContainer, stdio: Stdio, entries: tuple[int, ...], inherited: tuple[int, ...]
    ) -> Process:
        """Start a container's main process, as the second process of its PID namespace."""
        pod = self._pods.get(start["pod"])
        if pod is None:
            raise StartRefused(NOT_POSSIBLE, f'there is no pod "{start["pod"]}".')
        container = SandboxContainer(
            start["pod"], -1, {**start["env"], MARKER: start["container"]}, start.get("cwd") or self._cwd
        )
        try:
            return kernel.in_thread(lambda: self._spawned(pod, container, start, stdio, entries, inherited))
        except StartRefused as refused:
            raise _explained(refused, pod, sought(refused, container.env, container.cwd)) from None
        except OSError as error:
            raise StartRefused(NOT_POSSIBLE, f"no sandbox for the container: {error}.") from None

    def _spawned(
        self,
        pod: SandboxPod,
        container: SandboxContainer,
        start: StartContainer,
        stdio: Stdio,
        entries: tuple[int, ...],
        inherited: tuple[int, ...],
    ) -> Process:
        _join(pod)
        plan = mounts.planned(pod.request, pod.resolver, start)
        _check(plan)
        mounts.share(plan, pod.memory)
        kernel.unshare(kernel.NEWNS)
        mounts.furnish(plan, _places(pod, container, start["container"]))
        pidfd, _ = self._lifeline.start()
        try:
            process = launch(start["argv"], container.env, container.cwd, stdio, entries=entries, inherited=inherited)
        except BaseException:
            init.end(pidfd)
            raise
        self._containers[start["container"]] = container._replace(init=pidfd)
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
        """One more process in a running container."""
        if container not in self._containers:
            raise StartRefused(NOT_POSSIBLE, f'there is no running container "{container}".')
        found = self._containers[container]
        whole, place = {**found.env, **(env or {})}, cwd or found.cwd

        def entered() -> Process:
            kernel.setns(found.init, _ALL)
            return launch(argv, whole, place, stdio, tty=tty)

        try:
            return kernel.in_thread(entered)
        except StartRefused as refused:
            raise _explained(refused, self._pods[found.pod], sought(refused, whole, place)) from None
        except OSError as error:
            raise StartRefused(NOT_POSSIBLE, f'the container "{container}" cannot be entered: {error}.') from None

    def kill(self, container: str) -> None:
        """SIGKILL the whole tree, by its init."""
        if container in self._containers:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._containers[container].init, signal.SIGKILL)

    def ended(self, container: str) -> None:
        """The main process has ended: so does the rest."""
        found = self._containers.pop(container, None)
        if found is not None:
            init.end(found.init)

    def orphaned(self) -> None:
        """Nothing strays from a PID namespace."""

    def close(self, pod: str) -> None:
        """Kill what is left of a pod, and let go of its namespaces: without processes they vanish."""
        found = self._pods.pop(pod, None)
        if found is None:
            return
        for name in [name for name, container in self._containers.items() if container.pod == pod]:
            self.kill(name)
        _let_go(found)

    def stop(self) -> None:
        """Let go of everything."""
        for name in [*self._containers]:
            self.ended(name)
        for name in [*self._pods]:
            self.close(name)
        self._lifeline.close()
        os.close(self._tree)
        self._outside.close()
        self._network.close()


def _prepared() -> int:
    kernel.unshare(kernel.NEWNS)
    mounts.prepare()
    return kernel.current_namespace("mnt")


def _join(pod: SandboxPod) -> None:
    for name, fd in pod.spaces.items():
        kernel.setns(fd, _SHARED[name])


def _let_go(pod: SandboxPod) -> None:
    for fd in pod.spaces.values():
        os.close(fd)
    pod.spaces.clear()


def _check(plan: list[mounts.ContainerMount]) -> None:
    """Refuse what would be hidden by the container's own /proc, or would hide it from us."""
    for one in plan:
        if f"{os.path.realpath(one.target)}/".startswith(_PROCESSES):
            why = "nothing can be mounted in /proc, where a container sees its processes"
            raise StartRefused(NOT_POSSIBLE, f'cannot mount anything at "{one.target}": {why}.')


def _explained(refused: StartRefused, pod: SandboxPod, paths: list[str]) -> StartRefused:
    """Say so if one of these paths is there for the user, but not for the pod."""
    keep = [f"{os.path.normpath(path)}/" for path in pod.request.get("keep") or ()]
    private = bool(pod.request.get("tmp")) and _TMP not in keep
    hidden = [path for path in map(os.path.normpath, paths) if path.startswith(_TMP)]
    hidden = [path for path in hidden if not any(f"{path}/".startswith(one) for one in keep)]
    if not private or not any(map(os.path.exists, hidden)):
        return refused
    return StartRefused(refused.code, f"{refused.text.removesuffix('.')}; /tmp is the pod's own in the sandbox.")


def _places(pod: SandboxPod, container: SandboxContainer, name: str) -> MountOverlay:
    """Where mount points may be made: in the caller's working directory, and in a folder for a new root."""
    tmp, keep = pod.request.get("tmp"), pod.request.get("keep") or ()
    root = os.path.join(os.path.dirname(tmp), f"root-{name.replace('/', '_')}") if tmp else None
    return MountOverlay(root, container.cwd if container.cwd in keep else None)


def _open_low_ports() -> None:
    """Let the pod, which is not root, listen on any port of its own address, as in other container engines."""
    with contextlib.suppress(OSError), open(_LOW_PORTS, "w", encoding="ascii") as file:
        file.write("0")
