# SPDX-License-Identifier: Apache-2.0
"""Every knob of the machinery, with its default and the reason for it. Engines make one and hand it to `controller`."""

from msgspec import Struct

from trainwright.runtime.ports import POD_GROUPS, Resource


class ControllerSettings(Struct, frozen=True, kw_only=True):
    """How the controller works; what it decides is not set here."""

    #: Pod events of one job that come within this time lead to one pass: a job of 1,000 pods starts in bursts.
    coalesce: float = 0.02
    #: Passes that may be under way at once; one that waits for the API does not hold up the others.
    workers: int = 16
    #: Writes of one pass that are under way at once.
    writes: int = 16
    #: Counts are stored when they have been out of date so long, unless something more important takes them along.
    count_delay: float = 10.0
    #: An unfinished job is looked at again after so long, and while nothing changes ever more rarely; 0: never.
    resync: float = 15.0
    resync_most: float = 300.0
    #: A pass that failed is repeated after so long, doubling.
    retry: float = 0.2
    retry_most: float = 30.0
    #: What the API server refused is not asked for again before, doubling.
    refused: float = 1.0
    refused_most: float = 30.0
    #: A child whose creation is not even answered counts as refused once passes are so far apart.
    unanswered: float = 0.4
    #: Which kinds of job are looked after, by their lower-case names; None: all.
    kinds: frozenset[str] | None = None
    #: In which namespace; empty: in all.
    namespace: str = ""
    #: An event for each child that is made or removed.
    child_events: bool = False
    #: Children whose job is gone are looked for so often; 0: never, somebody else removes them.
    sweep: float = 0.0
    #: Children of whole jobs that exist in this place.
    extras: tuple[Resource, ...] = (POD_GROUPS,)
