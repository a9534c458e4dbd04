# SPDX-License-Identifier: Apache-2.0
"""Objects that a plan creates, as people want to see them: what runs, with which environment, at which ports.

Replicas that differ in nothing but their name are shown once, and of many that differ only the first few.

One job looked at before it runs: its objects, its rules, its steps; as text, JSON or YAML. Called by `plan`.

`steps` drives the job, `policy_text` words its rules.

`trainwright plan`: what manifests would create and what would happen then, without a cluster. Loaded by `cli.main`.

It reads and refuses like `validate`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Literal

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trainwright.cli import output, policy_text
from trainwright.cli.documents import check_namespace, documents, placed, subject_of
from trainwright.cli.output import Finding, State
from trainwright.cli.policy_text import OPTION, needs_etcd
from trainwright.cli.steps import Step, StepsOfJob
from trainwright.errors import UsageError
from trainwright.kinds.base import Kind, Loaded, load
from trainwright.manifest import Document
from trainwright.model.job import Body, Job
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ROLE
from trainwright.model.problem import Problem

#: Of more replicas than this only the first ones are shown.
_FEW = 4
_SHOWN = 3
#: Longer text is cut, and so are scripts of more lines.
_LONGEST = 240
_LINES = 8
_PLAIN = re.compile(r"[\w@%+=:,./$()\[\]-]+", re.ASCII)
_PLURAL = {"Pod": "pods", "Service": "services", "PodGroup": "pod groups", "ConfigMap": "config maps"}

Shown = tuple[str, tuple[str, ...]]


def count(kinds: Iterable[str]) -> str:
    """`4 pods, 1 service`."""
    found = Counter(kinds)
    order = sorted(found, key=lambda kind: (list(_PLURAL).index(kind) if kind in _PLURAL else len(_PLURAL), kind))
    return ", ".join(f"{found[kind]} {_word(kind, found[kind])}" for kind in order) or "nothing"


def _word(kind: str, number: int) -> str:
    words = _PLURAL.get(kind, kind)
    return words.removesuffix("s") if number == 1 and kind in _PLURAL else words


def lines(objects: Iterable[Body]) -> Iterator[str]:
    """Objects as text: the job's own first, then pods, then services; role by role."""
    rank = {"Pod": 1, "Service": 2}
    ordered = sorted(objects, key=lambda body: rank.get(body["kind"], 0))
    for (kind, _), group in groupby(ordered, key=lambda body: (body["kind"], body["metadata"]["labels"].get(ROLE))):
        yield from _group(kind, [(body["metadata"]["name"], tuple(_inside(body))) for body in group])


def _group(kind: str, members: list[Shown]) -> Iterator[str]:
    """One role's objects of one kind."""
    if len(members) > 1 and len({inside for _, inside in members}) == 1:
        yield f"{kind} {members[0][0]} … {members[-1][0]}"
        yield from (f"  {line}" for line in members[0][1])
        return
    shown = members if len(members) <= _FEW else members[:_SHOWN]
    for name, inside in shown:
        yield f"{kind} {name}"
        yield from (f"  {line}" for line in inside)
    if len(members) > len(shown):
        yield f"… and {len(members) - len(shown)} more"


def _inside(body: Body) -> Iterator[str]:
    spec = body.get("spec") or {}
    if body["kind"] == "Pod":
        yield from _pod(spec)
    elif body["kind"] == "Service":
        ports = [f"{port.get('name', '')} {port['port']}".strip() for port in spec.get("ports") or ()]
        yield f"ports    {', '.join(ports) or '(none)'}"
    elif body["kind"] == "ConfigMap":
        yield from (f"{key}={_whole(value)}" for key, value in (body.get("data") or {}).items())
    else:
        yield ", ".join(f"{key} {_raw(str(value))}" for key, value in spec.items())


def _pod(spec: Body) -> Iterator[str]:
    if spec.get("schedulerName"):
        yield f"scheduler {_raw(spec['schedulerName'])}"
    for role, group in (("init container", "initContainers"), ("container", "containers")):
        for one in spec.get(group) or ():
            yield f"{role} {_raw(one.get('name'))}, image {_raw(one.get('image'))}"
            yield from (f"  {line}" for line in _container(one))


def _container(one: Body) -> Iterator[str]:
    for key in ("command", "args"):
        if one.get(key):
            yield from _words(key, [str(part) for part in one[key]])
    limits = (one.get("resources") or {}).get("limits") or {}
    if limits:
        yield f"limits   {', '.join(f'{name} {_raw(amount)}' for name, amount in limits.items())}"
    for source in one.get("envFrom") or ():
        yield f"env      {_all_of(source)}"
    for entry in one.get("env") or ():
        yield f"env      {_raw(entry.get('name'))}={_value(entry)}"


