# SPDX-License-Identifier: Apache-2.0
"""An AITrainingJob for `driving.KindDriver`: its manifests, and what is true only of the status of this kind."""

from typing import Any

from driving import KindDriver
from trainwright.kinds.aitrainingjob import AITRAININGJOB
from trainwright.kinds.aitrainingjob.conditions import FINAL_PHASES
from trainwright.kinds.aitrainingjob.wire import MAX_CONDITIONS
from trainwright.kinds.base import Loaded
from trainwright.model.child import ContainerState, ContainerStatus, ObjectCondition, Waiting
from trainwright.model.job import Body
from trainwright.model.plan import Plan
from trainwright.model.site import Site
from trainwright.testing.factories import UID

MAIN = "aitj-main"


def container(name: str = MAIN, **more: Any) -> Body:
    """A container of a template."""
    return {"name": name, "image": "python", **more}


def ports(*numbers: int) -> list[Body]:
    """Ports that count."""
    return [{"name": f"aitj-{number}", "containerPort": number} for number in numbers]


def replicas(count: int | None = 1, *, pod: Body | None = None, **more: Any) -> Body:
    """One replica spec; `pod` goes into the pod's spec."""
    size = {} if count is None else {"replicas": count}
    return {**size, "template": {"spec": {"containers": [container()]} | (pod or {})}, **more}


def manifest(*, name: str = "demo", spec: Body | None = None, meta: Body | None = None, **types: Body | int) -> Body:
    """A whole job: `trainer=3` or `trainer=replicas(…)`; `spec` and `meta` are what else stands there."""
    specs = {kind: replicas(one) if isinstance(one, int) else one for kind, one in types.items()}
    return {
        "apiVersion": "elasticdeeplearning.ai/v1",
        "kind": "AITrainingJob",
        "metadata": {"name": name, "namespace": "lab", "uid": UID, "generation": 1} | (meta or {}),
        "spec": {"replicaSpecs": specs, **(spec or {})},
    }


class Driver(KindDriver):
    """One job, its children, and its stored manifest."""

    kind = AITRAININGJOB
    unique_conditions = False

    def __init__(self, document: Body, *, site: Site | None = None, nodes: tuple[str, ...] = ()) -> None:
        #: Every phase that was ever stored, one after the other.
        self.phases: list[str] = []
        super().__init__(document, site=site, nodes=nodes)

    # -- the operator --------------------------------------------------------------------------------------------

    def _hold(self, loaded: Loaded, plan: Plan) -> None:
        """The phase is the last condition, and the only one that is true."""
        super()._hold(loaded, plan)
        conditions = self.rendered["conditions"] or []
        steps = [one for one in conditions if one["type"] != "Invalid"]
        assert "RestartReplicaName" in self.rendered
        assert len(steps) <= MAX_CONDITIONS
        assert [one["status"] for one in steps] == ["False"] * (len(steps) - 1) + ["True"] * bool(steps)
        assert self.rendered["phase"] == (steps[-1]["type"] if steps else "")
        assert all(one["reason"] == f"TrainingJob{one['type']}" for one in conditions)
        assert ("endTime" in self.rendered) == (self.rendered["phase"] in FINAL_PHASES)

    @property
    def _rests(self) -> bool:
        """While a replica restarts its old pods may go, and the second rendering says so."""
        return not self.rendered["RestartReplicaName"]

    def _save(self) -> None:
        super()._save()
        if not self.phases or self.phases[-1] != self.rendered["phase"]:
            self.phases.append(self.rendered["phase"])

    # -- the user ------------------------------------------------------------------------------------------------

    def scale(self, kind: str, count: int) -> Body:
        """Another number of replicas. The status after that."""
        self.document["spec"]["replicaSpecs"][kind]["replicas"] = count
        return self.edited()

    def annotate(self, *, reaps: bool | None = None, **annotations: str) -> Body:
        """Somebody annotates the job; its generation stays. The status after that."""
        self.document["metadata"].setdefault("annotations", {}).update(annotations)
        return self.go(reaps=reaps)

    # -- the kubelet ---------------------------------------------------------------------------------------------

    def place(self, *names: str) -> Body:
        """Every pod that has no node (or these) gets one. The status after that."""
        for name in self._waiting(*names):
            self.bind(name)
        return self.go()

    def node_of(self, name: str) -> str:
        """Pod trainer-1 runs on node trainer-1, where there is one that answers; else on `spare`, or on node-1."""
        if self.nodes is None:
            return "node-1"
        known = self.nodes.get(name.removeprefix("demo-"))
        silent = known is None or any(one.status != "True" for one in known.status.conditions or ())
        return "spare" if silent else name.removeprefix("demo-")

    def stick(self, name: str, reason: str = "ImagePullBackOff", message: str = "no such image") -> Body:
        """A container of a placed pod cannot be made. The status after that."""
        self.bind(f"demo-{name}")
        waiting = ContainerStatus(MAIN, state=ContainerState(waiting=Waiting(reason, message)))
        self.change(f"demo-{name}", start_time=self.clock, container_statuses=(waiting,))
        return self.go()

    def unschedulable(self, name: str, message: str = "0/3 nodes are available") -> Body:
        """The scheduler finds no place for a pod. The status after that."""
        said = ObjectCondition("PodScheduled", "False", "Unschedulable", message, self.clock)
        self.change(f"demo-{name}", conditions=(said,))
        return self.go()

    def again(self) -> Body:
        """The back-off passes, and what is made after it runs. The status after that."""
        self.pass_by(60)
        return self.start_all()

    # -- what there is -------------------------------------------------------------------------------------------

    def names(self, kind: str = "Pod", *, attempts: bool = True) -> list[str]:
        """As for every kind, with attempts."""
        return super().names(kind, attempts=attempts)


def told(status: Body) -> list[tuple[str, str]]:
    """Type and message of every condition."""
    return [(one["type"], one["message"]) for one in status["conditions"]]


def last(status: Body) -> tuple[str, str]:
    """Phase and message of where the job is."""
    assert status["phase"] == status["conditions"][-1]["type"]
    return told(status)[-1]
