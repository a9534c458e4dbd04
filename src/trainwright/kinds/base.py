# SPDX-License-Identifier: Apache-2.0
"""What a kind is, and how a manifest of a kind becomes a job.

A `Kind` is a value made of names, wire types and pure functions. `load` decodes, defaults, checks and translates a
manifest. It never raises: the problems of a manifest are part of the result.
"""

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trainwright.kinds import annotations, template
from trainwright.kinds.cel import CelRule, CombinedRule
from trainwright.kinds.decode import Misspelt, Reading, examine, read, with_stand_ins
from trainwright.kinds.scalars import Manifest, item, under, with_defaults
from trainwright.kinds.writing import Writer
from trainwright.model.event import Emit, EventReason, JobEvent, default_emit
from trainwright.model.job import Body, Dialect, Gang, Job, Lifecycle
from trainwright.model.ledger import Ledger, Outcome, Phase, Reason, Times
from trainwright.model.meta import ADOPT, Key, ObjectMeta, Owner
from trainwright.model.plan import Status
from trainwright.model.problem import Problem
from trainwright.model.rule import NEVER, Result
from trainwright.model.units import EARLIEST_TIME, Time, parse_time


class Column(Struct, frozen=True):
    """One column of `kubectl get`; a column with priority 1 is shown only with `-o wide`."""

    name: str
    type: str
    path: str
    priority: int = 0


#: Why a job failed or was last restarted; empty before the first restart, and after a success. This column
#: comes after those of the original controllers, so that scripts find the original columns at the same positions.
REASON = Column("Reason", "string", ".status.trainwright.verdict.class")
MESSAGE = Column("Message", "string", ".status.trainwright.verdict.message", priority=1)


class Version(Struct, frozen=True):
    """A served version, and the defaults that its schema writes into a manifest.

    All versions of a kind have the same fields, so that no version prunes a field of another. Only the
    defaults differ. `defaults` maps the path of a field to its default; in a path, `*` means any key of a mapping.
    """

    name: str
    defaults: Mapping[str, str]


class ScalePaths(Struct, frozen=True):
    """Paths, such as `.spec.replicas`, of the wanted replicas, the running replicas, and the selector of the pods."""

    spec: str
    status: str
    selector: str


