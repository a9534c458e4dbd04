# SPDX-License-Identifier: Apache-2.0
"""What a version's schema writes into a manifest that does not say it: the same values, where there is no API server.

`base.stored` calls it. A document may be of any shape still; what has not the shape for a default gets none.

What a kind is: a value made of identity, a wire type and pure functions. `registry` holds one per kind.

The engines call `load` on what the API server sends and `render` on what `core` concluded; `crd` reads the type; the
command line asks for the edits.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trainwright.kinds import template
from trainwright.kinds.decode import Reading, Respelt, examine, filled, read
from trainwright.kinds.scalars import item, under
from trainwright.model.event import Emit, JobEvent, default_emit
from trainwright.model.job import Body, Gang, Job
from trainwright.model.ledger import Ledger, Outcome, Phase, Reason, Times
from trainwright.model.meta import ADOPT, Key, ObjectMeta, Owner
from trainwright.model.plan import Status
from trainwright.model.problem import Problem
from trainwright.model.rule import NEVER, Result
from trainwright.model.units import EARLIEST_TIME, Time, parse_time


def stamped(document: Body, stamps: Mapping[str, str]) -> Body:
    """The document with these defaults where it says nothing (or null); shared where nothing differs."""
    for path, value in stamps.items():
        document = _stamped(document, path.split("."), value)
    return document


def _stamped(part: Any, steps: list[str], value: str) -> Any:
    """A mapping with the default at the end of the steps."""
    if not isinstance(part, dict):
        return part
    step, *rest = steps
    changed: Body = {}
    for key in part if step == "*" else (step,):
        before = part.get(key)
        after = value if not rest and before is None else before
        if rest:
            # The object right around a default is made for it; larger parts, and entries of mappings, are the user's.
            made = before is None and len(rest) == 1 and step != "*"
            after = _stamped({} if made else before, rest, value)
        if after is not before:
            changed[key] = after
    return part | changed if changed else part


class Column(Struct, frozen=True):
    """One column of `kubectl get`; priority 1 shows only with `-o wide`."""

    name: str
    type: str
    path: str
    priority: int = 0


class Version(Struct, frozen=True):
    """A version that is served, and what its schema writes down where a manifest says nothing.

    All versions of a kind have the same fields, so that none prunes what another one knows. Only defaults differ: by
    path, with `*` for any key of a mapping.
    """

    name: str
    stamps: Mapping[str, str]


class Kind(Struct, frozen=True, kw_only=True):
    """Everything that makes one kind. `wire` is the struct its manifests decode to."""

    group: str
    #: The version that is stored.
    version: str
    name: str
    plural: str
    short_names: tuple[str, ...]
    wire: type[Any]
    #: The struct of its `status`.
    status: type[Any]
    columns: tuple[Column, ...]
    #: Fill in what the user left out.
    default: Callable[[Any], Any]
    #: Everything that is wrong, and everything that looks wrong, in document order.
    check: Callable[[Any], tuple[Problem, ...]]
    #: What an edit may not change: (stored, edited) -> problems.
    check_edit: Callable[[Any, Any], tuple[Problem, ...]]
    #: The defaulted, checked manifest in the one model.
    translate: Callable[[Any], Job]
    #: The status in this kind's words: (stored status, job, conclusion, now) -> the `status` object.
    render: Callable[[Any, Job, Status, Time], Body]
    #: The merge patch that suspends a stored job (True) or lets it go on (False).
    suspend: Callable[[Body, bool], Body]
    #: The merge patch that gives a role of a stored job that many replicas, or what is wrong with asking for it.
    scale: Callable[[Body, str, int], Body | Problem]
    #: CEL rules for the CRD's `spec`: (rule, message).
    cel: tuple[tuple[str, str], ...] = ()
    #: Every version that is served, the stored one first; none: that one alone, and it stamps nothing of its own.
    versions: tuple[Version, ...] = ()
    #: Where the job is, in one word, from its stored `status`; empty while that says nothing.
    word: Callable[[Body], str] = lambda status: status.get("phase") or ""
    #: Phases and conditions that may be stored a little later, like counts: something more important follows soon.
    patient: tuple[str, ...] = ()
    #: An event in this kind's words: (job with the ledger from before, conclusion, event) -> its reason and text.
    event: Callable[[Job, Status, JobEvent], Emit] = lambda _job, _status, event: default_emit(event)
    #: Every gang that its jobs may be, wherever the scheduler for one is.
    gangs: tuple[Gang, ...] = ()
    #: Single pods are told of: how one failed, what one waits for. Where the kind's own words do not say.
    tells_pods: bool = False
    #: Its jobs may have a time to live, after which they are removed.
    removes: bool = False
    #: What is remembered of a job whose status another controller may have written: (status, metadata) -> ledger.
    past: Callable[[Any, ObjectMeta], Ledger] = lambda status, _meta: status.trainwright
    #: Whether another controller looks after a job, whose manifest may be of any shape.
    elsewhere: Callable[[Body], bool] = lambda _document: False
    #: Its jobs have a ConfigMap each.
    configures: bool = False
    #: Words in the names and images of the programs that look after this kind elsewhere: the original, its successors.
    originals: tuple[str, ...] = ()
    #: Finalizers of controllers that nobody runs any more; a job that is deleted must not wait for them.
    outlived: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """`group/version`, as the job is stored and its children name it."""
        return f"{self.group}/{self.version}"

    @property
    def served(self) -> tuple[str, ...]:
        """`group/version` of every version that a manifest may be of."""
        return tuple(f"{self.group}/{one.name}" for one in self.versions) or (self.api_version,)

    @property
    def singular(self) -> str:
        """The lower-case name."""
        return self.name.lower()


def key_of(meta: ObjectMeta) -> Key:
    """Where the job lives; an object without a namespace is in `default`."""
    return Key(meta.namespace or "default", meta.name)


def owner_of(kind: Kind, meta: ObjectMeta) -> Owner:
    """The ownerReference that children of this job carry."""
    return Owner(kind.api_version, kind.name, meta.name, meta.uid, controller=True, block_owner_deletion=True)


def ended_elsewhere(result: str, told: str, meta: ObjectMeta, word: str = "") -> Ledger:
    """A job that ended under another controller stays ended; `told` is when, as its status has it, `word` its end."""
    at = parse_time(told) or meta.creation_timestamp or EARLIEST_TIME
    outcome = Outcome(Result(result), Reason.EXTERNAL, at, message="ended under another controller", word=word)
    return Ledger(Phase(result), outcome=outcome, times=Times(ended=at))


def finalizers_of(kind: Kind, meta: ObjectMeta) -> tuple[str, ...] | None:
    """The finalizers that a job keeps when it is deleted; None: all of them."""
    found = meta.finalizers or ()
    left = tuple(one for one in found if one not in kind.outlived)
    return left if len(left) < len(found) else None


class _Nothing:
    """The dialect of a job that is never run."""

    def pod(self, *_: object) -> Body:  # pragma: no cover - nothing of an invalid job is made
        raise NotImplementedError

    service = pod

    def extras(self, *_: object) -> tuple[Body, ...]:
        return ()

    def endpoints(self, *_: object) -> Mapping[str, tuple[int, ...]]:
        return {}


def invalid(
    kind: Kind, document: Body, problems: tuple[Problem, ...], said: Any = None, *, unreadable: bool = False
) -> Job:
    """A job that stands for a manifest which cannot be run: it will only ever report why, if it is ours at all."""
    meta = _metadata(document.get("metadata"))
    return Job(
        key=key_of(meta),
        uid=meta.uid,
        kind=kind.singular,
        owner=owner_of(kind, meta),
        generation=meta.generation,
        roles=(),
        success=NEVER,
        failure=NEVER,
        dialect=_Nothing(),
        ledger=Ledger() if unreadable else remembered(kind, said, meta),
        unreadable=unreadable,
        unmanaged=kind.elsewhere(document),
        deleting=meta.deletion_timestamp is not None,
        finalizers=finalizers_of(kind, meta),
        invalid="; ".join(str(problem) for problem in problems if not problem.warning),
    )


def _metadata(given: object) -> ObjectMeta:
    try:
        return msgspec.convert(given, ObjectMeta, strict=False)
    except msgspec.ValidationError:
        known = given if isinstance(given, dict) else {}
        name, namespace, uid = (str(known.get(word, "")) for word in ("name", "namespace", "uid"))
        return ObjectMeta(name=name, namespace=namespace, uid=uid)


def remembered(kind: Kind, said: Any, meta: ObjectMeta) -> Ledger:
    """The ledger in a job's stored status, or the end that another controller brought it to."""
    if said is None or said.trainwright.phase is not Phase.NEW:
        return Ledger() if said is None else said.trainwright
    return kind.past(said, meta)


