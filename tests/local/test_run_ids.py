# SPDX-License-Identifier: Apache-2.0
"""Tests for the ids of runs in the background engine."""

from datetime import UTC, datetime, timedelta

from trainwright.local.run_ids import new_run_id

NOW = datetime(2026, 11, 17, 12, 0, 0, 999_000, tzinfo=UTC)


def test_ids_of_one_second_sort_by_time() -> None:
    ids = [new_run_id(NOW + timedelta(milliseconds=number)) for number in range(20)]
    assert ids == sorted(ids)


def test_ids_of_one_moment_differ() -> None:
    assert len({new_run_id(NOW) for _ in range(20)}) > 1
