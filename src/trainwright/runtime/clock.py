# SPDX-License-Identifier: Apache-2.0
"""The wall clock: the only place that asks what time it is. Everything else is given a `Clock` or a time."""

from datetime import UTC, datetime


class WallClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The time, in UTC."""
        return datetime.now(UTC)  # noqa: TID251 - somebody has to
