# SPDX-License-Identifier: Apache-2.0
"""Run the coroutine of a command in a new event loop.

`asyncio.run` alone is not enough: until it has installed its own signal handler, Ctrl-C raises KeyboardInterrupt while
asyncio creates the event loop. Python then prints a traceback about the incomplete loop, and a warning about a
coroutine that was never awaited. So this module blocks SIGINT until the coroutine runs; then asyncio turns Ctrl-C into
a cancellation. The process must have only one thread: SIGINT stays unblocked in other threads, and Python would handle
it immediately.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_CTRL_C = (signal.SIGINT,)


def run_coroutine(
    command: Callable[_Parameters, Coroutine[object, object, _Result]],
    *args: _Parameters.args,
    **options: _Parameters.kwargs,
) -> _Result:
    """Run a command and return its result, often the exit code. Raises KeyboardInterrupt after Ctrl-C."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _CTRL_C)
    try:
        return asyncio.run(_deliver_signals(command(*args, **options)))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _CTRL_C)


async def _deliver_signals(command: Coroutine[object, object, _Result]) -> _Result:
    # The command is a task before a signal can arrive: if it is cancelled before its first step, it counts as awaited.
    working = asyncio.ensure_future(command)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _CTRL_C)
    return await working
