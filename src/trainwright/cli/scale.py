# SPDX-License-Identifier: Apache-2.0
"""`trainwright scale`: change the number of replicas of a running job. The kind knows what to edit."""

import re

import click

from trainwright.cli.duration import Duration
from trainwright.cli.reach import Reached, await_effect, namespaced, reach
from trainwright.errors import InvalidError, UsageError
from trainwright.kinds.base import load
from trainwright.local.storage.patches import merge
from trainwright.model.job import Body
from trainwright.model.meta import ROLE
from trainwright.model.problem import Problem

_PAIR = re.compile(r"(.+)=(-?[0-9]{1,9})")


@click.command("scale")
@click.argument("job", metavar="JOB")
@click.argument("roles", metavar="ROLE=N...", nargs=-1, required=True)
@namespaced
@click.option("--wait", type=Duration(), default="10s", show_default=True, metavar="TIME", help="Wait for the effect.")
def command(job: str, roles: tuple[str, ...], namespace: str, wait: float) -> None:
    """Give each ROLE of JOB that many replicas.

    Replicas that are too many are ended, those with the highest index first; new ones are started as there is room.

    \b
    Examples:
      trainwright scale demo worker=8
      trainwright scale lab/demo ps=1 worker=4
    """
    wanted = dict(_pair(text) for text in roles)
    reached = reach(job, namespace)
    change = _change(reached, wanted)
    try:
        reached.patch(change)
    except InvalidError as error:
        raise UsageError(str(error)) from None
    await_effect(lambda: all(len(_of(reached, role)) == number for role, number in wanted.items()), wait)
    for role, number in wanted.items():
        there = len(_of(reached, role))
        rest = "" if there == number else f" ({there} are there now)"
        click.echo(f"{reached.run.key} {role}: {number} replica{'s' * (number != 1)}{rest}")


def _pair(text: str) -> tuple[str, int]:
    found = _PAIR.fullmatch(text)
    if found is None:
        raise UsageError(f"expected ROLE=NUMBER, such as worker=4; found {text!r}")
    return found[1], int(found[2])


def _change(reached: Reached, wanted: dict[str, int]) -> Body:
    """One edit for all roles, refused here if the job would not be valid with it."""
    body, change = reached.body, {}
    for role, number in wanted.items():
        made = reached.kind.scale(body, role, number)
        if isinstance(made, Problem):
            raise UsageError(str(made))
        change, body = made, merge(body, made)
    errors = load(reached.kind, body).errors
    if errors:
        raise UsageError("; ".join(str(problem) for problem in errors))
    return change


def _of(reached: Reached, role: str) -> list[Body]:
    """Its pods; some kinds take a role's name in any case."""
    wanted = role.lower()
    return [pod for pod in reached.pods() if pod["metadata"]["labels"].get(ROLE, "").lower() == wanted]
