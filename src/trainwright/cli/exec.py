# SPDX-License-Identifier: Apache-2.0
"""`trainwright exec`: a command inside a replica of a live run, with this terminal. That is what debug mode is for.

The engine tells where the replica is; the supervisor of that node runs the command (`terminal` talks to it).
"""

import click

from trainwright.cli.condition import condition
from trainwright.cli.reach import Reached, namespaced, reach
from trainwright.cli.terminal import run_in
from trainwright.errors import UsageError
from trainwright.model.child import BACKING_OFF
from trainwright.model.job import Body
from trainwright.model.meta import CONTAINER_SCHEME, INDEX, PREFIX, ROLE
from trainwright.model.problem import nearest

SUPERVISOR = f"{PREFIX}/supervisor"


@click.command("exec")
@click.argument("job", metavar="JOB")
@click.argument("replica", metavar="REPLICA")
@click.argument("words", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED, required=True)
@namespaced
@click.option("-c", "--container", metavar="NAME", default="", help="Which container.  [default: the first]")
@click.option("-i", is_flag=True, expose_value=False, help="Accepted for kubectl's sake: input is always passed on.")
@click.option("-t/-T", "--tty/--no-tty", default=None, help="A terminal for it, or none.  [default: if this is one]")
def command(job: str, replica: str, words: tuple[str, ...], namespace: str, container: str, tty: bool | None) -> int:
    """Run COMMAND in REPLICA of JOB, which must be running; exit with its exit code.

    REPLICA is ROLE-INDEX such as worker-0, or the name of its pod. The command sees what the replica sees: its network,
    files, environment and working directory.

    \b
    Examples:
      trainwright exec demo worker-0 -- bash
      trainwright exec demo worker-0 -- env | sort
      trainwright exec -c sidecar lab/demo ps-1 -- cat /etc/hosts
    """
    reached = reach(job, namespace)
    pod = _pod(reached, replica)
    place = _container(pod, container)
    return run_in(_supervisor(reached, pod), place, list(words), tty=tty)


def _pod(reached: Reached, word: str) -> Body:
    """The replica's pod that runs."""
    pods = reached.pods()
    names = {_name(pod): pod for pod in pods} | {pod["metadata"]["name"]: pod for pod in pods}
    found: Body | None = {name.lower(): pod for name, pod in names.items()}.get(word.lower())
    if found is None:
        meant = nearest(word, names)
        there = ", ".join(_name(pod) for pod in pods[:8]) + ", …" * (len(pods) > 8)
        hint = f"; did you mean `{meant}`?" if meant else f"; there are {there}" if pods else "; it has none now"
        raise UsageError(f"{reached.run.key} has no replica {word!r}{hint}")
    state = condition(found)
    if state.phase not in ("Running", BACKING_OFF):  # of several containers, one that runs may still be entered
        why = f" ({state.reason})" if state.reason else ""
        raise UsageError(f"{word} is not running: {state.phase}{why}")
    return found


def _name(pod: Body) -> str:
    labels = pod["metadata"]["labels"]
    return f"{labels.get(ROLE)}-{labels.get(INDEX)}"


def _container(pod: Body, word: str) -> str:
    """The id of a container that runs."""
    statuses = {one["name"]: one for one in pod["status"].get("containerStatuses") or ()}
    name = word or next(iter(statuses), "")
    if name not in statuses:
        meant = nearest(word, statuses)
        hint = f"did you mean `{meant}`?" if meant else f"it has {', '.join(statuses)}"
        raise UsageError(f"{_name(pod)} has no container {word!r}; {hint}")
    if not (statuses[name].get("state") or {}).get("running"):
        raise UsageError(f"container {name} of {_name(pod)} is not running")
    found: str = statuses[name].get("containerID", "").removeprefix(CONTAINER_SCHEME)
    return found


def _supervisor(reached: Reached, pod: Body) -> str:
    name = pod["spec"]["nodeName"]
    node = reached.portal.get("nodes", ("", name))
    told = (node["metadata"].get("annotations") or {}).get(SUPERVISOR)
    return str(told or reached.run.folder / "nodes" / name / "supervisor.sock")
