# SPDX-License-Identifier: Apache-2.0
"""What a run wants of its engine. `trainwright run` makes it; `engine` and `node_pool` read it."""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, field

from trainwright.node.devices.inventory import DeviceSet
from trainwright.runtime.ports import Registry

#: In the folder of a run: where other processes reach its engine.
SOCKET = "engine.sock"


class EngineSettings(Struct, frozen=True, kw_only=True):
    """What a run wants of its engine."""

    #: The folder of this run; it exists.
    folder: Path
    #: Where the folders of PersistentVolumeClaims are; they outlive runs.
    volumes: Path
    #: Where commands run that name no working directory of their own.
    working: Path
    runtime: str = "auto"
    nodes: int = 1
    #: Seconds until a node agent or a supervisor that is stopped is killed; six times that if it only does not answer.
    node_grace: float = 10.0
    #: Seconds after which a node that has died is started again; None: never.
    revive: float | None = None
    #: The devices that the user says this machine has, by resource name: see `devices.inventory`.
    devices: dict[str, DeviceSet] = {}
    #: Variables that every container gets; they replace those of its pod.
    env: dict[str, str] = field(default_factory=dict)
    #: Leave the files of pods where they are.
    keep: bool = False
    #: Seconds until an unfinished job is looked at again although nothing has happened.
    resync: float = 15.0
    #: Where elastic jobs meet, as `host:port,…`, and how to speak with it; empty: nowhere.
    elastic_server: str = ""
    registry: Registry | None = None
    notify: Callable[[str], None] = lambda _: None
