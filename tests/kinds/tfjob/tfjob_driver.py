# SPDX-License-Identifier: Apache-2.0
"""A TFJob for `driving.KindDriver`: its manifests, and what is true only of the status of this kind."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from driving import KindDriver
from trainwright.kinds.base import Loaded
from trainwright.kinds.tfjob import TFJOB
from trainwright.model.child import ContainerState, ContainerStatus, Extra, GroupStatus, Running
from trainwright.model.job import Body
from trainwright.model.plan import Plan
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
        """A job that restarts does not run."""
        super()._hold(loaded, plan)
        true = {one["type"] for one in self.rendered.get("conditions") or () if one["status"] == "True"}
        assert not {"Running", "Restarting"} <= true

    # -- the user ------------------------------------------------------------------------------------------------

    def suspend(self, on: bool = True) -> Body:
        """Suspended, or resumed, in the way of the kind. The status after that."""
        return self.edited(runPolicy=self.document["spec"].get("runPolicy", {}) | {"suspend": on})

    def scale(self, kind: str, count: int) -> Body:
        """Another number of replicas. The status after that."""
        self.document["spec"]["tfReplicaSpecs"][kind]["replicas"] = count
        return self.edited()

    # -- the kubelet ---------------------------------------------------------------------------------------------

    def restarted_in_place(self, name: str, times: int) -> Body:
        """The kubelet has restarted the container that often by now. The status after that."""
        one = ContainerStatus("tensorflow", ready=True, restart_count=times, state=ContainerState(running=Running()))
        self.change(f"demo-{name}", container_statuses=(one,))
        return self.go()

    def group(self, phase: str) -> Body:
        """The gang's scheduler says so of the group. The status after that."""
        address = ("PodGroup", "demo")
        extra = self.truth[address]
        assert isinstance(extra, Extra)
        self.put(address, replace(extra, status=GroupStatus(phase)))
        return self.go()

    # -- what there is -------------------------------------------------------------------------------------------

    def config(self, name: str) -> str | None:
        """`TF_CONFIG` of a pod as it was last made."""
        return self.env(name).get("TF_CONFIG")


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
