# SPDX-License-Identifier: Apache-2.0
"""Manifests to what a run is made of: its jobs, and the objects beside them. `command` calls it before all else.

Judges like `validate`, in the same words and with the same lines; whatever is wrong anywhere refuses the whole run.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress

import click
from msgspec import Struct

from trainwright.cli import output
from trainwright.cli.documents import examined, placed, subject_of
from trainwright.cli.output import Finding, State
from trainwright.cli.run import from_command
from trainwright.cli.run.changes import FieldEdit, apply, where
from trainwright.cli.state import VOLUMES
from trainwright.errors import UsageError
from trainwright.kinds.base import Kind, Loaded, load
from trainwright.kinds.scalars import parts
from trainwright.local.checks.admission import content_problems, misnamed
from trainwright.manifest import Document, errors_of
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.problem import Problem

#: What is created beside jobs, first.
_BESIDE = ("Secret", "ConfigMap", "PersistentVolumeClaim")


class JobToRun(Struct, frozen=True):
    """One job to run."""

    document: Document
    kind: Kind
    body: Body
    loaded: Loaded

    @property
    def key(self) -> Key:
        """Where it lives."""
        return self.loaded.job.key


class RunInput(Struct, frozen=True):
    """Everything that was given: all of it is valid."""

    tasks: tuple[JobToRun, ...]
    beside: tuple[Body, ...]
    #: What was left out.
    skipped: tuple[str, ...] = ()


class InputRefused(UsageError):  # noqa: N818 - it ends a command, it is no mistake of ours
    """Problems were found and have been told."""


def take(files: Iterable[str], namespace: str, changes: Iterable[FieldEdit]) -> RunInput:
    """Read and judge everything in these files. Raises Refused once all problems are told."""
    found = [each for file in files for each in examined(file)]
    documents = [each for each in found if isinstance(each, Document)]
    malformed = [error for each in found for error in errors_of(each)]
    if not malformed:
        return judge(documents, namespace, changes)
    with suppress(UsageError):  # `judge` has told the problems of the documents that can be read
        judge(documents, namespace, changes)
    for error in malformed[:-1]:
        click.echo(f"trainwright: {error}", err=True)
    raise malformed[-1]


def judge(given: Iterable[Document], namespace: str, changes: Iterable[FieldEdit]) -> RunInput:
    """Judge every document. Raises Refused once all problems are told."""
    edits = tuple(changes)
    tasks: list[JobToRun] = []
    beside: list[Body] = []
    skipped: list[str] = []
    bad = 0
    for document in given:
        subject = subject_of(document.body)
        if subject.kind is not None:
            task = _task(document, subject.kind, namespace, edits)
            bad += tell(document, subject.name, _judged(task, edits))
            tasks.append(task)
        elif not subject.beside:
            bad += tell(document, subject.name, subject.judge(document.body))
        elif document.body["kind"] in _BESIDE and document.body["apiVersion"] == "v1":
            body = _named(placed(document, namespace))
            bad += tell(document, subject.name, (*misnamed(body), *content_problems(body)))
            beside.append(body)
        else:
            skipped.append(subject.name)
    if bad:
        raise InputRefused(_count(bad))
    _once(tasks, beside)
    return RunInput(tuple(tasks), tuple(beside), tuple(skipped))


def _count(bad: int) -> str:
    return f"nothing was started: {bad} mistake{'s' * (bad != 1)} in what was given"


def _task(document: Document, kind: Kind, namespace: str, edits: tuple[FieldEdit, ...]) -> JobToRun:
    body = placed(document, namespace)
    for change in edits:
        body = apply(body, change)
    return JobToRun(document, kind, _named(body), load(kind, body))


def _named(body: Body) -> Body:
    """With its namespace written out: what is stored has one."""
    meta = body.get("metadata")
    return body | {"metadata": {"namespace": "default", **meta}} if isinstance(meta, dict) else body


def _judged(task: JobToRun, edits: tuple[FieldEdit, ...]) -> Iterator[Problem]:
    """Its problems; what `--set` brought in may not even be doubtful."""
    edits = tuple(change for change in edits if change.value is not None)
    for problem in task.loaded.problems:
        way = parts(problem.path)
        ours = problem.warning and way and any(where(task.body, one)[: len(way)] == way for one in edits)
        yield Problem(problem.path, problem.message, problem.nearest) if ours else problem
    if task.loaded.job.unmanaged:
        yield Problem("", "its manifest leaves the job to another controller, and a local run has no other")
    if task.key.namespace == VOLUMES:
        yield Problem(
            "metadata.namespace", f"{VOLUMES!r} cannot be the namespace of a local run: volumes are kept there"
        )


def tell(document: Document, subject: str, problems: Iterable[Problem]) -> int:
    """Problems as `validate` words them, on standard error; how many are errors."""
    problems = tuple(problems)
    if document.file == from_command.FILE:
        for text in from_command.lines(problems):
            click.echo(f"trainwright: {text}", err=True)
        return sum(not one.warning for one in problems)
    remarks = output.remarks(document, problems)
    errors = sum(remark.severity == "error" for remark in remarks)
    state: State = "invalid"
    finding = Finding(document.file, document.number, state, subject, document.line(""), remarks)
    for line in output.lines(finding):
        click.echo(line, err=True)
    return errors


def _once(tasks: list[JobToRun], beside: list[Body]) -> None:
    """Names may not clash; of jobs not even across kinds, since a run's folder has the job's name."""
    if not tasks:
        raise UsageError("there is no job in what was given")
    named = [("job", str(task.key)) for task in tasks]
    named += [(body["kind"], f"{body['metadata']['namespace']}/{body['metadata']['name']}") for body in beside]
    twice = next((one for place, one in enumerate(named) if one in named[:place]), None)
    if twice is not None:
        raise UsageError(f"{twice[0]} {twice[1]} is given twice; each name may be given once")
