# SPDX-License-Identifier: Apache-2.0
"""The internal model of a job. A kind translates its manifest into a `Job`; `core` reads nothing else of the manifest.

A field is here only if `core` reads it; everything else stays in the kind's dialect.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from trainwright.model.cause import CauseKind
from trainwright.model.child import Observed
from trainwright.model.ledger import Ledger
from trainwright.model.meta import PREFIX, Key, Owner
from trainwright.model.rule import Rule
from trainwright.model.site import Site
from trainwright.model.units import count, spell_exactly

Body = dict[str, Any]
#: Causes for which the node is responsible, not the program.
_NODE_CAUSES = frozenset({CauseKind.NODE_LOST, CauseKind.DEVICE})


class RestartScope(StrEnum):
    """What is restarted together."""

    POD = "Pod"
    ROLE = "Role"
    JOB = "Job"


class CleanPods(StrEnum):
    """Which pods are deleted after the job has ended."""

    NONE = "None"
    UNFINISHED = "Unfinished"
    ALL = "All"


class Since(StrEnum):
    """The moment from which a deadline counts."""

    STARTED = "Started"
    RUNNING = "Running"


class Restart(Struct, frozen=True, gc=False):
    """When a replica of a role is restarted."""

    causes: frozenset[CauseKind] = frozenset()
    #: Exit codes after which a replica is restarted, as inclusive ranges; None: after any code.
    codes: tuple[tuple[int, int], ...] | None = None
    #: Causes that do not use the budget.
    free: frozenset[CauseKind] = frozenset()
    #: The budget of the role, or of each replica with `per_replica`; None: unlimited.
    limit: int | None = None
    per_replica: bool = False
    scope: RestartScope = RestartScope.POD
    #: A restart counts for every role that is restarted, not only for the role that caused it.
    shared: bool = False
    #: If exit codes decide: whether a failure of a container that is not a main container also causes a restart.
    retries_other_containers: bool = True

    def answers(self, why: CauseKind) -> bool:
        """Return whether the policy restarts after this cause. Failed GPUs count like a lost node."""
        return why in self.causes or (why is CauseKind.DEVICE and CauseKind.NODE_LOST in self.causes)

    @property
    def uncounted(self) -> frozenset[CauseKind]:
        """Causes that use no budget. `DELETED` is such a cause, unless a deleted pod restarts its whole role or job."""
        free = self.free | {CauseKind.DEVICE} if CauseKind.NODE_LOST in self.free else self.free
        return free if self.answers_removal else free | {CauseKind.DELETED}

    @property
    def answers_removal(self) -> bool:
        """Whether a pod that was deleted from outside restarts its scope, because its peers hold its old address."""
        return self.scope is not RestartScope.POD and CauseKind.DELETED in self.causes


#: The names of the refilling restart budgets: for failures of the program, and for causes outside of it.
PROGRAM_BUDGET, OUTSIDE_BUDGET = "program", "outside"
#: The annotation of each of them.
BUDGETS = {PROGRAM_BUDGET: f"{PREFIX}/restart-budget", OUTSIDE_BUDGET: f"{PREFIX}/outside-restart-budget"}


class RestartRate(Struct, frozen=True, gc=False):
    """A restart budget that refills: this many restarts per window of productive time."""

    restarts: int
    seconds: float
    #: The rate as the user wrote it, without spaces.
    text: str = ""

    def __str__(self) -> str:
        return self.text or f"{self.restarts}/{spell_exactly(self.seconds)}"


class Elastic(Struct, frozen=True, gc=False):
    """The bounds for a role's size while it runs."""

    least: int
    most: int
    #: The role is sized automatically: smaller when pods find no node, larger when nodes are free again.
    auto: bool = False


