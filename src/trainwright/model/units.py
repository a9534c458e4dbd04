# SPDX-License-Identifier: Apache-2.0
"""Time and quantities: parse, compare, format. Called wherever a manifest or a clock value enters a decision."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache

Time = datetime

_SUFFIXES: dict[str, Decimal] = {
    "": Decimal(1),
    **{s: Decimal(1000) ** (i - 3) for i, s in enumerate(("n", "u", "m"))},
    **{s: Decimal(1000) ** (i + 1) for i, s in enumerate(("k", "M", "G", "T", "P", "E"))},
    **{s: Decimal(1024) ** (i + 1) for i, s in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))},
}
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([eE][+-]?[0-9]{1,3})|([A-Za-z]{0,2}))")
#: Kubernetes caps quantities at 2^63-1; a longer text is a mistake and would only burn time here.
_LONGEST = 64


def quantity(value: object) -> Decimal | None:
    """A Kubernetes resource quantity as an exact number, or None if it is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, int) and value.bit_length() > 192:
        return None
    text = str(value)
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
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
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


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


def moment(text: str) -> Time | None:
    """The time that such a text names, if it does."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
