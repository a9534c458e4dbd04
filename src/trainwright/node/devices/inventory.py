# SPDX-License-Identifier: Apache-2.0
"""Devices that other runs hold, as values and in words. Pure.

Which devices this machine has, by resource name, and how a container is told its own.

NVIDIA's driver is asked for its GPUs. Of other resources the user says how many there are, on the command line or in a
configuration file.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct


class LeasedDevices(Struct, frozen=True):
    """Devices of one resource on one node that other runs hold: the id of each, and its holder in words."""

    devices: tuple[tuple[str, str], ...] = ()

    @property
    def amount(self) -> int:
        """How many they are, in thousandths as all amounts."""
        return 1000 * len(self.devices)


def holders(leased: Iterable[LeasedDevices]) -> str:
    """`; 0-3 held by alice (run …) since …, 4 held by bob (run …) since …`: who keeps devices from this run."""
    held: dict[str, list[str]] = {}
    for one in leased:
        for device, holder in one.devices:
            held.setdefault(holder, []).append(device)
    listed = ", ".join(f"{ranges(devices)} held by {holder}" for holder, devices in held.items())
    return f"; {listed}" if listed else ""


def ranges(devices: Sequence[str]) -> str:
    """`0-3,7`: ids that follow each other in short."""
    numbers = sorted({int(one) for one in devices if one.isdecimal()})
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    spans = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ",".join([*spans, *sorted({one for one in devices if not one.isdecimal()})])


GPU = "nvidia.com/gpu"
#: The environment variables that name a container's devices to it, for the resources that we know.
#: For AMD that is the lower of two layers alone: indexes in HIP_VISIBLE_DEVICES count what ROCR_VISIBLE_DEVICES leaves.
KNOWN_VARIABLES: dict[str, tuple[str, ...]] = {
    GPU: ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    "amd.com/gpu": ("ROCR_VISIBLE_DEVICES",),
    "huawei.com/Ascend910": ("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES"),
}
_QUERY = ("--query-gpu=index,uuid", "--format=csv,noheader")
#: Seconds. A driver in trouble can hang for minutes; without GPUs there is still much to run.
_DRIVER_TIMEOUT = 10.0


class DeviceSet(Struct, frozen=True):
    """The devices of one resource: their ids, and the environment variables that name them to a container."""

    ids: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    #: Only their number was given: they may not be there at all.
    pretended: bool = False


def numbered(count: int) -> tuple[str, ...]:
    """The ids of devices that are only counted: the same for every user of this machine."""
    return tuple(str(index) for index in range(count))


def inventory(given: Mapping[str, DeviceSet], environment: Mapping[str, str] | None = None) -> dict[str, DeviceSet]:
    """All devices of this machine: those that were given, and the GPUs that the driver finds unless they were.

    Asking the driver may take a second: a caller that needs no GPU gives none.
    """
    found = dict(given)
    if GPU not in found:
        found[GPU] = DeviceSet(found_gpus(os.environ if environment is None else environment), KNOWN_VARIABLES[GPU])
    return {name: devices for name, devices in found.items() if devices.ids}


def found_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The ids of the GPUs that the driver knows and that this process was given."""
    known = listed_gpus(environment)
    given = environment.get("CUDA_VISIBLE_DEVICES")
    return tuple(index for index, _ in known) if given is None else _given(given.split(","), known)


def listed_gpus(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Index and UUID of each GPU; none if there is no driver, or if it does not answer."""
    rows = driver_table(environment, _QUERY)
    return [(row[0], row[1]) for row in rows if len(row) == 2 and row[0].isdigit()]


def driver_table(environment: Mapping[str, str], query: Sequence[str]) -> list[list[str]]:
    """The rows that nvidia-smi answers; none if there is no driver, or if it does not answer."""
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None:
        return []
    try:
        answer = subprocess.run(  # noqa: S603 - the driver's own program, found on PATH, with fixed words
            [Path(program), *query], capture_output=True, text=True, timeout=_DRIVER_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [[part.strip() for part in line.split(",")] for line in answer.stdout.splitlines()]


def _given(words: Sequence[str], known: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Those of them that the user lets us use, in the user's order; as CUDA does, the first bad word ends the list."""
    chosen: list[str] = []
    for word in (word.strip() for word in words):
        found = next((index for index, uuid in known if word and (word == index or uuid.startswith(word))), None)
        if found is None:
            break
        chosen.append(found)
    return tuple(chosen)
