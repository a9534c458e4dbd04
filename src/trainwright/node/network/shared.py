# SPDX-License-Identifier: Apache-2.0
"""A process that keeps the network which several node agents of a machine share: `python -m … keeper NAME`.

`member` starts it where there is none of that name, and talks to it. Each agent that connects is handed the network's
namespace and a range of addresses of its own, for as long as it stays connected; the last one to leave ends the keeper.
No agent's death takes the network along, and a keeper that is killed leaves it to those who hold its descriptors.

Joining the network that the node agents of a machine share. `node.node` calls `join` before it starts a sandbox.

The first agent starts the `keeper`; whoever has joined holds the network's descriptors, which keep it alive.
"""

import array
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from itertools import cycle
from pathlib import Path

import msgspec
from msgspec import Struct

import trainwright
from trainwright.errors import EngineError
from trainwright.node.network.pools import lease
from trainwright.node.supervisor import kernel
from trainwright.node.supervisor.network import Network
from trainwright.node.supervisor.outside import OutsideConnection

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


class NetworkKeeper:
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
        root = kernel.is_privileged()
        outside = OutsideConnection(root=root, wanted=True)
        if not root:
            kernel.enter_user_namespace(None)
        network = Network(leased.subnet)
    except (OSError, EngineError) as error:
        _say(f"the network of the nodes cannot be made: {error}")
        return
    outside.connect(network)
    # Who holds the network holds its addresses, too.
    spaces = {"net": network.net, "lease": leased.fd} | ({} if root else {"user": kernel.current_namespace("user")})
    door.listen()
    _say(READY)
    try:
        NetworkKeeper(door, leased.subnet, spaces, outside.notices).serve()
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


_PAUSE = 0.02
_MOST, _SPACES = 1 << 16, 8


class _Told(Struct):
    subnet: str
    range: str
    spaces: list[str]
    notices: list[str]


@dataclass
class NetworkMember:
    """Our part in it: the whole subnet, our own range, descriptors by name, and what people should know."""

    subnet: str
    range: str
    spaces: dict[str, int]
    notices: list[str]
    _line: socket.socket
    _keeper: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    def fileno(self) -> int:
        """For a loop: what can be read there is the keeper's end."""
        return self._line.fileno()

    def close(self) -> None:
        """Leave it. If we were the last and started the keeper, it is seen out."""
        self._line.close()
        for space in self.spaces.values():
            os.close(space)
        self.spaces = {}
        if self._keeper is not None:
            with suppress(subprocess.TimeoutExpired):  # others are still there
                self._keeper.wait(0.5)
            self._keeper.returncode = self._keeper.returncode or 0  # it may outlive us, and need not be warned of


def join(name: str) -> NetworkMember:
    """Be part of the network of that name, which is made if there is none. Raises EngineError."""
    keeper: subprocess.Popen[bytes] | None = None
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        member = _connect(name)
        if member is not None:
            member._keeper = keeper
            return member
        if keeper is None or keeper.poll() is not None:
            keeper = _start(name)
        time.sleep(_PAUSE)
    raise EngineError(f"the network of the nodes ({name}) was not to be had within {_PATIENCE:g} seconds")


def _connect(name: str) -> NetworkMember | None:
    """None: nobody keeps it, or not for long any more."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fds: list[int] = []
    try:
        line.settimeout(_PATIENCE)
        line.connect(address(name))
        if not trusted(line):
            raise EngineError(
                f"another user listens where the network of the nodes ({name}) is kept; --network names another"
            )
        data, parts, _, _ = line.recvmsg(_MOST, socket.CMSG_SPACE(4 * _SPACES), socket.MSG_CMSG_CLOEXEC)
        for _, _, body in parts:
            fds += array.array("i", body)
        told = msgspec.json.decode(data, type=_Told)
        line.setblocking(False)
    except EngineError:
        line.close()
        raise
    except (OSError, msgspec.MsgspecError):
        line.close()
        for fd in fds:
            os.close(fd)
        return None
    return NetworkMember(told.subnet, told.range, dict(zip(told.spaces, fds, strict=True)), told.notices, line)


def _start(name: str) -> "subprocess.Popen[bytes] | None":
    """A keeper of our own, unless somebody else is just beginning to be one."""
    keeper = subprocess.Popen(  # noqa: S603 - our own interpreter with our own words
        [sys.executable, "-m", "trainwright.node.network.shared", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(trainwright.__file__).parents[1])},
        start_new_session=True,
        cwd=os.sep,
    )
    assert keeper.stdout is not None  # noqa: S101 - it is a pipe
    with keeper.stdout as words:
        told = words.readline().decode(errors="replace").strip()
    if told == READY:
        return keeper
    keeper.wait()
    if told == TAKEN:
        return None
    raise EngineError(told or "the keeper of the nodes' network has ended without a word")
