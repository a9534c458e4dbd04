# SPDX-License-Identifier: Apache-2.0
"""`trainwright plan`: without a cluster, show what a job would create, its rules, and its first steps.

The command checks manifests like `trainwright validate`. If the replicas of a role differ only in their names, the
text output shows their content once. If they differ in other ways, it shows at most four replicas.
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
from trainwright.cli.documents import documents, placed, subject_of
from trainwright.cli.flags import check_namespace, output_option, text_option
from trainwright.cli.output import Finding, State
from trainwright.cli.policy_text import ETCD_OPTION, needs_etcd
from trainwright.cli.steps import Step, StepsOfJob
from trainwright.errors import UsageError
from trainwright.kinds.base import Kind, Loaded, load
from trainwright.manifest import Document
from trainwright.model.job import Body, Job
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ROLE
from trainwright.model.problem import Problem

#: If up to four replicas differ, all are shown. If more replicas differ, only the first three are shown.
_MAX_DIFFERENT = 4
_SHOWN_OF_MANY = 3
#: Maximum number of characters in a text; a longer text is shortened.
_MAX_TEXT = 240
_MAX_SCRIPT_LINES = 8
_NEEDS_NO_QUOTES = re.compile(r"[\w@%+=:,./$()\[\]-]+", re.ASCII)
_PLURAL = {"Pod": "pods", "Service": "services", "PodGroup": "pod groups", "ConfigMap": "config maps"}

#: The name of an object, and the lines that describe it.
ObjectText = tuple[str, tuple[str, ...]]

#: A fixed uid, so that the plan of a manifest is always the same.
FAKE_UID = "00000000-0000-0000-0000-000000000000"
DEBUG = "Debug mode replaces the commands, so the job does not end until you end it."
ENDLESS = "No success rule can be fulfilled, so the job cannot succeed."
UNMANAGED = "The manifest names another controller: Trainwright creates nothing and does not change the status."
ALWAYS_RESTARTED = "Replicas are restarted even after success: the job ends only when its restarts are used up."
ADDRESSES = "The addresses are examples: a pod gets its address when it is on a node."
ETCD = "Replicas find each other through an etcd server: give `trainwright run` or `trainwright operator` {}."
GANG = "This plan is for a cluster with {}; on other clusters the pods start one by one."


class Preview(Struct, frozen=True, rename="camel"):
    """Everything that the command prints about one job."""

    file: str
    kind: str
    namespace: str
    name: str
    objects: list[Body]
    rules: dict[str, str]
    steps: list[Step]
    if_it_fails: list[Step]
    notes: list[str]


@click.command("plan")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@output_option(
    choices=("text", "json", "yaml"),
    help="Print a summary, or everything as one JSON object or YAML document per job.",
)
@text_option("-n", "--namespace", metavar="NS", help="The namespace for jobs without a namespace.  [default: default]")
def command(files: tuple[str, ...], form: Literal["text", "json", "yaml"], namespace: str) -> int:
    """Show what the jobs in each FILE would create, their rules in words, and their first steps.

    "-" reads standard input. No cluster is needed: the real operator controls the job in a simulated cluster, which has
    the gang scheduler that the job asks for. Other Kubernetes objects in the same file are skipped. The exit code is 2
    if a job is invalid.

    \b
    Examples:
      trainwright plan job.yaml
      trainwright plan -o json job.yaml | jq '.objects[] | select(.kind == "Pod") | .spec'
    """
    check_namespace(namespace)
    states = [_plan(document, form, namespace) for file in files for document in documents(file)]
    if set(states) == {"skipped"}:
        raise UsageError("the files contain no job; expected at least one")
    return 2 if "invalid" in states else 0


def _plan(document: Document, form: str, namespace: str) -> State:
    """Print the plan of one document, or its problems."""
    subject = subject_of(document.body)
    if subject.kind is None:
        state: State = "skipped" if subject.beside else "invalid"
        _print_problems(document, state, subject.name, subject.judge(document.body))
        return state
    loaded = load(subject.kind, placed(document, namespace))
    if loaded.problems:
        _print_problems(document, "invalid", subject.name, loaded.problems)
    if loaded.errors:
        return "invalid"
    found = preview(document.file, subject.kind, loaded)
    if form == "yaml":
        click.echo(f"---\n{output.as_yaml([msgspec.to_builtins(found)])}", nl=False)
    else:
        click.echo(output.as_json(found) if form == "json" else as_text(found), nl=False)
    return "valid"


def _print_problems(document: Document, state: State, subject: str, problems: tuple[Problem, ...]) -> None:
    """Print problems like `trainwright validate`, but on standard error, because standard output is for the plan."""
    remarks = output.remarks(document, problems)
    finding = Finding(document.file, document.number, state, subject, document.line(""), remarks)
    for line in output.lines(finding):
        click.echo(line, err=True)


def preview(file: str, kind: Kind, loaded: Loaded) -> Preview:
    """Simulate a job."""
    job, debug = _as_new(loaded.job), is_debug(loaded.wire)
    simulation = StepsOfJob(kind, job)
    simulation.begin()
    objects = list(simulation.objects)
    notes = [DEBUG] if debug else _succeed(simulation, job)
    failing = [] if debug else _fail(StepsOfJob(kind, job), job)
    apis = [one.api for one in job.gang.choices()] if job.gang is not None and job.gang.asked else []
    notes += [ADDRESSES] if any(role.gate and not role.service for role in job.roles) else []
    notes += [ETCD.format(ETCD_OPTION)] if needs_etcd(job) else []
    notes += [GANG.format(" or ".join(apis))] if apis else []
    return Preview(
        file=file,
        kind=kind.name,
        namespace=job.key.namespace,
        name=job.key.name,
        objects=objects,
        rules=policy_text.rules(job),
        steps=simulation.steps,
        if_it_fails=failing,
        notes=notes,
    )


def _as_new(job: Job) -> Job:
    """The job as a new job: a manifest that was read from a cluster has a status and a uid, which are removed here."""
    owner = replace(job.owner, uid=FAKE_UID)
    return replace(job, uid=FAKE_UID, owner=owner, ledger=Ledger(), deleting=False, foreign="")


def is_debug(wire: Any) -> bool:
    """Whether the manifest replaces the commands of its containers by ones that do not end."""
    mode = getattr(wire.spec, "run_mode", None)
    return mode is not None and mode.debug is not None and bool(mode.debug.enabled)


def _succeed(simulation: StepsOfJob, job: Job) -> list[str]:
    """Simulate the success of the replicas that decide about success. Return notes for the user."""
    who = policy_text.deciders(job.success, job)
    if job.unmanaged:
        return [UNMANAGED]
    if who is None:
        return [ENDLESS]
    simulation.succeed(who)
    return [] if simulation.outcome is not None else [ALWAYS_RESTARTED]


def _fail(simulation: StepsOfJob, job: Job) -> list[Step]:
    """Start the job, and let the replicas that decide about failure fail. Return the steps after the start."""
    who = policy_text.deciders(job.failure, job)
    if who is None:
        return []
    simulation.begin()
    known = len(simulation.steps)
    simulation.end(who, 1)
    return simulation.steps[known:]


def as_text(preview: Preview) -> str:
    """A summary for people."""
    name = f"{preview.kind} {preview.namespace}/{preview.name}"
    parts = [
        click.style(name, bold=True) + f"  ({preview.file})",
        *_section(_title(preview), object_lines(preview.objects)),
        *_section("Rules", output.columns(list(preview.rules.items()), "  ")),
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
    return output.columns([[step.event, f"→ {step.phase}", _reaction(step)] for step in steps], "  ")


def _reaction(step: Step) -> str:
    changes = [
        f"{verb} {count(name.split(' ')[0] for name in names)}"
        for verb, names in (("removes", step.deletes), ("creates", step.creates))
        if names
    ]
    return ": ".join(part for part in (step.because, ", ".join(changes)) if part)


def count(kinds: Iterable[str]) -> str:
    """The numbers of objects by kind, for example `4 pods, 1 service`."""
    found = Counter(kinds)
    order = sorted(found, key=lambda kind: (list(_PLURAL).index(kind) if kind in _PLURAL else len(_PLURAL), kind))
    return ", ".join(f"{found[kind]} {_noun(kind, found[kind])}" for kind in order) or "nothing"


def _noun(kind: str, number: int) -> str:
    plural = _PLURAL.get(kind, kind)
    return plural.removesuffix("s") if number == 1 and kind in _PLURAL else plural


def object_lines(objects: Iterable[Body]) -> Iterator[str]:
    """Objects as text: first objects of the whole job, then the pods of each role, then the services of each role."""
    rank = {"Pod": 1, "Service": 2}
    ordered = sorted(objects, key=lambda body: rank.get(body["kind"], 0))
    for (kind, _), group in groupby(ordered, key=lambda body: (body["kind"], body["metadata"]["labels"].get(ROLE))):
        yield from _group(kind, [(body["metadata"]["name"], tuple(_content(body))) for body in group])


def _group(kind: str, members: list[ObjectText]) -> Iterator[str]:
    """The objects of one role and one kind."""
    if len(members) > 1 and len({content for _, content in members}) == 1:
        yield f"{kind} {members[0][0]} … {members[-1][0]}"
        yield from (f"  {line}" for line in members[0][1])
        return
    shown = members if len(members) <= _MAX_DIFFERENT else members[:_SHOWN_OF_MANY]
    for name, content in shown:
        yield f"{kind} {name}"
        yield from (f"  {line}" for line in content)
    if len(members) > len(shown):
        yield f"… and {len(members) - len(shown)} more"


def _content(body: Body) -> Iterator[str]:
    spec = body.get("spec") or {}
    if body["kind"] == "Pod":
        yield from _pod(spec)
    elif body["kind"] == "Service":
        ports = [f"{port.get('name', '')} {port['port']}".strip() for port in spec.get("ports") or ()]
        yield f"ports    {', '.join(ports) or '(none)'}"
    elif body["kind"] == "ConfigMap":
        yield from (f"{key}={_printable(value)}" for key, value in (body.get("data") or {}).items())
    else:
        yield ", ".join(f"{key} {_short(str(value))}" for key, value in spec.items())


def _pod(spec: Body) -> Iterator[str]:
    if spec.get("schedulerName"):
        yield f"scheduler {_short(spec['schedulerName'])}"
    for title, group in (("init container", "initContainers"), ("container", "containers")):
        for one in spec.get(group) or ():
            yield f"{title} {_short(one.get('name'))}, image {_short(one.get('image'))}"
            yield from (f"  {line}" for line in _container(one))


def _container(one: Body) -> Iterator[str]:
    for key in ("command", "args"):
        if one.get(key):
            yield from _command_lines(key, [str(part) for part in one[key]])
    limits = (one.get("resources") or {}).get("limits") or {}
    if limits:
        yield f"limits   {', '.join(f'{name} {_short(amount)}' for name, amount in limits.items())}"
    for source in one.get("envFrom") or ():
        yield f"env      {_env_source(source)}"
    for entry in one.get("env") or ():
        yield f"env      {_short(entry.get('name'))}={_env_value(entry)}"


def _env_value(entry: Body) -> str:
    """The value of a variable, or its source."""
    source = entry.get("valueFrom")
    if not isinstance(source, dict):
        return _printable(entry.get("value") or "")
    for key, kind in (("secretKeyRef", "secret"), ("configMapKeyRef", "config map")):
        if source.get(key):
            return f"<from {kind} {source[key].get('name')}/{source[key].get('key')}>"
    if source.get("fieldRef"):
        return f"<field {source['fieldRef'].get('fieldPath')}>"
    return f"<resource {(source.get('resourceFieldRef') or {}).get('resource')}>"


def _env_source(source: Body) -> str:
    kind = "secret" if source.get("secretRef") else "config map"
    name = (source.get("secretRef") or source.get("configMapRef") or {}).get("name")
    return f"{source.get('prefix') or ''}* <from {kind} {name}>"


def _command_lines(key: str, words: list[str]) -> Iterator[str]:
    """A command as a user would type it in a shell. If a word has several lines, print `|`, and its lines below."""
    scripts = [word for word in words if "\n" in word.strip("\n")]
    yield f"{key:<8} {' '.join('|' if word in scripts else _quoted(word) for word in words)}"
    for script in scripts:
        lines = script.strip("\n").split("\n")
        shown = lines if len(lines) <= _MAX_SCRIPT_LINES else lines[: _MAX_SCRIPT_LINES - 1]
        yield from (f"         | {_short(line)}" for line in shown)
        if len(lines) > len(shown):
            yield f"         | … {len(lines) - len(shown)} more lines"


def _quoted(word: str) -> str:
    return word if _NEEDS_NO_QUOTES.fullmatch(word) and len(word) <= _MAX_TEXT else repr(_cut(word))


def _short(value: object) -> str:
    """The text, shortened if it is too long."""
    return _printable(_cut(str(value)))


def _printable(value: object) -> str:
    """The whole text. If it has characters that are not printable, they are shown as escapes.

    Variables are never shortened, because one half of TF_CONFIG or of a list of hosts is useless.
    """
    text = str(value)
    return text if text.isprintable() else repr(text)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"
