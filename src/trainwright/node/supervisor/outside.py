# SPDX-License-Identifier: Apache-2.0
"""The connection of the pods' network with the outside network, or a notice why there is no connection.

For root, the connection is a link to the host, through which the host also reaches the pods, and masquerade rules. The
host must forward packets, so the supervisor enables forwarding on those routed links that do not forward yet, and
records the names of these links in /run. The last supervisor disables forwarding again when it ends. If that
supervisor was killed, `tidy` or the next supervisor does it. The link disappears when the kernel removes the pods'
network.

For other users, a helper process (slirp4netns or pasta) makes the connection. The helper must not be in our user
namespace, so it starts before we enter that namespace, and we tell the helper later which network it serves. A shell
ends the helper when the shell's stdin ends, that is, when the supervisor ends.

`python -m trainwright.node.supervisor.outside SUBNET` is a process that holds the network which several supervisors of
one engine share. It prints one line of JSON: the paths of its network namespace and of its user namespace (null for
root). It ends when its stdin ends. The engine opens these paths and gives the descriptors to the supervisors as
`holder`.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

from trainwright import kernel
from trainwright.node.supervisor import netlink
from trainwright.node.supervisor.masquerade import Masquerade, Nft, installed, remove_stale_rules
from trainwright.node.supervisor.network import GATEWAY_MAC, UPLINK, Network, routed_links

_TUN = "/dev/net/tun"
_PROXY_DELAY = "/proc/sys/net/ipv4/neigh/uplink/proxy_delay"
_HELPER_SECONDS = 5.0
_COMMANDS = {
    "slirp4netns": (
        " --configure --mtu=65520 --disable-host-loopback --netns-type=path"
        " --userns-path=/proc/$pid/ns/user /proc/$pid/fd/$net uplink"
    ),
    # pasta serves only one address, so the pods share that address by masquerading.
    "pasta": (
        " --foreground --quiet --config-net --ns-ifname uplink --no-map-gw -t none -u none -T none -U none"
        " --userns /proc/$pid/ns/user --netns /proc/$pid/fd/$net"
    ),
}
_SCRIPT = 'read -r pid net || exit; "$0"{} & read -r end; kill "$!"'
_HOST_MAC = bytes.fromhex("027477000002")
_RECORDS = "/run/trainwright"
_MAX_TRIES = 3
_RESOLVER, _REAL_RESOLVER = "/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"


class UsermodeNetwork:
    """A helper process that serves the network passed to `connect`. Raises OSError if no helper can be started."""

    def __init__(self) -> None:
        names = [name for name in _COMMANDS if installed(name) and (name != "pasta" or installed("nft"))]
        if not names:
            raise FileNotFoundError(None, "neither slirp4netns nor pasta with nft is installed")
        if not os.access(_TUN, os.R_OK | os.W_OK):
            raise PermissionError(None, f"{_TUN} may not be opened")
        self._name = names[0]
        self._helper = subprocess.Popen(  # noqa: S603 - a fixed script
            ["/bin/sh", "-c", _SCRIPT.format(_COMMANDS[self._name]), installed(self._name) or ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def connect(self, network: Network) -> None:
        """Let the helper serve this network. Raises OSError."""
        assert self._helper.stdin is not None  # noqa: S101 - it is a pipe
        self._helper.stdin.write(f"{os.getpid()} {network.net}\n".encode())
        self._helper.stdin.flush()
        deadline = time.monotonic() + _HELPER_SECONDS
        while not kernel.in_thread(lambda: _is_served(network)):
            if time.monotonic() > deadline:
                raise TimeoutError(None, f"{self._name} made no link within {_HELPER_SECONDS:g} seconds")
            time.sleep(0.01)
        network.links.send([netlink.forwarding(UPLINK), netlink.proxy_arp(UPLINK)])
        kernel.in_thread(lambda: _configure(network, masquerade=self._name == "pasta"))

    def close(self) -> None:
        """End the helper."""
        assert self._helper.stdin is not None  # noqa: S101 - it is a pipe
        self._helper.stdin.close()
        self._helper.returncode = 0  # the loop reaps the helper; a returncode keeps Popen from waiting and warning


def _is_served(network: Network) -> bool:
    kernel.setns(network.net, kernel.NEWNET)
    return bool(routed_links())


def _configure(network: Network, *, masquerade: bool) -> None:
    """Enter the network's namespace and change its settings; the kernel removes the settings with the namespace."""
    kernel.setns(network.net, kernel.NEWNET)
    # The helper asks by ARP for each pod; by default the kernel delays a proxy's answer by up to a second.
    with contextlib.suppress(OSError), open(_PROXY_DELAY, "w", encoding="ascii") as file:
        file.write("0")
    if masquerade:
        kernel.set_ambient_capability(kernel.NET_ADMIN)
        Masquerade(network.subnet, [Nft()])


