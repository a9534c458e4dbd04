# SPDX-License-Identifier: Apache-2.0
"""A machine and the network outside of it, both in namespaces: `python outside_network.py COMMAND…` runs COMMAND there.

The world is 203.0.113.1, behind the machine's router 192.0.2.1; on port 80 it tells who asks. It ends with the pipe
whose descriptor is in WORLD_END.
"""

import contextlib
import os
import pathlib
import select
import socket
import sys

sys.path.insert(0, os.environ["WORLD_SOURCE"])

from trainwright import kernel
from trainwright.node.supervisor import netlink

MACHINE, ROUTER, WORLD = (socket.inet_aton(text) for text in ("192.0.2.10", "192.0.2.1", "203.0.113.1"))
MACS = [bytes.fromhex(f"02000000000{number}") for number in (1, 2)]
ANYWHERE = (bytes(4), 0)


def outside() -> socket.socket:
    """Configure the outside namespace: its end of the link, and a server."""
    links = netlink.Netlink()
    links.send([netlink.up(1), netlink.up(2), netlink.address(2, ROUTER, 32), netlink.address(1, WORLD, 32)])
    links.send([netlink.neighbour(2, MACHINE, MACS[0]), netlink.route((MACHINE, 32), 2)])
    return socket.create_server(("203.0.113.1", 80))


def build() -> socket.socket:
    kernel.unshare(kernel.NEWNET | kernel.NEWNS)
    # Some machines forward in each new namespace; tests begin with a machine that does not.
    pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("0")
    kernel.mount("none", "/", None, kernel.REC | kernel.PRIVATE)
    kernel.mount("tmpfs", "/run", "tmpfs", 0, "mode=755")  # for the records of forwarding
    kernel.mount("tmpfs", "/dev/net", "tmpfs", 0, "mode=755")
    os.mknod("/dev/net/tun", 0o020666, os.makedev(10, 200))  # any user may open it
    pathlib.Path("/dev/net/tun").chmod(0o666)
    links = netlink.Netlink()

    def world() -> socket.socket:
        kernel.unshare(kernel.NEWNET)
        net = kernel.current_namespace("net")
        links.send([netlink.veth("eth0", 2, MACS[0], ("eth0", 2, MACS[1], net))])
        return outside()

    server = kernel.in_thread(world)
    links.send([netlink.up(1), netlink.up(2), netlink.address(2, MACHINE, 32)])
    links.send([netlink.neighbour(2, ROUTER, MACS[1]), netlink.route((ROUTER, 32), 2)])
    links.send([netlink.route(ANYWHERE, 2, ROUTER)])
    return server


def serve(server: socket.socket, end: int) -> None:
    """Answer with the client's address, after a delay, so that two clients can connect at the same time."""
    waiting: list[socket.socket] = []
    while True:
        ready, _, _ = select.select([server.fileno(), end], [], [], 0.2)
        if end in ready:
            return
        if ready:
            waiting.append(server.accept()[0])
            continue
        for one in waiting:
            one.sendall(one.getpeername()[0].encode())
            one.close()
        waiting.clear()


if __name__ == "__main__":
    world, end = build(), int(os.environ["WORLD_END"])
    if os.fork() == 0:
        if os.fork() == 0:  # the server is not a child of the command
            keep = {world.fileno(), end}
            for fd in set(range(3, 256)) - keep:
                with contextlib.suppress(OSError):
                    os.close(fd)
            serve(world, end)
        os._exit(0)
    os.wait()
    os.close(end)
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - that is what it is for
