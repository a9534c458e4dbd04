# SPDX-License-Identifier: Apache-2.0
"""A GenericJob for `driving.KindDriver`: its manifests, and what is true only of the status of this kind."""

from collections.abc import Iterable
from typing import Any

from driving import KindDriver
from trainwright.kinds.base import Loaded
from trainwright.kinds.gangs import T9K_API
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.model.child import ContainerStatus, Pod
from trainwright.model.job import Body
from trainwright.model.plan import Plan
from trainwright.model.site import Site
from trainwright.testing.factories import UID

GANGS = (T9K_API,)


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


class Driver(KindDriver):
    """One GenericJob, its children, and its stored manifest."""

    kind = GENERICJOB
    reaps = False
    prefix = ""

    def __init__(self, document: Body, *, gangs: Iterable[str] = (), nodes: tuple[str, ...] = ()) -> None:
        super().__init__(document, site=Site(gangs=frozenset(gangs)), nodes=nodes)

    def _hold(self, loaded: Loaded, plan: Plan) -> None:
        """Every replica is counted."""
        super()._hold(loaded, plan)
        if not loaded.errors:
            total = sum(role.replicas for role in loaded.job.roles)
            assert sum(self.rendered["aggregate"].values()) == total

    # -- the user ------------------------------------------------------------------------------------------------

    def pause(self, *, enabled: bool = True) -> None:
        """Flip `pause.enabled` and leave the rest of the run mode as it is."""
        self.document["spec"].setdefault("runMode", {}).setdefault("pause", {})["enabled"] = enabled
        self.document["metadata"]["generation"] += 1

    # -- the kubelet ---------------------------------------------------------------------------------------------

    def fail_and_restart(self, name: str, code: int = 1) -> Body:
        """A replica fails, its back-off passes, and it runs again."""
        self.end(name, code=code)
        self.wait(60)
        self.go()
        self.reap()
        self.go()
        return self.start_all()

    def containers(self, name: str, *containers: ContainerStatus, **status: Any) -> Body:
        """A pod's containers are so. The status after that."""
        self.change(name, container_statuses=containers, **status)
        return self.go()

    # -- what there is -------------------------------------------------------------------------------------------

    def pod_spec(self, name: str) -> Body:
        """The spec with which a pod was last made."""
        spec: Body = self.body("Pod", name)["spec"]
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