class Role(Struct, frozen=True, dict=True):
    """One role of a job: a number of replicas of one template."""

    name: str
    replicas: int
    template: Body
    restart: Restart = Restart()
    elastic: Elastic | None = None
    #: Set by `core.autosize`: the requested size within the bounds. `replicas` is then the current size.
    wanted: int | None = None
    #: What a resize restarts, because pods hold the old size in their environment; None: nothing.
    resize: RestartScope | None = None
    #: The key at the site's elastic server where replicas look up a new size; empty: they cannot look it up.
    size_key: str = ""
    #: Roles of a lower stage are created first; with `awaits_running` they must also run first.
    stage: int = 0
    awaits_running: bool = False
    #: Pods of this role wait for the lower stage themselves, where the site has a container for it (`Site.waiting`).
    waits_in_pod: bool = False
    #: Containers whose end decides the result, even if other containers still run; empty: the pod's phase decides.
    main_containers: frozenset[str] = frozenset()
    #: Seconds after which a container that cannot be created fails its replica; None: `Site.patience` applies.
    patience: float | None = None
    #: A pod whose containers cannot be created is replaced from time to time, as `Site.creating` says.
    recreates_pods: bool = False
    #: Whether each replica has a service with the replica's name.
    service: bool = False
    #: The ConfigMap that containers of this role wait for. It belongs to one attempt of the whole job and is deleted
    #: before pods of the next attempt are created. A container that waits for it has no creation error.
    gate: str = ""
    #: How many consecutive ports each replica gets. A replica gets ports only if replicas share the ports of a machine:
    #: `uses_host_ports` is set, or pods have no network of their own.
    ports: int = 0
    uses_host_ports: bool = False

    @property
    def is_autosized(self) -> bool:
        """Whether the role is sized automatically; its replicas are then also restarted after node failures."""
        return self.elastic is not None and self.elastic.auto

    @property
    def records_size(self) -> bool:
        """Whether the ledger stores the size, because pods hold the size in their environment or look it up."""
        return self.resize is not None or bool(self.size_key)

    @property
    def barrier_scope(self) -> RestartScope:
        """The scope whose pods start together: no new pod is created while a pod of an old attempt still runs."""
        widest_first = (RestartScope.JOB, RestartScope.ROLE)
        return next((one for one in widest_first if one in (self.restart.scope, self.resize)), RestartScope.POD)

    @cached_property
    def extended_resources(self) -> Mapping[str, int]:
        """Extended resources (GPUs and similar) that a pod requests, by name. Cached."""
        total: dict[str, int] = {}
        for container in (self.template.get("spec") or {}).get("containers") or ():
            asked = container.get("resources") or {}
            for name, amount in ((asked.get("requests") or {}) | (asked.get("limits") or {})).items():
                if "/" in name:
                    total[name] = total.get(name, 0) + count(amount)
        return MappingProxyType(total)

    def may_retry(self, why: CauseKind) -> bool:
        """Return whether a replica may be restarted after this cause."""
        return self.restart.answers(why) or (self.is_autosized and why in _NODE_CAUSES)

    @cached_property
    def uncounted(self) -> frozenset[CauseKind]:
        """Causes that never use the role's budget."""
        return self.restart.uncounted | _NODE_CAUSES if self.is_autosized else self.restart.uncounted


class CleanUp(Struct, frozen=True, gc=False):
    """Which pods are deleted after each kind of end. `ended` means: ended by a deadline or on request."""

    succeeded: CleanPods = CleanPods.NONE
    failed: CleanPods = CleanPods.NONE
    ended: CleanPods = CleanPods.NONE
    #: Which pods are deleted if a lost node or failed GPUs decided the outcome; None: as after any failure.
    lost: CleanPods | None = None


class Deadline(Struct, frozen=True, gc=False):
    """How many seconds a job may take, and from which moment they count."""

    seconds: float
    since: Since = Since.STARTED


