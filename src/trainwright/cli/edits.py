# SPDX-License-Identifier: Apache-2.0
"""The commands that change a running job: `trainwright annotate`, `suspend`, `resume`, `scale` and `delete`.

The kind of a job defines which fields suspend the job or change the number of its replicas.
"""

import re
from functools import partial
from typing import Any

import click

from trainwright.cli.completion import complete_jobs
from trainwright.cli.flags import ClusterOptions, cluster_choice, duration_option
from trainwright.cli.live_job import LiveJob, namespaced, reach, reach_kept
from trainwright.cli.runs import find
from trainwright.errors import UsageError
from trainwright.kinds.base import load
from trainwright.local.storage.metadata import merge
from trainwright.model.job import Body
from trainwright.model.ledger import Phase
from trainwright.model.meta import ROLE
from trainwright.model.problem import Problem

_wait_option = partial(duration_option, "--wait", help="Wait at most TIME for the effect.")


@click.command("annotate")
@click.argument("job", metavar="JOB", shell_complete=complete_jobs)
@click.argument("pairs", metavar="KEY=VALUE|KEY-...", nargs=-1, required=True)
@namespaced
@cluster_choice
@click.option("--overwrite", is_flag=True, help="Replace an annotation that has another value.")
def annotate_command(
    job: str, pairs: tuple[str, ...], namespace: str, cluster: ClusterOptions, overwrite: bool
) -> None:
    """Set annotations of JOB with KEY=VALUE, or remove them with KEY-.

    \b
    Examples:
      trainwright annotate demo owner=lena
      trainwright annotate --overwrite lab/demo owner=tom note-
      trainwright annotate --context production demo owner=lena
    """
    wanted = dict(_annotation(text) for text in pairs)
    reached = reach(job, namespace, cluster)
    present = reached.body["metadata"].get("annotations") or {}
    taken = [key for key, value in wanted.items() if value is not None and present.get(key, value) != value]
    if taken and not overwrite:
        listed = ", ".join(f"{key}={present[key]}" for key in taken)
        raise UsageError(f"{reached.job} already has {listed}; to replace it, give --overwrite")
    reached.patch({"metadata": {"annotations": wanted}})
    click.echo(f"{reached.job} annotated")


def _annotation(text: str) -> tuple[str, str | None]:
    key, equals, value = text.partition("=")
    if equals and key:
        return key, value
    if not equals and len(text) > 1 and text.endswith("-"):
        return text[:-1], None
    raise UsageError(f"expected KEY=VALUE to set an annotation, or KEY- to remove it; found {text!r}")


_SUSPENDED = Phase.SUSPENDED.value
_ENDED = (Phase.SUCCEEDED.value, Phase.FAILED.value)


@click.command("suspend")
@click.argument("job", metavar="JOB", shell_complete=complete_jobs)
@namespaced
@cluster_choice
@_wait_option(default="30s")
def suspend_command(job: str, namespace: str, cluster: ClusterOptions, wait: float) -> None:
    """Pause JOB: end its replicas and keep the job until `trainwright resume` continues it.

    \b
    Examples:
      trainwright suspend demo
      trainwright suspend --wait 0 -n lab demo
      trainwright suspend --context production demo
    """
    reached = _set_suspended(reach(job, namespace, cluster), on=True)
    done = reached.await_effect(lambda: _phase(reached) in (_SUSPENDED, *_ENDED) and not reached.pods(), wait)
    click.echo(f"{reached.job} {_ended_or(reached, 'is suspended' if done else 'is being suspended')}")


@click.command("resume")
@click.argument("job", metavar="JOB", shell_complete=complete_jobs)
@namespaced
@cluster_choice
@_wait_option(default="30s")
def resume_command(job: str, namespace: str, cluster: ClusterOptions, wait: float) -> None:
    """Continue JOB after `trainwright suspend`, or after it was submitted in the suspended state.

    \b
    Examples:
      trainwright resume demo
      trainwright resume lab/demo
      trainwright resume --context production demo
    """
    reached = _set_suspended(reach(job, namespace, cluster), on=False)
    done = reached.await_effect(lambda: _phase(reached) not in ("", _SUSPENDED), wait)
    click.echo(f"{reached.job} {_ended_or(reached, 'is resumed' if done else 'is being resumed')}")


