# SPDX-License-Identifier: Apache-2.0
"""Sets of replica indexes as short text: `0-3,7`, counts by index: `0-3:1,7:2`, and the same as a row: `1x4,0x3,2`.

The durable state of a role keeps them in this form, so a job of 10,000 replicas stays within a few kilobytes.
Read and written by `core.attempts`; text that is not of the form reads as empty: a status may not be ours.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

#: No index is larger: a range in a status that is not ours must not fill the memory.
LARGEST = 99_999
_REPEATED = re.compile(r"([0-9]{1,9})(?:x([0-9]{1,7}))?")
_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?(?::([0-9]{1,9}))?")


def _runs(text: str) -> Iterator[tuple[int, int, int]]:
    """First, last and count of each range, for as many indexes as there can be: a status may not be ours."""
    room = LARGEST + 1
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is not None:
            first, last, count = int(match[1]), min(int(match[2] or match[1]), LARGEST), int(match[3] or 1)
            room -= max(last - first + 1, 0)
            if room < 0:
                return
            yield first, last, count


@lru_cache(maxsize=128)
def members(text: str) -> frozenset[int]:
    """The indexes that `0-3,7` names."""
    return frozenset(index for first, last, _ in _runs(text) for index in range(first, last + 1))


@lru_cache(maxsize=128)
def counts(text: str) -> Mapping[int, int]:
    """The counts that `0-3:1,7:2` names, by index."""
    found = {index: count for first, last, count in _runs(text) for index in range(first, last + 1)}
    return MappingProxyType(found)


def spell(indexes: Iterable[int]) -> str:
    """The shortest text for a set of indexes."""
    return _spell(dict.fromkeys(indexes, 1), counted=False)


def spell_counts(by_index: Mapping[int, int]) -> str:
    """The shortest text for counts by index; zeros are left out."""
    return _spell({index: count for index, count in by_index.items() if count}, counted=True)


def _spell(by_index: Mapping[int, int], *, counted: bool) -> str:
    runs: list[list[int]] = []
    for index in sorted(by_index):
        if runs and runs[-1][1] == index - 1 and runs[-1][2] == by_index[index]:
            runs[-1][1] = index
        else:
            runs.append([index, index, by_index[index]])
    return ",".join(
        (f"{first}" if first == last else f"{first}-{last}") + (f":{count}" if counted else "")
        for first, last, count in runs
    )


@lru_cache(maxsize=128)
def row(text: str) -> Mapping[int, int]:
    """The counts that `1x4,0x3,2` names, by index from 0 on; zeros are left out."""
    found: dict[int, int] = {}
    place = 0
    for part in text.split(","):
        match = _REPEATED.fullmatch(part)
        if match is not None:
            count, times = int(match[1]), min(int(match[2] or 1), LARGEST + 1 - place)
            if count:
                found.update(dict.fromkeys(range(place, place + times), count))
            place += times
    return MappingProxyType(found)


def spell_row(by_index: Mapping[int, int]) -> str:
    """The shortest row for counts by index: shorter than counts with their indexes where neighbours differ."""
    runs: list[list[int]] = []
    for index in range(max((index for index, count in by_index.items() if count), default=-1) + 1):
        count = by_index.get(index, 0)
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return ",".join(f"{count}" if times == 1 else f"{count}x{times}" for count, times in runs)
