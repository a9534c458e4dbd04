# SPDX-License-Identifier: Apache-2.0
"""Who is where: the ConfigMap in which pods find their peers, and the variables by which each finds itself in it.

Paddle's role maker looks for `POD_IP:PADDLE_PORT` in the list of servers, so whatever is written here must agree to the
byte. For `dialect`.
"""

from collections.abc import Mapping

from msgspec import UNSET

from trainwright.kinds.paddlejob.roles import HETER, PS, SERVICE, TRAINING, WORKER, elastic, gloo, intranet
from trainwright.kinds.paddlejob.wire import PaddleJobSpec
from trainwright.model.child import Observed, Pod
from trainwright.model.job import Body, Job, Replica, Role
from trainwright.model.meta import Key
from trainwright.model.site import Site

#: The first of so many ports in a row that each replica may listen at, and the one of them that Gloo meets at.
PORT, BLOCK, GLOO = 36000, 20, 18
_HTTP = "3"
_LISTS = {
    PS: ("PADDLE_PSERVERS_IP_PORT_LIST",),
    WORKER: ("PADDLE_TRAINER_ENDPOINTS",),
    # The first is what Paddle reads, the second what the original wrote.
    HETER: ("PADDLE_HETER_TRAINER_IP_PORT_LIST", "PADDLE_HETER_ENDPOINTS"),
}
_WORLD = "TRAINWRIGHT_WORLD"


def port_of(job: Job, name: str) -> int:
    """Where a replica listens: everywhere the same, but for machines that replicas share."""
    return job.ledger.ports.get(name, PORT)


def endpoint(host: str, port: int) -> str:
    """`host:port`, with brackets around the colons of IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def mark(job: Job) -> str:
    """A key that only the ConfigMap of this attempt has: a pod that finds another one of its name does not start."""
    return f"{_WORLD}_{job.world.upper()}"


# -- the ConfigMap -------------------------------------------------------------------------------------------------


def data(job: Job, spec: PaddleJobSpec, observed: Observed, site: Site) -> dict[str, str] | None:
    """All keys; None while an address is not known."""
    pods = {} if intranet(spec) == SERVICE else {pod.metadata.name: pod for pod in observed.pods}
    found: dict[str, str] = {"TRAINER_PORTS_NUM": str(BLOCK), mark(job): job.world}
    if not job.ledger.ports:
        found["PADDLE_PORT"] = str(PORT)
    for role in job.roles:
        peers = [_peer(job, spec, f"{job.key.name}-{role.name}-{index}", pods, site) for index in range(role.replicas)]
        if not all(host for host, _ in peers):
            return None
        found |= _of_role(role, peers)
        if role.name == PS and gloo(spec):
            found |= _gloo(spec, peers[0])
    return found


def _of_role(role: Role, peers: list[tuple[str, int]]) -> dict[str, str]:
    found = dict.fromkeys(_LISTS[role.name], ",".join([endpoint(host, port) for host, port in peers]))
    if role.name == WORKER:
        found |= {"PADDLE_TRAINERS": ",".join([host for host, _ in peers]), "PADDLE_TRAINERS_NUM": str(role.replicas)}
    return found


def _gloo(spec: PaddleJobSpec, first: tuple[str, int]) -> dict[str, str]:
    """The first server opens a meeting point beside its own port."""
    host, port = first
    return {
        "PADDLE_WITH_GLOO": str(gloo(spec)),
        "PADDLE_GLOO_RENDEZVOUS": _HTTP,
        "PADDLE_GLOO_HTTP_ENDPOINT": endpoint(host, port + GLOO),
    }


def _peer(job: Job, spec: PaddleJobSpec, name: str, pods: Mapping[str, Pod], site: Site) -> tuple[str, int]:
    """Host and port of a replica; an empty host while it has none."""
    if intranet(spec) == SERVICE:
        return site.host(job.key, name), port_of(job, name)
    pod = pods.get(name)
    return pod.status.pod_ip if pod is not None else "", port_of(job, name)


# -- the variables of one pod --------------------------------------------------------------------------------------


def variables(job: Job, spec: PaddleJobSpec, replica: Replica, site: Site) -> list[Body]:
    """What its container is told besides the ConfigMap; later entries may refer to earlier ones."""
    role = TRAINING[replica.role.name]
    port = port_of(job, replica.name)
    found = [
        _pod_ip(job.key, spec, replica.name, site),
        _said("PADDLE_TRAINER_ID", replica.index),
        _said("TRAINING_ROLE", role),
        _said("PADDLE_TRAINING_ROLE", role),
    ]
    if replica.name in job.ledger.ports or elastic(spec):
        found.append(_said("PADDLE_PORT", port))
    found.append(_said("PADDLE_CURRENT_ENDPOINT", f"$(POD_IP):{port}"))
    if elastic(spec):
        return found + _elastic(job, spec, replica.role, site)
    reference = {"configMapKeyRef": {"name": job.key.name, "key": mark(job)}}
    return [*found, {"name": _WORLD, "valueFrom": reference}]


def _pod_ip(job: Key, spec: PaddleJobSpec, name: str, site: Site) -> Body:
    if intranet(spec) == SERVICE:
        return _said("POD_IP", site.host(job, name))
    return {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def _elastic(job: Job, spec: PaddleJobSpec, role: Role, site: Site) -> list[Body]:
    """By which Paddle's own launcher finds its peers, and knows how many there may be."""
    found = [
        _said("PADDLE_ELASTIC_JOB_ID", f"{job.key.namespace}-{job.key.name}"),
        _said("PADDLE_ELASTIC_NP", _sizes(spec, role)),
        _said("PADDLE_ELASTIC_TIMEOUT", 60),
    ]
    return [*found, _said("PADDLE_ELASTIC_SERVER", site.elastic_server)] if site.elastic_server else found


def _sizes(spec: PaddleJobSpec, role: Role) -> str:
    """`fewest:most` where either is said; else the number there is, which only lets those come back who have gone."""
    one = spec.worker
    if one is None or (one.requests is UNSET and one.limits is UNSET):
        return str(role.replicas)
    least = 1 if one.requests is UNSET else max(one.requests, 1)
    return f"{least}:{max(role.replicas if one.limits is UNSET else one.limits, least)}"


def _said(name: str, value: object) -> Body:
    return {"name": name, "value": str(value)}
