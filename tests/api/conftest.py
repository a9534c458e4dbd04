# SPDX-License-Identifier: Apache-2.0
"""The fixtures `api` and `tls_api`: a served store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from api_server import ServedStore, served


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ServedStore]:
    """An empty store behind the real server."""
    async with served(tmp_path) as one:
        yield one


@pytest.fixture
async def tls_api(tmp_path: Path) -> AsyncIterator[ServedStore]:
    """An empty store behind the real server, with TLS."""
    async with served(tmp_path, tls=True) as one:
        yield one
