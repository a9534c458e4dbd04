# SPDX-License-Identifier: Apache-2.0
"""Who is where: the ConfigMap in which pods find their peers. For `dialect`; `environment` has what each is told alone.

Paddle's role maker looks for `POD_IP:PADDLE_PORT` in the list of servers, so whatever is written here must agree to the
byte with what is written there.
"""

from collections.abc import Mapping

from trainwright.kinds.paddlejob.roles import HETER, PS, SERVICE, WORKER, gloo, intranet
from trainwright.kinds.paddlejob.wire import PaddleJobSpec
from trainwright.model.child import Observed, Pod
from trainwright.model.job import Job, Role
from trainwright.model.site import Site

#: The first of so many ports in a row that each replica may listen at, and the one of them that Gloo meets at.
PORT, BLOCK, GLOO = 36000, 20, 18
#: Where the endpoints of each role are listed. Of the three for heterogeneous workers Paddle reads the first since 2.2
#: and the second before that; the third is what the original wrote.
LISTS = {
    PS: ("PADDLE_PSERVERS_IP_PORT_LIST",),
    WORKER: ("PADDLE_TRAINER_ENDPOINTS",),
    HETER: ("PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST", "PADDLE_HETER_TRAINER_IP_PORT_LIST", "PADDLE_HETER_ENDPOINTS"),
}
WORLD = "TRAINWRIGHT_WORLD"
_HTTP = "3"
_Peers = list[tuple[str, int]]


def port_of(job: Job, name: str) -> int:
    """Where a replica listens: everywhere the same, but for machines that replicas share."""
    return job.ledger.ports.get(name, PORT)


def named(job: Job, name: str, site: Site) -> str:
    """The host of a replica that goes by its name; Paddle's launcher takes only a host with a dot in it for one."""
    return f"{name}.{job.key.namespace}" if site.names_resolve else site.host(job.key, name)


def endpoint(host: str, port: int) -> str:
    """`host:port`, with brackets around the colons of IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def mark(job: Job) -> str:
    """A key that only the ConfigMap of this attempt has: a pod that finds another one of its name does not start."""
    return f"{WORLD}_{job.world.upper()}"


def data(job: Job, spec: PaddleJobSpec, observed: Observed, site: Site) -> dict[str, str] | None:
    """All keys; None while an address is not known."""
    pods = None if intranet(spec) == SERVICE else {pod.metadata.name: pod for pod in observed.pods}
    found: dict[str, str] = {"TRAINER_PORTS_NUM": str(BLOCK), mark(job): job.world}
    if not job.ledger.ports:
        found["PADDLE_PORT"] = str(PORT)
    for role in job.roles:
        peers = _peers(job, role, pods, site)
        if peers is None:
            return None
        found |= _of_role(job, spec, role, peers)
    return found


def _of_role(job: Job, spec: PaddleJobSpec, role: Role, peers: _Peers) -> dict[str, str]:
    listed = ",".join([endpoint(host, port) for host, port in peers])
    if role.name == WORKER:
        hosts = ",".join([host for host, _ in peers])
        return {LISTS[WORKER][0]: listed, "PADDLE_TRAINERS": hosts, "PADDLE_TRAINERS_NUM": str(role.replicas)}
    if role.name == HETER:
        return dict.fromkeys(LISTS[HETER], listed) | _stages(job) if peers else {}
    return {LISTS[PS][0]: listed} | (_gloo(spec, peers[0]) if gloo(spec) else {})


def _stages(job: Job) -> dict[str, str]:
    """Workers are the first of two stages, heterogeneous ones the second."""
    sizes = {role.name: role.replicas for role in job.roles}
    return {"STAGE_NUM": "2", "PADDLE_STAGE_TRAINERS_NUM": f"[{sizes[WORKER]}, {sizes[HETER]}]"}


def _gloo(spec: PaddleJobSpec, first: tuple[str, int]) -> dict[str, str]:
    """The first server opens a meeting point beside its own port."""
    host, port = first
    return {
        "PADDLE_WITH_GLOO": str(gloo(spec)),
        "PADDLE_GLOO_RENDEZVOUS": _HTTP,
        "PADDLE_GLOO_HTTP_ENDPOINT": endpoint(host, port + GLOO),
    }


def _peers(job: Job, role: Role, pods: Mapping[str, Pod] | None, site: Site) -> _Peers | None:
    """Host and port of each replica, by name where no pods are given; None while one has no host."""
    prefix = job.key.replica_prefix(role.name)
    names = [f"{prefix}{index}" for index in range(role.replicas)]
    if pods is None:
        hosts = [named(job, name, site) for name in names]
    else:
        hosts = [pods[name].status.pod_ip if name in pods else "" for name in names]
    ports = job.ledger.ports
    numbers = [ports.get(name, PORT) for name in names] if ports else [PORT] * len(names)
    return [*zip(hosts, numbers, strict=True)] if all(hosts) else None