class Loaded(Struct, frozen=True):
    """A manifest, read: the wire value if its shape is right, the job in the one model, and all that is wrong."""

    wire: Any
    job: Job
    problems: tuple[Problem, ...]
    #: What the kind last said of the job, as far as it can be read.
    status: Any = None

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that keep the job from running."""
        return tuple(problem for problem in self.problems if not problem.warning)


def stored(kind: Kind, document: Body) -> Body:
    """The manifest as an API server stores it: what its version's schema stamps written down, of the stored version."""
    asked = document.get("apiVersion", kind.api_version)
    version = next((one for one in kind.versions if f"{kind.group}/{one.name}" == asked), None)
    if version is None:
        return document
    return {**stamped(document, version.stamps), "apiVersion": kind.api_version}


def load(kind: Kind, document: Body) -> Loaded:
    """Decode, default, check, translate. Never raises: what is wrong is in `problems`, and the job says so too."""
    document = stored(kind, document)
    reading = read(kind.wire, {key: part for key, part in document.items() if key != "status"})
    pods = template.read_all(document, reading.found)
    said, ledger = _said(kind, document.get("status"))

    def defaulted(value: Any) -> Any:
        return kind.default(replace(value, status=said))

    def checks(turn: int, left_out: frozenset[str]) -> Iterator[Problem]:
        if reading.found.sound:
            yield from _check(kind, wire, pods)
        elif (clean := _stood_in(kind, reading, pods, turn, left_out)) is not None:
            yield from _check(kind, defaulted(clean[0]), clean[1])

    wire = None if reading.value is None else defaulted(reading.value)
    problems = examine(reading.found, checks)
    if ledger is None:
        problems = (*problems, Problem("status.trainwright", _unreadable(document["status"]["trainwright"])))
    broken = wire is None or any(not problem.warning for problem in problems)
    unreadable = ledger is None
    job = invalid(kind, document, problems, said, unreadable=unreadable) if broken else kind.translate(wire)
    return Loaded(wire, _whose(job, document), problems, said)


