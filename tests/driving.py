# SPDX-License-Identifier: Apache-2.0
"""A job of any kind in the simulated world, driven the way an engine will: load → reconcile → render → store → do.

The status lives in the manifest as JSON and nowhere else: every pass loads it anew, so whatever does not survive the
wire is lost here too. Each kind's driver says which kind it is and what must always be true of its status (`_hold`).
"""

from copy import deepcopy
from typing import Any

import msgspec
from msgspec.structs import replace

from trainwright.core.reconcile import reconcile
from trainwright.kinds.base import Kind, Loaded, load, stored
from trainwright.model.action import Create, Plan
from trainwright.model.event import Emit
from trainwright.model.job import Body
from trainwright.model.ledger import Ledger
from trainwright.model.site import Site
from trainwright.testing.world import World


class KindDriver(World):
    """One job, its children, and its stored manifest."""

    kind: Kind

    def __init__(self, document: Body, *, site: Site | None = None, nodes: tuple[str, ...] = ()) -> None:
        self.document: Body = stored(self.kind, msgspec.json.decode(msgspec.json.encode(document)))
        self.bodies: dict[tuple[str, str], Body] = {}
        self.rendered: Body = {}
        self.told: list[Emit] = []
        self.events: list[Emit] = []
        super().__init__(self.load().job, site=site, nodes=nodes)

    def load(self) -> Loaded:
        """The stored manifest, read."""
        return load(self.kind, self.document)

    def look(self) -> Plan:
        """One pass over the stored manifest; its status is rendered along."""
        loaded = self.load()
        self.job = self.seen_job = loaded.job
        plan = reconcile(loaded.job, self.observed(), self.site, self.clock)
        self.rendered = self._render(loaded, plan)
        self._hold(loaded, plan)
        self.events = [self.kind.event(loaded.job, plan.status, event) for event in plan.events]
        return plan

    def _render(self, loaded: Loaded, plan: Plan) -> Body:
        body = self.kind.render(loaded.status, loaded.job, plan.status, self.clock)
        plain: Body = msgspec.json.decode(msgspec.json.encode(body))
        return plain

    def _hold(self, loaded: Loaded, plan: Plan) -> None:
        """What is true of every status of the kind."""

    def _again(self, loaded: Loaded, plan: Plan) -> Body:
        """The status, read as it was written and said once more."""
        again = msgspec.convert(self.rendered, self.kind.status)
        second = replace(loaded, status=again, job=replace(loaded.job, ledger=plan.status.ledger))
        return self._render(second, replace(plan, status=replace(plan.status, ledger=again.trainwright)))

    def step(self, *, dies_after: int | None = None) -> Plan:
        """One pass, carried out; counters are stored as well."""
        plan = super().step(dies_after=dies_after)
        if dies_after is None and not plan.untouched:
            self._save()
        return plan

    def _store(self, ledger: Ledger) -> None:
        assert ledger == self.plans[-1].status.ledger
        self.writes.append("status")
        self.told += self.events
        self._save()

    def _save(self) -> None:
        self.document["status"] = deepcopy(self.rendered)

    def _create(self, create: Create) -> None:
        self.bodies[create.body["kind"], create.name] = deepcopy(create.body)
        super()._create(create)

    def go(self, *, reaps: bool = True) -> Body:
        """Let the operator work until it rests; no time passes. The stored status."""
        for _ in range(80):
            if reaps:
                self.reap()
            self.catch_up()
            before = self.document.get("status")
            plan = self.step()
            if self.gone or (plan.empty and not self.notes and self.document.get("status") == before):
                return self.status
        raise AssertionError(f"no rest: {self.plans[-2:]}")

    def edited(self, **changes: Any) -> Body:
        """Somebody changes fields of the spec. The status after that."""
        self.document["spec"] |= msgspec.json.decode(msgspec.json.encode(changes))
        self.document["metadata"]["generation"] += 1
        return self.go()

    @property
    def status(self) -> Body:
        """The stored status."""
        status: Body = self.document.get("status", {})
        return status