class RequestedEnd(Struct, frozen=True, gc=False):
    """A request to end the job: the kind's name for that end, the message, and where the request is."""

    word: str
    message: str = ""
    succeeded: bool = False
    #: The part of the job that holds the request, such as `annotation Preempted`.
    by: str = ""

    def describe(self, message: str) -> str:
        """Return who asked for the end, with the message."""
        asked = f"{self.by} asked for this end" if self.by else "somebody asked for this end"
        return f"{asked}: {message}" if message else asked


class Lifecycle(Struct, frozen=True, gc=False):
    """All settings for the life of a job, except the rules for success and failure."""

    suspended: bool = False
    clean: CleanUp = CleanUp()
    #: Limit for restarts of all roles together; exceeding it fails the job.
    backoff_limit: int | None = None
    #: The restart that would reach the limit already fails the job, so both 0 and 1 allow no restart.
    fails_at_limit: bool = False
    #: Restarts by the kubelet inside a pod count too.
    counts_in_place: bool = False
    deadline: Deadline | None = None
    #: Seconds within which every replica must have run once.
    start_deadline: float | None = None
    #: Seconds after the end until the job itself is removed.
    ttl: float | None = None
    ending: RequestedEnd | None = None

    @property
    def restarts_allowed(self) -> int | None:
        """How many restarts of all roles together are allowed."""
        limit = self.backoff_limit
        return limit if limit is None or not self.fails_at_limit else max(limit - 1, 0)


class Gang(Struct, frozen=True, gc=False):
    """Gang scheduling: the API of the group object, and the phases in which pods may be created (empty: all)."""

    api: str
    admitting_phases: frozenset[str] = frozenset()
    #: Fields of the group's spec that we set only at creation, because other programs may change them afterwards.
    create_only_fields: frozenset[str] = frozenset()
    #: Gangs to use if this gang's API is not installed, best first.
    alternatives: tuple["Gang", ...] = ()
    #: The scheduler name for pods; empty: the kind sets it.
    scheduler: str = ""
    #: This value of the operator's gang option selects this gang. `*`: every value that selects no other gang. Empty:
    #: the option has no effect, because the kind does not leave the choice to the operator.
    word: str = ""
    #: The job requests a gang itself. Otherwise the job is a gang only if the operator has a gang scheduler.
    asked: bool = True

    def wanted(self, site: Site) -> bool:
        """Return whether the job is a gang at this site."""
        return self.asked or bool(self.word and site.gang_scheduler)

    def at(self, site: Site) -> "Gang | None":
        """Return the gang to use at this site, if a gang is wanted and its API is installed."""
        choices = self.choices(site.gang_scheduler) if self.wanted(site) else ()
        return next((one for one in choices if one.api in site.gangs), None)

    def choices(self, word: str = "") -> tuple["Gang", ...]:
        """Return all usable gangs for the operator's option, best first."""
        every = (self, *self.alternatives)
        return selected_gangs(every, word) if self.word else every

    def scheduler_at(self, site: Site) -> str:
        """Return the name of the gang's scheduler at this site."""
        return site.gang_scheduler if self.word == "*" and site.gang_scheduler else self.scheduler


def selected_gangs(gangs: tuple[Gang, ...], word: str) -> tuple[Gang, ...]:
    """Return the gangs that the operator's option selects; without the option, all gangs."""
    if not word:
        return gangs
    named = word.lower() if any(one.word == word.lower() for one in gangs) else "*"
    return tuple(one for one in gangs if one.word == named)


class Replica(Struct, frozen=True, gc=False):
    """One replica to create."""

    role: Role
    index: int
    attempt: int
    name: str


class Dialect(Protocol):
    """How a kind builds its objects. Pure; `core.render` adds what all kinds share: name, owner, our labels."""

    def pod(self, job: "Job", replica: Replica, site: Site) -> Body:
        """Return `metadata` (labels, annotations) and `spec` of the pod."""
        ...

    def service(self, job: "Job", replica: Replica, site: Site) -> Body:
        """Return `metadata` and `spec` of the replica's service, if the role has services."""
        ...

    def extras(self, job: "Job", observed: Observed, site: Site) -> tuple[Body, ...]:
        """Return the objects of the whole job that should exist now. After the job has ended, only objects that stay.

        For a job with a gate, `observed` holds only pods of the current attempt that are not being deleted.
        """
        ...

    def endpoints(self, job: "Job") -> Mapping[str, tuple[int, ...]]:
        """Return the ports of each role whose addresses are written into pods (with `Site.host` and `Site.port`)."""
        ...


