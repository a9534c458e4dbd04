# SPDX-License-Identifier: Apache-2.0
"""Spans of time, as they are typed and as they are shown."""

import click
import pytest

from trainwright.cli.flags import Duration, age
from trainwright.model.units import parse_duration, spell


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30),
        ("0", 0),
        ("1.5", 1.5),
        ("30s", 30),
        ("5m", 300),
        ("1h", 3600),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("2d", 172800),
    ],
)
def test_what_is_understood(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize(
    "text", ["", "-1", "soon", "5 m", "5mm", "m", "1h-30m", "nan", "inf", "9999d", "9" * 400 + "d"]
)
def test_what_is_not(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write 30, 30s, 5m, 1h or 1h30m"):
        Duration().convert(text, None, None)


@pytest.mark.parametrize(
    ("seconds", "text", "short"),
    [
        (-1, "0.0s", "0s"),
        (0.04, "0.0s", "0s"),
        (12.34, "12.3s", "12s"),
        (59.94, "59.9s", "59s"),
        (59.96, "1m00s", "59s"),
        (61, "1m01s", "1m01s"),
        (3600, "1h00m", "1h00m"),
        (90061, "1d01h", "1d01h"),
    ],
)
def test_what_is_shown(seconds: float, text: str, short: str) -> None:
    assert spell(seconds) == text
    assert age(seconds) == short
