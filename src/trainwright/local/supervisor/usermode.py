# SPDX-License-Identifier: Apache-2.0
"""A way out of the pods' network for those who are not root, by slirp4netns or pasta. `outside` calls it.

The helper must not be in our user namespace: so it is started before we enter that, and told later which network it
serves. It is ended by a shell that waits for the end of its stdin, which comes when we end, however we end.
"""

import contextlib
import os
import subprocess
import time

from trainwright.local.supervisor import kernel, namespaces, netlink
from trainwright.local.supervisor.masquerade import Masquerade, Nft, installed
from trainwright.local.supervisor.network import UPLINK, Network, leads_out

_TUN = "/dev/net/tun"
_PROXY_DELAY = "/proc/sys/net/ipv4/neigh/uplink/proxy_delay"
_PATIENCE = 5.0
_COMMANDS = {
    "slirp4netns": (
        " --configure --mtu=65520 --disable-host-loopback --netns-type=path"
        " --userns-path=/proc/$pid/ns/user /proc/$pid/fd/$net uplink"
    ),
    # It knows of one address behind its link, so the pods have to share that.
    "pasta": (
        " --foreground --quiet --config-net --ns-ifname uplink --no-map-gw -t none -u none -T none -U none"
        " --userns /proc/$pid/ns/user --netns /proc/$pid/fd/$net"
    ),
}
_SCRIPT = 'read -r pid net || exit; "$0"{} & read -r end; kill "$!"'


class Usermode:
    """A helper that waits for its work. Raises OSError where there is none."""

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
        """Have this network served. Raises OSError."""
        assert self._helper.stdin is not None  # noqa: S101 - it is a pipe
        self._helper.stdin.write(f"{os.getpid()} {network.net}\n".encode())
        self._helper.stdin.flush()
        deadline = time.monotonic() + _PATIENCE
        while not namespaces.elsewhere(lambda: _served(network)):
            if time.monotonic() > deadline:
                raise TimeoutError(None, f"{self._name} made no link within {_PATIENCE:g} seconds")
            time.sleep(0.01)
        network.links.send([netlink.forwarding(UPLINK), netlink.proxy_arp(UPLINK)])
        namespaces.elsewhere(lambda: _adapt(network, masquerade=self._name == "pasta"))

    def close(self) -> None:
        """End the helper; the loop reaps it."""
        assert self._helper.stdin is not None  # noqa: S101 - it is a pipe
        self._helper.stdin.close()
        self._helper.returncode = 0  # the loop reaps it; Popen must neither wait nor warn


def _served(network: Network) -> bool:
    """Whether the network has a way out by now."""
    kernel.setns(network.net, kernel.NEWNET)
    return leads_out()


def _adapt(network: Network, *, masquerade: bool) -> None:
    """Within the network, with which all of this vanishes."""
    kernel.setns(network.net, kernel.NEWNET)
    # The helper asks by ARP where each pod is, and by default is answered after a second.
    with contextlib.suppress(OSError), open(_PROXY_DELAY, "w", encoding="ascii") as file:
        file.write("0")
    if masquerade:
        kernel.bequeath(kernel.NET_ADMIN)
        Masquerade(network.subnet, [Nft()])
