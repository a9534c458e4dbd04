# SPDX-License-Identifier: Apache-2.0
"""The floor creates the same children as our operator."""

import re

import msgspec
import pytest
from bodies import ChildRequests
from shapes import SHAPES

from trainwright.core.reconcile import reconcile
from trainwright.kinds.base import load
from trainwright.kinds.registry import KINDS
from trainwright.model.child import Observed
from trainwright.model.site import Site
from trainwright.testing.factories import NOW


def _without_hash(body: bytes) -> bytes:
    """Return a body without the hash of the job's UID in the name of a PaddleJob's variable."""
    return re.sub(rb"(_WORLD_)[0-9A-F]{8}", rb"\1", body)


@pytest.mark.parametrize("name", SHAPES)
def test_the_floor_sends_the_bodies_of_our_operator(name: str) -> None:
    shape = SHAPES[name]
    requests = ChildRequests(shape)
    kind = next(one for one in KINDS if one.singular == name)
    for number, runs in enumerate(("5.0", "5.0", "0.0")):
        manifest = shape.manifest(f"job-{number}", 3, runs)
        document = manifest | {
            "metadata": {"name": f"job-{number}", "namespace": f"bench-{number}", "uid": f"uid-{number}"}
        }
        plan = reconcile(load(kind, document).job, Observed(), Site(), NOW)
        ours = [one.body for one in plan.creates if one.body["kind"] in ("Pod", "Service")]
        sent = [_without_hash(one.body) for one in requests.of(document) if one.body]
        assert sent == [_without_hash(msgspec.json.encode(one)) for one in ours]
        assert len(sent) == 3 * (1 + shape.services)
