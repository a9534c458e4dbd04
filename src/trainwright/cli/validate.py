# SPDX-License-Identifier: Apache-2.0
"""`trainwright validate`: list every mistake in manifests, without a cluster. `run` and `plan` use the same checks."""

from collections.abc import Iterator
from typing import Literal

import click

from trainwright.cli import output
from trainwright.cli.documents import examined, subject_of
from trainwright.cli.flags import output_option
from trainwright.cli.output import Finding, LocatedProblem
from trainwright.manifest import Document, MalformedError


@click.command("validate")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--strict", is_flag=True, help="Treat warnings, such as unknown fields, as errors.")
@output_option(choices=("text", "json"), help="Print one line per problem, or one JSON object.")
def command(files: tuple[str, ...], strict: bool, form: Literal["text", "json"]) -> int:
    """Check the manifests in each FILE; "-" reads standard input. No cluster is needed.

    Lists every mistake with its line, what was expected, and the nearest valid spelling. Other Kubernetes
    objects in the same file (Secret, ConfigMap, PersistentVolumeClaim, ...) are skipped. The exit code is 0 if all jobs
    are valid, otherwise 2.

    \b
    Examples:
      trainwright validate job.yaml
      helm template chart | trainwright validate --strict -
    """
    findings: list[Finding] = []
    for file in files:
        for finding in _examine(file, strict=strict):
            findings.append(finding)
            if form == "text":
                click.echo("\n".join(output.lines(finding)))
    summary = output.summary(findings)
    whole = {"documents": findings, "summary": summary}
    click.echo(output.as_json(whole) if form == "json" else f"{summary}\n", nl=False)
    return 2 if any(finding.state == "invalid" for finding in findings) else 0


def _examine(file: str, *, strict: bool) -> Iterator[Finding]:
    """One finding per document, and one per part of the file that is not a document."""
    for found in examined(file):
        yield _judge(found, strict=strict) if isinstance(found, Document) else _malformed(found)


def _malformed(error: MalformedError) -> Finding:
    return Finding(error.file, error.document, "invalid", line=error.line, problems=(_located(error),))


def _located(error: MalformedError) -> LocatedProblem:
    return LocatedProblem("error", "", error.what, line=error.line)


def _judge(document: Document, *, strict: bool) -> Finding:
    subject = subject_of(document.body)
    found = output.remarks(document, subject.judge(document.body), strict=strict)
    repeated = (_located(error) for error in document.repeated)
    remarks = tuple(sorted((*repeated, *found), key=lambda remark: remark.line or 0))
    bad = any(remark.severity == "error" for remark in remarks)
    state: output.State = "invalid" if bad else "skipped" if subject.beside else "valid"
    return Finding(document.file, document.number, state, subject.name, document.line(""), remarks)
