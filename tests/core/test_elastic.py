# SPDX-License-Identifier: Apache-2.0
"""Sizes within their bounds."""

import pytest
from passes import lived, look, names

from trainwright.core.elastic import bounded
from trainwright.model.job import Elastic
from trainwright.model.ledger import RoleLedger
from trainwright.testing.factories import job, pod, role


@pytest.mark.parametrize(
    ("wanted", "counts"),
    [
        pytest.param(1, 2, id="below the least"),
        pytest.param(2, 2, id="the least"),
        pytest.param(3, 3, id="between"),
        pytest.param(4, 4, id="the most"),
        pytest.param(9, 4, id="above the most"),
    ],
)
def test_a_size_outside_its_bounds_counts_as_the_nearer_one(wanted: int, counts: int) -> None:
    given = job(role("worker", wanted, elastic=Elastic(2, 4)), role("ps", wanted))

    assert [(one.name, one.replicas) for one in bounded(given).roles] == [("worker", counts), ("ps", wanted)]


def test_a_job_without_bounds_is_left_alone() -> None:
    given = job(role(replicas=3))

    assert bounded(given) is given


def test_the_bounds_are_kept_when_a_job_is_resized() -> None:
    given = job(role(replicas=9, elastic=Elastic(1, 2)), ledger=lived(RoleLedger("worker", reached=3)))

    plan = look(given, pod(0), pod(2))

    assert names(plan) == {"creates": ["Pod job-worker-1"], "deletes": ["Pod job-worker-2"]}
