# SPDX-License-Identifier: Apache-2.0
"""The one internal model. A kind translates its manifest into a `Job`; `core.reconcile` reads nothing else of it.

A field is here only if `core` reads it; what only one kind needs stays in that kind's dialect.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Protocol

from msgspec import Struct

from trainwright.model.cause import CauseKind
from trainwright.model.child import Observed
from trainwright.model.ledger import Ledger
from trainwright.model.meta import Key, Owner
from trainwright.model.rule import Rule
from trainwright.model.site import Site
from trainwright.model.units import count

Body = dict[str, Any]
#: Causes that lie with a node, not with what ran there.
_NODE_CAUSES = frozenset({CauseKind.NODE_LOST, CauseKind.DEVICE})


class RestartScope(StrEnum):
    """What a restart takes down with it."""

    POD = "Pod"
    ROLE = "Role"
    JOB = "Job"


class CleanPods(StrEnum):
    """Which pods are removed once the job has ended."""

    NONE = "None"
    UNFINISHED = "Unfinished"
    ALL = "All"


class Since(StrEnum):
    """What a deadline counts from."""

    STARTED = "Started"
    RUNNING = "Running"


class Restart(Struct, frozen=True, gc=False):
    """When a replica of a role is tried again."""

    causes: frozenset[CauseKind] = frozenset()
    #: Exit codes that may be tried again, as inclusive ranges; None: any.
    codes: tuple[tuple[int, int], ...] | None = None
    #: Causes that do not use up the budget.
    free: frozenset[CauseKind] = frozenset()
    #: The budget of the role, or of each replica with `per_replica`; None: unlimited.
    limit: int | None = None
    per_replica: bool = False
    scope: RestartScope = RestartScope.POD
    #: A restart counts on every role that it takes along, not only on the one that caused it.
    shared: bool = False
    #: Where exit codes decide: what failed without a word of a container that counts is tried again, too.
    retries_other_containers: bool = True

    def answers(self, why: CauseKind) -> bool:
        """Whether this cause is answered; sick GPUs are as good as a lost node."""
        return why in self.causes or (why is CauseKind.DEVICE and CauseKind.NODE_LOST in self.causes)

    @property
    def uncounted(self) -> frozenset[CauseKind]:
        """What never uses up a budget; a pod that somebody removed is made again as a matter of course."""
        free = self.free | {CauseKind.DEVICE} if CauseKind.NODE_LOST in self.free else self.free
        return free if self.answers_removal else free | {CauseKind.DELETED}

    @property
    def answers_removal(self) -> bool:
        """A pod that somebody removed takes its scope along: its peers hold its old address."""
        return self.scope is not RestartScope.POD and CauseKind.DELETED in self.causes


class Elastic(Struct, frozen=True, gc=False):
    """The bounds within which a role may be resized while it runs."""

    least: int
    most: int
    #: The role is resized to what can run: smaller when pods find no place, larger again when there is room.
    auto: bool = False


class Role(Struct, frozen=True, dict=True):
    """One role of a job: so many replicas of one template."""

    name: str
    replicas: int
    template: Body
    restart: Restart = Restart()
    elastic: Elastic | None = None
    #: Set by `core.elastic`: what is asked for, within the bounds; `replicas` is then the size that is in force.
    wanted: int | None = None
    #: What a change of its size takes along, since peers hold the old world in their environment; None: nothing.
    resize: RestartScope | None = None
    #: The key, at the site's elastic server, under which replicas learn of a new size themselves; empty: nowhere.
    size_key: str = ""
    #: Roles of a lower stage are created first; with `awaits_running` they must also run first.
    stage: int = 0
    awaits_running: bool = False
    #: Containers whose end decides the replica although others still run; empty: the pod's phase decides.
    main_containers: frozenset[str] = frozenset()
    #: Seconds after which a container that cannot be made fails its replica; None: it is waited for.
    patience: float | None = None
    #: A pod whose containers cannot be made is replaced from time to time, as `Site.creating` says.
    recreates_pods: bool = False
    #: Each replica has a service of its own name.
    service: bool = False
    #: The ConfigMap without which its containers do not start: it is among the extras, of one attempt at the whole
    #: job, and gone before pods of the next are made. Until it is there its absence is no mistake.
    gate: str = ""
    #: Each replica has so many ports in a row for itself, where it shares a machine's: `hosted`, or without networks.
    ports: int = 0
    uses_host_ports: bool = False

    @property
    def is_autosized(self) -> bool:
        """It resizes itself to what can run, and so lives with nodes that fail."""
        return self.elastic is not None and self.elastic.auto

    @property
    def records_size(self) -> bool:
        """Its size is remembered: somebody was told of it."""
        return self.resize is not None or bool(self.size_key)

    @property
    def barrier_scope(self) -> RestartScope:
        """Whose pods begin together: none of a new attempt is made while one of an old attempt may still answer."""
        scopes = (self.restart.scope, self.resize)
        return (
            RestartScope.JOB
            if RestartScope.JOB in scopes
            else RestartScope.ROLE
            if RestartScope.ROLE in scopes
            else RestartScope.POD
        )

    @cached_property
    def extended_resources(self) -> Mapping[str, int]:
        """What a pod of it asks for beside the usual, by resource: GPUs and their like. Found once."""
        total: dict[str, int] = {}
        for container in (self.template.get("spec") or {}).get("containers") or ():
            asked = container.get("resources") or {}
            for name, amount in ((asked.get("requests") or {}) | (asked.get("limits") or {})).items():
                if "/" in name:
                    total[name] = total.get(name, 0) + count(amount)
        return MappingProxyType(total)

    def may_retry(self, why: CauseKind) -> bool:
        """Whether a replica that ended so may be tried again."""
        return self.restart.answers(why) or (self.is_autosized and why in _NODE_CAUSES)

    @property
    def uncounted(self) -> frozenset[CauseKind]:
        """What never uses up its budget."""
        return self.restart.uncounted | _NODE_CAUSES if self.is_autosized else self.restart.uncounted


class CleanUp(Struct, frozen=True, gc=False):
    """What is removed after each kind of end: `ended` by a deadline or on request, `lost` by a lost node."""

    succeeded: CleanPods = CleanPods.NONE
    failed: CleanPods = CleanPods.NONE
    ended: CleanPods = CleanPods.NONE
    #: None: as after any failure.
    lost: CleanPods | None = None


class Deadline(Struct, frozen=True, gc=False):
    """How long a job may take, and from when."""

    seconds: float
    since: Since = Since.STARTED


class RequestedEnd(Struct, frozen=True, gc=False):
    """Somebody asked the job to end: the kind's word for it, what they said, and how they said it."""

    word: str
    message: str = ""
    succeeded: bool = False
    #: What on the job asks for it, such as `annotation Preempted`.
    by: str = ""

    def describe(self, message: str) -> str:
        """Who asked for the end, and what they said."""
        asked = f"{self.by} asked for this end" if self.by else "somebody asked for this end"
        return f"{asked}: {message}" if message else asked