class Kind(Struct, frozen=True, kw_only=True):
    """Everything that defines one kind. `wire` is the struct that its manifests decode to."""

    group: str
    #: The version that is stored.
    version: str
    name: str
    plural: str
    short_names: tuple[str, ...]
    #: A kind of another group has this name, too, and was there first: the id contains the group.
    shares_name: bool = False
    wire: type[Any]
    #: The struct of the `status` of a job.
    status: type[Any]
    columns: tuple[Column, ...]
    #: Fills in the fields that the user left out.
    default: Callable[[Any], Any]
    #: Returns all errors and warnings, in document order.
    check: Callable[[Any], tuple[Problem, ...]]
    #: Returns a problem for each change that is not allowed in an edit: (stored, edited) -> problems.
    check_edit: Callable[[Any, Any], tuple[Problem, ...]]
    #: Translates a manifest, after defaults and checks, to the internal model.
    translate: Callable[[Any], Job]
    #: The status as this kind writes it: (stored status, job, result of the pass, now) -> the `status` object.
    render: Callable[[Any, Job, Status, Time], Body]
    writer: Writer
    #: The merge patch that suspends (True) or resumes (False) a stored job.
    suspend: Callable[[Body, bool], Body]
    #: The merge patch that sets the number of replicas of a role of a stored job, or why that is not possible.
    scale: Callable[[Body, str, int], Body | Problem]
    #: What `kubectl scale` and autoscalers read and write; None: the kind has no scale subresource.
    scale_paths: ScalePaths | None = None
    #: CEL rules for the CRD's `spec`.
    cel: tuple[CelRule | CombinedRule, ...] = ()
    #: Every served version; the first is the stored version. Empty: only `version` is served, and it adds no defaults.
    versions: tuple[Version, ...] = ()
    #: The phase of a job from its stored `status`; empty if the status has no phase yet.
    phase_of: Callable[[Body], str] = lambda status: status.get("phase") or ""
    #: Phases and types of conditions. If only these (and counts) change in a status, the write of the status may wait.
    deferrable: tuple[str, ...] = ()
    #: An event with this kind's reason and text: (job with the previous ledger, result of the pass, event) -> Emit.
    event: Callable[[Job, Status, JobEvent], Emit] = lambda _job, _status, event: default_emit(event)
    #: Every gang that jobs of this kind may use on any cluster.
    gangs: tuple[Gang, ...] = ()
    #: True: events report why a pod failed and why it waits, because the conditions of this kind do not report it.
    reports_pods: bool = False
    #: False: an event reports that a job runs only on request (`--child-events`), because a condition reports it.
    reports_running: bool = True
    #: Jobs of this kind may have a time to live.
    has_ttl: bool = False
    #: The ledger of a job whose status another controller may have written: (status, metadata) -> ledger.
    adopted_ledger: Callable[[Any, ObjectMeta], Ledger] = lambda status, _meta: status.trainwright
    #: Whether the manifest, which may have any shape, leaves the job to another controller.
    managed_elsewhere: Callable[[Body], bool] = lambda _document: False
    #: Each job of this kind has a ConfigMap.
    has_config_map: bool = False
    #: A job of this kind may have a HorizontalPodAutoscaler.
    has_autoscaler: bool = False
    #: Another controller of this kind has one of these texts in its name, image or command.
    controller_names: tuple[str, ...] = ()
    #: The value of the label `framework` in the metrics of the original controller; empty: it has no such metrics.
    framework: str = ""
    #: Finalizers of controllers that are gone; the deletion of a job must not wait for them.
    obsolete_finalizers: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """`group/version` of the stored job, as in the owner references of its children."""
        return f"{self.group}/{self.version}"

    @property
    def served(self) -> tuple[str, ...]:
        """`group/version` of every version that a manifest may have."""
        return tuple(f"{self.group}/{one.name}" for one in self.versions) or (self.api_version,)

    @property
    def singular(self) -> str:
        """The lower-case name. Two kinds of different groups may have the same one."""
        return self.name.lower()

    @property
    def id(self) -> str:
        """The identity of this kind: in labels of children, in `--kinds`, and as a key. Each kind has another one.

        Stored objects contain it, so the id of a kind never changes.
        """
        return f"{self.singular}.{self.group}" if self.shares_name else self.singular

    @property
    def title(self) -> str:
        """The name of this kind in lists of all kinds; if it shares its name, with the group."""
        return f"{self.name}.{self.group}" if self.shares_name else self.name

    def reports(self, reason: EventReason) -> bool:
        """Whether an event with this reason is sent without being requested."""
        return self.reports_running or reason is not EventReason.RUNNING

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every name of this kind that kubectl accepts, for example `gj`. Case does not matter.

        A name that two kinds share means the kind that was there first.
        """
        short = () if self.shares_name else (self.name, self.plural)
        return *short, f"{self.plural}.{self.group}", f"{self.singular}.{self.group}", *self.short_names


# -- parts of a job that are the same for every kind -----------------------------------------------------------------


def key_of(meta: ObjectMeta) -> Key:
    """Namespace and name of a job; an object without a namespace is in `default`."""
    return Key(meta.namespace or "default", meta.name)


def translated(kind: Kind, manifest: Any, policies: ModuleType | SimpleNamespace, dialect: Dialect, **more: Any) -> Job:
    """The job in the internal model. The kind's module `policies` translates the spec. `more`: more fields of `Job`."""
    spec, meta = manifest.spec, manifest.metadata
    finalizers = meta.finalizers or ()
    kept = tuple(one for one in finalizers if one not in kind.obsolete_finalizers) if finalizers else ()
    return Job(
        key=key_of(meta),
        uid=meta.uid,
        kind=kind.id,
        owner=Owner(kind.api_version, kind.name, meta.name, meta.uid, controller=True, block_owner_deletion=True),
        generation=meta.generation,
        roles=policies.roles(spec, meta),
        success=policies.success(spec),
        failure=policies.failure(spec),
        dialect=dialect,
        lifecycle=policies.lifecycle(spec, meta),
        ledger=_stored_ledger(kind, manifest.status, meta),
        deleting=meta.deletion_timestamp is not None,
        finalizers=kept if len(kept) < len(finalizers) else None,
        restart_rates=annotations.restart_rates(meta),
        **more,
    )


def _stored_ledger(kind: Kind, status: Any, meta: ObjectMeta) -> Ledger:
    """The ledger in a job's stored status, or a ledger with the outcome that another controller wrote there."""
    if status is None or status.trainwright.phase is not Phase.NEW:
        return Ledger() if status is None else status.trainwright
    return kind.adopted_ledger(status, meta)


def ended_elsewhere(result: str, ended_at: str, meta: ObjectMeta, phase: str = "") -> Ledger:
    """The ledger of a job that another controller ended. `phase`: its last phase, if several mean this result."""
    at = parse_time(ended_at) or meta.creation_timestamp or EARLIEST_TIME
    outcome = Outcome(Result(result), Reason.EXTERNAL, at, message="ended under another controller", word=phase)
    return Ledger(Phase(result), outcome=outcome, times=Times(ended=at))


