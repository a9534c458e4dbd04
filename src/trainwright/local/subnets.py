# SPDX-License-Identifier: Apache-2.0
"""Leasing a range of addresses for the pods of one engine, so that two engines of a user never have the same.

`fleet` takes a lease before it starts the sandbox. A lease is a locked file: it ends with the process that holds it,
or with the last one that inherited its descriptor. Ranges that this machine already routes somewhere are left alone.
"""

import fcntl
import os
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


def lease(folder: Path | None = None, routes: Path = _ROUTES) -> Lease:
    """A free subnet; `folder` is where the locks are. Raises EngineError if there is none, or no such folder."""
    place = folder or _runtime_folder() / "subnets"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        for subnet in _candidates(_routed(routes)):
            fd = _locked(place / str(subnet.network_address))
            if fd is not None:
                return Lease(str(subnet), fd)
    except OSError as error:
        raise EngineError(f"no addresses for pods can be leased in {place}: {error.strerror or error}") from None
    raise EngineError(f"all subnets of {_WHOLE} are leased by other engines or routed elsewhere; see {place}")


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


def _locked(path: Path) -> int | None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _runtime_folder() -> Path:
    given = os.environ.get("XDG_RUNTIME_DIR")
    return Path(given, "trainwright") if given else Path(f"/tmp/trainwright-{os.geteuid()}")  # noqa: S108 - mode 0700
