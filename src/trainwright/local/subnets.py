# SPDX-License-Identifier: Apache-2.0
"""A subnet for the pods of one engine, leased so that two engines of a machine never share one. `fleet` asks.

A lease is a locked file in a folder that all engines of a user share; it ends with the process that holds it.
"""

import fcntl
import os
import tempfile
from ipaddress import IPv4Network
from pathlib import Path
from types import TracebackType

from trainwright.errors import EngineError

_RANGE = IPv4Network("10.128.0.0/9")
_ROUTES = Path("/proc/net/route")


class Lease:
    """A subnet that is ours until `close`."""

    def __init__(self, subnet: str, lock: int) -> None:
        self.subnet = subnet
        self._lock = lock

    def close(self) -> None:
        """Give it back."""
        os.close(self._lock)

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def lease(folder: Path | None = None) -> Lease:
    """The first subnet that no other engine has and that the machine does not route elsewhere. Raises EngineError."""
    place = folder or _shared()
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    routed = _routed()
    for subnet in _RANGE.subnets(new_prefix=16):
        if any(subnet.overlaps(other) for other in routed):
            continue
        lock = os.open(place / str(subnet.network_address), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return Lease(str(subnet), lock)
    raise EngineError(f"every subnet of {_RANGE} is in use")


def _shared() -> Path:
    """One folder for all engines of this user, which vanishes with the session or the machine's next start."""
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"trainwright-{os.getuid()}" / "subnets"


def _routed() -> list[IPv4Network]:
    """What the machine itself routes there; a default route leads everywhere and does not count."""
    try:
        rows = [line.split() for line in _ROUTES.read_text().splitlines()[1:]]
    except OSError:
        return []
    found = [(_number(row[1]), _number(row[7])) for row in rows if len(row) > 7]
    return [IPv4Network((base, bin(mask).count("1")), strict=False) for base, mask in found if mask]


def _number(text: str) -> int:
    return int.from_bytes(int(text, 16).to_bytes(4, "little"), "big")
