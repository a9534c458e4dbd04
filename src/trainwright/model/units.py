# SPDX-License-Identifier: Apache-2.0
"""Times, quantities, and short texts for sets of replica indexes.

Examples: indexes `0-3,7`; counts by index `0-3:1,7:2`; the same counts as a row `1x4,0x3,2`. The ledger stores them in
this form, so a job of 10,000 replicas needs a few kilobytes. Parts in another form are ignored, because another program
may have written the status.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import groupby
from math import inf
from types import MappingProxyType

Time = datetime

_SUFFIXES: dict[str, Decimal] = {
    "": Decimal(1),
    **{s: Decimal(1000) ** (i - 3) for i, s in enumerate(("n", "u", "m"))},
    **{s: Decimal(1000) ** (i + 1) for i, s in enumerate(("k", "M", "G", "T", "P", "E"))},
    **{s: Decimal(1024) ** (i + 1) for i, s in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))},
}
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([eE][+-]?[0-9]{1,3})|([A-Za-z]{0,2}))")
#: Longest text that is parsed as a quantity, in characters. Quantities in Kubernetes are at most 2^63-1.
_MAX_QUANTITY_LENGTH = 64


def quantity(value: object) -> Decimal | None:
    """Return a Kubernetes resource quantity as an exact number, or None if it is not one."""
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
    return Decimal(number + (exponent or "")) * scale


@lru_cache(maxsize=128, typed=True)
def count(amount: object) -> int:
    """Return a quantity as a whole number; 0 if it cannot be read."""
    found = quantity(amount)
    return int(found) if found is not None else 0


#: Replaces a missing time in comparisons.
EARLIEST_TIME = datetime(1970, 1, 1, tzinfo=UTC)


def whole(time: Time) -> Time:
    """Return the time as Kubernetes writes it: UTC, whole seconds."""
    return time.astimezone(UTC).replace(microsecond=0)


def after(time: Time, seconds: float) -> Time:
    """Return the time this many seconds later."""
    return time + timedelta(seconds=seconds)


def due(stamp: Time, seconds: float) -> Time:
    """Return the time at which this many seconds have certainly passed since a time from the API.

    Timed actions are never early. Kubernetes truncates times to whole seconds: 12:00:00 may mean 12:00:00.999. So count
    from the end of that second, and be up to one second late. Times in the ledger have fractions; use `after` for them.
    """
    return after(stamp, seconds if stamp.microsecond or seconds <= 0 else seconds + 1.0)


def rfc3339(time: Time) -> str:
    """Return the time as text, such as `2026-11-15T19:45:00Z`."""
    return whole(time).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> Time | None:
    """Parse an ISO 8601 time; None if it is not one."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


#: Largest valid index. It limits ranges in a status that another program wrote, so that they cannot fill the memory.
LARGEST_INDEX = 99_999
_REPEATED = re.compile(r"([0-9]{1,9})(?:x([0-9]{1,7}))?")
_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?(?::([0-9]{1,9}))?")


def _ranges(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield first index, last index and count of each range; stop after `LARGEST_INDEX` + 1 indexes."""
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
    """Parse `0-3,7` into a set of indexes."""
    return frozenset(index for first, last, _ in _ranges(text) for index in range(first, last + 1))


@lru_cache(maxsize=128)
def parse_counts(text: str) -> Mapping[int, int]:
    """Parse `0-3:1,7:2` into counts by index."""
    found = {index: count for first, last, count in _ranges(text) for index in range(first, last + 1)}
    return MappingProxyType(found)


def format_indexes(indexes: Iterable[int]) -> str:
    """Return the shortest text for a set of indexes."""
    return _format(dict.fromkeys(indexes, 1), counted=False)


def format_counts(by_index: Mapping[int, int]) -> str:
    """Format counts by index as `0-3:1,7:2`, as short as possible. Indexes with count 0 are left out."""
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
    """Parse `1x4,0x3,2` into counts by index. The first count is of index 0. Indexes with count 0 are left out."""
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
    """Return the shortest row for counts by index. Rows are shorter than `format_counts` if neighbours differ."""
    last = max((index for index, count in by_index.items() if count), default=-1)
    row = [by_index.get(index, 0) for index in range(last + 1)]
    runs = [(count, len(list(same))) for count, same in groupby(row)]
    return ",".join(f"{count}" if times == 1 else f"{count}x{times}" for count, times in runs)


_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+")


def parse_duration(text: str) -> float | None:
    """Return the seconds of a text such as `30`, `1.5m` or `1h30m`; None if the text is not a duration."""
    try:
        seconds = float(text)
    except ValueError:
        if not _DURATION.fullmatch(text):
            return None
        seconds = sum(float(number) * _DURATION_UNITS[unit] for number, unit in _DURATION_PART.findall(text))
    return seconds if 0 <= seconds < inf else None


def spell(seconds: float) -> str:
    """Format a duration: below a minute with tenths of a second (`12.3s`), otherwise with two units (`5m03s`)."""
    if seconds < 59.95:
        return f"{max(seconds, 0):.1f}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def spell_exactly(seconds: float) -> str:
    """Format a duration that a user wrote, with all its units: `2h30m`, `1m`, `8s`."""
    rest, parts = seconds, []
    for unit in ("d", "h", "m"):
        number, rest = divmod(rest, _DURATION_UNITS[unit])
        parts += [f"{number:g}{unit}"] if number else []
    return "".join(parts) + (f"{rest:g}s" if rest or not parts else "")
