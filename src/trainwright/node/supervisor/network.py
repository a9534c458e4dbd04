# SPDX-License-Identifier: Apache-2.0
"""The network of all pods of a machine: a network namespace that has the other end of every pod's link.

A supervisor creates this namespace, or gets a namespace that several supervisors share; `outside` connects it to the
outside network. Pods are routed, not bridged: a bridge has at most 1,023 links, and with ARP, forty pods that all
talk to each other would overflow the kernel's neighbour table. When the kernel removes the namespace, it also removes
all links and routes.
"""

import errno
import os
import socket

from trainwright import kernel
from trainwright.node.supervisor import netlink

LOOPBACK, ETH0, UPLINK = 1, 2, 2
GATEWAY_MAC = bytes.fromhex("027477000001")
# Offsets of addresses that no pod gets. Pods never get .0 and .255, which some programs treat as special addresses.
_GATEWAY, _HOST, SPARE = 1, 255, 256
_MAX_GENERATION = 0x3FFF
_MAX_TRIES = 16


class Network:
    """The namespace. `gateway` is its own address, `host` the address of this machine."""

    def __init__(self, subnet: str, net: int | None = None) -> None:
        """Use the namespace `net`, or create a new namespace. Raises OSError."""
        base, _, prefix = subnet.partition("/")
        self.subnet = subnet
        self.range = socket.inet_aton(base), int(prefix)
        self.gateway, self.host = self.at(_GATEWAY), self.at(_HOST)
        self.connected = False  # whether the namespace has a link to the outside network
        self._generation = os.getpid() & _MAX_GENERATION  # two supervisors rarely begin with equal generations
        self.net, self.links = kernel.in_thread(lambda: self._create() if net is None else self._join(net))

    def _create(self) -> tuple[int, netlink.Netlink]:
        kernel.unshare(kernel.NEWNET)
        links = netlink.Netlink()
        links.send([netlink.up(LOOPBACK), netlink.address(LOOPBACK, self.gateway, 32), netlink.blackhole(self.range)])
        return kernel.current_namespace("net"), links

    def _join(self, net: int) -> tuple[int, netlink.Netlink]:
        kernel.setns(net, kernel.NEWNET)
        self.connected = bool(routed_links())
        return net, netlink.Netlink()

    def at(self, offset: int) -> bytes:
        """The address at this offset in the subnet."""
        return (int.from_bytes(self.range[0], "big") + offset).to_bytes(4, "big")

    def attach(self, net: int, address: str) -> None:
        """Give the address and routes to the namespace `net`. The calling thread must be in this namespace."""
        value = socket.inet_aton(address)
        mac = b"\x02\x74" + value
        # Without a connection to the outside, the pod itself must know that it has no route: the kernel limits the rate
        # of the gateway's ICMP errors, and resolvers would wait for a timeout.
        target = (bytes(4), 0) if self.connected else self.range
        self._add_link(net, value, mac)
        netlink.send_once(
            [
                netlink.up(LOOPBACK),
                netlink.up(ETH0),
                netlink.address(ETH0, value, self.range[1]),
                netlink.neighbour(ETH0, self.gateway, GATEWAY_MAC),
                netlink.route(target, ETH0, self.gateway),
            ]
        )

    def _add_link(self, net: int, value: bytes, mac: bytes) -> None:
        """Create the pod's link. Its index has a new generation: the kernel may still be removing an earlier link."""
        for left in reversed(range(_MAX_TRIES)):
            self._generation = self._generation % _MAX_GENERATION + 1
            index = self._generation << 16 | int.from_bytes(value[2:], "big")
            pair = netlink.veth(f"tw{index:x}", index, GATEWAY_MAC, ("eth0", ETH0, mac, net))
            routes = [netlink.neighbour(index, value, mac), netlink.route((value, 32), index)]
            try:
                self.links.send([pair, netlink.up(index), netlink.forwarding(index), *routes])
                return
            except OSError as error:
                if error.errno not in {errno.EEXIST, errno.EBUSY} or not left:
                    raise

    def uplink(self, name: str, mac: bytes) -> None:
        """Create the link to the caller's network namespace, where the link has this name and MAC."""
        netlink.send_once([netlink.veth(name, 0, mac, ("uplink", UPLINK, GATEWAY_MAC, self.net))])
        routes = [netlink.neighbour(UPLINK, self.host, mac), netlink.route((self.host, 32), UPLINK)]
        self.links.send([netlink.up(UPLINK), netlink.forwarding(UPLINK), *routes])

    def close(self) -> None:
        """Release the namespace; the kernel removes it when no pod and no other supervisor uses it."""
        self.links.close()
        os.close(self.net)


def routed_links() -> list[str]:
    """The links with routes in the network namespace of this thread; empty without a default route."""
    with open("/proc/thread-self/net/route", encoding="ascii") as file:
        routes = [line.split() for line in file][1:]
    return sorted({route[0] for route in routes}) if any(route[1] == "00000000" for route in routes) else []
