# SPDX-License-Identifier: Apache-2.0
"""Links, addresses, routes and neighbours by raw rtnetlink. `network` and `outside` build batches of these messages.

A batch goes out in one call and every message is acknowledged; the first that the kernel refuses raises OSError with
the name of what was asked. A socket belongs to the network namespace it was made in, whoever uses it later.
"""

import os
import socket
import struct
from collections.abc import Sequence

UP = 1
BLACKHOLE = 6
_UNICAST = 1
_LINK, _ADDRESS, _ROUTE, _NEIGHBOUR = 16, 20, 24, 28
_REQUEST, _ACK, _REPLACE, _EXCLUSIVE, _CREATE = 1, 4, 0x100, 0x200, 0x400
_ERROR = 2
_NOPREFIXROUTE = 0x200
_ONLINK = 4
_PERMANENT = 0x80
_FORWARDING, PROXY_ARP = 1, 3
_NESTED = 0x8000

Message = tuple[str, int, int, bytes]
"""What it is for (said in errors), type, flags, body."""


class Netlink:
    """A routing socket of the network namespace in which it was made."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._number = 0

    def send(self, messages: Sequence[Message]) -> None:
        """Ask for all of them in order. Raises OSError for the first that was refused; the others may have been done."""
        first = self._number + 1
        self._number += len(messages)
        self._socket.sendall(
            b"".join(
                struct.pack("=IHHII", 16 + len(body), kind, flags | _REQUEST | _ACK, number, 0) + body
                for number, (_, kind, flags, body) in enumerate(messages, first)
            )
        )
        self._acknowledged(messages, first)

    def _acknowledged(self, messages: Sequence[Message], first: int) -> None:
        waiting = len(messages)
        failed: OSError | None = None
        while waiting:
            data = self._socket.recv(65536)
            at = 0
            while at < len(data):
                length, kind, _, number = struct.unpack_from("=IHHI", data, at)
                if kind == _ERROR and number >= first:
                    waiting -= 1
                    (code,) = struct.unpack_from("=i", data, at + 16)
                    if code and failed is None:
                        failed = OSError(-code, os.strerror(-code), messages[number - first][0])
                at += (length + 3) & ~3
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()


def veth(name: str, index: int, mac: bytes, peer: tuple[str, int, bytes, int]) -> Message:
    """A pair of links; the peer (name, index, MAC, namespace) is made in the namespace of that descriptor at once."""
    there, number, address, namespace = peer
    inner = struct.pack("=BxHiII", 0, 0, number, 0, 0) + _link(there, address) + _attribute(28, _u32(namespace))
    info = _attribute(1, b"veth") + _attribute(2, _attribute(1, inner))
    body = struct.pack("=BxHiII", 0, 0, index, 0, 0) + _link(name, mac) + _attribute(18, info)
    return f"link {name}", _LINK, _CREATE | _EXCLUSIVE, body


def _link(name: str, mac: bytes) -> bytes:
    """One queue each way: the kernel's default is one for every core, which is dear on large machines."""
    queues = _attribute(31, _u32(1)) + _attribute(32, _u32(1))
    return _attribute(3, name.encode() + b"\0") + _attribute(1, mac) + queues


def up(index: int) -> Message:
    """Switch a link on."""
    return f"link {index} up", _LINK, 0, struct.pack("=BxHiII", 0, 0, index, UP, UP)


def forwarding(index: int, *, on: bool = True) -> Message:
    """Let what comes in by this link go out by others."""
    return _configured(index, _FORWARDING, on)


def proxy_arp(index: int) -> Message:
    """Answer on this link for the addresses behind the others."""
    return _configured(index, PROXY_ARP, True)  # noqa: FBT003


def _configured(index: int, setting: int, value: bool) -> Message:  # noqa: FBT001
    spec = _attribute(26 | _NESTED, _attribute(2 | _NESTED, _attribute(1 | _NESTED, _attribute(setting, _u32(value)))))
    return f"setting {setting} of link {index}", _LINK, 0, struct.pack("=BxHiII", 0, 0, index, 0, 0) + spec


def address(index: int, value: bytes, prefix: int) -> Message:
    """An address without the route to its network that usually comes with it: we say where things are."""
    body = struct.pack("=BBBBi", socket.AF_INET, prefix, 0, 0, index)
    body += _attribute(2, value) + _attribute(1, value) + _attribute(8, _u32(_NOPREFIXROUTE))
    return f"address {socket.inet_ntoa(value)}", _ADDRESS, _CREATE | _REPLACE, body


def neighbour(index: int, value: bytes, mac: bytes) -> Message:
    """Where an address is on a link, for good: nothing is asked by ARP, and the kernel's table cannot overflow."""
    body = struct.pack("=BxxxiHBB", socket.AF_INET, index, _PERMANENT, 0, 0) + _attribute(1, value) + _attribute(2, mac)
    return f"neighbour {socket.inet_ntoa(value)}", _NEIGHBOUR, _CREATE | _REPLACE, body


def route(target: tuple[bytes, int], index: int, via: bytes | None = None) -> Message:
    """How to reach a network: by a link, and by an address on it."""
    value, prefix = target
    scope, flags = (253, 0) if via is None else (0, _ONLINK)
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, prefix, 0, 0, 254, 4, scope, _UNICAST, flags)
    body += (_attribute(1, value) if prefix else b"") + _attribute(4, struct.pack("=i", index))
    body += b"" if via is None else _attribute(5, via)
    return f"route {socket.inet_ntoa(value)}/{prefix}", _ROUTE, _CREATE | _REPLACE, body


def blackhole(target: tuple[bytes, int]) -> Message:
    """What goes to addresses nobody has is dropped."""
    value, prefix = target
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, prefix, 0, 0, 254, 4, 0, BLACKHOLE, 0) + _attribute(1, value)
    return f"blackhole {socket.inet_ntoa(value)}/{prefix}", _ROUTE, _CREATE | _REPLACE, body


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def _u32(value: int) -> bytes:
    return struct.pack("=I", value)