def _check(kind: Kind, wire: Any, pods: Mapping[str, Body]) -> Iterator[Problem]:
    """What one field demands of another: in the manifest, and within each of its templates."""
    yield from kind.check(wire)
    for path, pod in pods.items():
        yield from template.check(pod, path)


def _stood_in(
    kind: Kind, reading: Reading[Any], pods: Mapping[str, Body], turn: int, left_out: frozenset[str]
) -> tuple[Any, Mapping[str, Body]] | None:
    """The manifest and its templates by path, with stand-ins for what cannot be read; None: there are none for that."""
    whole = {path: filled(pod, turn, left_out) for path, pod in pods.items()}
    clean = filled(_with_pods(reading.clean, whole), turn, left_out)
    try:
        return msgspec.convert(clean, kind.wire), whole
    except msgspec.ValidationError:
        return None


def _with_pods(part: Any, pods: Mapping[str, Body], path: str = "") -> Any:
    """The document with these templates in it, by path."""
    match part:
        case Respelt(value):
            return replace(part, value=_with_pods(value, pods, part.path))
        case dict() if path in pods:
            return pods[path]
        case dict():
            return {key: _with_pods(inner, pods, under(path, key)) for key, inner in part.items()}
        case list():
            return [_with_pods(inner, pods, item(path, index)) for index, inner in enumerate(part)]
        case _:
            return part


