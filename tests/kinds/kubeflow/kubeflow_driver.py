# SPDX-License-Identifier: Apache-2.0
"""Jobs of the kinds of Kubeflow v1 for `driving.KindDriver`: one driver for all kinds, and short forms of a status."""

from typing import Any

from driving import KindDriver
from trainwright.kinds.base import Kind, Loaded
from trainwright.kinds.jaxjob import JAX, JAXJOB
from trainwright.kinds.kubeflow.framework import Framework
from trainwright.kinds.kubeflow_paddlejob import KUBEFLOW_PADDLEJOB, PADDLE
from trainwright.kinds.pytorchjob import PYTORCH, PYTORCHJOB
from trainwright.kinds.xgboostjob import XGBOOST, XGBOOSTJOB
from trainwright.model.job import Body
from trainwright.model.plan import Plan
from trainwright.testing.factories import UID

#: Each kind with its table, except TFJob, which has tests of its own.
FRAMEWORKS: dict[str, tuple[Kind, Framework]] = {
    "jaxjob": (JAXJOB, JAX),
    "xgboostjob": (XGBOOSTJOB, XGBOOST),
    "pytorchjob": (PYTORCHJOB, PYTORCH),
    "paddlejob": (KUBEFLOW_PADDLEJOB, PADDLE),
}
#: The smallest job of each kind that has more than one replica.
PAIRS: dict[str, dict[str, int]] = {
    "jaxjob": {"Worker": 2},
    "xgboostjob": {"Master": 1, "Worker": 1},
    "pytorchjob": {"Master": 1, "Worker": 1},
    "paddlejob": {"Worker": 2},
}


def replicas(kind: str, count: int | None = 1, *, ports: Any = None, pod: Body | None = None, **more: Any) -> Body:
    """One replica spec; `ports` are those of the main container, and `pod` goes into the pod's spec."""
    container = {"name": FRAMEWORKS[kind][1].main.name, "image": "x"} | ({"ports": ports} if ports else {})
    size = {} if count is None else {"replicas": count}
    return {**size, "template": {"spec": {"containers": [container]} | (pod or {})}, **more}


def manifest(kind: str, spec: Body | None = None, restart: str = "", **types: Body | int | None) -> Body:
    """A whole job: `Worker=3` or `Worker=replicas(…)`; `spec` has the other fields, `restart` is for every type."""
    value, framework = FRAMEWORKS[kind]
    policy: dict[str, Any] = {"restartPolicy": restart} if restart else {}
    specs = {
        name: one if isinstance(one, dict) else replicas(kind, one, **policy)
        for name, one in (types or PAIRS[kind]).items()
    }
    return {
        "apiVersion": value.api_version,
        "kind": value.name,
        "metadata": {"name": "demo", "namespace": "lab", "uid": UID, "generation": 1},
        "spec": {framework.field: specs, **(spec or {})},
    }


def policy(**run_policy: Any) -> Body:
    """The fields of a spec with this run policy."""
    return {"runPolicy": run_policy}


class Driver(KindDriver):
    """One job, its children, and its stored manifest."""

    def __init__(self, document: Body, **more: Any) -> None:
        self.kind, self.framework = FRAMEWORKS[document["kind"].lower()]
        super().__init__(document, **more)

    def _hold(self, loaded: Loaded, plan: Plan) -> None:
        """A job that restarts does not run, and a job that has ended says when."""
        super()._hold(loaded, plan)
        true = {one["type"] for one in self.rendered.get("conditions") or () if one["status"] == "True"}
        assert not {"Running", "Restarting"} <= true
        assert ("completionTime" in self.rendered) == bool(true & {"Succeeded", "Failed"})

    def scale(self, name: str, count: int) -> Body:
        """Another number of replicas. The status after that."""
        self.document["spec"][self.framework.field][name]["replicas"] = count
        return self.edited()

    def variables(self, name: str, place: int = 0) -> list[str]:
        """The variables of a container in order, as `NAME=value`."""
        entries = self.body("Pod", name)["spec"]["containers"][place].get("env") or ()
        return [f"{one['name']}={one.get('value', one.get('valueFrom'))}" for one in entries]


def conditions(status: Body) -> list[str]:
    """The conditions in order, in short: `Running`, or `Running=False` if it is not true."""
    return [one["type"] if one["status"] == "True" else f"{one['type']}=False" for one in status["conditions"]]


def condition(status: Body, name: str) -> tuple[str, str]:
    """Reason and message of one condition."""
    one = next(one for one in status["conditions"] if one["type"] == name)
    return one["reason"], one["message"]


def counts(status: Body) -> dict[str, str]:
    """Active/succeeded/failed of each type."""
    return {
        name: "/".join(str(one.get(word, 0)) for word in ("active", "succeeded", "failed"))
        for name, one in status["replicaStatuses"].items()
    }
