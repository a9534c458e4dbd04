# SPDX-License-Identifier: Apache-2.0
"""Keeps what replicas of elastic jobs look up in step with the plan. `controller` calls it at the end of a pass.

Replicas keep the keys, we only put values right; so every pass looks, and a value that somebody put back is put right
again. A server that does not answer holds up nothing else: people are told once, and it is asked again, ever more
rarely.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from trainwright.errors import ApiError
from trainwright.model.action import Announce
from trainwright.model.event import Moment, Notice
from trainwright.model.job import Job
from trainwright.runtime.line import Line
from trainwright.runtime.ports import Registry
from trainwright.runtime.settings import Settings
from trainwright.runtime.track import MEETING, Track

_LOG = logging.getLogger(__name__)


class Announcer:
    """Writes to the registry, if there is one."""

    def __init__(self, registry: Registry | None, settings: Settings) -> None:
        self._registry = registry
        self._first, self._most = settings.refused, settings.refused_most

    async def announce(self, job: Job, announces: Sequence[Announce], track: Track, now: datetime) -> None:
        """Put right what differs, unless the server did not answer a moment ago."""
        if self._registry is None or not announces:
            return
        if track.unheard is not None and now < track.unheard:
            track.look_again((track.unheard - now).total_seconds())
            return
        try:
            for one in announces:
                await self._revise(self._registry, job, one)
        except ApiError as error:
            self._unheard(track, now, error)
        else:
            track.unheard, track.hush = None, 0.0
            track.complaints.pop(MEETING, None)

    async def _revise(self, registry: Registry, job: Job, one: Announce) -> None:
        before = await registry.revise(one.key, one.value)
        if before not in (None, one.value):
            _LOG.info(Line("announced", job=job.key, key=one.key, value=one.value, before=before))

    def _unheard(self, track: Track, now: datetime, error: ApiError) -> None:
        """Replicas may go on with the old size: whoever changed it should know."""
        track.hush = min(2 * track.hush or self._first, self._most)
        track.unheard = now + timedelta(seconds=track.hush)
        track.look_again(track.hush)
        text = f"the elastic server cannot be told of the size, and is asked again: {error}"
        track.complain(MEETING, Notice(Moment.STUCK, text))
