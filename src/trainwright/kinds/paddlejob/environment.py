# SPDX-License-Identifier: Apache-2.0
"""Who is where: the ConfigMap in which pods find their peers. For `dialect`; `environment` has what each is told alone.

Paddle's role maker looks for `POD_IP:PADDLE_PORT` in the list of servers, so whatever is written here must agree to the
byte with what is written there.

What the container that trains is told besides the ConfigMap: who it is, and how an elastic job finds itself.

Called by `dialect` for each pod. Entries stand after the user's own, and the last of a name wins; a few are only there
where the user says nothing.
"""

from collections.abc import Mapping

from msgspec import UNSET

from trainwright.kinds.paddlejob.wire import (
    HETER,
    PS,
    SERVICE,
    TRAINING,
    WORKER,
    PaddleJobSpec,
    elastic,
    gloo,
    intranet,
)
from trainwright.model.child import Observed, Pod
from trainwright.model.job import Body, Job, Replica, Role
from trainwright.model.site import Site

#: The first of so many ports in a row that each replica may listen at, and the one of them that Gloo meets at.
PORT, PORT_BLOCK, GLOO = 36000, 20, 18
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


def peer_port(job: Job, name: str) -> int:
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


def peer_data(job: Job, spec: PaddleJobSpec, observed: Observed, site: Site) -> dict[str, str] | None:
    """All keys; None while an address is not known."""
    pods = None if intranet(spec) == SERVICE else {pod.metadata.name: pod for pod in observed.pods}
    found: dict[str, str] = {"TRAINER_PORTS_NUM": str(PORT_BLOCK), mark(job): job.world}
    if not job.ledger.ports:
        found["PADDLE_PORT"] = str(PORT)
    for role in job.roles:
        peers = _peer_list(job, role, pods, site)
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


def _peer_list(job: Job, role: Role, pods: Mapping[str, Pod] | None, site: Site) -> _Peers | None:
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


#: What a template may say itself.
_YIELDING = (
    "PADDLE_ELASTIC_TIMEOUT",
    "PADDLE_ELASTIC_SERVER",
    "PADDLE_ELASTIC_LEVEL",
    "PADDLE_MASTER",
    "PADDLE_NNODES",
    "PADDLE_JOB_ID",
    "HETER_DEVICE_TYPE",
)


def variables(job: Job, spec: PaddleJobSpec, replica: Replica, site: Site, said: list[Body]) -> list[Body]:
    """All entries, the user's first; later ones may refer to earlier ones."""
    ours = [*_itself(job, spec, replica, site)]
    ours += _elastic(job, spec, replica.role, site) if elastic(spec) else _peers(job, replica)
    given = {entry.get("name") for entry in said}
    return [*said, *(entry for entry in ours if entry["name"] not in _YIELDING or entry["name"] not in given)]


def _itself(job: Job, spec: PaddleJobSpec, replica: Replica, site: Site) -> list[Body]:
    role, port = TRAINING[replica.role.name], peer_port(job, replica.name)
    found = [
        _pod_ip(job, spec, replica.name, site),
        _said("PADDLE_TRAINER_ID", replica.index),
        _said("TRAINING_ROLE", role),
        _said("PADDLE_TRAINING_ROLE", role),
    ]
    if replica.name in job.ledger.ports or elastic(spec):
        found.append(_said("PADDLE_PORT", port))
    return [*found, _said("PADDLE_CURRENT_ENDPOINT", f"$(POD_IP):{port}")]


def _pod_ip(job: Job, spec: PaddleJobSpec, name: str, site: Site) -> Body:
    if intranet(spec) == SERVICE:
        return _said("POD_IP", named(job, name, site))
    return {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def _peers(job: Job, replica: Replica) -> list[Body]:
    """The key without which this attempt does not start, and where a stage finds the one before or after it."""
    return [_shared(job, WORLD, mark(job)), *_staged(job, replica.role)]


def _staged(job: Job, role: Role) -> list[Body]:
    if not any(one.name == HETER and one.replicas for one in job.roles):
        return []
    if role.name == WORKER:
        after = _shared(job, "PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST", LISTS[HETER][0])
        return [_said("STAGE_ID", 1), after]
    if role.name == HETER:
        before = _shared(job, "PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST", LISTS[WORKER][0])
        return [_said("STAGE_ID", 2), before, _said("HETER_DEVICE_TYPE", "cpu")]
    return []


def _elastic(job: Job, spec: PaddleJobSpec, role: Role, site: Site) -> list[Body]:
    """By which Paddle's launchers find their peers, and know how many there may be: the old one, and that since 2.3."""
    least, most = _bounds(spec, role)
    found = [
        _said("PADDLE_ELASTIC_JOB_ID", f"{job.key.namespace}-{job.key.name}"),
        _said("PADDLE_ELASTIC_NP", f"{least}:{most}" if _bounded(spec) else role.replicas),
        _said("PADDLE_ELASTIC_TIMEOUT", 60),
    ]
    # Both take one server only.
    server = site.elastic_server.split(",")[0].strip()
    if not server:
        return found
    return [
        *found,
        _said("PADDLE_ELASTIC_SERVER", server),
        _said("PADDLE_ELASTIC_LEVEL", 1),
        _said("PADDLE_MASTER", f"etcd://{server}"),
        _said("PADDLE_NNODES", f"{least}:{most}"),
        # Whoever joins clears everything that begins with this name: it must not be the beginning of another job's.
        _said("PADDLE_JOB_ID", job.uid),
    ]


def _bounded(spec: PaddleJobSpec) -> bool:
    one = spec.worker
    return one is not None and not (one.requests is UNSET and one.limits is UNSET)


def _bounds(spec: PaddleJobSpec, role: Role) -> tuple[int, int]:
    """The fewest and the most."""
    one = spec.worker
    least = 1 if one is None or one.requests is UNSET else max(one.requests, 1)
    most = role.replicas if one is None or one.limits is UNSET else one.limits
    return least, max(most, least)


def _shared(job: Job, name: str, key: str) -> Body:
    """A variable that is in the ConfigMap under another name."""
    return {"name": name, "valueFrom": {"configMapKeyRef": {"name": job.key.name, "key": key}}}


def _said(name: str, value: object) -> Body:
    return {"name": name, "value": str(value)}
