# SPDX-License-Identifier: Apache-2.0
"""Read and check the manifests of a run: its jobs, and the other objects in the same files.

The problems have the same texts and lines as in `trainwright validate`. If any document has an error, nothing runs.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress

import click
from msgspec import Struct

from trainwright.cli import output
from trainwright.cli.documents import examined, placed, subject_of
from trainwright.cli.output import Finding
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

#: The kinds of objects that the run creates before it creates the jobs.
_CREATED_FIRST = ("Secret", "ConfigMap", "PersistentVolumeClaim")


class JobToRun(Struct, frozen=True):
    """One job to run."""

    document: Document
    kind: Kind
    body: Body
    loaded: Loaded

    @property
    def key(self) -> Key:
        """The namespace and name of the job."""
        return self.loaded.job.key


class RunInput(Struct, frozen=True):
    """All documents of the user, after they were found valid."""

    tasks: tuple[JobToRun, ...]
    beside: tuple[Body, ...]
    #: Objects that a local run does not use.
    skipped: tuple[str, ...] = ()


class InputRefused(UsageError):  # noqa: N818 - the name says what happened
    """The input has problems, which have been printed already."""


class Destination(Struct, frozen=True):
    """Where the jobs go."""

    #: Whether the jobs run on this machine. If not, the checks that only a local run needs are left out.
    local: bool = True
    #: What happens to the jobs, for the error text.
    verb: str = "started"
    #: The namespace of objects that have none.
    namespace: str = "default"


_THIS_MACHINE = Destination()
SIMULATION = Destination(local=False, verb="simulated")


def take(
    files: Iterable[str], namespace: str, changes: Iterable[FieldEdit], to: Destination = _THIS_MACHINE
) -> RunInput:
    """Read and check these files. Prints all problems, then raises InputRefused or MalformedError.

    `namespace` is the option: an object with another namespace is refused.
    """
    found = [part for file in files for part in examined(file)]
    documents = [part for part in found if isinstance(part, Document)]
    malformed = [error for part in found for error in errors_of(part)]
    if not malformed:
        return judge(documents, namespace, changes, to)
    with suppress(UsageError):  # `judge` prints the problems of the documents that can be read
        judge(documents, namespace, changes, to)
    for error in malformed[:-1]:
        click.echo(f"trainwright: {error}", err=True)
    raise malformed[-1]


def judge(
    given: Iterable[Document], namespace: str, changes: Iterable[FieldEdit], to: Destination = _THIS_MACHINE
) -> RunInput:
    """Check every document. If there are errors, prints all problems and raises InputRefused."""
    edits = tuple(changes)
    tasks: list[JobToRun] = []
    beside: list[Body] = []
    skipped: list[str] = []
    errors = 0
    for document in given:
        subject = subject_of(document.body)
        if subject.kind is not None:
            task = _task(document, subject.kind, namespace, edits, to.namespace)
            demands = _local_problems(task) if to.local else ()
            errors += print_problems(document, subject.name, (*_problems(task, edits), *demands))
            tasks.append(task)
        elif not subject.beside:
            errors += print_problems(document, subject.name, subject.judge(document.body))
        elif document.body["kind"] in _CREATED_FIRST and document.body["apiVersion"] == "v1":
            body = _with_namespace(placed(document, namespace), to.namespace)
            errors += print_problems(document, subject.name, (*misnamed(body), *content_problems(body)))
            beside.append(body)
        else:
            skipped.append(subject.name)
    if errors:
        raise InputRefused(f"nothing was {to.verb}: the input has {errors} error{'s' * (errors != 1)}")
    _check_names(tasks, beside)
    return RunInput(tuple(tasks), tuple(beside), tuple(skipped))


def _task(document: Document, kind: Kind, namespace: str, edits: tuple[FieldEdit, ...], default: str) -> JobToRun:
    body = placed(document, namespace)
    for change in edits:
        body = apply(body, change)
    stored = _with_namespace(body, default)
    return JobToRun(document, kind, stored, load(kind, body if default == "default" else stored))


def _with_namespace(body: Body, default: str) -> Body:
    """The object with a namespace in its metadata, because stored objects have one."""
    meta = body.get("metadata")
    return body | {"metadata": {"namespace": default, **meta}} if isinstance(meta, dict) else body


def _problems(task: JobToRun, edits: tuple[FieldEdit, ...]) -> Iterator[Problem]:
    """The problems of a job. A warning about a field that `--set` has changed becomes an error."""
    edits = tuple(change for change in edits if change.value is not None)
    for problem in task.loaded.problems:
        path = parts(problem.path)
        from_set = problem.warning and path and any(where(task.body, one)[: len(path)] == path for one in edits)
        yield Problem(problem.path, problem.message, problem.nearest) if from_set else problem


def _local_problems(task: JobToRun) -> Iterator[Problem]:
    """What a job cannot have in a local run."""
    if task.loaded.job.unmanaged:
        yield Problem("", "the manifest names another controller for the job, and a local run has no other controller")
    if task.key.namespace == VOLUMES:
        text = f"{VOLUMES!r} cannot be a namespace of a local run: the state folder uses this name for volumes"
        yield Problem("metadata.namespace", text)


def print_problems(document: Document, subject: str, problems: Iterable[Problem]) -> int:
    """Print problems on standard error like `trainwright validate`. Return the number of errors."""
    problems = tuple(problems)
    if document.file == from_command.FILE:
        for text in from_command.lines(problems):
            click.echo(f"trainwright: {text}", err=True)
        return sum(not one.warning for one in problems)
    remarks = output.remarks(document, problems)
    errors = sum(remark.severity == "error" for remark in remarks)
    finding = Finding(document.file, document.number, "invalid", subject, document.line(""), remarks)
    for line in output.lines(finding):
        click.echo(line, err=True)
    return errors


def _check_names(tasks: list[JobToRun], beside: list[Body]) -> None:
    """Refuse a name that occurs twice. Jobs of different kinds cannot share a name: they would share a folder."""
    if not tasks:
        raise UsageError("the files contain no job; expected at least one")
    names = [("job", str(task.key)) for task in tasks]
    names += [(body["kind"], f"{body['metadata']['namespace']}/{body['metadata']['name']}") for body in beside]
    twice = next((one for index, one in enumerate(names) if one in names[:index]), None)
    if twice is not None:
        raise UsageError(f"{twice[0]} {twice[1]} occurs twice in the input; each name may occur once")
