# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at every moment around the start of an event loop is a KeyboardInterrupt, without a warning or a traceback."""

import asyncio
import signal
from collections.abc import Iterator

import pytest

from trainwright.cli.asynchronous import run_coroutine

# DefaultEventLoopPolicy is deprecated from Python 3.14 on; `asyncio.run` of 3.11 asks it for the loop.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class _InterruptedPolicy(asyncio.DefaultEventLoopPolicy):
    """Gets Ctrl-C while it creates the event loop."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        signal.raise_signal(signal.SIGINT)  # to this thread: a test worker has others
        return super().new_event_loop()


@pytest.fixture
def interrupted_creation() -> Iterator[None]:
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(_InterruptedPolicy())
    yield
    asyncio.set_event_loop_policy(before)


async def _answer(code: int) -> int:
    await asyncio.sleep(0)
    return code


async def _interrupted() -> int:
    signal.raise_signal(signal.SIGINT)
    await asyncio.sleep(60)
    return 0


@pytest.mark.usefixtures("interrupted_creation")
def test_ctrl_c_while_the_event_loop_is_created() -> None:
    with pytest.raises(KeyboardInterrupt):
        run_coroutine(_answer, 0)


def test_ctrl_c_while_the_command_runs() -> None:
    with pytest.raises(KeyboardInterrupt):
        run_coroutine(_interrupted)


def test_ctrl_c_works_after_the_command() -> None:
    assert run_coroutine(_answer, 7) == 7
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
