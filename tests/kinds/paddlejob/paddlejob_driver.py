# SPDX-License-Identifier: Apache-2.0
"""A PaddleJob for `driving.KindDriver`: its manifests, and what is true only of the status of this kind."""

from typing import Any

from msgspec.structs import replace

from driving import KindDriver
from trainwright.kinds.paddlejob import PADDLEJOB
from trainwright.model.child import Observed
from trainwright.model.job import Body
from trainwright.model.site import Site
from trainwright.testing.factories import UID


def container(name: str = "paddle", **more: Any) -> Body:
    """A container of a template."""
    return {"name": name, "image": "paddle", **more}


def role(count: int = 1, *, pod: Body | None = None, meta: Body | None = None, **more: Any) -> Body:
    """One role; `pod` goes into the pod's spec."""
    template: Body = {"spec": {"containers": [container()]} | (pod or {})} | ({"metadata": meta} if meta else {})
    return {"replicas": count, "template": template, **more}


def manifest(name: str = "demo", **spec: Any) -> Body:
    """A whole PaddleJob: `worker=2`, `ps=role(…)`, and whatever else stands in its spec."""
    parts = {
        key: role(one) if key in ("ps", "worker", "heter") and isinstance(one, int) else one
        for key, one in spec.items()
    }
    return {
        "apiVersion": "batch.paddlepaddle.org/v1",
        "kind": "PaddleJob",
        "metadata": {"name": name, "namespace": "lab", "uid": UID, "generation": 1},
        "spec": parts,
    }


class Driver(KindDriver):
    """One PaddleJob, its children, and its stored manifest."""

    kind = PADDLEJOB

    def __init__(self, document: Body, *, site: Site | None = None, nodes: tuple[str, ...] = ()) -> None:
        self.held: frozenset[int] = frozenset()
        super().__init__(document, site=site, nodes=nodes)
        assert self.load().errors == (), self.load().errors

    # -- the operator --------------------------------------------------------------------------------------------

    def observed(self) -> Observed:
        return replace(super().observed(), ports=self.held)

    def wait_out(self) -> Body:
        """Every back-off passes, and what follows is done."""
        for _ in range(3):
            self.wait(60)
            status = self.go()
        return status

    # -- the user ------------------------------------------------------------------------------------------------

    def scale(self, name: str, count: int) -> Body:
        """Another number of replicas. The status after that."""
        self.document["spec"][name]["replicas"] = count
        return self.edited()

    # -- the kubelet ---------------------------------------------------------------------------------------------

    def run(self) -> Body:
        """Every pod that can starts, again and again until all that can have. The status after that."""
        self.go()
        for _ in range(4):
            for name, pod in sorted(self.pods().items()):
                if pod.status.phase == "Pending" and pod.metadata.deletion_timestamp is None:
                    self.start(name, node=name.removeprefix("demo-") if self.nodes else "node-1")
            self.go()
        return self.status

    # -- looking -------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        return str(self.status["phase"])

    @property
    def conditions(self) -> dict[str, tuple[str, str]]:
        return {one["type"]: (one["status"], one["reason"]) for one in self.status["conditions"]}

    @property
    def data(self) -> dict[str, str]:
        """What the ConfigMap holds, but for the key that only marks it."""
        assert ("ConfigMap", "demo") in self.truth
        found = self.bodies["ConfigMap", "demo"]["data"]
        return {key: value for key, value in found.items() if not key.startswith("TRAINWRIGHT_")}

    def env(self, name: str, place: int = 0, group: str = "containers") -> dict[str, Any]:
        """What a pod's container is told, but for the ConfigMap; the last entry of a name wins."""
        found = super().env(name, place, group)
        return {key: value for key, value in found.items() if not key.startswith("TRAINWRIGHT_")}

    def names(self, kind: str = "Pod", *, attempts: bool = True) -> list[str]:
        """As for every kind, with attempts."""
        return super().names(kind, attempts=attempts)
