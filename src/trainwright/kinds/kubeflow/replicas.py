# SPDX-License-Identifier: Apache-2.0
"""The replica types of a kind of Kubeflow v1, and the container that trains."""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from trainwright.kinds.kubeflow.wire import KubeflowSpec, ReplicaSpec
from trainwright.model.job import Body, Role
from trainwright.model.problem import Problem

MASTER, WORKER = "Master", "Worker"


class ReplicaTypes(Struct, frozen=True):
    """The types of a kind, and how manifests may spell them."""

    #: All types, in the order in which pods are created and counted.
    names: tuple[str, ...]
    #: Types that lead the job if they have replicas. In a job without them, the workers lead.
    leaders: tuple[str, ...] = (MASTER,)
    #: The type for each spelling in lower case. None: a type must be spelt exactly as in `names`.
    spellings: Mapping[str, str] | None = None

    def canonical(self, key: str) -> str | None:
        """The replica type for a key of the replica specs; None: unknown key."""
        if self.spellings is not None:
            return self.spellings.get(key.lower())
        return key if key in self.names else None

    def specs(self, spec: KubeflowSpec) -> dict[str, ReplicaSpec]:
        """The replica specs of a checked job by type, in the order of `names`."""
        found = {self.canonical(key): one for key, one in spec.replica_specs.items()}
        return {name: found[name] for name in self.names if name in found}

    def leader_of(self, sizes: Iterable[tuple[str, int]]) -> str | None:
        """The first leading type that has replicas; None if there is none."""
        return next((name for name, replicas in sizes if name in self.leaders and replicas), None)

    def leading(self, spec: KubeflowSpec) -> str:
        """The type whose success decides the job: a leader, or the workers if there is none."""
        return self.leader_of((name, one.replicas) for name, one in self.specs(spec).items()) or WORKER


class MainContainer(Struct, frozen=True):
    """The name of the container that trains, and the name and number of its port."""

    name: str
    port_name: str
    port: int

    def find(self, template: Body) -> Body:
        """The container that trains in this pod template; empty if there is none."""
        containers = (template.get("spec") or {}).get("containers") or ()
        return next((one for one in containers if one.get("name") == self.name), {})

    def port_of(self, role: Role) -> int:
        """The number of the port with the kind's name in a role, or its default."""
        ports = self.find(role.template).get("ports") or ()
        return next((int(port["containerPort"]) for port in ports if port.get("name") == self.port_name), self.port)

    def with_port(self, container: Body) -> Body:
        """The container with the default port, unless it has a port of that name."""
        ports = container.get("ports") or []
        if any(port.get("name") == self.port_name for port in ports):
            return container
        return container | {"ports": [*ports, {"name": self.port_name, "containerPort": self.port}]}


def one_master(name: str, one: ReplicaSpec, path: str) -> Iterator[Problem]:
    """Check that there is one master, in kinds in which the original webhook requires it."""
    if name == MASTER and one.replicas != 1:
        yield Problem(f"{path}.replicas", f"must be 1, found {one.replicas}")
