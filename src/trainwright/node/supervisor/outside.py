# SPDX-License-Identifier: Apache-2.0
"""A way out of the pods' network for those who are not root, by slirp4netns or pasta. `outside` calls it.

The helper must not be in our user namespace: so it is started before we enter that, and told later which network it
serves. It is ended by a shell that waits for the end of its stdin, which comes when we end, however we end.

The way from the pods' network to the world outside, if there is one; else one notice why not. `sandbox` calls it.

As root: a link to the host, over which the host reaches pods too, and a masquerade (see there for its end). The host
must forward for that, which is switched on for those of its routed links that have it off, and noted in /run. The last
supervisor to end switches it off again; after a kill -9 that is `tidy`, which `node_pool` calls, or the next one.
The link vanishes with the pods' network.
"""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable

from trainwright.node.supervisor import kernel, netlink
from trainwright.node.supervisor.masquerade import Masquerade, Nft, installed, sweep
from trainwright.node.supervisor.network import GATEWAY_MAC, UPLINK, Network, leads_out

_TUN = "/dev/net/tun"
_PROXY_DELAY = "/proc/sys/net/ipv4/neigh/uplink/proxy_delay"
_PATIENCE = 5.0
_COMMANDS = {
    "slirp4netns": (
        " --configure --mtu=65520 --disable-host-loopback --netns-type=path"
        " --userns-path=/proc/$pid/ns/user /proc/$pid/fd/$net uplink"
    ),
    # It knows of one address behind its link, so the pods have to share that.
    "pasta": (
        " --foreground --quiet --config-net --ns-ifname uplink --no-map-gw -t none -u none -T none -U none"
        " --userns /proc/$pid/ns/user --netns /proc/$pid/fd/$net"
    ),
}
_SCRIPT = 'read -r pid net || exit; "$0"{} & read -r end; kill "$!"'


