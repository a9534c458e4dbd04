# SPDX-License-Identifier: Apache-2.0
"""The gang schedulers that several kinds support: the pod labels and the pod group that each scheduler expects.

A dialect fills in a `GangRequest`; `SCHEDULERS` has the format of each scheduler.
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
#: The labels by which the T9k scheduler finds the group of a pod, and the group's queue.
T9K_GROUP_LABEL, T9K_QUEUE_LABEL = f"{T9K_GROUP}/group-name", f"{T9K_GROUP}/queue"
_DEFAULT_QUEUE = "default"

PLUGINS = Gang(PLUGINS_API, scheduler="scheduler-plugins-scheduler", word="*")
T9K = Gang(T9K_API, scheduler="t9k-scheduler", word="t9k-scheduler")
#: Volcano admits a pod only if its group is in one of these phases. We set the queue only when we create the group,
#: because Volcano may change the queue later.
VOLCANO = Gang(
    VOLCANO_API,
    admitting_phases=frozenset({"Inqueue", "Running", "Unknown", "Completed"}),
    create_only_fields=frozenset({"queue"}),
    scheduler="volcano",
    word="volcano",
)
#: Any installed gang scheduler, unless the operator's settings choose a scheduler.
ALL = (VOLCANO, PLUGINS, T9K)
ANY = replace(ALL[0], alternatives=ALL[1:])
#: Like ANY, but for a job that does not ask for a gang: only the operator's choice of a scheduler makes it a gang.
ANY_UNASKED = replace(ANY, asked=False)


class GangRequest(Struct, frozen=True):
    """What a job asks of its pod group, for any scheduler."""

    name: str
    members: int
    queue: str = ""
    priority_class: str = ""
    resources: Body = {}
    timeout: int | None = None


class GangScheduler(Struct, frozen=True):
    """The format of one scheduler: the labels and annotations of member pods, and the spec of the pod group."""

    spec: Callable[[GangRequest], Body]
    #: (request, role) -> the labels of a member pod. `annotations` has the same arguments.
    labels: Callable[[GangRequest, str], dict[str, str]] = lambda _request, _role: {}
    annotations: Callable[[GangRequest, str], dict[str, str]] = lambda _request, _role: {}


def _non_empty(**fields: Any) -> Body:
    return {name: value for name, value in fields.items() if value not in (None, "", {})}


SCHEDULERS: dict[str, GangScheduler] = {
    VOLCANO_API: GangScheduler(
        lambda request: _non_empty(
            minMember=request.members,
            queue=request.queue or _DEFAULT_QUEUE,
            priorityClassName=request.priority_class,
            minResources=request.resources,
        ),
        annotations=lambda request, role: {
            "scheduling.k8s.io/group-name": request.name,
            "volcano.sh/task-spec": role,
        },
    ),
    PLUGINS_API: GangScheduler(
        lambda request: _non_empty(
            minMember=request.members, minResources=request.resources, scheduleTimeoutSeconds=request.timeout
        ),
        lambda request, _role: {"scheduling.x-k8s.io/pod-group": request.name},
    ),
    T9K_API: GangScheduler(
        lambda request: {"minMember": request.members, "queue": request.queue or _DEFAULT_QUEUE, "priority": 0},
        lambda request, role: {
            T9K_GROUP_LABEL: request.name,
            T9K_QUEUE_LABEL: request.queue or _DEFAULT_QUEUE,
            f"{T9K_GROUP}/role": role,
        },
    ),
}


def pod_requests(template: Body, *, include_init: bool = False) -> dict[str, Decimal]:
    """The resources that one pod requests: for each container the request, or the limit if it has no request.

    With `include_init` the sum is as the scheduler computes it: init containers run one after another before the main
    containers, and restartable init containers (sidecars) keep running beside all later containers.
    """
    spec = template.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    total = _with_requests({}, spec.get("containers"))
    init_containers = (spec.get("initContainers") or ()) if include_init else ()
    peak: dict[str, Decimal] = {}
    sidecars: dict[str, Decimal] = {}
    for container in init_containers:
        alone = _with_requests(sidecars, [container])
        peak = {name: max(peak.get(name, Decimal(0)), alone.get(name, Decimal(0))) for name in {**peak, **alone}}
        sidecars = alone if container.get("restartPolicy") == "Always" else sidecars
    total = {name: total.get(name, Decimal(0)) + sidecars.get(name, Decimal(0)) for name in {**total, **sidecars}}
    return {name: max(total.get(name, Decimal(0)), peak.get(name, Decimal(0))) for name in {**total, **peak}}


def _with_requests(total: dict[str, Decimal], containers: Iterable[Body] | None) -> dict[str, Decimal]:
    found = dict(total)
    for container in containers or ():
        resources = container.get("resources") or {}
        for name, given in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            amount = quantity(given)
            if amount is not None:
                found[name] = found.get(name, Decimal(0)) + amount
    return found


def total_requests(job: Job, members: int, *, include_init: bool = False) -> Body:
    """The resources that the first `members` pods of a job request together, as Kubernetes quantities."""
    total: dict[str, Decimal] = {}
    for role in job.roles:
        count = min(role.replicas, members)
        members -= count
        for name, amount in pod_requests(role.template, include_init=include_init).items() if count else ():
            total[name] = total.get(name, Decimal(0)) + count * amount
    return {name: f"{amount.normalize():f}" for name, amount in total.items()}
