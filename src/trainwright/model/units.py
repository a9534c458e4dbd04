# SPDX-License-Identifier: Apache-2.0
"""Time and quantities: parse, compare, format. Called wherever a manifest or a clock value enters a decision.

Sets of replica indexes as short text: `0-3,7`, counts by index: `0-3:1,7:2`, and the same as a row: `1x4,0x3,2`.

The durable state of a role keeps them in this form, so a job of 10,000 replicas stays within a few kilobytes.
Read and written by `core.attempts`; text that is not of the form reads as empty: a status may not be ours.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from types import MappingProxyType

Time = datetime

_SUFFIXES: dict[str, Decimal] = {
    "": Decimal(1),
    **{s: Decimal(1000) ** (i - 3) for i, s in enumerate(("n", "u", "m"))},
    **{s: Decimal(1000) ** (i + 1) for i, s in enumerate(("k", "M", "G", "T", "P", "E"))},
    **{s: Decimal(1024) ** (i + 1) for i, s in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))},
}
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([eE][+-]?[0-9]{1,3})|([A-Za-z]{0,2}))")
#: Kubernetes caps quantities at 2^63-1; a longer text is a mistake and would only burn time here.
_MAX_QUANTITY_LENGTH = 64


def quantity(value: object) -> Decimal | None:
    """A Kubernetes resource quantity as an exact number, or None if it is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, int) and value.bit_length() > 192:
        return None
    text = str(value)
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_QUANTITY_LENGTH else None
    if match is None:
        return None
    number, exponent, suffix = match.groups()
    scale = _SUFFIXES.get(suffix or "")
    if scale is None:
        return None
    try:
        return Decimal(number + (exponent or "")) * scale
    except InvalidOperation:  # pragma: no cover - the pattern admits only numbers; Decimal has the last word
        return None


@lru_cache(maxsize=128, typed=True)
def count(amount: object) -> int:
    """A quantity of things that come whole; what cannot be read is none."""
    found = quantity(amount)
    return int(found) if found is not None else 0


#: Before everything: for what has no time of its own.
EARLIEST_TIME = datetime(1970, 1, 1, tzinfo=UTC)


def whole(time: Time) -> Time:
    """The time as Kubernetes writes it: UTC, whole seconds."""
    return time.astimezone(UTC).replace(microsecond=0)


def after(time: Time, seconds: float) -> Time:
    """That many seconds later."""
    return time + timedelta(seconds=seconds)


def due(stamp: Time, seconds: float) -> Time:
    """When that many seconds have certainly passed since a time that was read from the API.

    The rule for everything that happens by time alone: it is never early. Kubernetes cuts times to whole seconds, so
    what is stamped 12:00:00 may have happened at 12:00:00.999: count from the end of that second, and be up to a second
    late. The ledger keeps its own times with their fraction, so `after` is exact for them.
    """
    return after(stamp, seconds if stamp.microsecond or seconds <= 0 else seconds + 1.0)


def rfc3339(time: Time) -> str:
    """`2026-11-15T19:45:00Z`."""
    return whole(time).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> Time | None:
    """The time that such a text names, if it does."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


#: No index is larger: a range in a status that is not ours must not fill the memory.
LARGEST_INDEX = 99_999
_REPEATED = re.compile(r"([0-9]{1,9})(?:x([0-9]{1,7}))?")
_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?(?::([0-9]{1,9}))?")


def _ranges(text: str) -> Iterator[tuple[int, int, int]]:
    """First, last and count of each range, for as many indexes as there can be: a status may not be ours."""
    room = LARGEST_INDEX + 1
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is not None:
            first, last, count = int(match[1]), min(int(match[2] or match[1]), LARGEST_INDEX), int(match[3] or 1)
            room -= max(last - first + 1, 0)
            if room < 0:
                return
            yield first, last, count


@lru_cache(maxsize=128)
def parse_indexes(text: str) -> frozenset[int]:
    """The indexes that `0-3,7` names."""
    return frozenset(index for first, last, _ in _ranges(text) for index in range(first, last + 1))


@lru_cache(maxsize=128)
def parse_counts(text: str) -> Mapping[int, int]:
    """The counts that `0-3:1,7:2` names, by index."""
    found = {index: count for first, last, count in _ranges(text) for index in range(first, last + 1)}
    return MappingProxyType(found)


def format_indexes(indexes: Iterable[int]) -> str:
    """The shortest text for a set of indexes."""
    return _format(dict.fromkeys(indexes, 1), counted=False)


def format_counts(by_index: Mapping[int, int]) -> str:
    """The shortest text for counts by index; zeros are left out."""
    return _format({index: count for index, count in by_index.items() if count}, counted=True)


def _format(by_index: Mapping[int, int], *, counted: bool) -> str:
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
def parse_row(text: str) -> Mapping[int, int]:
    """The counts that `1x4,0x3,2` names, by index from 0 on; zeros are left out."""
    found: dict[int, int] = {}
    place = 0
    for part in text.split(","):
        match = _REPEATED.fullmatch(part)
        if match is not None:
            count, times = int(match[1]), min(int(match[2] or 1), LARGEST_INDEX + 1 - place)
            if count:
                found.update(dict.fromkeys(range(place, place + times), count))
            place += times
    return MappingProxyType(found)


def format_row(by_index: Mapping[int, int]) -> str:
    """The shortest row for counts by index: shorter than counts with their indexes where neighbours differ."""
    runs: list[list[int]] = []
    for index in range(max((index for index, count in by_index.items() if count), default=-1) + 1):
        count = by_index.get(index, 0)
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return ",".join(f"{count}" if times == 1 else f"{count}x{times}" for count, times in runs)
