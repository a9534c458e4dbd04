# SPDX-License-Identifier: Apache-2.0
"""What may be removed of children whose job is gone. `runtime.orphans` asks, about jobs that it cannot find.

Kubernetes' garbage collector removes whatever has lost its owner, but it stands still while one API of the cluster does
not answer, and pods of a job that nobody wants any more keep their GPUs. What is removed here is what it would remove:
a child of ours whose only owner is that job. One without an owner was let go on purpose (`--cascade=orphan`), and
one with another owner is that one's: both stay.
"""

from collections.abc import Collection

from trainwright.model.meta import JOB_UID, Meta, Owner
from trainwright.model.units import Time, after

#: Seconds that the collector has first.
GRACE = 300.0


def owner(child: Meta, kinds: Collection[tuple[str, str]], now: Time) -> Owner | None:
    """The job of one of these kinds, by version and name, without which this child must not be there; None: it may."""
    owners = child.owner_references or ()
    if len(owners) != 1 or child.deletion_timestamp is not None or child.creation_timestamp is None:
        return None
    one = owners[0]
    ours = one.controller and (one.api_version, one.kind) in kinds and one.uid == (child.labels or {}).get(JOB_UID)
    return one if ours and now >= after(child.creation_timestamp, GRACE) else None