# -- load ------------------------------------------------------------------------------------------------------------


class Loaded(Struct, frozen=True):
    """The result of `load`: the wire value if the shape is right, the job in the internal model, and all problems."""

    wire: Any
    job: Job
    problems: tuple[Problem, ...]
    #: The stored status of the job, as far as it can be read.
    status: Any = None

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that keep the job from running."""
        return tuple(problem for problem in self.problems if not problem.warning)


def load(kind: Kind, document: Body) -> Loaded:
    """Decode, default, check, translate. Never raises: errors are in `problems` and, as text, in `job.invalid`."""
    document = stored(kind, document)
    reading = read(kind.wire, {key: part for key, part in document.items() if key != "status"})
    pods = template.read_all(document, reading.found)
    status, unreadable = _read_status(kind, document.get("status"))

    def defaulted(value: Any) -> Any:
        return kind.default(replace(value, status=status))

    def checks(variant: int, omitted: frozenset[str]) -> Iterator[Problem]:
        if reading.found.sound:
            yield from _check(kind, wire, pods)
        elif (clean := _complete(kind, reading, pods, variant, omitted)) is not None:
            yield from _check(kind, defaulted(clean[0]), clean[1])

    wire = None if reading.value is None else defaulted(reading.value)
    problems = examine(reading.found, checks)
    if unreadable:
        problems = (*problems, Problem("status.trainwright", unreadable))
    broken = wire is None or any(not problem.warning for problem in problems)
    job = _invalid(kind, document, problems, status, unreadable=bool(unreadable)) if broken else kind.translate(wire)
    if job.restart_rates:
        problems = (*problems, *annotations.overridden(job))
    return Loaded(wire, _with_controller(job, document), problems, status)


def reload(kind: Kind, before: Loaded, status: object) -> Loaded | None:
    """Return `before` with another status, which is faster than `load`. None: only `load` can read this status."""
    read_status, unreadable = _read_status(kind, status)
    if unreadable or before.job.invalid or before.job.unreadable:
        return None
    wire = replace(before.wire, status=read_status)
    job = kind.translate(wire)
    if job.ledger.phase is Phase.NEW and _has_content(status):
        return None
    return Loaded(wire, replace(job, handed_over=True) if before.job.handed_over else job, before.problems, read_status)


def _invalid(kind: Kind, document: Body, problems: tuple[Problem, ...], status: Any, *, unreadable: bool) -> Job:
    """A job that never runs. Its status reports the manifest's errors, unless another controller manages the job."""
    # Without our ledger, the other fields of the status would look like a result that another controller wrote.
    manifest = Manifest(_metadata(document.get("metadata")), None, status=None if unreadable else status)
    return translated(
        kind,
        manifest,
        _NO_POLICIES,
        _NoDialect(),
        unreadable=unreadable,
        unmanaged=kind.managed_elsewhere(document),
        invalid="; ".join(str(problem) for problem in problems if not problem.warning),
    )


#: The policies of a job that never runs.
_NO_POLICIES = SimpleNamespace(
    success=lambda _spec: NEVER,
    failure=lambda _spec: NEVER,
    roles=lambda _spec, _meta: (),
    lifecycle=lambda _spec, _meta: Lifecycle(),
)


class _NoDialect:
    """The dialect of a job that never runs."""

    def pod(self, *_: object) -> Body:  # pragma: no cover - `core` creates no objects for an invalid job
        raise NotImplementedError

    service = pod

    def extras(self, *_: object) -> tuple[Body, ...]:
        return ()

    def endpoints(self, *_: object) -> Mapping[str, tuple[int, ...]]:
        return {}


def _metadata(given: object) -> ObjectMeta:
    try:
        return msgspec.convert(given, ObjectMeta, strict=False)
    except msgspec.ValidationError:
        known = given if isinstance(given, dict) else {}
        name, namespace, uid = (str(known.get(key, "")) for key in ("name", "namespace", "uid"))
        return ObjectMeta(name=name, namespace=namespace, uid=uid)


# -- the defaults of a version ---------------------------------------------------------------------------------------


def stored(kind: Kind, document: Body) -> Body:
    """The manifest as an API server stores it: with the defaults of its version, and as the stored version."""
    asked = document.get("apiVersion", kind.api_version)
    version = next((one for one in kind.versions if f"{kind.group}/{one.name}" == asked), None)
    if version is None:
        return document
    return {**with_defaults(document, version.defaults), "apiVersion": kind.api_version}


# -- checks of a manifest that cannot be read in full ----------------------------------------------------------------


