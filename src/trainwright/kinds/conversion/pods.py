# SPDX-License-Identifier: Apache-2.0
"""The pods of a job as its kind renders them, for comparisons and for the templates of another kind.

Some kinds let pods read variables from a ConfigMap of the job (its gate). Here each pod has these variables itself,
because only that kind has the ConfigMap.
"""

import re
from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trainwright.kinds.writing import Notation, replica_of
from trainwright.model.cause import CauseKind
from trainwright.model.child import Observed, Pod, PodStatus
from trainwright.model.job import Body, Job, Role
from trainwright.model.ledger import Ledger, RoleLedger
from trainwright.model.meta import Meta
from trainwright.model.site import Site

#: The lists of containers in a pod spec.
GROUPS = ("initContainers", "containers")
#: An index that no replica has: a text that contains it depends on the index of the replica.
UNUSED_INDEX = 75_437
_REFERENCE = re.compile(r"\$(?:(\$)|\(([^()]*)\))")


class Rendering(Struct, frozen=True, dict=True):
    """The pods of one job at one site."""

    job: Job
    site: Site = Site()

    def pod(self, role: Role, index: int) -> Body:
        """The pod of one replica: `metadata` and `spec`."""
        body = self.job.dialect.pod(self.job, replica_of(self.job, role, index), self.site)
        if not role.gate:
            return body
        data = self._gate_data(role.gate)
        containers = [_without_gate(one, role.gate, data) for one in body["spec"]["containers"]]
        return body | {"spec": body["spec"] | {"containers": containers}}

    def role(self, name: str) -> Role | None:
        """The role with this name; upper and lower case are equal."""
        return next((role for role in self.job.roles if role.name.lower() == name.lower()), None)

    def resized(self, name: str) -> "Rendering":
        """The same job with one more replica of a role."""
        roles = tuple(replace(one, replicas=one.replicas + (one.name == name)) for one in self.job.roles)
        return Rendering(replace(self.job, roles=roles), self.site)

    def restarted(self) -> "Rendering":
        """The same job after restarts and a pause."""
        books = tuple(RoleLedger(role.name, epoch=1, restarts={str(CauseKind.EXIT): 7}) for role in self.job.roles)
        return Rendering(replace(self.job, ledger=Ledger(roles=books, resumes=1)), self.site)

    def _gate_data(self, gate: str) -> Mapping[str, str]:
        """The data of the ConfigMap, with the host of each replica as the address of its pod."""
        key = self.job.key
        names = [key.replica_name(role.name, index) for role in self.job.roles for index in range(role.replicas)]
        pods = tuple(Pod(Meta(name), status=PodStatus(pod_ip=self.site.host(key, name))) for name in names)
        extras = self.job.dialect.extras(self.job, Observed(pods), self.site)
        found = (one["data"] for one in extras if one["kind"] == "ConfigMap" and one["metadata"]["name"] == gate)
        return next(found, {})


def new_job(job: Job) -> Job:
    """The job as a new, running job: its stored status, and a suspension, have no effect on what it creates."""
    return replace(job, ledger=Ledger(), lifecycle=replace(job.lifecycle, suspended=False))


def symbolic_site(job: Job, notation: Notation) -> Site:
    """A site at which the host of each replica is the text for it in a notation."""
    hosts = {
        (job.key, job.key.replica_name(role.name, index)): notation.host(role.name, index)
        for role in job.roles
        for index in range(role.replicas + 1)
    }
    return Site(names_resolve=False, hosts=hosts)


def _without_gate(container: Body, gate: str, data: Mapping[str, str]) -> Body:
    env_from = container.get("envFrom") or []
    kept = [one for one in env_from if (one.get("configMapRef") or {}).get("name") != gate]
    shared = [{"name": name, "value": value} for name, value in data.items()] if len(kept) < len(env_from) else []
    own = [_from_data(entry, gate, data) for entry in container.get("env") or ()]
    rest = {key: part for key, part in container.items() if key != "envFrom"}
    return rest | {"env": [*shared, *own]} | ({"envFrom": kept} if kept else {})


def _from_data(entry: Body, gate: str, data: Mapping[str, str]) -> Body:
    source = (entry.get("valueFrom") or {}).get("configMapKeyRef") or {}
    return {"name": entry["name"], "value": data.get(source["key"], "")} if source.get("name") == gate else entry


# -- containers ------------------------------------------------------------------------------------------------------


def containers(pod: Body) -> Iterator[tuple[str, int, Body]]:
    """Every container of a pod or template: its list, its position there, and the container."""
    for group in GROUPS:
        for position, one in enumerate((pod.get("spec") or {}).get(group) or ()):
            yield group, position, one


def environment(container: Body) -> dict[str, str]:
    """The variables that the program gets; a variable with another source has this source as its value."""
    found: dict[str, str] = {}
    for entry in container.get("env") or ():
        source = entry.get("valueFrom")
        value = entry.get("value") or ""
        found[entry["name"]] = msgspec.json.encode(source).decode() if source else expanded(value, found)
    return found


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """The text after the kubelet has replaced `$(NAME)` and `$$` in it."""
    return _REFERENCE.sub(lambda match: "$" if match[1] else variables.get(match[2], match[0]), text)
