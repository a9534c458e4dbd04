# SPDX-License-Identifier: Apache-2.0
"""What the container that trains is told besides the ConfigMap: who it is, and how an elastic job finds itself.

Called by `dialect` for each pod. Entries stand after the user's own, and the last of a name wins; a few are only there
where the user says nothing.
"""

from msgspec import UNSET

from trainwright.kinds.paddlejob.peers import LISTS, WORLD, mark, named, port_of
from trainwright.kinds.paddlejob.roles import HETER, SERVICE, TRAINING, WORKER, elastic, intranet
from trainwright.kinds.paddlejob.wire import PaddleJobSpec
from trainwright.model.job import Body, Job, Replica, Role
from trainwright.model.site import Site

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
    role, port = TRAINING[replica.role.name], port_of(job, replica.name)
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
