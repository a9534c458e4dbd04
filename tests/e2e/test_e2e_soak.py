# SPDX-License-Identifier: Apache-2.0
"""A short soak of the background engine: twenty random kills. `make soak` runs five hundred."""

from e2e_soak import Soak
from e2e_workspace import Workspace

pytest_plugins = ["e2e_fixtures"]


def test_twenty_kills_lose_nothing_and_run_nothing_twice(process: Workspace) -> None:
    soak = Soak(process, seed=17, nodes=2)
    soak.run(kills=20, jobs=4)
    assert sum(soak.kills.values()) == 20
