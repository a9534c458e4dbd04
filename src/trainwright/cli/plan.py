# SPDX-License-Identifier: Apache-2.0
"""`trainwright plan`: what manifests would create and what would happen then, without a cluster. Loaded by `cli.main`.

Reads and refuses like `validate`; `preview` finds out about one job, and says it in the form that was asked for.
"""

from typing import Literal

import click

from trainwright.cli import output, preview
from trainwright.cli.files import documents
from trainwright.cli.output import Finding, State
from trainwright.cli.subject import check_namespace, placed, subject_of
from trainwright.errors import UsageError
from trainwright.kinds.base import load
from trainwright.manifest import Document
from trainwright.model.problem import Problem

_FORMS = {"text": preview.as_text, "json": preview.as_json, "yaml": preview.as_yaml}


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
    click.echo(_FORMS[form](preview.look(document.file, subject.kind, loaded)), nl=False)
    return "valid"


def _tell(document: Document, state: State, subject: str, problems: tuple[Problem, ...]) -> None:
    """Problems as `validate` words them, on standard error: standard output is the plan's."""
    remarks = output.remarks(document, problems)
    finding = Finding(document.file, document.number, state, subject, document.line(""), remarks)
    for line in output.lines(finding):
        click.echo(line, err=True)
