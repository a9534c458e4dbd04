# SPDX-License-Identifier: Apache-2.0
"""The whole product on one page: job and world in, plan out. No I/O, no clock, no randomness.

The engines call this whenever something about a job has changed and carry the plan out (`model.plan` has the order);
`kinds` make the job from a manifest and render the status that comes out. Everything that decides is called from here.
"""

from trainwright.core import autosize, create, lifecycle, ports, quarantine, report, restart, verdict
from trainwright.core.observe import Snapshot, observe
from trainwright.model.child import Observed
from trainwright.model.job import Job
from trainwright.model.plan import Plan
from trainwright.model.site import Site
from trainwright.model.units import Time


def reconcile(job: Job, observed: Observed, site: Site, now: Time) -> Plan:
    """What should exist, and what to report, given what is."""
    view = observe(autosize.within_bounds(job), observed, site, now)
    # The order is the meaning; the first that answers wins.
    return (
        lifecycle.unmanaged(view)  # 0 somebody else's: nothing at all
        or lifecycle.deleted(view)  # 1 being deleted: children follow by their owner
        or lifecycle.foreign(view)  # 1a unfinished under another controller: nothing but a word about it
        or lifecycle.unfit(view)  # 2 a manifest that cannot be run, or an edit that cannot be applied
        or lifecycle.finished(view)  # 3 decided earlier: clean up, time to live
        or lifecycle.suspended(view)  # 4 no pods
        or _live(lifecycle.begin(view))
    )


def _live(view: Snapshot) -> Plan:
    """5 success  6 an end from outside  7 deadlines  8 failure  9 restarts, resizes  10 make what is missing."""
    settled = verdict.settle(quarantine.update(view))
    outcome = verdict.decide(settled)
    if outcome is not None:
        ended = lifecycle.finished(lifecycle.end(settled.view, outcome))
        assert ended is not None  # noqa: S101 - an outcome is there, so the step answers; for the type checker
        return ended
    view = ports.handed(lifecycle.advance(autosize.resized(autosize.fit(restart.again(settled)))))
    return report.close(view, create.create_missing(view))
