# SPDX-License-Identifier: Apache-2.0
"""How many requests a client may send, and what is left for admins, so that no client uses up the engine."""

from collections.abc import Callable

from trainwright.errors import TooManyRequestsError

#: A client can send so many requests a second for long, and so many at once.
_RATE, _BURST = 1000.0, 2000.0
#: Clients without a token share a small budget: they can only guess tokens and ask for the health.
_ANONYMOUS_RATE, _ANONYMOUS_BURST = 50.0, 100.0
#: Per cent of all watches, and of all connections, that clients may have who are no admins. So they cannot lock the
#: admin out.
_SHARE_OF_OTHERS = 80


def share_of_others(limit: int) -> int:
    """How many of `limit` watches or connections clients may have who are no admins."""
    return limit * _SHARE_OF_OTHERS // 100


class RequestBudget:
    """The budgets of all clients by name; the empty name is for clients without a valid token."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> None:
        """Count one request. Raises TooManyRequestsError if the budget is used up."""
        rate, burst = (_RATE, _BURST) if name else (_ANONYMOUS_RATE, _ANONYMOUS_BURST)
        now = self._time()
        left, since = self._left.get(name, (burst, now))
        left = min(burst, left + (now - since) * rate)
        if left < 1:
            self._left[name] = left, now
            raise TooManyRequestsError("too many requests; try again later", retry_after=1)
        self._left[name] = left - 1, now
