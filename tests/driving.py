# SPDX-License-Identifier: Apache-2.0
"""A job of any kind in the simulated world (`testing.document_world`), with shorthands for tests.

Every pass of every test checks what must always be true of a status (`_hold`). A kind's driver adds its manifests, its
own way to suspend and to scale, and what else is true of its status.
"""

from typing import Any, Self

import msgspec
from msgspec.structs import replace

from trainwright.kinds.base import Loaded
from trainwright.model.job import Body
from trainwright.model.plan import Plan, Write
from trainwright.testing.apiserver import Address
from trainwright.testing.document_world import DocumentWorld

#: Bytes that an API server comfortably stores of one status.
LARGEST_STATUS = 256 * 1024


class KindDriver(DocumentWorld):
    """One job, its children, and its stored manifest."""

    #: Whether a status has each type of condition once.
    unique_conditions = True
    #: Whether kubelets finish pods that are being deleted as soon as the operator works.
    reaps = True
    #: What `names` leaves out of a name.
    prefix = "demo-"

    def _hold(self, loaded: Loaded, plan: Plan) -> None:
        """What is true of every status: it is read as it was written, and rendered from that a second later it is the
        same. So a pass in which nothing has changed writes nothing."""
        assert len(msgspec.json.encode(self.rendered)) < LARGEST_STATUS
        if plan.untouched:
            return
        stored = msgspec.convert(self.rendered, self.kind.status)
        assert stored.trainwright == plan.status.ledger
        second = replace(loaded, status=stored, job=replace(loaded.job, ledger=plan.status.ledger))
        if self._rests:
            assert self._render(second, plan, later=1) == self.rendered
        kinds = [one["type"] for one in self.rendered.get("conditions") or ()]
        assert len(set(kinds)) == len(kinds) or not self.unique_conditions

    @property
    def _rests(self) -> bool:
        """Whether the status says the same when it is rendered again."""
        return True

    def go(self, *, reaps: bool | None = None) -> Body:
        """Let the operator work until it rests; no time passes. The stored status."""
        for _ in range(80):
            if self.reaps if reaps is None else reaps:
                self.reap()
            self.catch_up()
            before = self.document.get("status")
            plan = self.step()
            if self.gone or (plan.empty and not self.notes and self.document.get("status") == before):
                return self.status
        raise AssertionError(f"no rest: {self.plans[-2:]}")

    # -- the user ------------------------------------------------------------------------------------------------

    def edit(self, **changes: Any) -> None:
        """Somebody changes fields of the spec."""
        self.document["spec"] |= msgspec.json.decode(msgspec.json.encode(changes))
        self.document["metadata"]["generation"] += 1

    def edited(self, **changes: Any) -> Body:
        """Somebody changes fields of the spec. The status after that."""
        self.edit(**changes)
        return self.go()

    # -- the kubelet ---------------------------------------------------------------------------------------------

    def node_of(self, name: str) -> str:  # noqa: ARG002 - for kinds whose pods have a node each
        """The node that a pod is started on."""
        return "node-1"

    def start_all(self, *names: str) -> Body:
        """Every pod that waits (or these) runs. The status after that."""
        for name in self._waiting(*names):
            self.start(name, node=self.node_of(name))
        return self.go()

    def _waiting(self, *names: str) -> list[str]:
        """The pods that wait, or those of them with these names, which come without the job's."""
        wanted = {f"demo-{name}" for name in names}
        return [
            name
            for name, pod in sorted(self.pods().items())
            if pod.status.phase == "Pending"
            and pod.metadata.deletion_timestamp is None
            and (not wanted or name in wanted)
        ]

    def running(self) -> Self:
        """The job has come to run."""
        self.go()
        self.start_all()
        return self

    def end(self, *names: str, code: int = 0, reaps: bool | None = None) -> Body:
        """These replicas end, all before the operator looks again. The status after that."""
        for name in names:
            self.exit(f"demo-{name}", code)
        return self.go(reaps=reaps)

    def pass_by(self, seconds: float) -> Body:
        """Time passes. The status after that."""
        self.wait(seconds)
        return self.go()

    # -- what there is -------------------------------------------------------------------------------------------

    @property
    def bodies(self) -> dict[Address, Body]:
        """Every object as it was last made."""
        return self.server.bodies

    @property
    def status(self) -> Body:
        """The stored status."""
        status: Body = self.document.get("status", {})
        return status

    def names(self, kind: str = "Pod", *, attempts: bool = False) -> list[str]:
        """The objects of a kind that really exist and are not on their way out, without `prefix`.

        With `attempts`, `worker-0#1` is a pod of the second attempt.
        """
        return sorted(
            name.removeprefix(self.prefix) + (_attempt(child.metadata.labels) if attempts else "")
            for (what, name), child in self.truth.items()
            if what == kind and not child.metadata.deletion_timestamp
        )

    def body(self, kind: str, name: str) -> Body:
        """An object as it was last made."""
        return self.bodies[kind, f"demo-{name}"]

    def env(self, name: str, place: int = 0, group: str = "containers") -> dict[str, Any]:
        """The variables of a container of a pod as it was last made; the last of a name wins."""
        entries = self.body("Pod", name)["spec"][group][place].get("env") or ()
        return {one["name"]: one.get("value", one.get("valueFrom", "")) for one in entries}

    def said(self) -> list[tuple[str, str]]:
        """Reason and message of every event so far."""
        return [(emit.reason or str(emit.event_reason), emit.message) for emit in self.told]

    def status_writes(self) -> int:
        """How often the status had to be written at once."""
        return sum(plan.write is Write.NOW for plan in self.plans)


def _attempt(labels: dict[str, str] | None) -> str:
    attempt = (labels or {}).get("trainwright.dev/attempt", "0")
    return "" if attempt == "0" else f"#{attempt}"
