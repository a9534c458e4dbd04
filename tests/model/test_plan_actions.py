# SPDX-License-Identifier: Apache-2.0
"""Plans: when there is nothing to write."""

from typing import Any

import pytest

from trainwright.model.event import EventReason, JobStep
from trainwright.model.ledger import Ledger
from trainwright.model.plan import Create, Delete, Patch, Plan, Status, Write
from trainwright.testing.factories import NOW

STATUS = Status(Ledger(), ())
CREATE = Create({"metadata": {"name": "a"}})
DELETE = Delete("Pod", "a", "uid", "because")
PATCH = Patch("Pod", "a", "uid", {}, "because")


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param({}, True, id="nothing at all"),
        pytest.param({"wake": NOW}, True, id="only to look again"),
        pytest.param({"events": (JobStep(EventReason.RUNNING, "x"),)}, True, id="events go with a status, never alone"),
        pytest.param({"write": Write.NOW}, False, id="a status now"),
        pytest.param({"write": Write.LATER}, False, id="a status later"),
        pytest.param({"creates": (CREATE,)}, False, id="a create"),
        pytest.param({"deletes": (DELETE,)}, False, id="a delete"),
        pytest.param({"patches": (PATCH,)}, False, id="a patch"),
        pytest.param({"remove_job": True}, False, id="the job itself"),
    ],
)
def test_a_plan_is_empty_when_it_writes_nothing(parts: dict[str, Any], expected: bool) -> None:
    assert expected is Plan(STATUS, **parts).empty


def test_a_create_is_called_as_its_object() -> None:
    assert CREATE.name == "a"


def test_a_delete_waits_for_the_node_unless_told_otherwise() -> None:
    assert DELETE.force is False
