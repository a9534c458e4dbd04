# SPDX-License-Identifier: Apache-2.0
"""The gang schedulers that more than one kind knows: how each wants its pods marked and its group written.

A dialect asks for the `Form` of the gang that its site has; what goes into the group is the kind's to say.
"""

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from trainwright.model.job import Body, Gang, Job
from trainwright.model.units import quantity

VOLCANO_API = "scheduling.volcano.sh/v1beta1"
PLUGINS_API = "scheduling.x-k8s.io/v1alpha1"
T9K_GROUP, T9K_VERSION = "scheduler.tensorstack.dev", "v1beta1"
T9K_API = f"{T9K_GROUP}/{T9K_VERSION}"
#: By these labels of a pod the T9k scheduler knows its gang, and the queue of that.
T9K_GROUP_LABEL, T9K_QUEUE_LABEL = f"{T9K_GROUP}/group-name", f"{T9K_GROUP}/queue"
#: What the coscheduling plugin's scheduler is called where nobody says otherwise.
PLUGINS_SCHEDULER = "scheduler-plugins-scheduler"
_QUEUE = "default"

PLUGINS = Gang(PLUGINS_API, scheduler=PLUGINS_SCHEDULER, word="*")
T9K = Gang(T9K_API, scheduler="t9k-scheduler", word="t9k-scheduler")
#: Volcano makes a queue of groups, and wants pods only once a group's turn has come; it may move one to another queue.
VOLCANO = Gang(
    VOLCANO_API,
    admitting_phases=frozenset({"Inqueue", "Running", "Unknown", "Completed"}),
    create_only_fields=frozenset({"queue"}),
    scheduler="volcano",
    word="volcano",
)
#: Whichever gang scheduler there is will do, unless the operator is told which.
ALL = (VOLCANO, PLUGINS, T9K)
ANY = replace(ALL[0], alternatives=ALL[1:])
#: The same for a job that does not ask to be a gang: it is one only where the operator is told a scheduler for them.
ANY_UNASKED = replace(ANY, asked=False)


class GangRequest(Struct, frozen=True):
    """What a job wants of its group, whichever scheduler it is for."""

    name: str
    members: int
    queue: str = ""
    priority_class: str = ""
    resources: Body = {}
    timeout: int | None = None


class GangScheduler(Struct, frozen=True):
    """How one scheduler is spoken to."""

    #: Labels and annotations of a member: (group, role) -> each.
    labels: Callable[[GangRequest, str], dict[str, str]]
    annotations: Callable[[GangRequest, str], dict[str, str]]
    spec: Callable[[GangRequest], Body]


def _nothing(_wish: GangRequest, _role: str) -> dict[str, str]:
    return {}


def _said(**fields: Any) -> Body:
    return {name: value for name, value in fields.items() if value not in (None, "", {})}


FORMS: dict[str, GangScheduler] = {
    VOLCANO_API: GangScheduler(
        _nothing,
        lambda wish, role: {"scheduling.k8s.io/group-name": wish.name, "volcano.sh/task-spec": role},
        lambda wish: _said(
            minMember=wish.members,
            queue=wish.queue or _QUEUE,
            priorityClassName=wish.priority_class,
            minResources=wish.resources,
        ),
    ),
    PLUGINS_API: GangScheduler(
        lambda wish, _role: {"scheduling.x-k8s.io/pod-group": wish.name},
        _nothing,
        lambda wish: _said(minMember=wish.members, minResources=wish.resources, scheduleTimeoutSeconds=wish.timeout),
    ),
    T9K_API: GangScheduler(
        lambda wish, role: {
            T9K_GROUP_LABEL: wish.name,
            T9K_QUEUE_LABEL: wish.queue or _QUEUE,
            f"{T9K_GROUP}/role": role,
        },
        _nothing,
        lambda wish: {"minMember": wish.members, "queue": wish.queue or _QUEUE, "priority": 0},
    ),
}


def needs(template: Body, *, inits: bool = False) -> dict[str, Decimal]:
    """What one pod asks for: its containers' requests, or limits where it names no request.

    With `inits` as a scheduler counts: init containers run before the others, one by one, and those that stay beside
    them all the while.
    """
    spec = template.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    sums = _added({}, spec.get("containers"))
    early = (spec.get("initContainers") or ()) if inits else ()
    most: dict[str, Decimal] = {}
    beside: dict[str, Decimal] = {}
    for container in early:
        alone = _added(beside, [container])
        most = {name: max(most.get(name, Decimal(0)), alone.get(name, Decimal(0))) for name in {**most, **alone}}
        beside = alone if container.get("restartPolicy") == "Always" else beside
    sums = {name: sums.get(name, Decimal(0)) + beside.get(name, Decimal(0)) for name in {**sums, **beside}}
    return {name: max(sums.get(name, Decimal(0)), most.get(name, Decimal(0))) for name in {**sums, **most}}


def _added(sums: dict[str, Decimal], containers: Iterable[Body] | None) -> dict[str, Decimal]:
    found = dict(sums)
    for container in containers or ():
        resources = container.get("resources") or {}
        for name, given in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            amount = quantity(given)
            if amount is not None:
                found[name] = found.get(name, Decimal(0)) + amount
    return found


def total_needs(job: Job, members: int, *, inits: bool = False) -> Body:
    """What the first so many pods of a job ask for together, as quantities."""
    sums: dict[str, Decimal] = {}
    for role in job.roles:
        count = min(role.replicas, members)
        members -= count
        for name, amount in needs(role.template, inits=inits).items() if count else ():
            sums[name] = sums.get(name, Decimal(0)) + count * amount
    return {name: f"{amount.normalize():f}" for name, amount in sums.items()}