def _set_suspended(reached: LiveJob, *, on: bool) -> LiveJob:
    _check_unfinished(reached)
    reached.patch(reached.kind.suspend(reached.body, on))
    return reached


def _check_unfinished(reached: LiveJob) -> None:
    if _phase(reached) in _ENDED:
        raise UsageError(f"{reached.job} has ended: {reached.kind.phase_of(reached.body['status'])}")


def _ended_or(reached: LiveJob, otherwise: str) -> str:
    return f"has ended: {_phase(reached)}" if _phase(reached) in _ENDED else otherwise


def _phase(reached: LiveJob) -> str:
    """The job's phase as a word of `Phase`, which all kinds share; empty if the job no longer exists."""
    status: Any = (reached.current() or {}).get("status") or {}
    found: str = (status.get("trainwright") or {}).get("phase", "")
    return found


_ROLE_SIZE = re.compile(r"(.+)=(-?[0-9]{1,9})")


@click.command("scale")
@click.argument("job", metavar="JOB", shell_complete=complete_jobs)
@click.argument("roles", metavar="ROLE=N...", nargs=-1, required=True)
@namespaced
@cluster_choice
@_wait_option(default="10s")
def scale_command(job: str, roles: tuple[str, ...], namespace: str, cluster: ClusterOptions, wait: float) -> None:
    """Set the number of replicas of each ROLE of JOB.

    To shrink a role, the replicas with the highest index are ended first. New replicas start when resources are free.

    \b
    Examples:
      trainwright scale demo worker=8
      trainwright scale lab/demo ps=1 worker=4
      trainwright scale --context production demo worker=8
    """
    wanted = dict(_role_and_size(text) for text in roles)
    reached = reach(job, namespace, cluster)
    if cluster.given:
        _check_unfinished(reached)
    reached.patch(_change(reached, wanted))
    reached.await_effect(lambda: all(len(_pods_of(reached, role)) == number for role, number in wanted.items()), wait)
    for role, number in wanted.items():
        existing = len(_pods_of(reached, role))
        rest = "" if existing == number else f" ({existing} exist now)"
        click.echo(f"{reached.job} {role}: {number} replica{'s' * (number != 1)}{rest}")


def _role_and_size(text: str) -> tuple[str, int]:
    found = _ROLE_SIZE.fullmatch(text)
    if found is None:
        raise UsageError(f"expected ROLE=NUMBER, such as worker=4; found {text!r}")
    return found[1], int(found[2])


def _change(reached: LiveJob, wanted: dict[str, int]) -> Body:
    """One patch for all roles. Raises UsageError if the patch would make the job invalid."""
    body, change = reached.body, {}
    for role, number in wanted.items():
        patch = reached.kind.scale(body, role, number)
        if isinstance(patch, Problem):
            raise UsageError(str(patch))
        change, body = patch, merge(body, patch)
    errors = load(reached.kind, body).errors
    if errors:
        raise UsageError("; ".join(str(problem) for problem in errors))
    return change


def _pods_of(reached: LiveJob, role: str) -> list[Body]:
    """The pods of a role. Some kinds accept the name of a role in upper or lower case."""
    wanted = role.lower()
    return [pod for pod in reached.pods() if pod["metadata"]["labels"].get(ROLE, "").lower() == wanted]


@click.command("delete")
@click.argument("job", metavar="JOB", shell_complete=complete_jobs)
@namespaced
@cluster_choice
@_wait_option(default="60s", help="Wait at most TIME for the end.")
def delete_command(job: str, namespace: str, cluster: ClusterOptions, wait: float) -> None:
    """End JOB and delete everything that belongs to it. Each replica gets its grace period; the logs are kept.

    A finished job of the background engine is removed from the engine. A cluster does not keep the logs.

    \b
    Examples:
      trainwright delete demo
      trainwright delete --wait 0 lab/demo
      trainwright delete --context production demo
    """
    reached = _to_delete(job, namespace, cluster)
    reached.delete()
    gone = reached.await_effect(lambda: reached.current() is None, wait)
    click.echo(f"{reached.job} {'deleted' if gone else 'is being deleted'}")


def _to_delete(job: str, namespace: str, cluster: ClusterOptions) -> LiveJob:
    """The job, which may have ended on a cluster and in the background engine."""
    if cluster.given:
        return reach(job, namespace, cluster)
    run = find(job, namespace)
    return reach(job, namespace) if run.live else reach_kept(run)
