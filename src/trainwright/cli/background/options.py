# SPDX-License-Identifier: Apache-2.0
"""The options of the background engine. They are kept in a file, so that the next `trainwright up` uses them again."""

import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from trainwright.cli.background.place import OPTIONS
from trainwright.errors import EngineError
from trainwright.node.devices.inventory import DeviceSet


class EngineOptions(Struct, frozen=True, kw_only=True, rename="kebab"):
    """The values of the options of `trainwright up`."""

    runtime: str = "auto"
    nodes: int = 1
    node_grace: float = 10.0
    devices: dict[str, DeviceSet] = {}
    resync: float = 15.0
    etcd_server: str = ""
    #: Finished jobs are removed after this many seconds, and the oldest if there are more than `keep_jobs`.
    keep_time: float = 7 * 86400.0
    keep_jobs: int = 1000
    #: The maximum size of the logs of one job and of all jobs, in bytes.
    job_logs: int = 1 << 30
    all_logs: int = 10 << 30
    #: Whether there is a Kubernetes API, and where it listens. Port 0: the port of the last engine, or any free one.
    api: bool = True
    api_port: int = 0


def load_options(folder: Path) -> EngineOptions | None:
    """The options of the last engine; None if there was none. Raises EngineError if the file cannot be read."""
    path = folder / OPTIONS
    try:
        return msgspec.json.decode(path.read_bytes(), type=EngineOptions)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        advice = "remove the file to use the defaults"
        raise EngineError(f"{path}: the options of the last engine cannot be read: {error}; {advice}") from None


def store_options(folder: Path, options: EngineOptions) -> None:
    """Keep the options for the next engine. Raises OSError."""
    path, unfinished = folder / OPTIONS, folder / f".{OPTIONS}"
    file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as stream:
        stream.write(msgspec.json.encode(options))
    unfinished.replace(path)


def changed(before: EngineOptions, given: dict[str, Any]) -> list[str]:
    """The names of the given options whose values differ from those of the last engine."""
    return [name for name, value in given.items() if getattr(before, name) != value]
