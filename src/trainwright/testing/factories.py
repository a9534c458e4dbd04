# SPDX-License-Identifier: Apache-2.0
"""Functions that create jobs, pods and nodes for tests. A test sets only the values that it tests."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct

from trainwright.model.child import (
    ContainerState,
    ContainerStatus,
    Node,
    NodeSpec,
    NodeStatus,
    ObjectCondition,
    Observed,
    Pod,
    PodSpec,
    PodStatus,
    Running,
    Service,
    Taint,
    Terminated,
    Waiting,
)
from trainwright.model.job import Body, Job, Replica, Role
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ATTEMPT, INDEX, JOB_UID, KIND, ROLE, Key, Meta, Owner
from trainwright.model.rule import AllOf, AnyOf, Atom, Result, Rule, Which
from trainwright.model.site import Site

NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
UID = "11111111-2222-3333-4444-555555555555"
OWNER = Owner("example.com/v1", "Example", "job", UID, controller=True, block_owner_deletion=True)


class PlainDialect(Struct, frozen=True):
    """The simplest dialect: it uses the template unchanged."""

    def pod(self, job: Job, replica: Replica, site: Site) -> Body:  # noqa: ARG002 - a protocol's signature
        """A pod with the template's spec."""
        return {"metadata": {"labels": {"job": job.key.name}}, "spec": replica.role.template.get("spec", {})}

    def service(self, job: Job, replica: Replica, site: Site) -> Body:  # noqa: ARG002 - a protocol's signature
        """A service that selects by the replica's name."""
        return {"spec": {"selector": {"name": replica.name}}}

    def extras(self, job: Job, observed: Observed, site: Site) -> tuple[Body, ...]:  # noqa: ARG002 - likewise
        """The job has no extras."""
        return ()

    def endpoints(self, job: Job) -> Mapping[str, tuple[int, ...]]:  # noqa: ARG002 - likewise
        """The job has no endpoints."""
        return {}


def role(name: str = "worker", replicas: int = 1, gpus: int = 0, **more: Any) -> Role:
    """A role whose replicas request `gpus` GPUs each."""
    container: Body = {"name": "main", "image": "busybox"}
    container |= {"resources": {"limits": {"nvidia.com/gpu": gpus}}} if gpus else {}
    return Role(name, replicas, {"spec": {"containers": [container]}}, **more)


def job(*roles: Role, ledger: Ledger | None = None, **more: Any) -> Job:
    """A job that succeeds when all replicas have succeeded and fails when one replica has failed."""
    roles = roles or (role(),)
    rules: dict[str, Rule] = {
        "success": AllOf(tuple(Atom(one.name, Which.EVERY, Result.SUCCEEDED) for one in roles if one.replicas)),
        "failure": AnyOf(tuple(Atom(one.name, Which.SOME, Result.FAILED) for one in roles if one.replicas)),
    }
    given: dict[str, Any] = rules | {"dialect": PlainDialect(), "ledger": ledger or Ledger()} | more
    return Job(key=Key("default", "job"), uid=UID, kind="example", owner=OWNER, roles=roles, **given)


def container(name: str = "main", **state: Any) -> ContainerStatus:
    """A running container; with `exit_code=` a terminated container, with `waiting=` (a reason) a waiting container."""
    if "waiting" in state:
        return ContainerStatus(name, state=ContainerState(waiting=Waiting(state["waiting"], state.get("message", ""))))
    if "exit_code" in state:
        return ContainerStatus(name, state=ContainerState(terminated=Terminated(**state)))
    return ContainerStatus(name, ready=True, state=ContainerState(running=Running()))


def pod(index: int = 0, phase: str = "Running", **more: Any) -> Pod:
    """A pod of `job()`. Options: `role=`, `attempt=`, `code=` (exit code), `node=`, `deleting=` (time), and others."""
    role_name, attempt = more.get("role", "worker"), more.get("attempt", 0)
    labels = {KIND: "example", JOB_UID: UID, ROLE: role_name, INDEX: str(index), ATTEMPT: str(attempt)}
    containers = more.get(
        "containers", (container(exit_code=more["code"], reason="Error"),) if "code" in more else None
    )
    name = more.get("name", f"job-{role_name}-{index}")
    return Pod(
        Meta(
            name,
            "default",
            more.get("uid", f"{name}-{attempt}"),
            labels=more.get("labels", labels),
            owner_references=more.get("owners", (OWNER,)),
            creation_timestamp=more.get("born", NOW),
            deletion_timestamp=more.get("deleting"),
            deletion_grace_period_seconds=more.get("grace"),
        ),
        PodSpec(more.get("node", "node-1"), more.get("policy", "Never"), more.get("takes", 0)),
        PodStatus(
            phase,
            more.get("reason", ""),
            more.get("message", ""),
            start_time=more.get("started"),
            conditions=more.get("conditions"),
            init_container_statuses=more.get("inits"),
            container_statuses=containers,
        ),
    )


def service(name: str) -> Service:
    """A service of `job()`."""
    return Service(Meta(name, "default", f"service-{name}", owner_references=(OWNER,)))


def node(name: str = "node-1", *, ready: bool = True, since: datetime = NOW, **more: Any) -> Node:
    """A node. Options: `sick=` (a condition that is true), `taint=`, `has=` (allocatable resources), and others."""
    conditions = [ObjectCondition("Ready", "True" if ready else "Unknown", last_transition_time=since)]
    if "sick" in more:
        conditions.append(ObjectCondition(more["sick"], more.get("status", "True"), message=more.get("message", "")))
    taints = (Taint(more["taint"], "NoSchedule"),) if "taint" in more else None
    spec = NodeSpec(more.get("closed", False), taints)
    return Node(Meta(name, labels=more.get("labels")), spec, NodeStatus(tuple(conditions), more.get("has")))


def later(seconds: float, start: datetime = NOW) -> datetime:
    """The time that is `seconds` after `start`."""
    return start + timedelta(seconds=seconds)
