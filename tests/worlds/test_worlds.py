# SPDX-License-Identifier: Apache-2.0
"""Random worlds with jobs of all kinds."""

from worlds_machine import EXAMPLES, WorldMachine, world_settings

from trainwright.testing.factories import job, later
from trainwright.testing.world import World

WorldMachine.TestCase.settings = world_settings(EXAMPLES)
TestWorlds = WorldMachine.TestCase


def test_time_is_virtual() -> None:
    world = World(job())
    world.wait(3600)
    assert later(3600) == world.clock
