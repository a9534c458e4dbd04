# SPDX-License-Identifier: Apache-2.0
"""The holder: a network namespace that joins all pods of a machine, so that everything vanishes with it.

`sandbox` makes one, or is given one that several supervisors share; `python -m trainwright.local.supervisor.holder
SUBNET` keeps such a one until its stdin is closed, and prints where it is. Pods are routed, not bridged: a bridge
takes 1,023 ports, and with ARP forty pods that all talk to each other overflow the kernel's table of neighbours.
"""

import errno
import json
import os
import socket
import sys

from trainwright.local.supervisor import kernel, namespaces, netlink
from trainwright.local.supervisor.outside import Outside

LOOPBACK, ETH0 = 1, 2
_GATEWAY_MAC = bytes.fromhex("027477000001")
_GENERATIONS = 0x3FFF
_TRIES = 16


class Holder:
    """The holder's end of every pod's link. The gateway of all pods is the first address of the subnet."""

    def __init__(self, subnet: str, net: int | None = None) -> None:
        """Enter the namespace `net`, or make one. Raises OSError."""
        base, _, prefix = subnet.partition("/")
        self._subnet = subnet
        self._prefix = int(prefix)
        self._base = socket.inet_aton(base)
        self.gateway = plus(self._base, 1)
        self._generation = os.getpid() & _GENERATIONS  # so that two supervisors rarely try the same index
        self.net, self._netlink = namespaces.elsewhere(lambda: self._entered(net))

    def _entered(self, net: int | None) -> tuple[int, netlink.Netlink]:
        if net is not None:
            kernel.setns(net, kernel.NEWNET)
            return net, netlink.Netlink()
        kernel.unshare(kernel.NEWNET)
        own = netlink.Netlink()
        own.send(
            [
                netlink.up(LOOPBACK),
                netlink.address(LOOPBACK, self.gateway, 32),
                netlink.blackhole((self._base, self._prefix)),
            ]
        )
        return namespaces.current("net"), own

    def attach(self, net: int, address: str) -> None:
        """Give the namespace `net`, in which the calling thread is, its address and its way to all others."""
        value = socket.inet_aton(address)
        mac = b"\x02\x74" + value
        self._plug(net, value, mac)
        inside = netlink.Netlink()
        try:
            inside.send(
                [
                    netlink.up(LOOPBACK),
                    netlink.up(ETH0),
                    netlink.address(ETH0, value, self._prefix),
                    netlink.neighbour(ETH0, self.gateway, _GATEWAY_MAC),
                    netlink.route((bytes(4), 0), ETH0, self.gateway),
                ]
            )
        finally:
            inside.close()

    def _plug(self, net: int, value: bytes, mac: bytes) -> None:
        """The pod's link. One of a pod before it with the same address may still be on its way out: hence the index."""
        for left in reversed(range(_TRIES)):
            self._generation = self._generation % _GENERATIONS + 1
            index = self._generation << 16 | int.from_bytes(value[2:], "big")
            pair = netlink.veth(f"tw{index:x}", index, _GATEWAY_MAC, ("eth0", ETH0, mac, net))
            place = [netlink.neighbour(index, value, mac), netlink.route((value, 32), index)]
            try:
                self._netlink.send([pair, netlink.up(index), netlink.forwarding(index), *place])
                return
            except OSError as error:
                if error.errno not in {errno.EEXIST, errno.EBUSY} or not left:
                    raise

    def close(self) -> None:
        """Let go of it; without pods and other supervisors in it, it vanishes."""
        self._netlink.close()
        os.close(self.net)


def plus(base: bytes, count: int) -> bytes:
    """An address that many after another."""
    return (int.from_bytes(base, "big") + count).to_bytes(4, "big")
