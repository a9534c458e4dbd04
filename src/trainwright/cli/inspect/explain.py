# SPDX-License-Identifier: Apache-2.0
"""`trainwright explain`: why a job failed, waits, restarts or runs, in a few sentences."""

from collections.abc import Iterator

import click

from trainwright.cli.inspect.facts import facts_of, view_of
from trainwright.cli.inspect.options import Form, JobChoice, collect, job_options
from trainwright.cli.inspect.screen import wrapped
from trainwright.cli.output import as_json
from trainwright.cli.show.text import line as clean
from trainwright.core.explain import explain
from trainwright.core.explanation import Explanation, as_sentence


@click.command("explain")
@job_options
def command(choice: JobChoice, form: Form) -> None:
    """Say in a few sentences why JOB failed, waits, restarts or runs, and what to do about it.

    The first line names the cause. For a failure, the command reads the end of the log of the replica that failed
    first. For a job that does not run, it says what is missing and where, and quotes the quota system.

    \b
    Examples:
      trainwright explain demo
      trainwright explain demo --run 20261117-062951-6520
      trainwright explain demo -n research --context production
      trainwright explain demo -o json | jq -r .class

    \b
    Exit codes:
      0  the job is explained, whatever its outcome
      2  wrong usage, or there is no such job
      3  no answer from the run or from the cluster
    """
    evidence = collect(choice)
    found = explain(facts_of(evidence, view_of(evidence)))
    if form == "json":
        click.echo(as_json(found), nl=False)
    else:
        click.echo("\n".join(wrapped(_explanation_lines(found))))


def _explanation_lines(found: Explanation) -> Iterator[str]:
    yield clean(found.headline)
    yield from (f"  {clean(text)}" for text in found.sentences)
    yield from (f"  {clean(as_sentence(text))}" for text in found.gaps)
    if found.action:
        yield f"What to do: {clean(found.action)}"
