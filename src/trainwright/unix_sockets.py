# SPDX-License-Identifier: Apache-2.0
"""Addresses of Unix sockets, connections to them, and the user on the other side. Imports no large package."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: The maximum length of a Unix socket's address in bytes, without the zero byte. Linux allows 107, other systems 103.
_MAX_ADDRESS_BYTES = 103
_OWN_DESCRIPTORS = "/proc/self/fd"


def connect(path: Path, timeout: float | None = None) -> socket.socket:
    """Connect to the socket at `path`. Raises OSError if no process listens there."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout)
    try:
        with socket_address(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """The path as a socket address. If the path is too long, a shorter path to the same file is used."""
    if len(os.fsencode(path)) <= _MAX_ADDRESS_BYTES:
        yield str(path)
    elif Path(_OWN_DESCRIPTORS).is_dir():
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"{_OWN_DESCRIPTORS}/{folder}/{path.name}"
        finally:
            os.close(folder)
    else:
        import tempfile  # noqa: PLC0415 - the import takes 5 ms, and Linux does not need it

        with tempfile.TemporaryDirectory() as temporary:
            link = Path(temporary, "s")
            link.symlink_to(path.parent.absolute())
            yield str(link / path.name)


def is_trusted(peer: socket.socket) -> bool:
    """Whether the process on the other side belongs to the same user or to root. Only Linux tells it."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid in (os.geteuid(), 0)
