# SPDX-License-Identifier: Apache-2.0
"""What the controller reserves before a pass: everything that the pass may ask the site for."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from trainwright.core import ports
from trainwright.model.job import Elastic, Job, Lifecycle
from trainwright.model.ledger import Ledger, Outcome, Phase, Reason, RoleLedger, SizeCap
from trainwright.model.rule import Result
from trainwright.model.site import Endpoints
from trainwright.testing.factories import NOW, PlainDialect, job, role


class Talkative(PlainDialect, frozen=True):
    """Pods are told of workers."""

    def endpoints(self, job: Job) -> Mapping[str, tuple[int, ...]]:  # noqa: ARG002 - a protocol's signature
        return {"Worker": (2222, 3333)}


def told(**more: Any) -> Job:
    return job(role("Worker", 2), role("ps", 1), dialect=Talkative(), **more)


def test_every_replica_of_the_roles_that_pods_are_told_of() -> None:
    assert ports.endpoints(told()) == (Endpoints("job-worker-", 2, (2222, 3333)),)
    assert ports.endpoints(told())[0].names == ("job-worker-0", "job-worker-1")


ENDED = Ledger(Phase.FAILED, outcome=Outcome(Result.FAILED, Reason.RULE, NOW))


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"ledger": ENDED}, id="it has ended"),
        pytest.param({"lifecycle": Lifecycle(suspended=True)}, id="it is suspended"),
        pytest.param({"deleting": True}, id="it is being deleted"),
        pytest.param({"unmanaged": True}, id="it is somebody else's"),
    ],
)
def test_nothing_is_reserved_for_a_job_that_gets_no_pods(more: dict[str, Any]) -> None:
    assert ports.endpoints(told(**more)) == ()


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param(2, 2, id="as asked"),
        pytest.param(1, 2, id="at least its least"),
        pytest.param(9, 4, id="at most its most"),
    ],
)
def test_a_role_that_may_grow_in_the_pass_is_reserved_at_its_largest(asked: int, expected: int) -> None:
    one = told(ledger=Ledger(Phase.RUNNING, roles=(RoleLedger("Worker", ceiling=SizeCap(NOW, 2, "no room")),)))
    grows = replace(one, roles=(replace(one.roles[0], replicas=asked, elastic=Elastic(2, 4, auto=True)),))
    assert ports.endpoints(grows) == (Endpoints("job-worker-", expected, (2222, 3333)),)