class UsermodeNetwork:
    """A helper that waits for its work. Raises OSError where there is none."""

    def __init__(self) -> None:
        names = [name for name in _COMMANDS if installed(name) and (name != "pasta" or installed("nft"))]
        if not names:
            raise FileNotFoundError(None, "neither slirp4netns nor pasta with nft is installed")
        if not os.access(_TUN, os.R_OK | os.W_OK):
            raise PermissionError(None, f"{_TUN} may not be opened")
        self._name = names[0]
        self._helper = subprocess.Popen(  # noqa: S603 - a fixed script
            ["/bin/sh", "-c", _SCRIPT.format(_COMMANDS[self._name]), installed(self._name) or ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def connect(self, network: Network) -> None:
        """Have this network served. Raises OSError."""
        assert self._helper.stdin is not None  # noqa: S101 - it is a pipe
        self._helper.stdin.write(f"{os.getpid()} {network.net}\n".encode())
        self._helper.stdin.flush()
        deadline = time.monotonic() + _PATIENCE
        while not kernel.in_thread(lambda: _served(network)):
            if time.monotonic() > deadline:
                raise TimeoutError(None, f"{self._name} made no link within {_PATIENCE:g} seconds")
            time.sleep(0.01)
        network.links.send([netlink.forwarding(UPLINK), netlink.proxy_arp(UPLINK)])
        kernel.in_thread(lambda: _adapt(network, masquerade=self._name == "pasta"))

    def close(self) -> None:
        """End the helper; the loop reaps it."""
        assert self._helper.stdin is not None  # noqa: S101 - it is a pipe
        self._helper.stdin.close()
        self._helper.returncode = 0  # the loop reaps it; Popen must neither wait nor warn


def _served(network: Network) -> bool:
    """Whether the network has a way out by now."""
    kernel.setns(network.net, kernel.NEWNET)
    return leads_out()


def _adapt(network: Network, *, masquerade: bool) -> None:
    """Within the network, with which all of this vanishes."""
    kernel.setns(network.net, kernel.NEWNET)
    # The helper asks by ARP where each pod is, and by default is answered after a second.
    with contextlib.suppress(OSError), open(_PROXY_DELAY, "w", encoding="ascii") as file:
        file.write("0")
    if masquerade:
        kernel.bequeath(kernel.NET_ADMIN)
        Masquerade(network.subnet, [Nft()])


_HOST_MAC = bytes.fromhex("027477000002")
_ANYWHERE = (bytes(4), 0)
_NOTICE = "pods cannot reach the outside network: {}"
_NOTES = "/run/trainwright"
_TRIES = 3
_RESOLVER, _REAL_RESOLVER = "/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"


class OutsideConnection:
    """The connection of one supervisor or holder; made before it enters a user namespace, connected after."""

    def __init__(self, *, root: bool, wanted: bool) -> None:
        self.notices: list[str] = []
        self._root, self._wanted = root, wanted
        self._usermode: UsermodeNetwork | None = None
        self._masquerade: Masquerade | None = None
        if wanted and not root:
            self._trying(self._prepare)

    def connect(self, network: Network) -> None:
        """Connect it, if that is wanted and possible. `network.connected` and `notices` tell."""
        if self._wanted and self._root:
            self._trying(lambda: self._as_root(network))
        elif self._usermode is not None:
            self._trying(lambda: self._as_user(network))

    def _trying(self, step: Callable[[], None]) -> None:
        try:
            step()
        except OSError as error:
            self.notices.append(_NOTICE.format(error.strerror or error))

    def _prepare(self) -> None:
        self._usermode = UsermodeNetwork()

    def _as_user(self, network: Network) -> None:
        assert self._usermode is not None  # noqa: S101 - only called with one
        self._usermode.connect(network)
        network.connected = True

    def _as_root(self, network: Network) -> None:
        routed = _routed()
        _link(network)
        if not routed:
            raise OSError(None, "this machine has no route to it")
        self._masquerade = Masquerade(network.subnet)
        _forward([name for name in routed if not _forwards(name)])
        network.links.send([netlink.route(_ANYWHERE, UPLINK, network.host)])
        network.connected = True

    def close(self) -> None:
        """Leave the host as it was found."""
        if self._usermode is not None:
            self._usermode.close()
        if self._masquerade is not None:
            with contextlib.suppress(OSError):
                if self._masquerade.alone():
                    _forward_no_more()
                self._masquerade.close()


def _link(network: Network) -> None:
    """The link to the host, as far as the gateway of the pods."""
    name = f"tw{os.getpid()}"
    network.uplink(name, _HOST_MAC)
    host = netlink.Netlink()
    try:
        index = socket.if_nametoindex(name)
        host.send(
            [
                netlink.up(index),
                netlink.forwarding(index),
                netlink.address(index, network.host, 32),
                netlink.neighbour(index, network.gateway, GATEWAY_MAC),
                netlink.route(network.range, index, network.gateway),
            ]
        )
    finally:
        host.close()


def tidy() -> None:
    """Take away what supervisors that were killed have left on this machine, unless others still need it."""
    if kernel.is_privileged() and os.path.exists(_note()) and sweep():
        _forward_no_more()


def _forward(names: list[str]) -> None:
    """Let these links of the host forward, and note which; with none of them, the note says that we were here."""
    for _ in range(_TRIES):
        with contextlib.suppress(OSError):  # the last of other supervisors may just be removing the folder
            os.makedirs(_NOTES, exist_ok=True)
            with open(_note(), "a", encoding="utf-8") as file:
                file.writelines(f"{name}\n" for name in names)
            break
    _switch(names, on=True)


def _forward_no_more() -> None:
    """Switch off what was switched on, by whomever of us."""
    try:
        with open(_note(), encoding="utf-8") as file:
            names = file.read().split()
        os.unlink(_note())
    except FileNotFoundError:
        return
    with contextlib.suppress(OSError):  # there are notes of others in it
        os.rmdir(_NOTES)
    _switch(names, on=False)


def _note() -> str:
    """Where the links are noted that we have let forward, for each network namespace that was the host's."""
    return f"{_NOTES}/forwarding-{os.stat('/proc/self/ns/net').st_ino}"


def _switch(names: list[str], *, on: bool) -> None:
    host = netlink.Netlink()
    for name in names:
        with contextlib.suppress(OSError):  # one that is gone by now
            host.send([netlink.forwarding(socket.if_nametoindex(name), on=on)])
    host.close()


def _routed() -> list[str]:
    """The links by which the host reaches others; none if it has no default route."""
    with open("/proc/self/net/route", encoding="ascii") as file:
        routes = [line.split() for line in file][1:]
    names = {route[0] for route in routes}
    return sorted(names) if any(route[1] == "00000000" for route in routes) else []


def _forwards(name: str) -> bool:
    with open(f"/proc/sys/net/ipv4/conf/{name}/forwarding", encoding="ascii") as file:
        return file.read().strip() != "0"


def resolver() -> str | None:
    """A resolv.conf that means something in a pod: the usual one may name a server on the host's own loopback."""
    try:
        with open(_RESOLVER, encoding="utf-8", errors="replace") as file:
            words = [line.split() for line in file]
    except OSError:
        return None
    servers = [word[1] for word in words if len(word) > 1 and word[0] == "nameserver"]
    local = bool(servers) and all(server.startswith("127.") or server == "::1" for server in servers)
    return _REAL_RESOLVER if local and os.path.exists(_REAL_RESOLVER) else None
