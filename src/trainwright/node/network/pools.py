# SPDX-License-Identifier: Apache-2.0
"""Where addresses and ports come from: a subnet or the loopback range, and a port range of the engine's own.

`addresses` takes from them and puts back. What is put back comes round again last: a name that somebody still holds
should not lead to a stranger.

Leasing a range of addresses for the pods of one engine, so that two engines of a machine never have the same.

`node_pool` takes a lease before the sandbox starts. A lease is an abstract socket; it ends with the process that
holds it, or with the last one that inherited its descriptor. Ranges that are routed somewhere already are left alone.
"""

import errno
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Protocol

from trainwright.errors import EngineError

LOOPBACK = "127.0.0.1"
DEFAULT_PORTS = range(20000, 30000)
#: From here whole blocks are handed out, by the controller.
BLOCKS = range(10000, 20000)
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST = 1024, 65535
#: Fewer ports than this are not worth keeping to the default range for.
_ENOUGH = 1000


class AddressPool(Protocol):
    """A supply of addresses."""

    def take(self) -> str:
        """One that nobody has."""
        ...

    def claim(self, host: str) -> None:
        """This one is taken, as was found written."""
        ...

    def put(self, host: str) -> None:
        """Nobody has this one any more."""
        ...


class SubnetPool:
    """The addresses of a subnet, without those that are special: the network's, the gateway's (.1), the broadcast."""

    def __init__(self, network: str) -> None:
        self.network = IPv4Network(network)
        self._first, self._last = int(self.network[0]) + 2, int(self.network[-1]) - 1
        if self._first > self._last:
            raise EngineError(f"{network} has no room for pods: expected a subnet such as 10.129.0.0/16")
        self._next = self._first
        self._taken: set[int] = set()

    def take(self) -> str:
        """The next one that nobody has."""
        for _ in range(self._first, self._last + 1):
            found, self._next = self._next, self._next + 1 if self._next < self._last else self._first
            # Some programs take x.y.z.0 and x.y.z.255 for networks and broadcasts, whatever the mask says.
            if found not in self._taken and found & 255 not in (0, 255):
                self._taken.add(found)
                return socket.inet_ntoa(found.to_bytes(4, "big"))
        raise EngineError(
            f"every address of {self.network} belongs to a pod; finished jobs give theirs back when deleted"
        )

    def claim(self, host: str) -> None:
        """This one is taken."""
        self._taken.add(_number(host))

    def put(self, host: str) -> None:
        """Nobody has this one any more."""
        self._taken.discard(_number(host))


class SingleAddress:
    """One address for all: where a loopback range cannot be used."""

    def __init__(self, host: str = LOOPBACK) -> None:
        self._host = host

    def take(self) -> str:
        """The one there is."""
        return self._host

    def claim(self, host: str) -> None:
        """It always was."""

    put = claim


def loopback(network: str) -> AddressPool:
    """Addresses of this loopback subnet, or 127.0.0.1 for all where the platform has no other."""
    subnet = SubnetPool(network)
    return subnet if bindable(str(subnet.network[2]), 0) else SingleAddress()


class PortPool:
    """Ports that replicas are told to listen at. `start` is where an engine begins: not all where the others do."""

    def __init__(self, ranges: Sequence[range] = (DEFAULT_PORTS,), start: int = 0) -> None:
        self._all = [port for one in ranges for port in one]
        self._next = start % len(self._all)
        self._taken: set[int] = set()

    def take(self, host: str) -> int:
        """The next that nobody was given and nobody listens at, neither at this address nor at all of them."""
        for _ in self._all:
            port, self._next = self._all[self._next], (self._next + 1) % len(self._all)
            if port not in self._taken and bindable(host, port) and bindable("", port):
                self._taken.add(port)
                return port
        raise EngineError(
            f"every port from {self._all[0]} to {self._all[-1]} is in use; there is none for another replica"
        )

    def claim(self, port: int) -> None:
        """This one is taken."""
        self._taken.add(port)

    def put(self, port: int) -> None:
        """Nobody has this one any more."""
        self._taken.discard(port)


def ranges(wanted: range = DEFAULT_PORTS, ephemeral: range | None = None) -> tuple[range, ...]:
    """The wanted ports but for those that the kernel gives to anybody; if few are left, the largest other part."""
    taken = _ephemeral() if ephemeral is None else ephemeral
    left = _without(wanted, taken)
    if sum(map(len, left)) >= min(_ENOUGH, len(wanted)):
        return left
    others = _without(range(_LOWEST, _HIGHEST + 1), taken)
    return (max(others, key=len),) if others else (wanted,)


def _without(wanted: range, taken: range) -> tuple[range, ...]:
    parts = (range(wanted.start, min(wanted.stop, taken.start)), range(max(wanted.start, taken.stop), wanted.stop))
    return tuple(part for part in parts if part)


def _ephemeral() -> range:
    """What the kernel hands out for outgoing connections."""
    try:
        low, high = map(int, _EPHEMERAL.read_text().split())
    except (OSError, ValueError):
        return range(49152, 65536)
    return range(low, high + 1)


def bindable(host: str, port: int) -> bool:
    """Whether a server could listen there now; no host: at all addresses."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _number(host: str) -> int:
    return int.from_bytes(socket.inet_aton(host), "big")


_WHOLE = IPv4Network("10.128.0.0/9")
_PREFIX = 16
_ROUTES = Path("/proc/net/route")


@dataclass
class SubnetLease:
    """A subnet that is ours until it is closed. Who inherits `fd` holds it too."""

    subnet: str
    fd: int

    def close(self) -> None:
        """Give it back. Safe to call twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def lease(name: str = "trainwright", routes: Path = _ROUTES) -> SubnetLease:
    """A free subnet; leases of one name exclude each other. Raises EngineError if there is none."""
    for subnet in _candidates(_routed(routes)):
        fd = _claimed(f"\0{name}/{subnet}")
        if fd is not None:
            return SubnetLease(str(subnet), fd)
    raise EngineError(f"all subnets of {_WHOLE} are leased by other engines or routed elsewhere")


def _candidates(routed: list[IPv4Network]) -> list[IPv4Network]:
    """All free ones; those last that only lie in a wider network, such as a company's 10.0.0.0/8."""
    subnets = list(_WHOLE.subnets(new_prefix=_PREFIX))
    narrow = [route for route in routed if route.prefixlen >= _PREFIX]
    free = [subnet for subnet in subnets if not any(map(subnet.overlaps, narrow))]
    return sorted(free, key=lambda subnet: any(map(subnet.overlaps, routed)))


def _routed(routes: Path) -> list[IPv4Network]:
    """What the machine has routes for, but the default one."""
    try:
        lines = [line.split() for line in routes.read_text(encoding="ascii").splitlines()[1:]]
    except OSError:
        return []
    found = [IPv4Network((_address(line[1]), str(_address(line[7]))), strict=False) for line in lines]
    return [network for network in found if network.prefixlen]


def _address(text: str) -> IPv4Address:
    """The kernel writes addresses as the hexadecimal number that they are in memory."""
    return IPv4Address(int(text, 16).to_bytes(4, sys.byteorder))


def _claimed(address: str) -> int | None:
    """An address that only one can have, or None. Abstract: no file, so nothing that could be left behind."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(address)
    except OSError as error:
        claim.close()
        if error.errno != errno.EADDRINUSE:
            raise EngineError(f"no addresses for pods can be leased: {error.strerror or error}") from None
        return None
    return claim.detach()
