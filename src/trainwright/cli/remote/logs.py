# SPDX-License-Identifier: Apache-2.0
"""`trainwright logs` on a cluster: the logs that exist now, merged by time, and the new lines of `--follow`.

A cluster keeps the log of a container as long as its pod exists, and of earlier starts of the container only the last.
`streams` reads one log; this module chooses the logs and merges them.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

import click

from trainwright.cli.live_job import LiveJob
from trainwright.cli.logs.command import LogOptions
from trainwright.cli.logs.merge import LineFilter, LogPiece
from trainwright.cli.logs.printer import Printer, Style
from trainwright.cli.logs.select import LogFile, LogSelection
from trainwright.cli.remote.connection import client_of
from trainwright.cli.remote.follow import LogFollower
from trainwright.cli.remote.outcome import ledger_of
from trainwright.cli.remote.streams import LogReader, RemoteLog, read_ahead
from trainwright.cli.run.follow import containers
from trainwright.cli.runs import near_replica
from trainwright.errors import UsageError
from trainwright.model.child import BACKING_OFF
from trainwright.model.job import Body
from trainwright.model.meta import ATTEMPT, INDEX, ROLE
from trainwright.model.problem import nearest

#: Each log needs a connection to the API server, and one from there to the node.
_MAX_LOGS = 256
_NO_ANSWER = 3


def print_logs(reached: LiveJob, wanted: LogSelection, options: LogOptions) -> int:
    """Print the logs of a job, and follow them. Return the exit code: 3 if a log could not be read."""
    pods = reached.pods()
    following = options.follow and ledger_of(reached.body).outcome is None
    chosen = _chosen(pods, wanted)
    if not chosen and not (following and not wanted.replicas):
        raise UsageError(_nothing_found(reached, pods, wanted))
    logs = [log for pod in chosen for log in logs_of_pod(pod, wanted.container)]
    unfinished = ledger_of(reached.body).outcome is None
    several = len({one.file.label for one in logs}) > 1 or (unfinished and not wanted.replicas)
    if options.previous:
        logs = [one for one in logs if one.previous]
        if not logs:
            raise UsageError(
                f"{reached.job} has no previous attempt on the cluster: it keeps only the log of a container that was"
                " restarted inside its pod"
            )
    if len(logs) > _MAX_LOGS:
        raise UsageError(f"{reached.job} has {len(logs)} logs; name the replicas to read, at most {_MAX_LOGS}")
    printer = Printer(Style(several, options.timestamps))
    reader = LogReader(client_of(reached), reached.job.namespace, options.lines())
    for piece in _merged(reader, logs, options.lines()):
        printer.show(piece)
    if following:
        LogFollower(reached, reader, printer, partial(_current_logs, reached, wanted)).follow()
    if not printer.any:
        _say_nothing_printed(reached, options)
    return _NO_ANSWER if reader.problems else 0


def _current_logs(reached: LiveJob, wanted: LogSelection) -> list[RemoteLog]:
    return [log for pod in _chosen(reached.pods(), wanted) for log in logs_of_pod(pod, wanted.container)]


def _say_nothing_printed(reached: LiveJob, options: LogOptions) -> None:
    if limits := options.limits():
        click.echo(f"no line of {reached.job} {limits}", err=True)


# -- the choice --------------------------------------------------------------------------------------------------------


def _chosen(pods: Sequence[Body], wanted: LogSelection) -> list[Body]:
    """The selected pods, role by role. The case of letters in names of replicas is ignored."""
    words = {word.lower() for word in wanted.replicas}
    found = [
        pod
        for pod in pods
        if (not words or replica_of(pod).lower() in words or pod["metadata"]["name"] in words)
        and (not wanted.container or wanted.container in containers(pod))
    ]
    labels = [pod["metadata"]["labels"] for pod in found]
    roles = {role: place for place, role in enumerate(dict.fromkeys(one[ROLE] for one in labels))}
    return sorted(found, key=lambda pod: _place(pod, roles))


def _place(pod: Body, roles: dict[str, int]) -> tuple[int, int]:
    labels = pod["metadata"]["labels"]
    return roles[labels[ROLE]], int(labels[INDEX])


def replica_of(pod: Body) -> str:
    """The replica of a pod, for example `worker-0`."""
    labels = pod["metadata"]["labels"]
    return f"{labels[ROLE]}-{labels[INDEX]}"


def logs_of_pod(pod: Body, container: str = "") -> Iterator[RemoteLog]:
    """The logs of a pod that exist: of each container the one before its last restart, and the current one."""
    meta, status, names = pod["metadata"], pod.get("status") or {}, containers(pod)
    states = {
        one["name"]: one for group in ("initContainerStatuses", "containerStatuses") for one in status.get(group) or ()
    }
    first = int(meta["labels"].get(ATTEMPT) or 0)
    for name in [name for name in names if container in ("", name) and name in states]:
        label = replica_of(pod) if len(names) == 1 else f"{replica_of(pod)}/{name}"
        one, restarts = states[name], states[name].get("restartCount", 0)
        state = one.get("state") or {}
        waits = not state.get("running") and not state.get("terminated")
        if restarts and (one.get("lastState") or {}).get("terminated"):
            file = LogFile("", label, 0, 0, first + restarts - 1, meta["uid"])
            yield RemoteLog(meta["name"], name, file, previous=True, ended=True)
        if not waits or (state.get("waiting") or {}).get("reason") == BACKING_OFF:
            file = LogFile("", label, 0, 0, first + restarts, meta["uid"])
            yield RemoteLog(meta["name"], name, file, ended=not state.get("running"))


def _nothing_found(reached: LiveJob, pods: Sequence[Body], wanted: LogSelection) -> str:
    """The error text if no pod is selected."""
    if not pods and ledger_of(reached.body).outcome is not None:
        return f"{reached.job} has no logs any more: the cluster keeps them as long as the pods, which are removed"
    if not pods:
        return f"{reached.job} has no logs yet: it has no pods"
    known = {name for pod in pods for name in (replica_of(pod), pod["metadata"]["name"])}
    for word in wanted.replicas:
        if word.lower() not in {name.lower() for name in known}:
            hint = near_replica(word, known) or f"it has {', '.join(sorted({replica_of(one) for one in pods})[:8])}"
            return f"{reached.job} has no replica {word!r}; {hint}"
    names = sorted({name for pod in pods for name in containers(pod)})
    meant = nearest(wanted.container, names)
    hint = f"did you mean `{meant}`?" if meant else f"there are {', '.join(names)}"
    return f"{reached.job} has no container {wanted.container!r} in these replicas; {hint}"


# -- the lines that exist ----------------------------------------------------------------------------------------------


def _merged(reader: LogReader, logs: Sequence[RemoteLog], wanted: LineFilter) -> Iterator[LogPiece]:
    """The wanted lines of all logs in the order of time. Each container is read in a thread of its own."""
    by_label: dict[str, list[RemoteLog]] = {}
    for one in logs:
        by_label.setdefault(one.file.label, []).append(one)
    streams = [read_ahead(_of_container(reader, own, wanted)) for own in by_label.values()]
    return heapq.merge(*streams, key=lambda one: one.piece.time)


def _of_container(reader: LogReader, logs: Sequence[RemoteLog], wanted: LineFilter) -> Iterator[LogPiece]:
    pieces = chain.from_iterable(reader.existing_lines(one) for one in logs)
    return pieces if wanted.last is None else iter(deque(pieces, maxlen=wanted.last))
