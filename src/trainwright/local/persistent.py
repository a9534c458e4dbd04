# SPDX-License-Identifier: Apache-2.0
"""What the nodes of a detached engine must find again after a restart: `network.json` in the engine's folder.

Pods that go on keep their runtime, their subnet and their ports, so the next engine must continue with the same ones.
Everything else comes from the store, from the supervisors and from the process that holds a shared network.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from trainwright.node.network.pools import SubnetLease, lease
from trainwright.node.settings import Runtime
from trainwright.node.supervisor import identity

_NAME = "network.json"
#: How often the engine tries to lease its former subnet, with this pause in seconds, before it takes another one.
_TRIES, _RETRY_SECONDS = 20, 0.05


class NetworkRecord(Struct, frozen=True):
    """The runtime of all nodes, the subnet of their pods (empty: no subnet), and the seed of other ranges.

    The seed is the process ID of the first engine: ranges depend on it, so that two engines rarely use the same range.
    """

    runtime: Runtime
    subnet: str = ""
    seed: int = 0


def load(folder: Path) -> NetworkRecord | None:
    """The record of an earlier engine; None if there is none, or if it cannot be read."""
    try:
        return msgspec.json.decode((folder / _NAME).read_bytes(), type=NetworkRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def save(folder: Path, record: NetworkRecord) -> None:
    """Write the record, in one step: an engine may be killed at any time."""
    draft = folder / f"{_NAME}.new"
    with draft.open("wb") as file:
        file.write(msgspec.json.encode(record))
        file.flush()
        os.fsync(file.fileno())
    draft.rename(folder / _NAME)


def network_name(folder: Path) -> str:
    """The name under which the nodes of this engine share a network: that of the folder, in a few bytes."""
    found = folder.stat()
    return f"engine-{found.st_dev:x}-{found.st_ino:x}"


def node_folders(folder: Path) -> Iterator[Path]:
    """The folders of all nodes that any engine of this folder has had."""
    nodes = folder / "nodes"
    yield from sorted(nodes.iterdir()) if nodes.is_dir() else ()


async def lease_again(subnet: str, folder: Path) -> SubnetLease:
    """Lease the subnet that pods already use or, if another engine has taken it, another one. Raises EngineError.

    If a supervisor of this engine lives, it holds the lease; then the descriptor of the result is -1.
    """
    for left in reversed(range(_TRIES)):
        found = lease(preferred=subnet)
        if found.subnet == subnet or not subnet:
            break
        if any(identity.lives(str(node)) for node in node_folders(folder)):
            found.close()
            return SubnetLease(subnet, -1)
        if left:  # a supervisor may be ending just now
            found.close()
            await asyncio.sleep(_RETRY_SECONDS)
    return found
