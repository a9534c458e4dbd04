# SPDX-License-Identifier: Apache-2.0
"""Time and quantities: what is read, what is refused, and that nothing is rounded."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.model.units import after, parse_time, quantity, rfc3339, whole


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("0", "0", id="zero"),
        pytest.param("1", "1", id="plain text"),
        pytest.param(4, "4", id="a number"),
        pytest.param(-4, "-4", id="a negative number"),
        pytest.param(1.5, "1.5", id="a float"),
        pytest.param(1e22, "10000000000000000000000", id="a float that Python writes with an exponent"),
        pytest.param("+3", "3", id="plus sign"),
        pytest.param("-3", "-3", id="minus sign"),
        pytest.param(".5", "0.5", id="no digit before the point"),
        pytest.param("5.", "5", id="no digit after the point"),
        pytest.param("1.25", "1.25", id="decimal"),
        pytest.param("1n", "0.000000001", id="nano"),
        pytest.param("1u", "0.000001", id="micro"),
        pytest.param("1m", "0.001", id="milli"),
        pytest.param("1500m", "1.5", id="millicores"),
        pytest.param("1k", "1000", id="kilo"),
        pytest.param("1M", "1000000", id="mega"),
        pytest.param("1G", "1000000000", id="giga"),
        pytest.param("1T", "1000000000000", id="tera"),
        pytest.param("1P", "1000000000000000", id="peta"),
        pytest.param("1E", "1000000000000000000", id="exa, not an exponent"),
        pytest.param("1Ki", "1024", id="kibi"),
        pytest.param("1Mi", "1048576", id="mebi"),
        pytest.param("1Gi", "1073741824", id="gibi"),
        pytest.param("1Ti", "1099511627776", id="tebi"),
        pytest.param("1Pi", "1125899906842624", id="pebi"),
        pytest.param("1Ei", "1152921504606846976", id="exbi"),
        pytest.param("1.5Gi", "1610612736", id="part of a gibi"),
        pytest.param("0.1", "0.1", id="a tenth is a tenth"),
        pytest.param("1e3", "1000", id="exponent"),
        pytest.param("1E3", "1000", id="capital exponent"),
        pytest.param("12e-1", "1.2", id="negative exponent"),
        pytest.param("12e+1", "120", id="positive exponent"),
        pytest.param("1e999", "1e999", id="three digits of exponent"),
        pytest.param("9223372036854775807", "9223372036854775807", id="the largest there is"),
        pytest.param("9223372036854775807n", "9223372036.854775807", id="the largest, in nanos"),
        pytest.param("0" * 63 + "7", "7", id="as long as is read"),
    ],
)
def test_a_quantity_is_read_exactly(value: object, expected: str) -> None:
    assert Decimal(expected) == quantity(value)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("", id="empty"),
        pytest.param("Gi", id="only a suffix"),
        pytest.param(".", id="only a point"),
        pytest.param("-", id="only a sign"),
        pytest.param("1K", id="kilo is a small k"),
        pytest.param("1ki", id="kibi is a capital K"),
        pytest.param("1mi", id="mebi is a capital M"),
        pytest.param("1MB", id="bytes are not written"),
        pytest.param("1Gib", id="three letters"),
        pytest.param("1 Gi", id="a blank inside"),
        pytest.param("1,5", id="a comma"),
        pytest.param("1.2.3", id="two points"),
        pytest.param("--1", id="two signs"),
        pytest.param("0x10", id="hexadecimal"),
        pytest.param("1_000", id="underscore"),
        pytest.param("1e3Ki", id="exponent and suffix"),
        pytest.param("1e1000", id="four digits of exponent"),
        pytest.param("nan", id="nan as text"),
        pytest.param("Infinity", id="infinity as text"),
        pytest.param(float("nan"), id="nan"),
        pytest.param(float("inf"), id="infinity"),
        pytest.param("0" * 64 + "7", id="longer than any quantity"),
        pytest.param(True, id="true is no number"),
        pytest.param(False, id="false is no number"),
        pytest.param(None, id="null"),
        pytest.param([1], id="a list"),
        pytest.param({}, id="a mapping"),
        pytest.param(b"1", id="bytes"),
    ],
)
def test_what_is_no_quantity_is_none(value: object) -> None:
    assert quantity(value) is None


@pytest.mark.parametrize("value", [10**5000, -(10**5000), 2**192], ids=["vast", "vastly negative", "just too large"])
def test_an_absurdly_large_number_is_no_quantity(value: int) -> None:
    assert quantity(value) is None


def test_a_number_of_as_many_digits_as_are_read_is_a_quantity() -> None:
    assert quantity(2**192 - 1) is not None


@pytest.mark.parametrize("value", ["\uff11Gi", "\u0663"])
def test_digits_of_other_scripts_are_no_quantity(value: str) -> None:
    assert quantity(value) is None


@given(st.integers(-(2**63) + 1, 2**63 - 1), st.sampled_from(["n", "u", "m", ""]))
def test_nothing_within_the_range_of_the_api_server_is_rounded(number: int, suffix: str) -> None:
    digits = {"n": 9, "u": 6, "m": 3, "": 0}[suffix]

    found = quantity(f"{number}{suffix}")

    assert found is not None
    assert Decimal(number) == found.scaleb(digits)


def test_whole_is_utc_without_fractions() -> None:
    parse_time = datetime(2026, 1, 1, 2, 30, 59, 999999, tzinfo=timezone(timedelta(hours=3)))

    actual = whole(parse_time)

    assert datetime(2025, 12, 31, 23, 30, 59, tzinfo=UTC) == actual
    assert actual.tzinfo is UTC


def test_after_adds_seconds() -> None:
    parse_time = datetime(2026, 1, 1, tzinfo=UTC)

    assert datetime(2026, 1, 1, 0, 1, 1, 500000, tzinfo=UTC) == after(parse_time, 61.5)


def test_rfc3339_is_how_kubernetes_writes_it() -> None:
    parse_time = datetime(2026, 11, 15, 20, 45, 0, 7, tzinfo=timezone(timedelta(hours=1)))

    assert rfc3339(parse_time) == "2026-11-15T19:45:00Z"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2021-01-18T02:36:31Z", datetime(2021, 1, 18, 2, 36, 31, tzinfo=UTC)),
        ("2021-01-18T02:36:31", datetime(2021, 1, 18, 2, 36, 31, tzinfo=UTC)),
        ("2021-01-18T10:36:31+08:00", datetime(2021, 1, 18, 2, 36, 31, tzinfo=UTC)),
        ("yesterday", None),
        ("", None),
    ],
)
def test_moment_reads_what_is_a_time(text: str, expected: datetime | None) -> None:
    assert parse_time(text) == expected
