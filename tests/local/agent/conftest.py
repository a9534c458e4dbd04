# SPDX-License-Identifier: Apache-2.0
"""A node for a test, which leaves nothing behind."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agents import Place, place


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path) as made:
        yield made
