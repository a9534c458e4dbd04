# SPDX-License-Identifier: Apache-2.0
"""`trainwright annotate`: set and remove annotations of a running job, as `kubectl annotate` does.

`trainwright suspend`: put a running job to rest, in its kind's own way. `resume` is the same edit, turned around.

`trainwright resume`: let a suspended job go on. `suspend` has the edit.

`trainwright scale`: change the number of replicas of a running job. The kind knows what to edit.

`trainwright delete`: end a running job from another terminal. Its `run` tells so and exits.
"""

import re
from typing import Any

import click

from trainwright.cli.flags import Duration
from trainwright.cli.live_job import LiveJob, await_effect, namespaced, reach
from trainwright.errors import InvalidError, UsageError
from trainwright.kinds.base import load
from trainwright.local.storage.metadata import merge
from trainwright.model.job import Body
from trainwright.model.ledger import Phase
from trainwright.model.meta import ROLE
from trainwright.model.problem import Problem


@click.command("annotate")
@click.argument("job", metavar="JOB")
@click.argument("pairs", metavar="KEY=VALUE|KEY-...", nargs=-1, required=True)
@namespaced
@click.option("--overwrite", is_flag=True, help="Replace annotations that have another value.")
def annotate_command(job: str, pairs: tuple[str, ...], namespace: str, overwrite: bool) -> None:
    """Set annotations of JOB, or remove those that are written with a dash at the end.

    \b
    Examples:
      trainwright annotate demo owner=lena
      trainwright annotate --overwrite lab/demo owner=tom note-
    """
    wanted = dict(_pair(text) for text in pairs)
    reached = reach(job, namespace)
    present = reached.body["metadata"].get("annotations") or {}
    taken = [key for key, value in wanted.items() if value is not None and present.get(key, value) != value]
    if taken and not overwrite:
        listed = ", ".join(f"{key}={present[key]}" for key in taken)
        raise UsageError(f"{reached.run.key} has {listed} already; --overwrite replaces it")
    try:
        reached.patch({"metadata": {"annotations": wanted}})
    except InvalidError as error:
        raise UsageError(str(error)) from None
    click.echo(f"{reached.run.key} annotated")


def _pair(text: str) -> tuple[str, str | None]:
    key, equals, value = text.partition("=")
    if equals and key:
        return key, value
    if not equals and len(text) > 1 and text.endswith("-"):
        return text[:-1], None
    raise UsageError(f"expected KEY=VALUE to set an annotation, or KEY- to remove it; found {text!r}")


_REST = (Phase.SUSPENDED.value,)
_OVER = (Phase.SUCCEEDED.value, Phase.FAILED.value)


@click.command("suspend")
@click.argument("job", metavar="JOB")
@namespaced
@click.option("--wait", type=Duration(), default="30s", show_default=True, metavar="TIME", help="Wait for the effect.")
def suspend_command(job: str, namespace: str, wait: float) -> None:
    """Pause JOB: its replicas are ended, and it keeps its name and its place until it is resumed.

    \b
    Examples:
      trainwright suspend demo
      trainwright suspend --wait 0 -n lab demo
    """
    reached = _edited(reach(job, namespace), on=True)
    done = await_effect(lambda: step(reached) in (*_REST, *_OVER) and not reached.pods(), wait)
    click.echo(f"{reached.run.key} {_told(reached, 'is suspended' if done else 'is being suspended')}")


def resume_job(job: str, namespace: str, wait: float) -> None:
    """The other way."""
    reached = _edited(reach(job, namespace), on=False)
    done = await_effect(lambda: step(reached) not in ("", *_REST), wait)
    click.echo(f"{reached.run.key} {_told(reached, 'goes on' if done else 'is being resumed')}")


def _edited(reached: LiveJob, *, on: bool) -> LiveJob:
    if step(reached) in _OVER:
        raise UsageError(f"{reached.run.key} is over: {reached.kind.phase_of(reached.body['status'])}")
    try:
        reached.patch(reached.kind.suspend(reached.body, on))
    except InvalidError as error:
        raise UsageError(str(error)) from None
    return reached


def _told(reached: LiveJob, otherwise: str) -> str:
    return f"is over: {step(reached)}" if step(reached) in _OVER else otherwise


def step(reached: LiveJob) -> str:
    """Where the job is, in our words; nothing if it is gone."""
    status: Any = (reached.again() or {}).get("status") or {}
    found: str = (status.get("trainwright") or {}).get("phase", "")
    return found


@click.command("resume")
@click.argument("job", metavar="JOB")
@namespaced
@click.option("--wait", type=Duration(), default="30s", show_default=True, metavar="TIME", help="Wait for the effect.")
def resume_command(job: str, namespace: str, wait: float) -> None:
    """Let JOB go on after `trainwright suspend`, or after it was submitted paused.

    \b
    Examples:
      trainwright resume demo
      trainwright resume lab/demo
    """
    resume_job(job, namespace, wait)


_PAIR = re.compile(r"(.+)=(-?[0-9]{1,9})")


@click.command("scale")
@click.argument("job", metavar="JOB")
@click.argument("roles", metavar="ROLE=N...", nargs=-1, required=True)
@namespaced
@click.option("--wait", type=Duration(), default="10s", show_default=True, metavar="TIME", help="Wait for the effect.")
def scale_command(job: str, roles: tuple[str, ...], namespace: str, wait: float) -> None:
    """Give each ROLE of JOB that many replicas.

    Replicas that are too many are ended, those with the highest index first; new ones are started as there is room.

    \b
    Examples:
      trainwright scale demo worker=8
      trainwright scale lab/demo ps=1 worker=4
    """
    wanted = dict(_role_and_size(text) for text in roles)
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


def _role_and_size(text: str) -> tuple[str, int]:
    found = _PAIR.fullmatch(text)
    if found is None:
        raise UsageError(f"expected ROLE=NUMBER, such as worker=4; found {text!r}")
    return found[1], int(found[2])


def _change(reached: LiveJob, wanted: dict[str, int]) -> Body:
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


def _of(reached: LiveJob, role: str) -> list[Body]:
    """Its pods; some kinds take a role's name in any case."""
    wanted = role.lower()
    return [pod for pod in reached.pods() if pod["metadata"]["labels"].get(ROLE, "").lower() == wanted]


@click.command("delete")
@click.argument("job", metavar="JOB")
@namespaced
@click.option("--wait", type=Duration(), default="60s", show_default=True, metavar="TIME", help="Wait for the end.")
def delete_command(job: str, namespace: str, wait: float) -> None:
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