def _value(entry: Body) -> str:
    """`value`, or where it will come from."""
    source = entry.get("valueFrom")
    if not isinstance(source, dict):
        return _whole(entry.get("value") or "")
    for key, kind in (("secretKeyRef", "secret"), ("configMapKeyRef", "config map")):
        if source.get(key):
            return f"<from {kind} {source[key].get('name')}/{source[key].get('key')}>"
    if source.get("fieldRef"):
        return f"<field {source['fieldRef'].get('fieldPath')}>"
    return f"<resource {(source.get('resourceFieldRef') or {}).get('resource')}>"


def _all_of(source: Body) -> str:
    kind = "secret" if source.get("secretRef") else "config map"
    name = (source.get("secretRef") or source.get("configMapRef") or {}).get("name")
    return f"{source.get('prefix') or ''}* <from {kind} {name}>"


def _words(key: str, words: list[str]) -> Iterator[str]:
    """A command as a shell-minded reader expects it; scripts go on lines of their own."""
    scripts = [word for word in words if "\n" in word.strip("\n")]
    yield f"{key:<8} {' '.join('|' if word in scripts else _quoted(word) for word in words)}"
    for script in scripts:
        lines = script.strip("\n").split("\n")
        shown = lines if len(lines) <= _LINES else lines[: _LINES - 1]
        yield from (f"         | {_raw(line)}" for line in shown)
        if len(lines) > len(shown):
            yield f"         | … {len(lines) - len(shown)} more lines"


def _quoted(word: str) -> str:
    """Bare if it can be, else in quotes."""
    return word if _PLAIN.fullmatch(word) and len(word) <= _LONGEST else repr(_cut(word))


def _raw(value: object) -> str:
    """As it is, if it is not too long; only what a terminal should not be sent is escaped."""
    return _whole(_cut(str(value)))


def _whole(value: object) -> str:
    """However long it is: in the environment, half of TF_CONFIG or of a list of hosts is of no use."""
    text = str(value)
    return text if text.isprintable() else repr(text)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


#: Clearly nobody's: a plan looks the same each time.
FAKE_UID = "00000000-0000-0000-0000-000000000000"
DEBUG = "Debug mode replaces the commands, so nothing ends by itself."
ENDLESS = "No success rule can be fulfilled, so nothing ends well by itself."
ELSEWHERE = "The manifest leaves the job to another controller: nothing is made, and its status is not touched."
AGAIN = "Restarted even after success: the job does not end before its restarts are used up."
ADDRESSES = "Addresses are examples: pods have theirs once they are on a node."
ETCD = "Replicas find each other through an etcd: give `trainwright run` or `trainwright operator` one with {}."
GANG = "This is for a cluster that has {}; on others pods start one by one."


class Preview(Struct, frozen=True, rename="camel"):
    """What there is to say of one job."""

    file: str
    kind: str
    namespace: str
    name: str
    objects: list[Body]
    rules: dict[str, str]
    steps: list[Step]
    if_it_fails: list[Step]
    notes: list[str]


def look(file: str, kind: Kind, loaded: Loaded) -> Preview:
    """Try a job out."""
    job, wire = _fresh(loaded.job), loaded.wire
    story = StepsOfJob(kind, job)
    story.begin()
    made = list(story.objects)
    notes = [DEBUG] if _debugging(wire) else _succeed(story, job)
    failing = [] if _debugging(wire) else _fail(StepsOfJob(kind, job), job)
    apis = [one.api for one in job.gang.choices()] if job.gang is not None and job.gang.asked else []
    notes += [ADDRESSES] if any(role.gate and not role.service for role in job.roles) else []
    notes += [ETCD.format(OPTION)] if needs_etcd(job) else []
    notes += [GANG.format(" or ".join(apis))] if apis else []
    return Preview(
        file, kind.name, job.key.namespace, job.key.name, made, policy_text.rules(job), story.steps, failing, notes
    )


def _fresh(job: Job) -> Job:
    """As if it were submitted now, whatever a manifest that came from a cluster says of its past."""
    owner = replace(job.owner, uid=FAKE_UID)
    return replace(job, uid=FAKE_UID, owner=owner, ledger=Ledger(), deleting=False, foreign="")


def _debugging(wire: Any) -> bool:
    mode = getattr(wire.spec, "run_mode", None)
    return mode is not None and mode.debug is not None and bool(mode.debug.enabled)


def _succeed(story: StepsOfJob, job: Job) -> list[str]:
    who = policy_text.deciders(job.success, job)
    if job.unmanaged:
        return [ELSEWHERE]
    if who is None:
        return [ENDLESS]
    story.succeed(who)
    return [] if story.outcome is not None else [AGAIN]


