# SPDX-License-Identifier: Apache-2.0
"""A GenericJob in the simulated world, driven the way an engine will: load → reconcile → render → store → carry out.

The status lives in the manifest as JSON and nowhere else: every pass loads it anew, so whatever does not survive the
wire is lost here too. Every pass of every test also holds what must always be true of a status (`_hold`).
"""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import msgspec

from trainwright.core.reconcile import reconcile
from trainwright.kinds.base import Loaded, load
from trainwright.kinds.gangs import T9K_API
from trainwright.kinds.genericjob import GENERICJOB, wire
from trainwright.model.action import Create, Plan
from trainwright.model.child import Container, Pod
from trainwright.model.job import Body
from trainwright.model.ledger import Ledger
from trainwright.model.site import Site
from trainwright.testing.factories import UID
from trainwright.testing.world import World

GANGS = (T9K_API,)
#: What an API server comfortably stores of one status.
LARGEST_STATUS = 256 * 1024


def container(name: str = "main", **more: Any) -> Body:
    """A container of a template."""
    return {"name": name, "image": "busybox", **more}


def replicas(kind: str = "worker", count: int = 4, *, pod: Body | None = None, **more: Any) -> Body:
    """One replica spec; `pod` goes into the pod's spec."""
    return {"type": kind, "replicas": count, "template": {"spec": {"containers": [container()]} | (pod or {})}, **more}


def manifest(*specs: Body, name: str = "demo", **spec: Any) -> Body:
    """A whole GenericJob; four workers unless told otherwise."""
    return {
        "apiVersion": "batch.tensorstack.dev/v1beta1",
        "kind": "GenericJob",
        "metadata": {"name": name, "namespace": "lab", "uid": UID, "generation": 1},
        "spec": {"replicaSpecs": list(specs) or [replicas()], **spec},
    }


