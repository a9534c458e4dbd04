# SPDX-License-Identifier: Apache-2.0
"""The way from a job's name to its live run: which one is meant, its engine, the job as it is stored.

Called by `get`, `exec`, `annotate`, `scale`, `suspend`, `resume` and `delete`, which then use its `Portal`.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import click
from msgspec import Struct

from trainwright.cli.record import facts_of
from trainwright.cli.runs import Run, find
from trainwright.errors import EngineError, NotFoundError, UnavailableError, UsageError
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.local.sockets.blocking import BlockingClient
from trainwright.model.job import Body
from trainwright.model.meta import ATTEMPT, JOB_UID, SPARE

Command = TypeVar("Command", bound=Callable[..., Any])
_POLL = 0.05
#: An engine answers within milliseconds; one that does not is stopped (Ctrl-Z), or its machine is in great trouble.
_PATIENCE = 5.0


class LiveJob(Struct, frozen=True):
    """A job of a live run, and the way to it."""

    run: Run
    portal: BlockingClient
    kind: Kind
    body: Body

    @property
    def resource(self) -> str:
        """The job's resource."""
        return resource_of(self.kind)

    @property
    def key(self) -> tuple[str, str]:
        """As the portal wants it."""
        return self.run.key.namespace, self.run.key.name

    def again(self) -> Body | None:
        """The job as it now is, if it still is."""
        try:
            return self.portal.get(self.resource, self.key)
        except (NotFoundError, UnavailableError):
            return None

    def pods(self) -> list[Body]:
        """The job's pods, in the order of their names; not those that only hold a place."""
        found, _ = self.portal.list(
            "pods", namespace=self.run.key.namespace, labels=f"{JOB_UID}={self.body['metadata']['uid']}"
        )
        return [pod for pod in found if pod["metadata"]["labels"].get(ATTEMPT) != SPARE]

    def patch(self, change: Body) -> Body:
        """Merge-patch the job."""
        return self.portal.patch(self.resource, self.key, change)


def namespaced(command: Command) -> Command:
    """The option that all these commands have."""
    return click.option("-n", "--namespace", metavar="NS", default="", help="Where the job is, if that is not clear.")(
        command
    )


def resource_of(kind: Kind) -> str:
    """The id of a kind's resource."""
    return f"{kind.plural}.{kind.group}"


def reach(word: str, namespace: str = "") -> LiveJob:
    """The job that somebody means. Raises UsageError if it is not live, EngineError if its engine does not answer."""
    run = find(word, namespace)
    if not run.live:
        raise UsageError(_over(run))
    portal = enter(run)
    for kind in KINDS:
        try:
            return LiveJob(run, portal, kind, portal.get(resource_of(kind), (run.key.namespace, run.key.name)))
        except NotFoundError:
            continue
    raise UsageError(f"{run.key} is not there (any more), though the run that began with it is (process {run.pid})")


def enter(run: Run) -> BlockingClient:
    """A connection to the engine of a live run. Raises EngineError if it does not answer, or is of another version."""
    try:
        return BlockingClient(run.socket, timeout=_PATIENCE)
    except (UnavailableError, EngineError) as error:
        raise EngineError(f"{run.key} is being run by process {run.pid}, but {error}") from None


def _over(run: Run) -> str:
    facts = facts_of(run.folder)
    ended = f"ended at {facts.ended}" if facts is not None and facts.ended else "was killed"
    status = "its status" if facts is not None and facts.ended else "what is known of it"
    return (
        f"there is no live run of {run.key}; the last one {ended} "
        f"(its logs: `trainwright logs {run.word}`, {status}: `trainwright get {run.word}`)"
    )


def await_effect(look: Callable[[], bool], seconds: float) -> bool:
    """Wait until something is so, but not longer than that."""
    until = time.monotonic() + seconds
    while not look():
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL)
    return True
