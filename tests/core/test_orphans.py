# SPDX-License-Identifier: Apache-2.0
"""Which children may go when their job is gone: those that Kubernetes' own collector would remove, and no other."""

from typing import Any

import pytest
from msgspec.structs import replace

from trainwright.core.removal import GRACE, owner
from trainwright.model.meta import JOB_UID, Owner
from trainwright.testing.factories import NOW, OWNER, UID, later, pod

KINDS = {("example.com/v1", "Example")}
OTHER = Owner("apps/v1", "ReplicaSet", "other", "2", controller=True)


@pytest.mark.parametrize(
    ("given", "seconds", "goes"),
    [
        pytest.param({}, GRACE, True, id="ours alone"),
        pytest.param({}, GRACE - 1, False, id="the collector has not had its time"),
        pytest.param({"owners": ()}, GRACE, False, id="let go on purpose"),
        pytest.param({"owners": None}, GRACE, False, id="never owned"),
        pytest.param({"owners": (OTHER,)}, GRACE, False, id="another's"),
        pytest.param({"owners": (OWNER, replace(OTHER, controller=False))}, GRACE, False, id="another's as well"),
        pytest.param({"owners": (replace(OWNER, controller=False),)}, GRACE, False, id="owned, not controlled"),
        pytest.param({"owners": (replace(OWNER, kind="Other"),)}, GRACE, False, id="a kind that is not looked after"),
        pytest.param({"labels": {JOB_UID: "2"}}, GRACE, False, id="labels that speak of another job"),
        pytest.param({"labels": None}, GRACE, False, id="no labels"),
        pytest.param({"deleting": NOW}, GRACE, False, id="going already"),
        pytest.param({"born": None}, GRACE, False, id="nobody knows how old"),
    ],
)
def test_only_what_is_ours_alone_goes(given: dict[str, Any], seconds: float, goes: bool) -> None:
    found = owner(pod(**given).metadata, KINDS, later(seconds))

    assert (found is not None) is goes
    assert found is None or found.uid == UID
