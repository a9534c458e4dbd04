# SPDX-License-Identifier: Apache-2.0
"""Random worlds with automatically sized roles only, so that more steps are about changes of size."""

from hypothesis import strategies as st
from hypothesis.stateful import initialize
from worlds_jobs import CAUSES
from worlds_machine import EXAMPLES, WorldMachine, world_settings

from trainwright.model.cause import CauseKind
from trainwright.model.job import (
    Elastic,
    Lifecycle,
    Restart,
    RestartScope,
    Role,
)
from trainwright.testing.factories import role


def autosized_roles() -> st.SearchStrategy[Role]:
    """Automatically sized roles with a large budget of restarts."""
    return st.builds(
        lambda n, bounds, scope, resize, gpus: role(
            "worker",
            n,
            restart=Restart(frozenset(CAUSES) - {CauseKind.COMPLETED}, limit=9, scope=scope),
            elastic=bounds,
            resize=resize,
            gpus=gpus,
            recreates_pods=True,
        ),
        st.integers(2, 4),
        st.builds(Elastic, st.integers(1, 2), st.just(4), st.just(True)),
        st.sampled_from(RestartScope),
        st.sampled_from([None, RestartScope.ROLE, RestartScope.JOB]),
        st.integers(0, 1),
    )


class AutosizeMachine(WorldMachine):
    """Random worlds whose job has one automatically sized role."""

    @initialize(part=autosized_roles(), defers=st.booleans())
    def begin(self, *, part: Role, defers: bool) -> None:
        super().begin(
            parts=(part,),
            lifecycle=Lifecycle(),
            ends=(None, None),
            nodes=("node-1", "node-2"),
            ending=False,
            defers=defers,
            of_kind=None,
        )


AutosizeMachine.TestCase.settings = world_settings(EXAMPLES // 2)
TestAutosizedWorlds = AutosizeMachine.TestCase
