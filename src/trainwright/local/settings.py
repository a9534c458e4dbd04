# SPDX-License-Identifier: Apache-2.0
"""The settings of an embedded engine."""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, field

from trainwright.node.devices.inventory import DeviceSet
from trainwright.runtime.ports import Registry

#: The name of the socket file in the folder of a run. Other processes use the engine through this socket.
SOCKET = "engine.sock"


class EngineSettings(Struct, frozen=True, kw_only=True):
    """The settings of one run's engine."""

    #: The folder of this run, which must exist.
    folder: Path
    #: This folder contains one folder per PersistentVolumeClaim; the folders are kept after the run.
    volumes: Path
    #: The working directory of a container whose manifest does not set one.
    working: Path
    runtime: str = "auto"
    nodes: int = 1
    #: Seconds until a stopped (SIGSTOP) agent or supervisor is killed. A process that hangs gets six times as long.
    silence_grace: float = 10.0
    #: Seconds after which a lost node is started again; None: never.
    revive: float | None = None
    #: Whether pods and supervisors outlive the engine. The next engine of the same folder continues with them; its
    #: store must then have the objects of this engine.
    detached: bool = False
    #: The devices of this machine according to the user, by resource name; see `devices.inventory`.
    devices: dict[str, DeviceSet] = {}
    #: Environment variables of every container; they override variables of the same name in the manifest.
    env: dict[str, str] = field(default_factory=dict)
    #: The file that keeps all objects across restarts of the engine; None: objects exist only in memory.
    journal: Path | None = None
    #: Whether to keep the files of pods.
    keep: bool = False
    #: An unfinished job without events is reconciled again after this many seconds.
    resync: float = 15.0
    #: The key-value store of elastic jobs, as `host:port,…` (empty: there is no store), and a client for it.
    elastic_server: str = ""
    registry: Registry | None = None
    notify: Callable[[str], None] = lambda _: None
