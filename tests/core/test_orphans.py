# SPDX-License-Identifier: Apache-2.0
"""Which children may go when their job is gone: those that Kubernetes' own collector would remove, and no other."""

from typing import Any

import pytest
from msgspec.structs import replace

from trainwright.core.removal import ORPHAN_GRACE_SECONDS, orphan_owner
from trainwright.model.meta import JOB_UID, Owner
from trainwright.testing.factories import NOW, OWNER, UID, later, pod

KINDS = {("example.com/v1", "Example")}
OTHER = Owner("apps/v1", "ReplicaSet", "other", "2", controller=True)


@pytest.mark.parametrize(
    ("given", "seconds", "goes"),
    [
        pytest.param({}, ORPHAN_GRACE_SECONDS, True, id="ours alone"),
        pytest.param({}, ORPHAN_GRACE_SECONDS - 1, False, id="the collector has not had its time"),
        pytest.param({"owners": ()}, ORPHAN_GRACE_SECONDS, False, id="let go on purpose"),
        pytest.param({"owners": None}, ORPHAN_GRACE_SECONDS, False, id="never owned"),
        pytest.param({"owners": (OTHER,)}, ORPHAN_GRACE_SECONDS, False, id="another's"),
        pytest.param(
            {"owners": (OWNER, replace(OTHER, controller=False))}, ORPHAN_GRACE_SECONDS, False, id="another's as well"
        ),
        pytest.param(
            {"owners": (replace(OWNER, controller=False),)}, ORPHAN_GRACE_SECONDS, False, id="owned, not controlled"
        ),
        pytest.param(
            {"owners": (replace(OWNER, kind="Other"),)},
            ORPHAN_GRACE_SECONDS,
            False,
            id="a kind that is not looked after",
        ),
        pytest.param({"labels": {JOB_UID: "2"}}, ORPHAN_GRACE_SECONDS, False, id="labels that speak of another job"),
        pytest.param({"labels": None}, ORPHAN_GRACE_SECONDS, False, id="no labels"),
        pytest.param({"deleting": NOW}, ORPHAN_GRACE_SECONDS, False, id="going already"),
        pytest.param({"born": None}, ORPHAN_GRACE_SECONDS, False, id="nobody knows how old"),
    ],
)
def test_only_what_is_ours_alone_goes(given: dict[str, Any], seconds: float, goes: bool) -> None:
    found = orphan_owner(pod(**given).metadata, KINDS, later(seconds))

    assert (found is not None) is goes
    assert found is None or found.uid == UID
