# SPDX-License-Identifier: Apache-2.0
"""Devices that other runs hold, as values and in words. Pure."""

from collections.abc import Iterable, Sequence

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
