# SPDX-License-Identifier: Apache-2.0
"""`trainwright delete`: end a running job from another terminal. Its `run` tells so and exits."""

import click

from trainwright.cli.duration import Duration
from trainwright.cli.reach import await_effect, namespaced, reach


@click.command("delete")
@click.argument("job", metavar="JOB")
@namespaced
@click.option("--wait", type=Duration(), default="60s", show_default=True, metavar="TIME", help="Wait for the end.")
def command(job: str, namespace: str, wait: float) -> None:
    """End JOB and everything that belongs to it, as its replicas wish to be ended. Its logs are kept.

    \b
    Examples:
      trainwright delete demo
      trainwright delete --wait 0 lab/demo
    """
    reached = reach(job, namespace)
    reached.portal.delete(reached.resource, reached.key, propagation="Foreground")
    gone = await_effect(lambda: reached.again() is None, wait)
    click.echo(f"{reached.run.key} {'deleted' if gone else 'is being deleted'}")