class Lifecycle(Struct, frozen=True, gc=False):
    """Everything about a job's life that is not a rule."""

    suspended: bool = False
    clean: CleanUp = CleanUp()
    #: Restarts of all roles together; exceeding it fails the job.
    backoff_limit: int | None = None
    #: The restart that would reach it fails the job already; not only the one beyond it. So 0 and 1 mean the same.
    fails_at_limit: bool = False
    #: Restarts inside a pod, by the kubelet, count too.
    counts_in_place: bool = False
    deadline: Deadline | None = None
    #: Seconds within which every replica must have run once.
    start_deadline: float | None = None
    #: Seconds after the end at which the job itself is removed.
    ttl: float | None = None
    ending: RequestedEnd | None = None

    @property
    def restarts_allowed(self) -> int | None:
        """How many restarts of all roles together there may be."""
        limit = self.backoff_limit
        return limit if limit is None or not self.fails_at_limit else max(limit - 1, 0)


class Gang(Struct, frozen=True, gc=False):
    """All or nothing: the group object's API, and the phases in which pods may be made (none: at any time)."""

    api: str
    admitting_phases: frozenset[str] = frozenset()
    #: Fields of the group's spec that are set when it is made and are others' to change from then on.
    create_only_fields: frozenset[str] = frozenset()
    #: Others that will do where this one is not installed, best first.
    alternatives: tuple["Gang", ...] = ()
    #: The name that pods ask for its scheduler by; empty: the kind sees to that itself.
    scheduler: str = ""
    #: The operator's word for it, where a kind leaves the choice to the operator; `*`: any that no other has.
    word: str = ""
    #: The job asks for a gang itself; else it is one only where the operator is told a scheduler for them.
    asked: bool = True

    def wanted(self, site: Site) -> bool:
        """Whether the job is a gang in this place."""
        return self.asked or bool(self.word and site.gang_scheduler)

    def at(self, site: Site) -> "Gang | None":
        """The one that this place has, if one is wanted."""
        choices = self.choices(site.gang_scheduler) if self.wanted(site) else ()
        return next((one for one in choices if one.api in site.gangs), None)

    def choices(self, word: str = "") -> tuple["Gang", ...]:
        """All that will do where the operator is told so, best first."""
        every = (self, *self.alternatives)
        return selected_gangs(every, word) if self.word else every

    def scheduler_at(self, site: Site) -> str:
        """What its scheduler is called in this place."""
        return site.gang_scheduler if self.word == "*" and site.gang_scheduler else self.scheduler


