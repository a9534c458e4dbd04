# SPDX-License-Identifier: Apache-2.0
"""A job of any kind in the simulated world, driven as an engine does it: load → reconcile → render → store → execute.

The status exists only in the manifest, as JSON. Every pass loads it again, so a value that the JSON does not contain is
lost here too.
"""

from copy import deepcopy
from datetime import timedelta

import msgspec

from trainwright.core.reconcile import reconcile
from trainwright.kinds.base import Kind, Loaded, load, stored
from trainwright.model.event import Emit
from trainwright.model.job import Body
from trainwright.model.ledger import Ledger
from trainwright.model.plan import Plan
from trainwright.model.site import Site
from trainwright.testing.world import World


class DocumentWorld(World):
    """One job, its children, and its stored manifest."""

    kind: Kind

    def __init__(self, document: Body, *, site: Site | None = None, nodes: tuple[str, ...] = ()) -> None:
        self.document: Body = stored(self.kind, msgspec.json.decode(msgspec.json.encode(document)))
        self.rendered: Body = {}
        #: The events of all passes whose status was stored, with the texts of the kind.
        self.told: list[Emit] = []
        #: The events of the last pass.
        self.events: list[Emit] = []
        super().__init__(self.load().job, site=site, nodes=nodes)

    def load(self) -> Loaded:
        """Load the stored manifest."""
        return load(self.kind, self.document)

    def look(self) -> Plan:
        """Run one pass over the stored manifest and render its status."""
        loaded = self.load()
        self.job = self.seen_job = loaded.job
        plan = reconcile(loaded.job, self.observed(), self.site, self.clock)
        self.rendered = self._render(loaded, plan)
        self._hold(loaded, plan)
        self.events = [self.kind.event(loaded.job, plan.status, event) for event in plan.events]
        return plan

    def _render(self, loaded: Loaded, plan: Plan, later: float = 0) -> Body:
        now = self.clock + timedelta(seconds=later)
        body = self.kind.render(loaded.status, loaded.job, plan.status, now)
        plain: Body = msgspec.json.decode(msgspec.json.encode(body))
        return plain

    def _hold(self, loaded: Loaded, plan: Plan) -> None:
        """Check what must be true of every status. Tests override this."""

    def step(self, *, dies_after: int | None = None) -> Plan:
        """Run one pass and execute its plan. Store changed counts at once too: the operator stores them later."""
        plan = super().step(dies_after=dies_after)
        if dies_after is None and not plan.untouched:
            self._save()
        return plan

    def _store(self, ledger: Ledger) -> None:
        assert ledger == self.plans[-1].status.ledger  # noqa: S101 - the plan of this pass is stored
        self.server.note_write("status")
        self.told += self.events
        self._save()

    def _save(self) -> None:
        self.document["status"] = deepcopy(self.rendered)

    def _finalized(self, body: Body) -> None:
        self.document["metadata"] |= body["metadata"]
        super()._finalized(body)
