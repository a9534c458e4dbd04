# SPDX-License-Identifier: Apache-2.0
"""The way from the pods' network to the world outside, if there is one; else one notice why not. `sandbox` calls it.

As root: a link to the host, over which the host reaches pods too, and a masquerade (see there for its end). The host
must forward for that, which is switched on for those of its routed links that have it off, and noted in /run. The last
supervisor to end switches it off again; after a kill -9 that is `tidy`, which `fleet` calls, or the next supervisor.
The link vanishes with the pods' network.
"""

import contextlib
import os
import socket
from collections.abc import Callable

from trainwright.local.supervisor import namespaces, netlink
from trainwright.local.supervisor.masquerade import Masquerade, sweep
from trainwright.local.supervisor.network import GATEWAY_MAC, UPLINK, Network
from trainwright.local.supervisor.usermode import Usermode

_HOST_MAC = bytes.fromhex("027477000002")
_ANYWHERE = (bytes(4), 0)
_NOTICE = "pods cannot reach the outside network: {}"
_NOTES = "/run/trainwright"
_TRIES = 3
_RESOLVER, _REAL_RESOLVER = "/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"


class Outside:
    """The connection of one supervisor or holder; made before it enters a user namespace, connected after."""

    def __init__(self, *, root: bool, wanted: bool) -> None:
        self.notices: list[str] = []
        self._root, self._wanted = root, wanted
        self._usermode: Usermode | None = None
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
        self._usermode = Usermode()

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
    if namespaces.privileged() and os.path.exists(_note()) and sweep():
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
