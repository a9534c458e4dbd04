# SPDX-License-Identifier: Apache-2.0
"""Finds a running job by its name: its run, a client of the engine that runs the job, and the stored job."""

import time
from collections.abc import Callable

from msgspec import Struct

from trainwright.cli.flags import text_option
from trainwright.cli.record import read_run_info
from trainwright.cli.runs import Run, find
from trainwright.errors import EngineError, InvalidError, NotFoundError, UnavailableError, UsageError
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.local.sockets.blocking import BlockingClient
from trainwright.model.job import Body
from trainwright.model.meta import ATTEMPT, JOB_UID, SPARE

_POLL_SECONDS = 0.05
#: An engine answers within milliseconds. After this time without an answer, the engine is probably stopped (Ctrl-Z).
_ANSWER_TIMEOUT_SECONDS = 5.0


class LiveJob(Struct, frozen=True):
    """A job of a live run, with a client of the engine."""

    run: Run
    client: BlockingClient
    kind: Kind
    body: Body

    @property
    def resource(self) -> str:
        """The id of the resource of the job's kind."""
        return resource_of(self.kind)

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name, as the client expects them."""
        return self.run.key.namespace, self.run.key.name

    def current(self) -> Body | None:
        """The job as it is stored now; None if the job or its engine does not exist any more."""
        try:
            return self.client.get(self.resource, self.key)
        except (NotFoundError, UnavailableError):
            return None

    def pods(self) -> list[Body]:
        """The job's pods in the order of their names. Spare pods, which only reserve nodes, are left out."""
        found, _ = self.client.list(
            "pods", namespace=self.run.key.namespace, labels=f"{JOB_UID}={self.body['metadata']['uid']}"
        )
        return [pod for pod in found if pod["metadata"]["labels"].get(ATTEMPT) != SPARE]

    def patch(self, change: Body) -> None:
        """Merge-patch the job. Raises UsageError if the job would be invalid."""
        try:
            self.client.patch(self.resource, self.key, change)
        except InvalidError as error:
            raise UsageError(str(error)) from None


namespaced = text_option(
    "-n",
    "--namespace",
    metavar="NS",
    help="The namespace of the job; needed if the same name exists in several namespaces.",
)


def resource_of(kind: Kind) -> str:
    """The id of a kind's resource."""
    return f"{kind.plural}.{kind.group}"


def reach(word: str, namespace: str = "") -> LiveJob:
    """The job with this name. Raises UsageError if the job does not run, EngineError if its engine does not answer."""
    run = find(word, namespace)
    if not run.live:
        raise UsageError(_not_live(run))
    client = _connect(run)
    for kind in KINDS:
        try:
            return LiveJob(run, client, kind, client.get(resource_of(kind), (run.key.namespace, run.key.name)))
        except NotFoundError:
            continue
    raise UsageError(
        f"{run.key} does not exist any more, but the run that started it is still live (process {run.pid})"
    )


def _connect(run: Run) -> BlockingClient:
    """A client of the engine of a live run. Raises EngineError if the engine does not answer or has another version."""
    try:
        return BlockingClient(run.socket, timeout=_ANSWER_TIMEOUT_SECONDS)
    except (UnavailableError, EngineError) as error:
        raise EngineError(f"process {run.pid} runs {run.key}, but {error}") from None


def _not_live(run: Run) -> str:
    info = read_run_info(run.folder)
    ended = f"ended at {info.ended}" if info is not None and info.ended else "was killed"
    status = "its status" if info is not None and info.ended else "what is known about it"
    return (
        f"{run.key} is not running; its last run {ended} "
        f"(its logs: `trainwright logs {run.word}`, {status}: `trainwright get {run.word}`)"
    )


def await_effect(reached: Callable[[], bool], seconds: float) -> bool:
    """Wait at most `seconds` until `reached()` is true. Return the last result of `reached()`."""
    until = time.monotonic() + seconds
    while not reached():
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_SECONDS)
    return True
