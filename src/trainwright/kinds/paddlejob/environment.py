# SPDX-License-Identifier: Apache-2.0
"""The environment by which Paddle's pods know themselves and find their peers.

The ConfigMap of the job lists the addresses of all replicas. Each pod has further variables: its own role, index and
address, and how an elastic job finds its members. Paddle's role maker looks for `POD_IP:PADDLE_PORT` in the list of
servers, so this text must be in the list byte for byte.
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
    gloo,
    intranet,
    is_elastic,
)
from trainwright.model.child import Observed, Pod
from trainwright.model.job import Body, Job, Replica, Role
from trainwright.model.site import Site

#: The first port of a replica, and the number of consecutive ports that it may use.
PORT, PORT_BLOCK = 36000, 20
#: The port of Gloo is this many ports after the first port of the first server.
GLOO_OFFSET = 18
#: The variables that list the endpoints of each role. HETER has three names: for Paddle since 2.2, for older versions,
#: and the name that the original controller wrote.
LISTS = {
    PS: ("PADDLE_PSERVERS_IP_PORT_LIST",),
    WORKER: ("PADDLE_TRAINER_ENDPOINTS",),
    HETER: ("PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST", "PADDLE_HETER_TRAINER_IP_PORT_LIST", "PADDLE_HETER_ENDPOINTS"),
}
#: A variable of each pod. Its value identifies one attempt of the whole job. The ConfigMap has the value under a key
#: that begins with the name of the variable.
WORLD = "TRAINWRIGHT_WORLD"
#: Gloo's code for a rendezvous over HTTP.
_HTTP = "3"
_Peers = list[tuple[str, int]]
#: Variables that the controller leaves out if the template has them.
_OVERRIDABLE = (
    "PADDLE_ELASTIC_TIMEOUT",
    "PADDLE_ELASTIC_SERVER",
    "PADDLE_ELASTIC_LEVEL",
    "PADDLE_MASTER",
    "PADDLE_NNODES",
    "PADDLE_JOB_ID",
    "HETER_DEVICE_TYPE",
)


def peer_port(job: Job, name: str) -> int:
    """The first port of a replica; only replicas that share a machine have different first ports."""
    return job.ledger.ports.get(name, PORT)


def _host_name(job: Job, name: str, site: Site) -> str:
    """The host of a replica that has a service; Paddle's launcher requires a dot in a host name."""
    return f"{name}.{job.key.namespace}" if site.names_resolve else site.host(job.key, name)


def _endpoint(host: str, port: int) -> str:
    """`host:port`, with brackets around the colons of IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _world_key(job: Job) -> str:
    """A key that only the ConfigMap of this attempt has. Pods need it, so they cannot start with an older ConfigMap."""
    return f"{WORLD}_{job.world.upper()}"


def peer_data(job: Job, spec: PaddleJobSpec, observed: Observed, site: Site) -> dict[str, str] | None:
    """The data of the ConfigMap; None while the address of a pod is not known."""
    pods = None if intranet(spec) == SERVICE else {pod.metadata.name: pod for pod in observed.pods}
    found: dict[str, str] = {"TRAINER_PORTS_NUM": str(PORT_BLOCK), _world_key(job): job.world}
    if not job.ledger.ports:
        found["PADDLE_PORT"] = str(PORT)
    for role in job.roles:
        peers = _peer_list(job, role, pods, site)
        if peers is None:
            return None
        found |= _role_data(job, spec, role, peers)
    return found


def _role_data(job: Job, spec: PaddleJobSpec, role: Role, peers: _Peers) -> dict[str, str]:
    listed = ",".join([_endpoint(host, port) for host, port in peers])
    if role.name == WORKER:
        hosts = ",".join([host for host, _ in peers])
        return {LISTS[WORKER][0]: listed, "PADDLE_TRAINERS": hosts, "PADDLE_TRAINERS_NUM": str(role.replicas)}
    if role.name == HETER and peers:
        # Workers are the first stage, heterogeneous workers the second.
        sizes = {one.name: one.replicas for one in job.roles}
        stages = {"STAGE_NUM": "2", "PADDLE_STAGE_TRAINERS_NUM": f"[{sizes[WORKER]}, {sizes[HETER]}]"}
        return dict.fromkeys(LISTS[HETER], listed) | stages
    if role.name == HETER:
        return {}
    found = {LISTS[PS][0]: listed}
    if mode := gloo(spec):
        # The first server also offers the rendezvous of Gloo, on a port above its first port.
        host, port = peers[0]
        found["PADDLE_WITH_GLOO"] = str(mode)
        found["PADDLE_GLOO_RENDEZVOUS"] = _HTTP
        found["PADDLE_GLOO_HTTP_ENDPOINT"] = _endpoint(host, port + GLOO_OFFSET)
    return found


def _peer_list(job: Job, role: Role, pods: Mapping[str, Pod] | None, site: Site) -> _Peers | None:
    """Host and port of each replica; None while a pod has no address. Without `pods`, the hosts are service names."""
    prefix = job.key.replica_prefix(role.name)
    names = [f"{prefix}{index}" for index in range(role.replicas)]
    if pods is None:
        hosts = [_host_name(job, name, site) for name in names]
    else:
        hosts = [pods[name].status.pod_ip if name in pods else "" for name in names]
    ports = job.ledger.ports
    numbers = [ports.get(name, PORT) for name in names] if ports else [PORT] * len(names)
    return [*zip(hosts, numbers, strict=True)] if all(hosts) else None


def variables(job: Job, spec: PaddleJobSpec, replica: Replica, site: Site, env: list[Body]) -> list[Body]:
    """The variables of one pod, to follow the user's own (`env`): the last entry of a name takes effect."""
    ours = _own_variables(job, spec, replica, site)
    ours += (
        _elastic_variables(job, spec, replica.role, site) if is_elastic(spec) else _peer_variables(job, replica.role)
    )
    given = {entry.get("name") for entry in env}
    return [entry for entry in ours if entry["name"] not in _OVERRIDABLE or entry["name"] not in given]