class Job(Struct, frozen=True, kw_only=True, dict=True):
    """A job of any kind."""

    key: Key
    uid: str
    kind: str
    owner: Owner
    roles: tuple[Role, ...]
    success: Rule
    failure: Rule
    dialect: Dialect
    generation: int = 0
    lifecycle: Lifecycle = Lifecycle()
    gang: Gang | None = None
    ledger: Ledger = Ledger()
    #: The job object is being deleted.
    deleting: bool = False
    #: Why the manifest cannot be run; empty: it can be run.
    invalid: str = ""
    #: The stored ledger cannot be read, so nothing is changed.
    unreadable: bool = False
    #: Another controller manages the job: nothing is changed or reported.
    unmanaged: bool = False
    #: The other controller that wrote the status of this unfinished job; empty: none. The status has no ledger of ours.
    #: We change nothing and send an event that says so, unless the job has children of ours.
    foreign: str = ""
    #: The job was handed over to us: children of another controller are replaced by ours.
    handed_over: bool = False
    #: The finalizers to keep when the job is deleted; None: no change. All others belong to controllers that are gone.
    finalizers: tuple[str, ...] | None = None
    #: Restart budgets that refill, by name (`core.rate_budget`).
    restart_rates: Mapping[str, RestartRate] = MappingProxyType({})
    #: Notices to send when the job is accepted: (reason, message).
    remarks: tuple[tuple[str, str], ...] = ()

    @cached_property
    def has_gate(self) -> bool:
        """Whether a role has a gate. This and the next three properties are cached, because every pass reads them."""
        return any(role.gate for role in self.roles)

    @cached_property
    def has_ports(self) -> bool:
        """Whether a role needs ports of a machine for its replicas."""
        return any(role.ports for role in self.roles)

    @cached_property
    def records_size(self) -> bool:
        """Whether the ledger stores the size of a role."""
        return any(role.records_size for role in self.roles)

    @cached_property
    def has_autosized_role(self) -> bool:
        """Whether a role is sized automatically."""
        return any(role.is_autosized for role in self.roles)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The number of replicas by role. Cached, because every pod may contain these numbers."""
        return MappingProxyType({role.name: role.replicas for role in self.roles})

    def starts_later(self, role: Role, site: Site) -> bool:
        """Return whether the pods of this role are created only when the roles of lower stages run.

        This does not apply to a gang: its scheduler starts no pod before all of them exist.
        """
        waits = role.awaits_running and not (role.waits_in_pod and site.waiting is not None)
        return waits and (self.gang is None or self.gang.at(site) is None)

    @property
    def limits_all_restarts(self) -> bool:
        """Whether limits of the kind count the restarts of every role. Then they take precedence over annotations."""
        return self.lifecycle.backoff_limit is not None or all(role.restart.limit is not None for role in self.roles)

    def with_ledger(self, ledger: Ledger) -> "Job":
        """Return the job with another ledger. It keeps the cached values, because they depend only on the roles."""
        changed = replace(self, ledger=ledger)
        changed.__dict__.update(self.__dict__)
        return changed

    @property
    def world(self) -> str:
        """A hash that identifies the attempt of the whole job. It changes when a role gets a new epoch."""
        epochs = {book.name: book.epoch for book in self.ledger.roles}
        text = " ".join(f"{role.name}:{epochs.get(role.name, 0)}" for role in self.roles)
        return blake2b(f"{self.uid} {text}".encode(), digest_size=4).hexdigest()