class OutsideConnection:
    """The connection of one network. Create it before the process enters a user namespace, and call `connect` after."""

    def __init__(self, *, root: bool, wanted: bool) -> None:
        self.notices: list[str] = []
        self.root, self._wanted = root, wanted
        self._usermode: UsermodeNetwork | None = None
        self._masquerade: Masquerade | None = None
        if wanted and not root:
            with self._noticing():
                self._usermode = UsermodeNetwork()

    def connect(self, network: Network) -> None:
        """Connect the network, if wanted and possible. Sets `network.connected`, or adds to `notices`."""
        with self._noticing():
            if self._wanted and self.root:
                self._connect_as_root(network)
            elif self._usermode is not None:
                self._usermode.connect(network)
            else:
                return
            network.connected = True

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.notices.append(f"pods cannot reach the outside network: {error.strerror or error}")

    def _connect_as_root(self, network: Network) -> None:
        routed = routed_links()
        _link_host(network)
        if not routed:
            raise OSError(None, "this machine has no default route")
        self._masquerade = Masquerade(network.subnet)
        _enable_forwarding([name for name in routed if not _forwards(name)])
        network.links.send([netlink.route((bytes(4), 0), UPLINK, network.host)])

    def close(self) -> None:
        """End the helper, and restore the settings of the host."""
        if self._usermode is not None:
            self._usermode.close()
        if self._masquerade is not None:
            with contextlib.suppress(OSError):
                if self._masquerade.is_only_user():
                    _disable_forwarding()
                self._masquerade.close()


def make_shared_network(subnet: str) -> tuple[Network, OutsideConnection]:
    """Create a network for several supervisors, with a connection to the outside if possible. Raises OSError."""
    outside = OutsideConnection(root=kernel.is_privileged(), wanted=True)
    if not outside.root:
        kernel.enter_user_namespace(None)
    network = Network(subnet)
    outside.connect(network)
    return network, outside


def _link_host(network: Network) -> None:
    """Create a link between the host and the gateway of the pods."""
    name = f"tw{os.getpid()}"
    network.uplink(name, _HOST_MAC)
    index = socket.if_nametoindex(name)
    netlink.send_once(
        [
            netlink.up(index),
            netlink.forwarding(index),
            netlink.address(index, network.host, 32),
            netlink.neighbour(index, network.gateway, GATEWAY_MAC),
            netlink.route(network.range, index, network.gateway),
        ]
    )


def tidy() -> None:
    """Remove rules and settings that killed supervisors have left here, unless other supervisors need them."""
    if kernel.is_privileged() and os.path.exists(_record_path()) and remove_stale_rules():
        _disable_forwarding()


def _enable_forwarding(names: list[str]) -> None:
    """Let these links of the host forward packets, and record their names, so that `tidy` can find them."""
    for _ in range(_MAX_TRIES):
        with contextlib.suppress(OSError):  # another supervisor may be removing the folder
            os.makedirs(_RECORDS, exist_ok=True)
            with open(_record_path(), "a", encoding="utf-8") as file:
                file.writelines(f"{name}\n" for name in names)
            break
    _set_forwarding(names, on=True)


def _disable_forwarding() -> None:
    """Disable forwarding on all recorded links, including links that other supervisors recorded."""
    try:
        with open(_record_path(), encoding="utf-8") as file:
            names = file.read().split()
        os.unlink(_record_path())
    except FileNotFoundError:
        return
    with contextlib.suppress(OSError):  # the folder has records of other network namespaces
        os.rmdir(_RECORDS)
    _set_forwarding(names, on=False)


def _record_path() -> str:
    """The file with the links on which we enabled forwarding, one file per network namespace of a host."""
    return f"{_RECORDS}/forwarding-{os.stat('/proc/self/ns/net').st_ino}"


def _set_forwarding(names: list[str], *, on: bool) -> None:
    for name in names:
        with contextlib.suppress(OSError):  # the link no longer exists
            netlink.send_once([netlink.forwarding(socket.if_nametoindex(name), on=on)])


def _forwards(name: str) -> bool:
    with open(f"/proc/sys/net/ipv4/conf/{name}/forwarding", encoding="ascii") as file:
        return file.read().strip() != "0"


def resolver() -> str | None:
    """Another resolv.conf, if the host's file has only servers on the host's loopback: pods cannot reach them."""
    try:
        with open(_RESOLVER, encoding="utf-8", errors="replace") as file:
            words = [line.split() for line in file]
    except OSError:
        return None
    servers = [word[1] for word in words if len(word) > 1 and word[0] == "nameserver"]
    local = bool(servers) and all(server.startswith("127.") or server == "::1" for server in servers)
    return _REAL_RESOLVER if local and os.path.exists(_REAL_RESOLVER) else None


def main() -> None:
    """Hold a shared network until stdin ends. Exit with 3 and print the reason if the network cannot be made."""
    try:
        network, outside = make_shared_network(sys.argv[1])
    except OSError as error:
        print(f"the network of the nodes cannot be made: {error}", file=sys.stderr)
        sys.exit(3)
    own = f"/proc/{os.getpid()}"
    user = None if outside.root else f"{own}/ns/user"
    print(json.dumps({"net": f"{own}/fd/{network.net}", "user": user}), flush=True)
    sys.stdin.buffer.read()
    outside.close()


if __name__ == "__main__":
    main()
