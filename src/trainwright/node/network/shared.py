# SPDX-License-Identifier: Apache-2.0
"""The network that several node agents of a machine share, and the keeper process that owns it.

An agent calls `join`, which starts a keeper if no keeper of that name runs. The keeper sends each agent the namespaces
of the network and a range of addresses, which the agent owns while it is connected. The keeper ends when the last agent
disconnects. Agents hold descriptors of the namespaces, so the network survives a killed agent and a killed keeper.
"""

import array
import json
import os
import select
import socket
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
from trainwright import kernel
from trainwright.errors import EngineError
from trainwright.node.network.pools import lease
from trainwright.node.supervisor.outside import make_shared_network
from trainwright.unix_sockets import is_trusted

#: The prefix length of an agent's range (1024 addresses). The first range is for the gateway and the machine.
_RANGE_PREFIX = 22
#: Seconds that a keeper waits for its first agent, and that an agent waits for a keeper.
_JOIN_SECONDS = 30.0
_RETRY_SECONDS = 0.02
_MAX_WELCOME_BYTES, _MAX_NAMESPACES = 1 << 16, 8
READY, TAKEN = "ready", "taken"


class Welcome(Struct):
    """What the keeper sends to a new member; the descriptors of the namespaces come with the message."""

    subnet: str
    range: str
    spaces: list[str]
    notices: list[str]


@dataclass
class NetworkMember:
    """A membership: the whole subnet, the member's own range, descriptors by name, and notices for the user."""

    subnet: str
    range: str
    spaces: dict[str, int]
    notices: list[str]
    _connection: socket.socket
    _keeper: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    def fileno(self) -> int:
        """The descriptor for an event loop. It becomes readable when the keeper ends."""
        return self._connection.fileno()

    def holder(self) -> dict[str, int]:
        """Descriptors for a supervisor. The supervisor then counts as a member, too, until it ends."""
        return {**self.spaces, "member": self._connection.fileno()}

    def close(self) -> None:
        """Leave the network. A keeper that this process started gets half a second to end."""
        self._connection.close()
        for space in self.spaces.values():
            os.close(space)
        self.spaces = {}
        if self._keeper is not None:
            with suppress(subprocess.TimeoutExpired):  # the keeper still has other members
                self._keeper.wait(0.5)
            self._keeper.returncode = self._keeper.returncode or 0  # so that Popen does not warn about a running keeper


def join(name: str, preferred: str = "") -> NetworkMember:
    """Join the network of that name, and create it if it does not exist. Raises EngineError.

    A new network gets the preferred subnet, if that subnet is free.
    """
    keeper: subprocess.Popen[bytes] | None = None
    deadline = time.monotonic() + _JOIN_SECONDS
    while time.monotonic() < deadline:
        member = _connect(name)
        if member is not None:
            member._keeper = keeper
            return member
        if keeper is None or keeper.poll() is not None:
            keeper = _start_keeper(name, preferred)
        time.sleep(_RETRY_SECONDS)
    raise EngineError(f"the network of the nodes ({name}) could not be joined within {_JOIN_SECONDS:g} seconds")


