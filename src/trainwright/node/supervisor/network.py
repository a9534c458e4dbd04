# SPDX-License-Identifier: Apache-2.0
"""The network of all pods of a machine: a namespace, the holder, in which the links of all pods end.

`sandbox` makes one or is given one that several supervisors share (`holder`); `outside` connects it with the rest of
the world. Pods are routed, not bridged: a bridge takes 1,023 links, and with ARP forty pods that all talk to each other
overflow the kernel's table of neighbours. Everything in it vanishes with the namespace.
"""

import errno
import os
import socket

from trainwright.node.supervisor import kernel, netlink

LOOPBACK, ETH0, UPLINK = 1, 2, 2
GATEWAY_MAC = bytes.fromhex("027477000001")
# Addresses that no pod is given: programs take those in .0 and .255 for networks and broadcasts.
_GATEWAY, _HOST, SPARE = 1, 255, 256
_NAME = "uplink"
_GENERATIONS = 0x3FFF
_TRIES = 16


class Network:
    """The holder's end of every link. `gateway` is its own address, `host` that of this machine."""

    def __init__(self, subnet: str, net: int | None = None) -> None:
        """Enter the namespace `net`, or make one. Raises OSError."""
        base, _, prefix = subnet.partition("/")
        self.subnet = subnet
        self.range = socket.inet_aton(base), int(prefix)
        self.gateway, self.host = self.at(_GATEWAY), self.at(_HOST)
        self.connected = False  # with the world outside
        self._generation = os.getpid() & _GENERATIONS  # so that two supervisors rarely try the same number
        self.net, self.links = kernel.in_thread(lambda: self._made() if net is None else self._joined(net))

    def _made(self) -> tuple[int, netlink.Netlink]:
        kernel.unshare(kernel.NEWNET)
        links = netlink.Netlink()
        alone = [netlink.up(LOOPBACK), netlink.address(LOOPBACK, self.gateway, 32), netlink.blackhole(self.range)]
        links.send(alone)
        return kernel.current_namespace("net"), links

    def _joined(self, net: int) -> tuple[int, netlink.Netlink]:
        kernel.setns(net, kernel.NEWNET)
        self.connected = leads_out()
        return net, netlink.Netlink()

    def at(self, count: int) -> bytes:
        """That address of the range."""
        return (int.from_bytes(self.range[0], "big") + count).to_bytes(4, "big")

    def attach(self, net: int, address: str) -> None:
        """Give the namespace `net`, in which the calling thread is, its address and its way to all others."""
        value = socket.inet_aton(address)
        mac = b"\x02\x74" + value
        # Without a way out it knows that itself: the gateway's word for it is rationed, and resolvers wait for more.
        reached = (bytes(4), 0) if self.connected else self.range
        self._plug(net, value, mac)
        inside = netlink.Netlink()
        try:
            inside.send(
                [
                    netlink.up(LOOPBACK),
                    netlink.up(ETH0),
                    netlink.address(ETH0, value, self.range[1]),
                    netlink.neighbour(ETH0, self.gateway, GATEWAY_MAC),
                    netlink.route(reached, ETH0, self.gateway),
                ]
            )
        finally:
            inside.close()

    def _plug(self, net: int, value: bytes, mac: bytes) -> None:
        """The pod's link. That of an earlier pod with this address may still be on its way out: each has a number."""
        for left in reversed(range(_TRIES)):
            self._generation = self._generation % _GENERATIONS + 1
            index = self._generation << 16 | int.from_bytes(value[2:], "big")
            pair = netlink.veth(f"tw{index:x}", index, GATEWAY_MAC, ("eth0", ETH0, mac, net))
            place = [netlink.neighbour(index, value, mac), netlink.route((value, 32), index)]
            try:
                self.links.send([pair, netlink.up(index), netlink.forwarding(index), *place])
                return
            except OSError as error:
                if error.errno not in {errno.EEXIST, errno.EBUSY} or not left:
                    raise

    def uplink(self, name: str, mac: bytes) -> None:
        """Make the link to the namespace that the caller is in; there it has this name and MAC."""
        there = netlink.Netlink()
        try:
            there.send([netlink.veth(name, 0, mac, (_NAME, UPLINK, GATEWAY_MAC, self.net))])
        finally:
            there.close()
        place = [netlink.neighbour(UPLINK, self.host, mac), netlink.route((self.host, 32), UPLINK)]
        self.links.send([netlink.up(UPLINK), netlink.forwarding(UPLINK), *place])

    def close(self) -> None:
        """Let go of it; without pods and other supervisors in it, it vanishes."""
        self.links.close()
        os.close(self.net)


def leads_out() -> bool:
    """Whether the namespace of this thread has a default route."""
    with open("/proc/thread-self/net/route", encoding="ascii") as file:
        return any(line.split()[1] == "00000000" for line in file)
