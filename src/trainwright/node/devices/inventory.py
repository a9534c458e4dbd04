# SPDX-License-Identifier: Apache-2.0
"""The devices of this machine by resource name, and the environment variables that tell a container its devices.

NVIDIA's driver lists its GPUs. For other resources the user gives the number, as an option or in a configuration file.
`LeasedDevices` and `holders` describe devices that other runs hold.
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

GPU = "nvidia.com/gpu"
#: By resource name, the environment variables that tell a container its devices. For AMD only ROCR_VISIBLE_DEVICES is
#: set: indexes in HIP_VISIBLE_DEVICES would count only the devices that ROCR_VISIBLE_DEVICES has selected.
KNOWN_VARIABLES: dict[str, tuple[str, ...]] = {
    GPU: ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    "amd.com/gpu": ("ROCR_VISIBLE_DEVICES",),
    "huawei.com/Ascend910": ("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES"),
}
_QUERY = ("--query-gpu=index,uuid", "--format=csv,noheader")
#: Maximum wait for the driver: a faulty driver can hang for minutes. After this time, its answer counts as empty.
_DRIVER_TIMEOUT_SECONDS = 10.0


class DeviceSet(Struct, frozen=True):
    """The devices of one resource: their ids, and the environment variables that tell a container its devices."""

    ids: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    #: Whether the user gave only the number of devices. The machine perhaps does not have these devices.
    pretended: bool = False


def numbered(count: int) -> tuple[str, ...]:
    """The ids of devices, if only their number is known. All users of this machine get the same ids."""
    return tuple(str(index) for index in range(count))


def inventory(given: Mapping[str, DeviceSet], environment: Mapping[str, str] | None = None) -> dict[str, DeviceSet]:
    """All devices of this machine: the devices in `given`, and the driver's GPUs if GPUs are not in `given`.

    The driver's answer may take a second. To avoid this wait, a caller that needs no GPU gives an empty set of GPUs.
    """
    found = dict(given)
    if GPU not in found:
        found[GPU] = DeviceSet(found_gpus(os.environ if environment is None else environment), KNOWN_VARIABLES[GPU])
    return {name: devices for name, devices in found.items() if devices.ids}


def found_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The ids of the GPUs that the driver lists and CUDA_VISIBLE_DEVICES allows."""
    known = listed_gpus(environment)
    given = environment.get("CUDA_VISIBLE_DEVICES")
    return tuple(index for index, _ in known) if given is None else _select(given.split(","), known)


def listed_gpus(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Index and UUID of each GPU; empty if there is no driver, or if the driver does not answer."""
    rows = driver_table(environment, _QUERY)
    return [(row[0], row[1]) for row in rows if len(row) == 2 and row[0].isdigit()]


def driver_table(environment: Mapping[str, str], query: Sequence[str]) -> list[list[str]]:
    """The rows that nvidia-smi prints; empty if there is no driver, or if the driver does not answer."""
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None:
        return []
    import subprocess  # noqa: PLC0415 - takes 3 ms, and only a machine with the driver needs it

    try:
        answer = subprocess.run(  # noqa: S603 - the driver's own program from PATH, with fixed arguments
            [Path(program), *query], capture_output=True, text=True, timeout=_DRIVER_TIMEOUT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [[part.strip() for part in line.split(",")] for line in answer.stdout.splitlines()]


def _select(words: Sequence[str], known: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The GPUs that the user allows, in the user's order. As in CUDA, the first invalid word ends the list."""
    chosen: list[str] = []
    for word in (word.strip() for word in words):
        found = next((index for index, uuid in known if word and (word == index or uuid.startswith(word))), None)
        if found is None:
            break
        chosen.append(found)
    return tuple(chosen)


class LeasedDevices(Struct, frozen=True):
    """Devices of one resource on one node that other runs hold: the id of each device, and a text about its holder."""

    devices: tuple[tuple[str, str], ...] = ()

    @property
    def amount(self) -> int:
        """The number of devices, in thousandths like all amounts."""
        return 1000 * len(self.devices)


def holders(leased: Iterable[LeasedDevices]) -> str:
    """The holders of leased devices, such as `; 0-3 held by alice (run …) since …, 4 held by bob (run …) since …`."""
    held: dict[str, list[str]] = {}
    for one in leased:
        for device, holder in one.devices:
            held.setdefault(holder, []).append(device)
    listed = ", ".join(f"{ranges(devices)} held by {holder}" for holder, devices in held.items())
    return f"; {listed}" if listed else ""


def ranges(devices: Sequence[str]) -> str:
    """A list of ids in which consecutive numbers are ranges, such as `0-3,7`."""
    numbers = sorted({int(one) for one in devices if one.isdecimal()})
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    spans = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ",".join([*spans, *sorted({one for one in devices if not one.isdecimal()})])