def selected_gangs(gangs: tuple[Gang, ...], word: str) -> tuple[Gang, ...]:
    """Those that the operator's word is for; without one, all."""
    if not word:
        return gangs
    named = word.lower() if any(one.word == word.lower() for one in gangs) else "*"
    return tuple(one for one in gangs if one.word == named)


class Replica(Struct, frozen=True, gc=False):
    """One replica that is to be made."""

    role: Role
    index: int
    attempt: int
    name: str


class Dialect(Protocol):
    """How a kind spells its objects. Pure; `core.render` adds what all kinds share: name, owner, our labels."""

    def pod(self, job: "Job", replica: Replica, site: Site) -> Body:
        """`metadata` (labels, annotations) and `spec` of the pod."""
        ...

    def service(self, job: "Job", replica: Replica, site: Site) -> Body:
        """`metadata` and `spec` of the replica's service; asked only where the role has one."""
        ...

    def extras(self, job: "Job", observed: Observed, site: Site) -> tuple[Body, ...]:
        """Whole objects of the job itself that should exist now; those that should not outlive it are left out then.

        Of a job with a gate `observed` has only pods that count: of the current attempt, and not on their way out.
        """
        ...

    def endpoints(self, job: "Job") -> Mapping[str, tuple[int, ...]]:
        """Roles whose replicas pods are told of, each with its ports: the arguments with which `site` is asked."""
        ...


class Job(Struct, frozen=True, kw_only=True, dict=True):
    """A job, whatever its kind."""

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
    #: What is wrong with a manifest that got this far; such a job is never run.
    invalid: str = ""
    #: Its stored state cannot be read, so nothing is known of what it has come to: nothing is touched.
    unreadable: bool = False
    #: Another controller looks after it: nothing is touched, nothing is said.
    unmanaged: bool = False
    #: Who wrote the status of this unfinished job, which holds no ledger of ours. Unless it has children of ours,
    #: nothing is touched, and people are told.
    foreign: str = ""
    #: Somebody has handed the job over to us: children that another controller made for it give way to ours.
    handed_over: bool = False
    #: The finalizers to leave on it when it is deleted, where others are on it that nobody answers for any more.
    finalizers: tuple[str, ...] | None = None
    #: What people should be told once, when the job is accepted: (reason, message).
    remarks: tuple[tuple[str, str], ...] = ()

    @cached_property
    def has_gate(self) -> bool:
        """A role of it has a gate. Like what follows, found once and asked in every pass."""
        return any(role.gate for role in self.roles)

    @cached_property
    def has_ports(self) -> bool:
        """A role of it wants ports of its own."""
        return any(role.ports for role in self.roles)

    @cached_property
    def records_size(self) -> bool:
        """Somebody is told of the size of a role of it."""
        return any(role.records_size for role in self.roles)

    @cached_property
    def has_autosized_role(self) -> bool:
        """A role of it resizes itself."""
        return any(role.is_autosized for role in self.roles)

    @property
    def world(self) -> str:
        """Which attempt at the job as a whole this is: another word as soon as a role begins anew."""
        epochs = {book.name: book.epoch for book in self.ledger.roles}
        text = " ".join(f"{role.name}:{epochs.get(role.name, 0)}" for role in self.roles)
        return blake2b(f"{self.uid} {text}".encode(), digest_size=4).hexdigest()
