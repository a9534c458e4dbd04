# SPDX-License-Identifier: Apache-2.0
"""Spans of time on the command line: `30`, `1.5m`, `1h30m` in, `12.3s`, `5m03s` out. Used by options and by views."""

import re
from typing import Any

import click

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_WHOLE = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+")
#: A year; longer is a slip of the keyboard, and timers need not be able to take it.
LONGEST = 366 * 86400.0


class Duration(click.ParamType[float]):
    """An option that takes a span of time; a bare number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds."""
        seconds = parse(str(value))
        if seconds is None or seconds > LONGEST:
            self.fail(f"{value!r} is not a span of time; write 30, 30s, 5m, 1h or 1h30m", param, ctx)
        return seconds


def parse(text: str) -> float | None:
    """The seconds that a text names."""
    try:
        return _bare(float(text))
    except ValueError:
        pass
    if not _WHOLE.fullmatch(text):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def _bare(seconds: float) -> float | None:
    return seconds if 0 <= seconds < float("inf") else None


def spell(seconds: float) -> str:
    """As people read it: a tenth of a second below a minute, two units above."""
    if seconds < 59.95:
        return f"{max(seconds, 0):.1f}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def span(seconds: float) -> str:
    """A length that somebody chose: `90 s`, `1.5 s`; from an hour on also as people read it."""
    return f"{seconds:g} s" + (f" ({spell(seconds)})" if seconds >= 3600 else "")


def age(seconds: float) -> str:
    """As a table shows it: whole seconds, so that it does not change more often."""
    return f"{max(int(seconds), 0)}s" if seconds < 60 else spell(seconds)
