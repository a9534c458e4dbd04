# SPDX-License-Identifier: Apache-2.0
"""The settings of an embedded engine."""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, field

from trainwright.node.devices.inventory import DeviceSet
from trainwright.runtime.ports import Registry

#: The file name, in the folder of a run, of the socket by which other processes reach the engine.
SOCKET = "engine.sock"


class EngineSettings(Struct, frozen=True, kw_only=True):
    """The settings of one run's engine."""

    #: The existing folder of this run.
    folder: Path
    #: The folder that contains the folders of PersistentVolumeClaims; these are kept after the run.
    volumes: Path
    #: The working directory of containers that name no working directory.
    working: Path
    runtime: str = "auto"
    nodes: int = 1
    #: Seconds until a stopped node agent or supervisor is killed; a process that hangs is killed after six times this.
    silence_grace: float = 10.0
    #: Seconds after which a lost node is started again; None: never.
    revive: float | None = None
    #: The devices of this machine according to the user, by resource name; see `devices.inventory`.
    devices: dict[str, DeviceSet] = {}
    #: Environment variables of every container; they override variables of its pod.
    env: dict[str, str] = field(default_factory=dict)
    #: Do not remove the files of pods.
    keep: bool = False
    #: Seconds until an unfinished job is reconciled again without an event.
    resync: float = 15.0
    #: The key-value store of elastic jobs, as `host:port,…` (empty: there is no store), and a client for it.
    elastic_server: str = ""
    registry: Registry | None = None
    notify: Callable[[str], None] = lambda _: None
