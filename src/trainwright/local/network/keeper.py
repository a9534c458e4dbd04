# SPDX-License-Identifier: Apache-2.0
"""A process that keeps the network which several node agents of a machine share: `python -m … keeper NAME`.

`member` starts it where there is none of that name, and talks to it. Each agent that connects is handed the network's
namespace and a range of addresses of its own, for as long as it stays connected; the last one to leave ends the keeper.
No agent's death takes the network along, and a keeper that is killed leaves it to those who hold its descriptors.
"""

import json
import os
import select
import socket
import struct
import sys
from ipaddress import IPv4Network
from itertools import cycle

from trainwright.errors import EngineError
from trainwright.local.network.subnets import lease
from trainwright.local.supervisor import namespaces
from trainwright.local.supervisor.network import Network
from trainwright.local.supervisor.outside import Outside

#: Each agent has room for a thousand pods. The first range has the gateway's address, and the machine's.
_PREFIX = 22
#: Seconds until the first agent must have come.
_PATIENCE = 30.0
READY, TAKEN = "ready", "taken"


def address(name: str) -> str:
    """Where the keeper of that name listens, for this user: abstract, so nothing can be left behind."""
    return f"\0trainwright/nodes/{os.geteuid()}/{name}"


def trusted(peer: socket.socket) -> bool:
    """Whether the other side is the same user, or root, who could take the network anyway: anybody can connect."""
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid in (os.geteuid(), 0)


class Keeper:
    """The network, who has joined it, and which range each of them has."""

    def __init__(self, door: socket.socket, subnet: str, spaces: dict[str, int], notices: list[str]) -> None:
        self._door = door
        self._subnet, self._spaces, self._notices = subnet, spaces, notices
        _, *ranges = map(str, IPv4Network(subnet).subnets(new_prefix=_PREFIX))
        self._next, self._most = cycle(ranges), len(ranges)
        self._members: dict[socket.socket, str] = {}

    def serve(self) -> None:
        """Until the last member has left, or none has come."""
        waiting = _PATIENCE
        while True:
            ready, _, _ = select.select([self._door, *self._members], [], [], None if self._members else waiting)
            for one in ready:
                self._admit() if one is self._door else self._part(one)
            if not self._members:
                return

    def _admit(self) -> None:
        member, _ = self._door.accept()
        if not trusted(member) or len(self._members) >= self._most:
            member.close()
            return
        taken = set(self._members.values())
        own = next(one for one in self._next if one not in taken)
        told = {"subnet": self._subnet, "range": own, "spaces": list(self._spaces), "notices": self._notices}
        try:
            socket.send_fds(member, [json.dumps(told).encode()], [*self._spaces.values()])
        except OSError:
            member.close()
        else:
            self._members[member] = own

    def _part(self, member: socket.socket) -> None:
        """A member says nothing; what can be read is its end."""
        del self._members[member]
        member.close()


def main() -> None:
    """Keep the network called like the only argument. The first line on stdout says how that began."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        door.bind(address(sys.argv[1]))
    except OSError:
        _say(TAKEN)
        return
    try:
        leased = lease()
        root = namespaces.privileged()
        outside = Outside(root=root, wanted=True)
        if not root:
            namespaces.acquire(None)
        network = Network(leased.subnet)
    except (OSError, EngineError) as error:
        _say(f"the network of the nodes cannot be made: {error}")
        return
    outside.connect(network)
    # Who holds the network holds its addresses, too.
    spaces = {"net": network.net, "lease": leased.fd} | ({} if root else {"user": namespaces.current("user")})
    door.listen()
    _say(READY)
    try:
        Keeper(door, leased.subnet, spaces, outside.notices).serve()
    finally:
        door.close()
        outside.close()


def _say(text: str) -> None:
    """Tell whoever started us, and leave the pipe to them: we outlive them."""
    print(text, flush=True)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.close(nowhere)


if __name__ == "__main__":
    main()
