# SPDX-License-Identifier: Apache-2.0
"""For all tests: no event loop that nobody closes, and no test that fails because the machine is busy.

looptime asks for a loop where a test is not asynchronous; hypothesis would hold each example against a deadline.
"""

import asyncio

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_configure() -> None:
    """Forget the loop that a plug-in's import may have made."""
    asyncio.set_event_loop(None)