def _connect(name: str) -> NetworkMember | None:
    """Connect to the keeper; None if no keeper runs, or if the keeper ends before it has sent `Welcome`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fds: list[int] = []
    try:
        connection.settimeout(_JOIN_SECONDS)
        connection.connect(address(name))
        if not is_trusted(connection):
            raise EngineError(
                f"another user listens where the network of the nodes ({name}) is kept; --network names another"
            )
        space = socket.CMSG_SPACE(4 * _MAX_NAMESPACES)
        data, parts, _, _ = connection.recvmsg(_MAX_WELCOME_BYTES, space, socket.MSG_CMSG_CLOEXEC)
        for _, _, body in parts:
            fds += array.array("i", body)
        welcome = msgspec.json.decode(data, type=Welcome)
        connection.setblocking(False)
    except EngineError:
        connection.close()
        raise
    except (OSError, msgspec.MsgspecError):
        connection.close()
        for fd in fds:
            os.close(fd)
        return None
    spaces = dict(zip(welcome.spaces, fds, strict=True))
    return NetworkMember(welcome.subnet, welcome.range, spaces, welcome.notices, connection)


def _start_keeper(name: str, preferred: str) -> "subprocess.Popen[bytes] | None":
    """Start a keeper; None if another process has started a keeper at the same time."""
    keeper = subprocess.Popen(  # noqa: S603 - our own interpreter with our own arguments
        [sys.executable, "-m", "trainwright.node.network.shared", name, preferred],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(trainwright.__file__).parents[1])},
        start_new_session=True,
        cwd=os.sep,
    )
    assert keeper.stdout is not None  # noqa: S101 - it is a pipe
    with keeper.stdout as stdout:
        result = stdout.readline().decode(errors="replace").strip()
    if result == READY:
        return keeper
    keeper.wait()
    if result == TAKEN:
        return None
    raise EngineError(result or "the keeper of the nodes' network ended without a message")


def address(name: str) -> str:
    """The abstract socket address of the keeper of that name. It needs no file, and any user can connect to it."""
    return f"\0trainwright/nodes/{os.geteuid()}/{name}"


class NetworkKeeper:
    """The network, its members, and the range of each member."""

    def __init__(self, listener: socket.socket, subnet: str, spaces: dict[str, int], notices: list[str]) -> None:
        self._listener = listener
        self._subnet, self._spaces, self._notices = subnet, spaces, notices
        _, *ranges = map(str, IPv4Network(subnet).subnets(new_prefix=_RANGE_PREFIX))
        self._next_range, self._max_members = cycle(ranges), len(ranges)
        self._members: dict[socket.socket, str] = {}

    def serve(self) -> None:
        """Serve until the last member has left. Returns early if the first member does not come in time."""
        while True:
            timeout = None if self._members else _JOIN_SECONDS
            ready, _, _ = select.select([self._listener, *self._members], [], [], timeout)
            for one in ready:
                if one is self._listener:
                    self._admit()
                else:  # members never send data, so a readable socket means that its member has disconnected
                    del self._members[one]
                    one.close()
            if not self._members:
                return

    def _admit(self) -> None:
        member, _ = self._listener.accept()
        if not is_trusted(member) or len(self._members) >= self._max_members:
            member.close()
            return
        taken = set(self._members.values())
        own = next(one for one in self._next_range if one not in taken)
        welcome = {"subnet": self._subnet, "range": own, "spaces": list(self._spaces), "notices": self._notices}
        try:
            socket.send_fds(member, [json.dumps(welcome).encode()], [*self._spaces.values()])
        except OSError:
            member.close()
        else:
            self._members[member] = own


def main() -> None:
    """Run the keeper of the network whose name is `argv[1]`; `argv[2]` is the preferred subnet.

    The first line on stdout is READY, TAKEN or an error.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(address(sys.argv[1]))
    except OSError:
        _report(TAKEN)
        return
    try:
        leased = lease(preferred=sys.argv[2])
        network, outside = make_shared_network(leased.subnet)
    except (OSError, EngineError) as error:
        _report(f"the network of the nodes cannot be made: {error}")
        return
    # Members also get the lease of the subnet, so that it outlives a killed keeper.
    spaces = {"net": network.net, "lease": leased.fd}
    if not outside.root:
        spaces["user"] = kernel.current_namespace("user")
    listener.listen()
    _report(READY)
    try:
        NetworkKeeper(listener, leased.subnet, spaces, outside.notices).serve()
    finally:
        listener.close()
        outside.close()


def _report(text: str) -> None:
    """Print the first line, and replace stdout by /dev/null: the keeper may outlive the process that reads stdout."""
    print(text, flush=True)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.close(nowhere)


if __name__ == "__main__":
    main()