class Driver(World):
    """One GenericJob, its children, and its stored manifest."""

    def __init__(self, document: Body, *, gangs: Iterable[str] = (), nodes: tuple[str, ...] = ()) -> None:
        self.document = msgspec.json.decode(msgspec.json.encode(document))
        self.bodies: dict[tuple[str, str], Body] = {}
        self.rendered: Body = {}
        super().__init__(self.load().job, site=Site(gangs=frozenset(gangs)), nodes=nodes)

    # -- the operator --------------------------------------------------------------------------------------------

    def load(self) -> Loaded:
        """The stored manifest, read."""
        return load(GENERICJOB, self.document)

    def look(self) -> Plan:
        """One pass over the stored manifest; its status is rendered along."""
        loaded = self.load()
        self.job = self.seen_job = loaded.job
        plan = reconcile(loaded.job, self.observed(), self.site, self.clock)
        self.rendered = GENERICJOB.render(loaded.status, loaded.job, plan.status, self.clock)
        self._hold(loaded, plan)
        return plan

    def _hold(self, loaded: Loaded, plan: Plan) -> None:
        """What is true of every status."""
        encoded = msgspec.json.encode(self.rendered)
        again = GENERICJOB.render(loaded.status, loaded.job, plan.status, self.clock)
        assert msgspec.json.encode(again) == encoded
        assert len(encoded) < LARGEST_STATUS
        assert msgspec.json.decode(encoded, type=wire.GenericJobStatus).trainwright == plan.status.ledger
        if not loaded.errors:
            total = sum(role.replicas for role in loaded.job.roles)
            assert sum(self.rendered["aggregate"].values()) == total

    def step(self, *, dies_after: int | None = None) -> Plan:
        """One pass, carried out; counters are stored as well."""
        plan = super().step(dies_after=dies_after)
        if dies_after is None and not plan.untouched:
            self._save()
        return plan

    def _store(self, ledger: Ledger) -> None:
        assert ledger == self.plans[-1].status.ledger
        self.writes.append("status")
        self._save()

    def _save(self) -> None:
        self.document["status"] = msgspec.json.decode(msgspec.json.encode(self.rendered))

    def _create(self, create: Create) -> None:
        self.bodies[create.body["kind"], create.name] = deepcopy(create.body)
        super()._create(create)

    def go(self) -> Body:
        """Let the operator work until it rests; no time passes. The stored status."""
        for _ in range(50):
            self.catch_up()
            before = self.document.get("status")
            plan = self.step()
            if plan.empty and not self.notes and self.document["status"] == before:
                return self.status
        raise AssertionError(f"no rest: {self.plans[-2:]}")

    # -- the user ------------------------------------------------------------------------------------------------

    def edit(self, **changes: Any) -> None:
        """Somebody changes fields of the spec."""
        self.document["spec"] |= msgspec.json.decode(msgspec.json.encode(changes))
        self.document["metadata"]["generation"] += 1

    def pause(self, *, enabled: bool = True) -> None:
        """Flip `pause.enabled` and leave the rest of the run mode as it is."""
        self.document["spec"].setdefault("runMode", {}).setdefault("pause", {})["enabled"] = enabled
        self.document["metadata"]["generation"] += 1

    # -- the kubelet ---------------------------------------------------------------------------------------------

    def start_all(self) -> Body:
        """Every pod that waits runs. The status after that."""
        for name, pod in sorted(self.pods().items()):
            if pod.status.phase == "Pending":
                self.start(name)
        return self.go()

    def running(self) -> "Driver":
        """The job has come to run."""
        self.go()
        self.start_all()
        return self

    def end(self, *names: str, code: int = 0) -> Body:
        """These replicas end, all before the operator looks again. The status after that."""
        for name in names:
            self.exit(f"demo-{name}", code)
        return self.go()

    def fail_and_restart(self, name: str, code: int = 1) -> Body:
        """A replica fails, its back-off passes, and it runs again."""
        self.end(name, code=code)
        self.wait(60)
        self.go()
        self.reap()
        self.go()
        return self.start_all()

    def containers(self, name: str, *containers: Container, **status: Any) -> Body:
        """A pod's containers are so. The status after that."""
        self.change(name, container_statuses=containers, **status)
        return self.go()

    # -- what there is -------------------------------------------------------------------------------------------

    @property
    def status(self) -> Body:
        """The stored status."""
        status: Body = self.document["status"]
        return status

    def names(self, kind: str = "Pod") -> list[str]:
        """The objects of a kind that really exist and are not on their way out."""
        return sorted(
            name for (what, name), child in self.truth.items() if what == kind and not child.metadata.deletion_timestamp
        )

    def pod_spec(self, name: str) -> Body:
        """The spec with which a pod was last made."""
        spec: Body = self.bodies["Pod", f"demo-{name}"]["spec"]
        return spec

    def pod(self, name: str) -> Pod:
        """A pod that really exists."""
        return self.pods()[f"demo-{name}"]


def conditions(status: Body) -> list[tuple[str, str, str, str]]:
    """Type, status, reason, message of every condition, in order."""
    return [(one["type"], one["status"], one["reason"], one["message"]) for one in status["conditions"]]


def condition(status: Body, kind: str) -> tuple[str, str, str]:
    """Status, reason, message of one condition."""
    return next(tuple(rest) for what, *rest in conditions(status) if what == kind)  # type: ignore[return-value]


def phases(status: Body) -> dict[str, str]:
    """The phase of every listed replica, by name without the job's."""
    return {one["name"].removeprefix("demo-"): one["phase"] for task in status["tasks"] for one in task["replicas"]}


def aggregate(**counts: int) -> dict[str, int]:
    """An aggregate; what is not named is 0."""
    words = ("creating", "pending", "running", "succeeded", "failed", "unknown", "deleted")
    return dict.fromkeys(words, 0) | counts


def restart_count(status: Body, kind: str = "worker") -> int | None:
    """The restart count of a type; None where it is left out."""
    count: int | None = next(task.get("restartCount") for task in status["tasks"] if task["type"] == kind)
    return count
