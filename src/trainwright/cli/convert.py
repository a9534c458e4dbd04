# SPDX-License-Identifier: Apache-2.0
"""`trainwright convert`: write the jobs of a file as another kind, and report what would be lost."""

from pathlib import Path
from typing import Any, Literal

import click
from click.shell_completion import CompletionItem
from msgspec import Struct

from trainwright.cli import output
from trainwright.cli.documents import documents, subject_of
from trainwright.cli.flags import output_option, text_option
from trainwright.cli.install import kinds_named
from trainwright.errors import UsageError
from trainwright.kinds.base import Kind
from trainwright.kinds.conversion import convert
from trainwright.kinds.registry import KINDS
from trainwright.manifest import Document
from trainwright.model.job import Body
from trainwright.model.problem import Problem

_HINT = "to write the manifest anyway, give --lossy"


def complete_kind(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The kinds whose names begin with this text."""
    return [CompletionItem(kind.id) for kind in KINDS if kind.id.startswith(incomplete.lower())]


@click.command("convert")
@click.argument("file", metavar="FILE")
@click.option(
    "--to",
    "word",
    default="genericjob",
    show_default=True,
    metavar="KIND",
    shell_complete=complete_kind,
    help="The new kind, in any spelling that kubectl accepts.",
)
@click.option("--lossy", is_flag=True, help="Write the manifest although something is lost.")
@output_option(choices=("yaml", "json"), help="Write YAML documents, or one JSON object; several objects are a List.")
@text_option("--write", "name", metavar="NAME", help="Write to the file NAME.  [default: standard output]")
@click.option("--force", is_flag=True, help="Replace the file of --write if it exists.")
def command(file: str, word: str, lossy: bool, form: Literal["yaml", "json"], name: str, force: bool) -> int:
    """Write the jobs in FILE as KIND, with the same roles, commands, variables, rules and restarts.

    "-" reads standard input. Other Kubernetes objects in FILE are written unchanged. Comments are not kept. Standard
    error has a warning for everything that the new kind cannot express, with its path in FILE and what the result does
    instead, and a note for differences that lose nothing. If something is lost, nothing is written, unless you give
    --lossy.

    The exit code is 0 if the manifest was written, 1 if something would be lost, and 2 if a job is invalid.

    \b
    Examples:
      trainwright convert xgboostjob.yaml > genericjob.yaml
      trainwright convert --to tfjob old.yaml --write new.yaml
      kubectl get tfjob mnist -o yaml | trainwright convert - | kubectl apply -f -
    """
    (target,) = kinds_named([word])
    found = [_converted(document, target) for document in documents(file)]
    if not any(one.is_job for one in found):
        raise UsageError("the file contains no job; expected at least one")
    if any(one.invalid for one in found):
        return 2
    bodies = [one.body for one in found if one.body is not None]
    lost = any(one.lost for one in found)
    if len(bodies) < len(found) or (lost and not lossy):
        hint = _HINT if len(bodies) == len(found) else "the new kind cannot have such a job at all"
        click.echo(f"nothing is written, because something would be lost; {hint}", err=True)
        return 1
    _write(_text(bodies, form), name, force=force)
    return 0


class ConvertedDocument(Struct, frozen=True):
    """One document after its conversion. `body` is None if there is nothing to write."""

    body: Body | None
    is_job: bool = True
    lost: bool = False
    invalid: bool = False


def _converted(document: Document, target: Kind) -> ConvertedDocument:
    """Convert one document and print what is lost."""
    subject = subject_of(document.body)
    if subject.beside:
        return ConvertedDocument(document.body, is_job=False)
    problems = subject.judge(document.body)
    errors = tuple(problem for problem in problems if not problem.warning)
    if subject.kind is None or errors:
        _print(document, "error", errors)
        return ConvertedDocument(None, invalid=True)
    found = convert(subject.kind, document.body, target)
    _print(document, "warning", found.losses)
    _print(document, "note", found.notes)
    return ConvertedDocument(found.document, lost=bool(found.losses))


def _print(document: Document, severity: str, problems: tuple[Problem, ...]) -> None:
    for problem in problems:
        click.echo(f"{document.file}:{document.line(problem.path)}: {severity}: {problem}", err=True)


def _text(bodies: list[Body], form: str) -> str:
    if form == "yaml":
        return output.as_yaml(bodies, blocks=True)
    whole: Any = bodies[0] if len(bodies) == 1 else {"apiVersion": "v1", "kind": "List", "items": bodies}
    return output.as_json(whole)


def _write(text: str, name: str, *, force: bool) -> None:
    if not name:
        click.echo(text, nl=False)
        return
    shown = click.format_filename(name)
    try:
        # Mode "x" fails if the file exists, so that the command does not overwrite a file of the user.
        with Path(name).open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{shown} already exists; to replace it, give --force") from None
    except OSError as error:
        raise UsageError(f"{shown} cannot be written: {error.strerror or error}") from None
