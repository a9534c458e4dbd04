# SPDX-License-Identifier: Apache-2.0
"""For all tests: no event loop that nobody closes. looptime asks for one where a test is not asynchronous."""

import asyncio


def pytest_configure() -> None:
    """Forget the loop that a plug-in's import may have made."""
    asyncio.set_event_loop(None)
