# SPDX-License-Identifier: Apache-2.0
"""Pools of addresses and ports for pods, and leases of subnets.

A pool gives a returned address or port to a new pod as late as possible, because other processes may still use it to
reach the old pod.

A subnet lease ensures that two engines of a machine never use the same subnet. The lease is an abstract socket address,
which the kernel releases when the last process with its descriptor ends. A subnet is not leased if
the machine has a route to the subnet or to a part of it.
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

from trainwright.errors import EngineError

LOOPBACK = "127.0.0.1"
DEFAULT_PORTS = range(20000, 30000)
#: From this range, the controller takes blocks of ports for pods that use the host network.
BLOCKS = range(10000, 20000)
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST = 1024, 65535
#: If a wanted range has fewer non-ephemeral ports than this, another range is used.
_MIN_PORTS = 1000
_ALL_SUBNETS = IPv4Network("10.128.0.0/9")
_SUBNET_PREFIX = 16
_ROUTES = Path("/proc/net/route")


class SubnetPool:
    """The addresses of a subnet, except the network address, the gateway's address (.1) and the broadcast address."""

    def __init__(self, network: str) -> None:
        self.network = IPv4Network(network)
        self._first, self._last = int(self.network[0]) + 2, int(self.network[-1]) - 1
        if self._first > self._last:
            raise EngineError(f"{network} has no room for pods: expected a subnet such as 10.129.0.0/16")
        self._next = self._first
        self._taken: set[int] = set()

    def take(self) -> str:
        """Take the next free address."""
        for _ in range(self._first, self._last + 1):
            found, self._next = self._next, self._next + 1 if self._next < self._last else self._first
            # Whatever the mask is, some programs treat x.y.z.0 as a network address and x.y.z.255 as a broadcast.
            if found not in self._taken and found & 255 not in (0, 255):
                self._taken.add(found)
                return socket.inet_ntoa(found.to_bytes(4, "big"))
        raise EngineError(
            f"every address of {self.network} belongs to a pod; finished jobs give theirs back when deleted"
        )

    def claim(self, host: str) -> None:
        """Mark an address as taken, for example after a restart of the engine."""
        self._taken.add(_number(host))

    def contains(self, host: str) -> bool:
        """Whether this is an address of the subnet. Any text is allowed: users can write the annotation of a pod."""
        try:
            return self._first <= _number(host) <= self._last
        except OSError:
            return False

    def put(self, host: str) -> None:
        """Return an address to the pool."""
        self._taken.discard(_number(host))


class SingleAddress:
    """127.0.0.1 for all pods, on platforms that have no other loopback addresses."""

    def take(self) -> str:
        """Return the only address."""
        return LOOPBACK

    def claim(self, host: str) -> None:
        """Do nothing: all pods share the address."""

    put = claim

    def contains(self, host: str) -> bool:
        """Whether this is the only address."""
        return host == LOOPBACK


AddressPool = SubnetPool | SingleAddress


def loopback(network: str) -> AddressPool:
    """The addresses of this loopback subnet, or only 127.0.0.1 if the platform has no other loopback addresses."""
    subnet = SubnetPool(network)
    return subnet if bindable(str(subnet.network[2]), 0) else SingleAddress()


class PortPool:
    """Ports for replicas. Engines use different values of `start`, so that two engines rarely try the same port."""

    def __init__(self, ranges: Sequence[range] = (DEFAULT_PORTS,), start: int = 0) -> None:
        self._all = [port for one in ranges for port in one]
        self._next = start % len(self._all)
        self._taken: set[int] = set()

    def take(self, host: str) -> int:
        """Take the next port that is not taken, and that a server can bind now, both on `host` and on all addresses."""
        for _ in self._all:
            port, self._next = self._all[self._next], (self._next + 1) % len(self._all)
            if port not in self._taken and bindable(host, port) and bindable("", port):
                self._taken.add(port)
                return port
        raise EngineError(
            f"every port from {self._all[0]} to {self._all[-1]} is in use; there is none for another replica"
        )

    def claim(self, port: int) -> None:
        """Mark a port as taken."""
        self._taken.add(port)

    def put(self, port: int) -> None:
        """Return a port to the pool."""
        self._taken.discard(port)


