# SPDX-License-Identifier: Apache-2.0
"""One job looked at before it runs: its objects, its rules, its steps; as text, JSON or YAML. Called by `plan`.

`steps` drives the job, `terms` words its rules, `objects` shows what it would create.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trainwright.cli import objects, terms
from trainwright.cli.rendezvous import OPTION, needs_etcd
from trainwright.cli.steps import Step, Story
from trainwright.kinds.base import Kind, Loaded
from trainwright.model.job import Body, Job
from trainwright.model.ledger import Ledger

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
    story = Story(kind, job)
    story.begin()
    made = list(story.objects)
    notes = [DEBUG] if _debugging(wire) else _succeed(story, job)
    failing = [] if _debugging(wire) else _fail(Story(kind, job), job)
    apis = [one.api for one in job.gang.choices()] if job.gang is not None and job.gang.asked else []
    notes += [ADDRESSES] if any(role.gate and not role.service for role in job.roles) else []
    notes += [ETCD.format(OPTION)] if needs_etcd(job) else []
    notes += [GANG.format(" or ".join(apis))] if apis else []
    return Preview(
        file, kind.name, job.key.namespace, job.key.name, made, terms.rules(job), story.steps, failing, notes
    )


def _fresh(job: Job) -> Job:
    """As if it were submitted now, whatever a manifest that came from a cluster says of its past."""
    owner = replace(job.owner, uid=FAKE_UID)
    return replace(job, uid=FAKE_UID, owner=owner, ledger=Ledger(), deleting=False, foreign="")


def _debugging(wire: Any) -> bool:
    mode = getattr(wire.spec, "run_mode", None)
    return mode is not None and mode.debug is not None and bool(mode.debug.enabled)


def _succeed(story: Story, job: Job) -> list[str]:
    who = terms.deciders(job.success, job)
    if job.unmanaged:
        return [ELSEWHERE]
    if who is None:
        return [ENDLESS]
    story.succeed(who)
    return [] if story.outcome is not None else [AGAIN]


def _fail(story: Story, job: Job) -> list[Step]:
    """What happens after it ran, if those fail who can fail it."""
    who = terms.deciders(job.failure, job)
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
        *_section(_title(preview), objects.lines(preview.objects)),
        *_section("Rules", _columns([list(pair) for pair in preview.rules.items()])),
        *_section("Steps", _steps(preview.steps)),
        *(_section("If it fails instead", _steps(preview.if_it_fails)) if preview.if_it_fails else ()),
        *(f"  {note}" for note in preview.notes),
    ]
    return "\n".join(parts) + "\n\n"


def _title(preview: Preview) -> str:
    verb = "Creates" if preview.steps[0].creates or not preview.objects else "Creates, once it is resumed,"
    return f"{verb} {objects.count(body['kind'] for body in preview.objects)}"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"  {click.style(title, bold=True)}"
    yield from (f"    {line}" for line in lines)


def _steps(steps: list[Step]) -> Iterator[str]:
    yield from _columns([[step.event, f"→ {step.phase}", _doing(step)] for step in steps])


def _doing(step: Step) -> str:
    changes = [
        f"{verb} {objects.count(name.split(' ')[0] for name in names)}"
        for verb, names in (("removes", step.deletes), ("creates", step.creates))
        if names
    ]
    return ": ".join(part for part in (step.because, ", ".join(changes)) if part)


def _columns(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
        yield "  ".join([*cells, row[-1]]).rstrip()