def reload(kind: Kind, before: Loaded, status: object) -> Loaded | None:
    """The same manifest with another status: what was found out about it need not be found out again.

    None where there is something wrong: only `load` can say what.
    """
    said, ledger = _said(kind, status)
    if ledger is None or before.job.invalid or before.job.unreadable:
        return None
    wire = replace(before.wire, status=said)
    job = kind.translate(wire)
    if job.ledger.phase is Phase.NEW and says(status):
        return None
    return Loaded(wire, replace(job, handed_over=True) if before.job.handed_over else job, before.problems, said)


def _whose(job: Job, document: Body) -> Job:
    """The job with what its status and annotations say of another controller.

    An unfinished job with a status that holds no ledger is that controller's until somebody hands it over.
    """
    meta = document.get("metadata")
    notes = meta.get("annotations") if isinstance(meta, dict) else None
    if isinstance(notes, dict) and notes.get(ADOPT) == "true":
        return replace(job, handed_over=True)
    ours = job.ledger.phase is not Phase.NEW or job.unreadable or job.unmanaged
    return job if ours or not says(document.get("status")) else replace(job, foreign=_writer(meta))


def says(status: object) -> bool:
    """Whether a status says anything at all: clients write `{}` and Go programs `null` for what nobody has set."""
    if isinstance(status, dict):
        return any(says(part) for key, part in status.items() if key != "trainwright")
    if isinstance(status, list):
        return any(says(part) for part in status)
    return status is not None and status != ""


def _writer(meta: object) -> str:
    """Who wrote the status, as the API server recorded it."""
    entries = meta.get("managedFields") if isinstance(meta, dict) else None
    known = [one for one in entries or () if isinstance(one, dict)] if isinstance(entries, list) else []
    names = dict.fromkeys(str(one.get("manager")) for one in known if one.get("subresource") == "status")
    return " and ".join(names) or "another controller"


def _said(kind: Kind, status: object) -> tuple[Any, Ledger | None]:
    """The stored status as far as it can be read, and the ledger in it; None for a ledger that is there and cannot be.

    Nobody writes a status by hand. What another controller or version left there must neither make a job invalid nor
    make it start anew.
    """
    if not isinstance(status, dict) or not status:
        return None, Ledger()
    try:
        ledger = msgspec.convert(status.get("trainwright") or {}, Ledger)
    except msgspec.ValidationError:
        return _read(kind, {key: part for key, part in status.items() if key != "trainwright"}), None
    return _read(kind, status), ledger


def _unreadable(ledger: object) -> str:
    """Why, and what people can do about it."""
    try:
        msgspec.convert(ledger, Ledger)
    except msgspec.ValidationError as error:
        why = str(error).replace("`$.", "`").replace(" - at `$`", "")
        who = "another version, or somebody else, wrote it"
        return f"cannot be read ({why}): {who}; the job is left alone until it is put right"
    return ""  # pragma: no cover - whoever asks knows that it cannot be read


def _read(kind: Kind, status: Body) -> Any:
    """The status; where that cannot be read as a whole, without those parts that cannot: how it ended may still be."""
    found = _converted(kind, {key: part for key, part in status.items() if part is not None})
    if found is not None:
        return found
    parts = {key: _legible(kind, key, part) for key, part in _said_of(status).items()}
    return _converted(kind, {key: part for key, part in parts.items() if _converted(kind, {key: part}) is not None})


def _legible(kind: Kind, key: str, part: Any) -> Any:
    """Of a list, the entries that can be read."""
    if not isinstance(part, list):
        return part
    return [one for one in part if _converted(kind, {key: [one]}) is not None]


def _said_of(value: Any) -> Any:
    """Without what says nothing: Go writes a time that nobody has set as null."""
    if isinstance(value, dict):
        return {key: _said_of(part) for key, part in value.items() if part is not None}
    return [_said_of(one) for one in value if one is not None] if isinstance(value, list) else value


def _converted(kind: Kind, status: Body) -> Any:
    try:
        return msgspec.convert(status, kind.status)
    except msgspec.ValidationError:
        return None
