# SPDX-License-Identifier: Apache-2.0
"""A TFJob in the simulated world, driven the way an engine will: load → reconcile → render → store → carry out.

The status lives in the manifest as JSON and nowhere else: every pass loads it anew, so whatever does not survive the
wire is lost here too. Every pass of every test also holds what must always be true of a status (`_hold`).
"""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from driving import KindDriver
from trainwright.kinds.base import Loaded
from trainwright.kinds.tfjob import TFJOB
from trainwright.model.action import Plan, Write
from trainwright.model.child import Container, ContainerState, Extra, GroupStatus, Running
from trainwright.model.job import Body
from trainwright.model.site import Site
from trainwright.testing.factories import UID


def container(name: str = "tensorflow", **more: Any) -> Body:
    """A container of a template."""
    return {"name": name, "image": "tensorflow/tensorflow", **more}


def replicas(count: int | None = 1, *, pod: Body | None = None, **more: Any) -> Body:
    """One replica spec; `pod` goes into the pod's spec."""
    size = {} if count is None else {"replicas": count}
    return {**size, "template": {"spec": {"containers": [container()]} | (pod or {})}, **more}


def manifest(name: str = "demo", *, version: str = "v1", spec: Body | None = None, **types: Body | int) -> Body:
    """A whole TFJob: `Worker=3` or `Worker=replicas(…)`; `spec` is what else stands there."""
    specs = {kind: replicas(one) if isinstance(one, int) else one for kind, one in types.items()}
    return {
        "apiVersion": f"kubeflow.org/{version}",
        "kind": "TFJob",
        "metadata": {"name": name, "namespace": "lab", "uid": UID, "generation": 1},
        "spec": {"tfReplicaSpecs": specs, **(spec or {})},
    }


def policy(**run_policy: Any) -> Body:
    """A spec with this run policy."""
    return {"runPolicy": run_policy}


class Driver(KindDriver):
    """One TFJob, its children, and its stored manifest."""

    kind = TFJOB

    # -- the operator --------------------------------------------------------------------------------------------

    def _hold(self, loaded: Loaded, plan: Plan) -> None:
        """What is true of every status: it is read as it was written, and said twice it says the same."""
        assert self._render(loaded, plan) == self.rendered
        if plan.untouched:
            return
        assert self._again(loaded, plan) == self.rendered
        kinds = [one["type"] for one in self.rendered["conditions"]]
        assert len(set(kinds)) == len(kinds)
        assert not {"Running", "Restarting"} <= {
            one["type"] for one in self.rendered["conditions"] if one["status"] == "True"
        }

    # -- the user ------------------------------------------------------------------------------------------------

    def suspend(self, on: bool = True) -> Body:
        """Suspended, or resumed, in the way of the kind. The status after that."""
        return self.edited(runPolicy=self.document["spec"].get("runPolicy", {}) | {"suspend": on})

    def scale(self, kind: str, count: int) -> Body:
        """Another number of replicas. The status after that."""
        self.document["spec"]["tfReplicaSpecs"][kind]["replicas"] = count
        return self.edited()

    # -- the kubelet ---------------------------------------------------------------------------------------------

    def start_all(self, *names: str) -> Body:
        """Every pod that waits (or these) runs. The status after that."""
        wanted = {f"demo-{name}" for name in names}
        for name, pod in sorted(self.pods().items()):
            if pod.status.phase == "Pending" and (not wanted or name in wanted):
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

    def pass_by(self, seconds: float) -> Body:
        """Time passes. The status after that."""
        self.wait(seconds)
        return self.go()

    def restarted_in_place(self, name: str, times: int) -> Body:
        """The kubelet has restarted the container that often by now. The status after that."""
        one = Container("tensorflow", ready=True, restart_count=times, state=ContainerState(running=Running()))
        self.change(f"demo-{name}", container_statuses=(one,))
        return self.go()

    def group(self, phase: str) -> Body:
        """The gang's scheduler says so of the group. The status after that."""
        address = ("PodGroup", "demo")
        extra = self.truth[address]
        assert isinstance(extra, Extra)
        self._set(address, replace(extra, status=GroupStatus(phase)))
        return self.go()

    # -- what there is -------------------------------------------------------------------------------------------

    def names(self, kind: str = "Pod") -> list[str]:
        """The objects of a kind that really exist and are not on their way out, without the job's name."""
        return sorted(
            name.removeprefix("demo-")
            for (what, name), child in self.truth.items()
            if what == kind and not child.metadata.deletion_timestamp
        )

    def body(self, kind: str, name: str) -> Body:
        """An object as it was last made."""
        return self.bodies[kind, f"demo-{name}"]

    def config(self, name: str) -> str | None:
        """`TF_CONFIG` of a pod as it was last made."""
        env = self.body("Pod", name)["spec"]["containers"][0].get("env") or []
        found = [entry["value"] for entry in env if entry["name"] == "TF_CONFIG"]
        return found[-1] if found else None

    def said(self) -> list[tuple[str, str]]:
        """Reason and message of every event so far."""
        return [(emit.reason or str(emit.moment), emit.message) for emit in self.told]

    def status_writes(self) -> int:
        """How often the status had to be written at once."""
        return sum(plan.write is Write.NOW for plan in self.plans)


def conditions(status: Body) -> list[str]:
    """The conditions in order, briefly: `Running`, or `Running=False(TFJobSuspended)` where it is not true."""
    return [
        one["type"] if one["status"] == "True" else f"{one['type']}={one['status']}({one['reason']})"
        for one in status["conditions"]
    ]


def condition(status: Body, kind: str) -> tuple[str, str, str]:
    """Status, reason, message of one condition."""
    one = next(one for one in status["conditions"] if one["type"] == kind)
    return one["status"], one["reason"], one["message"]


def counts(status: Body) -> dict[str, str]:
    """Active/succeeded/failed of each type."""
    return {
        kind: "/".join(str(one.get(word, 0)) for word in ("active", "succeeded", "failed"))
        for kind, one in status["replicaStatuses"].items()
    }


def gangs(*apis: str) -> Site:
    """A place with these gang schedulers."""
    return Site(gangs=frozenset(apis))


def labels(body: Body, owner: Iterable[str] = ("trainwright.dev/",)) -> dict[str, str]:
    """The labels of an object that are not ours."""
    return {key: text for key, text in body["metadata"]["labels"].items() if not key.startswith(tuple(owner))}
