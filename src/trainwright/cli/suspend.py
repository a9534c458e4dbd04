# SPDX-License-Identifier: Apache-2.0
"""`trainwright suspend`: put a running job to rest, in its kind's own way. `resume` is the same edit, turned around."""

from typing import Any

import click

from trainwright.cli.duration import Duration
from trainwright.cli.reach import Reached, await_effect, namespaced, reach
from trainwright.errors import InvalidError, UsageError
from trainwright.model.ledger import Phase

_REST = (Phase.SUSPENDED.value,)
_OVER = (Phase.SUCCEEDED.value, Phase.FAILED.value)


@click.command("suspend")
@click.argument("job", metavar="JOB")
@namespaced
@click.option("--wait", type=Duration(), default="30s", show_default=True, metavar="TIME", help="Wait for the effect.")
def command(job: str, namespace: str, wait: float) -> None:
    """Pause JOB: its replicas are ended, and it keeps its name and its place until it is resumed.

    \b
    Examples:
      trainwright suspend demo
      trainwright suspend --wait 0 -n lab demo
    """
    reached = _edited(reach(job, namespace), on=True)
    done = await_effect(lambda: step(reached) in (*_REST, *_OVER) and not reached.pods(), wait)
    click.echo(f"{reached.run.key} {_told(reached, 'is suspended' if done else 'is being suspended')}")


def resume(job: str, namespace: str, wait: float) -> None:
    """The other way."""
    reached = _edited(reach(job, namespace), on=False)
    done = await_effect(lambda: step(reached) not in ("", *_REST), wait)
    click.echo(f"{reached.run.key} {_told(reached, 'goes on' if done else 'is being resumed')}")


def _edited(reached: Reached, *, on: bool) -> Reached:
    if step(reached) in _OVER:
        raise UsageError(f"{reached.run.key} is over: {reached.kind.word(reached.body['status'])}")
    try:
        reached.patch(reached.kind.suspend(reached.body, on))
    except InvalidError as error:
        raise UsageError(str(error)) from None
    return reached


def _told(reached: Reached, otherwise: str) -> str:
    return f"is over: {step(reached)}" if step(reached) in _OVER else otherwise


def step(reached: Reached) -> str:
    """Where the job is, in our words; nothing if it is gone."""
    status: Any = (reached.again() or {}).get("status") or {}
    found: str = (status.get("trainwright") or {}).get("phase", "")
    return found