def ranges(wanted: range = DEFAULT_PORTS, ephemeral: range | None = None) -> tuple[range, ...]:
    """The wanted ports that are not ephemeral. If these are too few: the largest range of non-ephemeral ports."""
    taken = _ephemeral() if ephemeral is None else ephemeral
    left = _without(wanted, taken)
    if sum(map(len, left)) >= min(_MIN_PORTS, len(wanted)):
        return left
    others = _without(range(_LOWEST, _HIGHEST + 1), taken)
    return (max(others, key=len),) if others else (wanted,)


def _without(wanted: range, taken: range) -> tuple[range, ...]:
    parts = (range(wanted.start, min(wanted.stop, taken.start)), range(max(wanted.start, taken.stop), wanted.stop))
    return tuple(part for part in parts if part)


def _ephemeral() -> range:
    """The ports that the kernel uses for outgoing connections."""
    try:
        low, high = map(int, _EPHEMERAL.read_text().split())
    except (OSError, ValueError):
        return range(49152, 65536)
    return range(low, high + 1)


def bindable(host: str, port: int) -> bool:
    """Whether a server could listen on this port now. An empty host means all addresses."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _number(host: str) -> int:
    return int.from_bytes(socket.inet_aton(host), "big")


@dataclass
class SubnetLease:
    """The lease of a subnet, until `close`. A process that inherits `fd` holds the lease, too."""

    subnet: str
    fd: int

    def close(self) -> None:
        """Release the subnet. Safe to call twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def lease(name: str = "trainwright", routes: Path = _ROUTES, preferred: str = "") -> SubnetLease:
    """Lease a free subnet, if possible the preferred one. Raises EngineError.

    Leases exclude each other only if they have the same `name`.
    """
    free = _candidates(_routed(routes))
    for subnet in sorted(free, key=lambda one: str(one) != preferred) if preferred else free:
        fd = _claimed(f"\0{name}/{subnet}")
        if fd is not None:
            return SubnetLease(str(subnet), fd)
    raise EngineError(f"all subnets of {_ALL_SUBNETS} are leased by other engines or routed elsewhere")


def _candidates(routed: list[IPv4Network]) -> list[IPv4Network]:
    """All free subnets. Subnets in a wider routed network, such as a company's 10.0.0.0/8, are last in the list."""
    subnets = list(_ALL_SUBNETS.subnets(new_prefix=_SUBNET_PREFIX))
    narrow = [route for route in routed if route.prefixlen >= _SUBNET_PREFIX]
    free = [subnet for subnet in subnets if not any(map(subnet.overlaps, narrow))]
    return sorted(free, key=lambda subnet: any(map(subnet.overlaps, routed)))


def _routed(routes: Path) -> list[IPv4Network]:
    """The networks that the machine has routes for, except the default route."""
    try:
        lines = [line.split() for line in routes.read_text(encoding="ascii").splitlines()[1:]]
    except OSError:
        return []
    found = [IPv4Network((_address(line[1]), str(_address(line[7]))), strict=False) for line in lines]
    return [network for network in found if network.prefixlen]


def _address(text: str) -> IPv4Address:
    """Decode an address in the kernel's table: a hexadecimal number in the byte order of the machine."""
    return IPv4Address(int(text, 16).to_bytes(4, sys.byteorder))


def _claimed(address: str) -> int | None:
    """Bind an abstract socket address, which needs no file; None if another process has bound it."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(address)
    except OSError as error:
        claim.close()
        if error.errno != errno.EADDRINUSE:
            raise EngineError(f"no addresses for pods can be leased: {error.strerror or error}") from None
        return None
    return claim.detach()