def _own_variables(job: Job, spec: PaddleJobSpec, replica: Replica, site: Site) -> list[Body]:
    role, port = TRAINING[replica.role.name], peer_port(job, replica.name)
    address: Body = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    if intranet(spec) == SERVICE:
        address = _variable("POD_IP", _host_name(job, replica.name, site))
    found = [
        address,
        _variable("PADDLE_TRAINER_ID", replica.index),
        _variable("TRAINING_ROLE", role),
        _variable("PADDLE_TRAINING_ROLE", role),
    ]
    if replica.name in job.ledger.ports or is_elastic(spec):
        found.append(_variable("PADDLE_PORT", port))
    return [*found, _variable("PADDLE_CURRENT_ENDPOINT", f"$(POD_IP):{port}")]


def _peer_variables(job: Job, role: Role) -> list[Body]:
    """The variable that makes a pod wait for its gate and, with stages, the variables about the other stage."""
    found = [_from_config_map(job, WORLD, _world_key(job))]
    has_stages = any(one.name == HETER and one.replicas for one in job.roles)
    if has_stages and role.name == WORKER:
        after = _from_config_map(job, "PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST", LISTS[HETER][0])
        found += [_variable("STAGE_ID", 1), after]
    if has_stages and role.name == HETER:
        before = _from_config_map(job, "PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST", LISTS[WORKER][0])
        found += [_variable("STAGE_ID", 2), before, _variable("HETER_DEVICE_TYPE", "cpu")]
    return found


def _elastic_variables(job: Job, spec: PaddleJobSpec, role: Role, site: Site) -> list[Body]:
    """Variables for Paddle's launchers, before and since 2.3: how they find peers, and how many workers may run."""
    worker = spec.worker
    bounded = worker is not None and not (worker.requests is UNSET and worker.limits is UNSET)
    # The minimum and maximum number of workers.
    least = 1 if worker is None or worker.requests is UNSET else max(worker.requests, 1)
    most = max(least, role.replicas if worker is None or worker.limits is UNSET else worker.limits)
    found = [
        _variable("PADDLE_ELASTIC_JOB_ID", f"{job.key.namespace}-{job.key.name}"),
        _variable("PADDLE_ELASTIC_NP", f"{least}:{most}" if bounded else role.replicas),
        _variable("PADDLE_ELASTIC_TIMEOUT", 60),
    ]
    # Both launchers accept the address of only one etcd server.
    server = site.elastic_server.split(",")[0].strip()
    if not server:
        return found
    return [
        *found,
        _variable("PADDLE_ELASTIC_SERVER", server),
        _variable("PADDLE_ELASTIC_LEVEL", 1),
        _variable("PADDLE_MASTER", f"etcd://{server}"),
        _variable("PADDLE_NNODES", f"{least}:{most}"),
        # The launcher puts this ID into the prefix of its keys in etcd. A member that joins deletes all keys with the
        # prefix, so no key of another job may begin with it. The UID is safe.
        _variable("PADDLE_JOB_ID", job.uid),
    ]


def _from_config_map(job: Job, name: str, key: str) -> Body:
    """A variable with the value of a key of the ConfigMap."""
    return {"name": name, "valueFrom": {"configMapKeyRef": {"name": job.key.name, "key": key}}}


def _variable(name: str, value: object) -> Body:
    return {"name": name, "value": str(value)}