def _check(kind: Kind, wire: Any, pods: Mapping[str, Body]) -> Iterator[Problem]:
    """Yield the problems that the kind's own checks find, then the problems of each pod template."""
    yield from kind.check(wire)
    yield from annotations.check(wire.metadata)
    for path, pod in pods.items():
        yield from template.check(pod, path)


def _complete(
    kind: Kind, reading: Reading[Any], pods: Mapping[str, Body], variant: int, omitted: frozenset[str]
) -> tuple[Any, Mapping[str, Body]] | None:
    """The manifest, and its templates by path, with stand-ins for unreadable values.

    None: msgspec refuses the result.
    """
    whole = {path: with_stand_ins(pod, variant, omitted) for path, pod in pods.items()}
    clean = with_stand_ins(_with_pods(reading.clean, whole), variant, omitted)
    try:
        return msgspec.convert(clean, kind.wire), whole
    except msgspec.ValidationError:
        return None


def _with_pods(part: Any, pods: Mapping[str, Body], path: str = "") -> Any:
    """The document, in which each template at a path in `pods` is replaced by the template in `pods`."""
    match part:
        case Misspelt(value):
            return replace(part, value=_with_pods(value, pods, part.path))
        case dict() if path in pods:
            return pods[path]
        case dict():
            return {key: _with_pods(inner, pods, under(path, key)) for key, inner in part.items()}
        case list():
            return [_with_pods(inner, pods, item(path, index)) for index, inner in enumerate(part)]
        case _:
            return part


# -- the stored status -----------------------------------------------------------------------------------------------


def _with_controller(job: Job, document: Body) -> Job:
    """Set `foreign` if another controller wrote the status of an unfinished job, or `handed_over` if a user says so."""
    meta = document.get("metadata")
    given = meta.get("annotations") if isinstance(meta, dict) else None
    if isinstance(given, dict) and given.get(ADOPT) == "true":
        return replace(job, handed_over=True)
    ours = job.ledger.phase is not Phase.NEW or job.unreadable or job.unmanaged
    return job if ours or not _has_content(document.get("status")) else replace(job, foreign=_status_writer(meta))


def _has_content(status: object) -> bool:
    """Whether a status has any value. `{}` and `null` do not count: programs write them for fields that are not set."""
    if isinstance(status, dict):
        return any(_has_content(part) for key, part in status.items() if key != "trainwright")
    if isinstance(status, list):
        return any(_has_content(part) for part in status)
    return status is not None and status != ""


def _status_writer(meta: object) -> str:
    """The name of the status' writer, as the API server recorded it."""
    entries = meta.get("managedFields") if isinstance(meta, dict) else None
    known = [one for one in entries or () if isinstance(one, dict)] if isinstance(entries, list) else []
    names = dict.fromkeys(str(one.get("manager")) for one in known if one.get("subresource") == "status")
    return " and ".join(names) or "another controller"


def _read_status(kind: Kind, status: object) -> tuple[Any, str]:
    """The stored status as far as it can be read, and why its ledger cannot be read (empty: it can be read).

    Users do not write the status. So a value that another controller or version wrote must not make the job invalid,
    and must not let an ended job start again.
    """
    if not isinstance(status, dict) or not status:
        return None, ""
    try:
        msgspec.convert(status.get("trainwright") or {}, Ledger)
    except msgspec.ValidationError as error:
        why = str(error).replace("`$.", "`").replace(" - at `$`", "")
        who = "another version, or somebody else, wrote it"
        message = f"cannot be read ({why}): {who}; the job is left alone until it is put right"
        return _readable(kind, {key: part for key, part in status.items() if key != "trainwright"}), message
    return _readable(kind, status), ""


def _readable(kind: Kind, status: Body) -> Any:
    """The status without the parts that cannot be read. The other parts may still say how the job ended."""
    found = _converted(kind, {key: part for key, part in status.items() if part is not None})
    if found is not None:
        return found
    parts = {key: _readable_entries(kind, key, part) for key, part in _without_nulls(status).items()}
    return _converted(kind, {key: part for key, part in parts.items() if _converted(kind, {key: part}) is not None})


def _readable_entries(kind: Kind, key: str, part: Any) -> Any:
    is_list = isinstance(part, list)
    return [one for one in part if _converted(kind, {key: [one]}) is not None] if is_list else part


def _without_nulls(value: Any) -> Any:
    """The value without nulls: Go writes a time that is not set as null."""
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(one) for one in value if one is not None] if isinstance(value, list) else value


def _converted(kind: Kind, status: Body) -> Any:
    try:
        return msgspec.convert(status, kind.status)
    except msgspec.ValidationError:
        return None