def _fail(story: StepsOfJob, job: Job) -> list[Step]:
    """What happens after it ran, if those fail who can fail it."""
    who = policy_text.deciders(job.failure, job)
    if who is None:
        return []
    story.begin()
    known = len(story.steps)
    story.end(who, 1)
    return story.steps[known:]


def as_json(preview: Preview) -> str:
    """Everything, as one JSON object."""
    return msgspec.json.format(msgspec.json.encode(preview), indent=2).decode() + "\n"


def as_yaml(preview: Preview) -> str:
    """Everything, as one YAML document."""
    import yaml  # noqa: PLC0415 - a third of a command's start-up time

    class Plain(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        """Bodies share what they have in common; a reader wants it spelled out."""

        def ignore_aliases(self, _data: Any) -> bool:
            return True

    whole = msgspec.to_builtins(preview)
    return "---\n" + yaml.dump(whole, Dumper=Plain, sort_keys=False, allow_unicode=True, width=120)


def as_text(preview: Preview) -> str:
    """A summary to read."""
    name = f"{preview.kind} {preview.namespace}/{preview.name}"
    parts = [
        click.style(name, bold=True) + f"  ({preview.file})",
        *_section(_title(preview), lines(preview.objects)),
        *_section("Rules", _columns([list(pair) for pair in preview.rules.items()])),
        *_section("Steps", _steps(preview.steps)),
        *(_section("If it fails instead", _steps(preview.if_it_fails)) if preview.if_it_fails else ()),
        *(f"  {note}" for note in preview.notes),
    ]
    return "\n".join(parts) + "\n\n"


def _title(preview: Preview) -> str:
    verb = "Creates" if preview.steps[0].creates or not preview.objects else "Creates, once it is resumed,"
    return f"{verb} {count(body['kind'] for body in preview.objects)}"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"  {click.style(title, bold=True)}"
    yield from (f"    {line}" for line in lines)


def _steps(steps: list[Step]) -> Iterator[str]:
    yield from _columns([[step.event, f"→ {step.phase}", _doing(step)] for step in steps])


def _doing(step: Step) -> str:
    changes = [
        f"{verb} {count(name.split(' ')[0] for name in names)}"
        for verb, names in (("removes", step.deletes), ("creates", step.creates))
        if names
    ]
    return ": ".join(part for part in (step.because, ", ".join(changes)) if part)


def _columns(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
        yield "  ".join([*cells, row[-1]]).rstrip()


_FORMS = {"text": as_text, "json": as_json, "yaml": as_yaml}


@click.command("plan")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(list(_FORMS)),
    default="text",
    show_default=True,
    help="A summary to read, or everything: one JSON object, or YAML document, per job.",
)
@click.option("-n", "--namespace", metavar="NS", default="", help="For jobs that name none.  [default: default]")
def command(files: tuple[str, ...], form: Literal["text", "json", "yaml"], namespace: str) -> int:
    """Show what the jobs in each FILE would create, their rules in words, and their first steps.

    "-" reads standard input. No cluster is needed: the steps are those of the real operator in a simulated cluster,
    which has the gang scheduler that a job asks for. Kubernetes objects that stand beside a job in the same file are
    skipped. Exits with 2 if a job is invalid.

    \b
    Examples:
      trainwright plan job.yaml
      trainwright plan -o json job.yaml | jq '.objects[] | select(.kind == "Pod") | .spec'
    """
    check_namespace(namespace)
    states = [_plan(document, form, namespace) for file in files for document in documents(file)]
    if set(states) == {"skipped"}:
        raise UsageError("there is no job in what was given")
    return 2 if "invalid" in states else 0


def _plan(document: Document, form: str, namespace: str) -> State:
    """Print the plan of one document, or why it has none."""
    subject = subject_of(document.body)
    if subject.kind is None:
        state: State = "skipped" if subject.beside else "invalid"
        _tell(document, state, subject.name, subject.judge(document.body))
        return state
    loaded = load(subject.kind, placed(document, namespace))
    if loaded.problems:
        _tell(document, "invalid", subject.name, loaded.problems)
    if loaded.errors:
        return "invalid"
    click.echo(_FORMS[form](look(document.file, subject.kind, loaded)), nl=False)
    return "valid"


def _tell(document: Document, state: State, subject: str, problems: tuple[Problem, ...]) -> None:
    """Problems as `validate` words them, on standard error: standard output is the plan's."""
    remarks = output.remarks(document, problems)
    finding = Finding(document.file, document.number, state, subject, document.line(""), remarks)
    for line in output.lines(finding):
        click.echo(line, err=True)
