# SPDX-License-Identifier: Apache-2.0
"""The settings of the controller, with their defaults. All times are in seconds."""

from msgspec import Struct

from trainwright.runtime.ports import POD_GROUPS, Resource

#: `count_delay` of the embedded engine. It is short because writes are cheap there and a user may watch the counts.
EMBEDDED_COUNT_DELAY_SECONDS = 1.0


class ControllerSettings(Struct, frozen=True, kw_only=True):
    """Settings of the controller. Settings that influence decisions are in `model.site`."""

    #: All pod events of one job within this time lead to one pass, because many pods of a large job start together.
    coalesce: float = 0.02
    #: Number of concurrent passes. A pass that waits for the API server does not block other passes.
    workers: int = 16
    #: Number of concurrent writes of one pass. It is smaller than `RequestPolicy.max_concurrent`, so that a large job
    #: leaves requests for the others.
    writes: int = 32
    #: Counts in the status are stored after this time, or earlier together with a more important change.
    count_delay: float = 10.0
    #: That a job was accepted is stored after this time, or earlier together with a more important change. The time
    #: grows if the API server is slow.
    accept_delay: float = 5.0
    #: An unfinished job is reconciled again after this time (0: never). While nothing changes, the time doubles up to
    #: `resync_most`.
    resync: float = 15.0
    resync_most: float = 300.0
    #: A failed pass is retried after this time, which doubles with each failure up to `retry_most`.
    retry: float = 0.2
    retry_most: float = 30.0
    #: After the API server refused a child, the next try is after this time, which doubles up to `refused_most`.
    refused: float = 1.0
    refused_most: float = 30.0
    #: The pause after failed passes grows. Once it is this long, a create request without an answer counts as refused.
    unanswered: float = 0.4
    #: Lower-case names of the kinds of job to manage; None means all.
    kinds: frozenset[str] | None = None
    #: The namespace to manage; empty means all.
    namespace: str = ""
    #: Whether to send an event for each child that is created or deleted.
    child_events: bool = False
    #: The time between two searches for children whose job is gone; 0 means never.
    orphan_period: float = 0.0
    #: The resources of extras that exist in this cluster, apart from ConfigMaps.
    extras: tuple[Resource, ...] = (POD_GROUPS,)
