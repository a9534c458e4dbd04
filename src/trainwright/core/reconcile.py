# SPDX-License-Identifier: Apache-2.0
"""The decision: `reconcile` turns a job and what exists for it into a plan, without I/O, clock or randomness.

An engine calls `reconcile` whenever something about a job changes, and executes the plan in the order that `model.plan`
describes. Every decision is made in a step that is called from here.
"""

from trainwright.core import autosize, create, lifecycle, outcomes, ports, quarantine, report, restart
from trainwright.core.observe import Snapshot, observe
from trainwright.model.child import Observed
from trainwright.model.job import Job
from trainwright.model.plan import Plan
from trainwright.model.site import Site
from trainwright.model.units import Time


def reconcile(job: Job, observed: Observed, site: Site, now: Time) -> Plan:
    """Return what must be created, changed, deleted and reported for this job now."""
    view = observe(autosize.within_bounds(job), observed, site, now)
    # The first step that returns a plan wins.
    return (
        lifecycle.unmanaged(view)  # 0 another controller manages the job: do nothing
        or lifecycle.deleted(view)  # 1 being deleted: the garbage collector removes the children
        or lifecycle.foreign(view)  # 1a started by another controller: only an event
        or lifecycle.invalid(view)  # 2 a manifest that cannot be run, or an edit that cannot be applied
        or lifecycle.finished(view)  # 3 ended earlier: clean up, time to live
        or lifecycle.suspended(view)  # 4 suspended: no pods
        or _live(lifecycle.begin(view))
    )


def _live(view: Snapshot) -> Plan:
    """Steps for a live job: 5 success  6 requested end  7 deadlines  8 failure  9 restarts, resizes  10 creates."""
    settled = outcomes.settle(quarantine.update(view))
    outcome = outcomes.decide(settled)
    if outcome is not None:
        ended = lifecycle.finished(lifecycle.end(settled.view, outcome, settled.ended))
        assert ended is not None  # noqa: S101 - for the type checker: the job has an outcome, so the step returns
        return ended
    view = ports.assign_ports(
        lifecycle.advance(autosize.apply_resizes(autosize.fit_sizes(restart.apply_restarts(settled))))
    )
    return report.make_plan(view, create.create_missing(view))
