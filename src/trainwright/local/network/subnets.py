# SPDX-License-Identifier: Apache-2.0
"""Leasing a range of addresses for the pods of one engine, so that two engines of a machine never have the same.

`fleet` takes a lease before it starts the sandbox. A lease is an abstract socket address: it ends with the process that
holds it, or with the last one that inherited its descriptor. Ranges that are routed somewhere already are left alone.
"""

import errno
import os
import socket
import sys
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from trainwright.errors import EngineError

_WHOLE = IPv4Network("10.128.0.0/9")
_PREFIX = 16
_ROUTES = Path("/proc/net/route")


@dataclass
class Lease:
    """A subnet that is ours until it is closed. Who inherits `fd` holds it too."""

    subnet: str
    fd: int

    def close(self) -> None:
        """Give it back. Safe to call twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def lease(name: str = "trainwright", routes: Path = _ROUTES) -> Lease:
    """A free subnet; leases of one name exclude each other. Raises EngineError if there is none."""
    for subnet in _candidates(_routed(routes)):
        fd = _claimed(f"\0{name}/{subnet}")
        if fd is not None:
            return Lease(str(subnet), fd)
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
