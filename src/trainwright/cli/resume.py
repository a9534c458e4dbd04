# SPDX-License-Identifier: Apache-2.0
"""`trainwright resume`: let a suspended job go on. `suspend` has the edit."""

import click

from trainwright.cli.duration import Duration
from trainwright.cli.reach import namespaced
from trainwright.cli.suspend import resume


@click.command("resume")
@click.argument("job", metavar="JOB")
@namespaced
@click.option("--wait", type=Duration(), default="30s", show_default=True, metavar="TIME", help="Wait for the effect.")
def command(job: str, namespace: str, wait: float) -> None:
    """Let JOB go on after `trainwright suspend`, or after it was submitted paused.

    \b
    Examples:
      trainwright resume demo
      trainwright resume lab/demo
    """
    resume(job, namespace, wait)
