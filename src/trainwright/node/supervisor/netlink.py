# SPDX-License-Identifier: Apache-2.0
"""Links, addresses, routes and neighbours, by raw rtnetlink messages.

A batch of messages is sent in one call, and the kernel acknowledges each message. If the kernel refuses messages, the
OSError has the name of the first refused message. A socket belongs to the network namespace in which it was created.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

_LINK, _ADDRESS, _ROUTE, _NEIGHBOUR = 16, 20, 24, 28  # message types RTM_NEW…
_ERROR = 2
_REQUEST, _ACK, _REPLACE, _EXCLUSIVE, _CREATE = 1, 4, 0x100, 0x200, 0x400
_UP = 1
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_LINKINFO, _IFLA_AF_SPEC, _IFLA_NET_NS_FD = 1, 3, 18, 26, 28
_IFLA_NUM_TX_QUEUES, _IFLA_NUM_RX_QUEUES = 31, 32
_INFO_KIND, _INFO_DATA, _VETH_INFO_PEER = 1, 2, 1
_INET_CONF, _FORWARDING, _PROXY_ARP = 1, 1, 3
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS, _NOPREFIXROUTE = 1, 2, 8, 0x200
_NDA_DST, _NDA_LLADDR, _PERMANENT = 1, 2, 0x80
_RTA_DST, _RTA_OIF, _RTA_GATEWAY = 1, 4, 5
_MAIN, _STATIC, _ONLINK = 254, 4, 4
_SCOPE_ALL, _SCOPE_LINK = 0, 253
_UNICAST, _BLACKHOLE = 1, 6

#: The first address of a network, and the length of its prefix.
Range = tuple[bytes, int]


class Message(NamedTuple):
    """One request to the kernel. Errors show `name`."""

    name: str
    kind: int
    flags: int
    body: bytes


class Netlink:
    """A routing socket of the network namespace in which it was created."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._number = 0

    def send(self, messages: Sequence[Message]) -> None:
        """Send all messages in order. Raises OSError for the first refused message; the others may have succeeded."""
        first = self._number + 1
        self._number += len(messages)
        frames = [
            struct.pack("=IHHII", 16 + len(one.body), one.kind, one.flags | _REQUEST | _ACK, number, 0) + one.body
            for number, one in enumerate(messages, first)
        ]
        self._socket.sendall(b"".join(frames))
        refused: list[OSError] = []
        waiting = len(messages)
        while waiting:
            for number, code in _answers(self._socket.recv(65536)):
                waiting -= 1
                if code:
                    refused.append(OSError(-code, os.strerror(-code), messages[number - first].name))
        if refused:
            raise refused[0]

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def send_once(messages: Sequence[Message]) -> None:
    """Send netlink messages to the kernel; they act on the network namespace of this thread. Raises OSError."""
    with contextlib.closing(Netlink()) as link:
        link.send(messages)


def _answers(data: bytes) -> list[tuple[int, int]]:
    """For each acknowledged message: its number, and 0 or a negative errno."""
    answers, at = [], 0
    while at < len(data):
        length, kind, _, number = struct.unpack_from("=IHHI", data, at)
        if kind == _ERROR:
            answers.append((number, struct.unpack_from("=i", data, at + 16)[0]))
        at += (length + 3) & ~3
    return answers


def veth(name: str, index: int, mac: bytes, peer: tuple[str, int, bytes, int]) -> Message:
    """Create a pair of links. `peer` is the other link: name, index, MAC, and a descriptor of the namespace for it."""
    peer_name, peer_index, peer_mac, namespace = peer
    inner = _info(peer_index) + _named(peer_name, peer_mac) + _attribute(_IFLA_NET_NS_FD, _u32(namespace))
    info = _attribute(_INFO_KIND, b"veth") + _attribute(_INFO_DATA, _attribute(_VETH_INFO_PEER, inner))
    body = _info(index) + _named(name, mac) + _attribute(_IFLA_LINKINFO, info)
    return Message(f"link {name}", _LINK, _CREATE | _EXCLUSIVE, body)


def _named(name: str, mac: bytes) -> bytes:
    """Use one queue per direction. The kernel's default, one queue per core, is expensive on large machines."""
    queues = _attribute(_IFLA_NUM_TX_QUEUES, _u32(1)) + _attribute(_IFLA_NUM_RX_QUEUES, _u32(1))
    return _attribute(_IFLA_IFNAME, name.encode() + b"\0") + _attribute(_IFLA_ADDRESS, mac) + queues


def up(index: int) -> Message:
    """Set a link to the state "up"."""
    return Message(f"link {index} up", _LINK, 0, _info(index, _UP))


def forwarding(index: int, *, on: bool = True) -> Message:
    """Allow or forbid forwarding of packets from this link to other links."""
    return _configured(index, _FORWARDING, int(on))


def proxy_arp(index: int) -> Message:
    """Answer ARP requests on this link for addresses behind the other links."""
    return _configured(index, _PROXY_ARP, 1)


def _configured(index: int, setting: int, value: int) -> Message:
    inet = _attribute(socket.AF_INET, _attribute(_INET_CONF, _attribute(setting, _u32(value))))
    return Message(f"setting {setting} of link {index}", _LINK, 0, _info(index) + _attribute(_IFLA_AF_SPEC, inet))


def address(index: int, value: bytes, prefix: int) -> Message:
    """Add an address, without the route to its network that the kernel usually adds."""
    body = struct.pack("=BBBBi", socket.AF_INET, prefix, 0, 0, index) + _attribute(_IFA_LOCAL, value)
    body += _attribute(_IFA_ADDRESS, value) + _attribute(_IFA_FLAGS, _u32(_NOPREFIXROUTE))
    return Message(f"address {socket.inet_ntoa(value)}", _ADDRESS, _CREATE | _REPLACE, body)


def neighbour(index: int, value: bytes, mac: bytes) -> Message:
    """Add a permanent neighbour: no ARP is needed, and the kernel's neighbour table cannot overflow."""
    body = struct.pack("=BxxxiHBB", socket.AF_INET, index, _PERMANENT, 0, 0)
    body += _attribute(_NDA_DST, value) + _attribute(_NDA_LLADDR, mac)
    return Message(f"neighbour {socket.inet_ntoa(value)}", _NEIGHBOUR, _CREATE | _REPLACE, body)


def route(target: Range, index: int, via: bytes | None = None) -> Message:
    """Route a network over a link, directly or through the gateway `via`."""
    link = _attribute(_RTA_OIF, _u32(index))
    if via is None:
        return _routed(target, _UNICAST, _SCOPE_LINK, link)
    return _routed(target, _UNICAST, _SCOPE_ALL, link + _attribute(_RTA_GATEWAY, via))


def blackhole(target: Range) -> Message:
    """Drop packets to addresses of a network that have no route of their own."""
    return _routed(target, _BLACKHOLE, _SCOPE_ALL, b"")


def _routed(target: Range, kind: int, scope: int, next_hop: bytes) -> Message:
    value, prefix = target
    flags = _ONLINK if scope == _SCOPE_ALL and next_hop else 0
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, prefix, 0, 0, _MAIN, _STATIC, scope, kind, flags)
    body += (_attribute(_RTA_DST, value) if prefix else b"") + next_hop
    return Message(f"route {socket.inet_ntoa(value)}/{prefix}", _ROUTE, _CREATE | _REPLACE, body)


def _info(index: int, flags: int = 0) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, flags)


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def _u32(value: int) -> bytes:
    return struct.pack("=I", value)
