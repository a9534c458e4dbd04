# SPDX-License-Identifier: Apache-2.0
"""Finds a running job by its name: its run, a client of the engine that runs the job, and the stored job.

With `--context` or `--kubeconfig`, the job is on a cluster: the client is a client of its API server, and there is no
run on this machine. For a job of the background engine, it is the same client, and the API server is the engine. Only a
private run, and an engine without an API, are reached through their private socket.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, Self

from msgspec import Struct
from msgspec.structs import replace

from trainwright.cli.flags import THIS_MACHINE, ClusterOptions, text_option
from trainwright.cli.record import read_run_info
from trainwright.cli.runs import Run, find
from trainwright.cli.state import ENGINE, LOCK, home, is_live
from trainwright.errors import EngineError, InvalidError, NotFoundError, TrainwrightError, UnavailableError, UsageError
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.local.sockets.blocking import BlockingClient
from trainwright.model.job import Body
from trainwright.model.meta import JOB_UID, Key, is_replica

#: How often a command asks for an effect. An API server serves many users.
_POLL_SECONDS, _CLUSTER_POLL_SECONDS = 0.05, 0.25
#: What to say about an unfinished job of the background engine if no engine runs.
NO_ENGINE = "no engine runs: its replicas run on, and `trainwright up` continues with the job"
#: An engine answers within milliseconds. After this time without an answer, the engine is probably stopped (Ctrl-Z).
_ANSWER_TIMEOUT_SECONDS = 5.0


class JobClient(Protocol):
    """What commands need of an engine or of an API server. Methods raise ApiError."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def list(self, resource: str, **scope: str) -> tuple[list[Body], str]:
        """The objects of a scope: `namespace`, `labels`, `fields`."""
        ...

    def get(self, resource: str, key: tuple[str, str]) -> Body:
        """One object."""
        ...

    def patch(self, resource: str, key: tuple[str, str], body: Body) -> Body:
        """Merge-patch an object."""
        ...

    def delete(self, resource: str, key: tuple[str, str], *, propagation: str, uid: str) -> Any:
        """Delete an object."""
        ...


class LiveJob(Struct, frozen=True):
    """A job of a live run or of a cluster, with a client of the engine or of the API server."""

    job: Key
    client: JobClient
    kind: Kind
    body: Body
    #: The run on this machine; None: the job is on a cluster.
    local_run: Run | None = None

    @property
    def resource(self) -> str:
        """The id of the resource of the job's kind."""
        return resource_of(self.kind)

    @property
    def run(self) -> Run:
        """The run on this machine, for commands that do not work on a cluster."""
        assert self.local_run is not None  # noqa: S101 - these commands have no option to choose a cluster
        return self.local_run

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name, as the client expects them."""
        return self.job.namespace, self.job.name

    def current(self) -> Body | None:
        """The job as it is stored now; None if the job or its engine does not exist any more.

        A cluster does not end with its jobs, so no answer from it is an error.
        """
        try:
            found = self.client.get(self.resource, self.key)
        except NotFoundError:
            return None
        except UnavailableError:
            if self.local_run is None:
                raise
            return None
        return found if found["metadata"]["uid"] == self.body["metadata"]["uid"] else None

    def pods(self) -> list[Body]:
        """The pods of the job's replicas in the order of their names."""
        found, _ = self.client.list(
            "pods", namespace=self.job.namespace, labels=f"{JOB_UID}={self.body['metadata']['uid']}"
        )
        return [pod for pod in found if is_replica(pod["metadata"]["labels"])]

    def await_effect(self, is_there: Callable[[], bool], seconds: float) -> bool:
        """Wait at most `seconds` until `is_there()` is true. Return the last result of `is_there()`."""
        until, pause = time.monotonic() + seconds, _CLUSTER_POLL_SECONDS if self.local_run is None else _POLL_SECONDS
        while not is_there():
            if time.monotonic() >= until:
                return False
            time.sleep(pause)
        return True

    def delete(self) -> None:
        """Delete the job and everything that it owns. It exists until everything is gone."""
        with suppress(NotFoundError):
            self.client.delete(self.resource, self.key, propagation="Foreground", uid=str(self.body["metadata"]["uid"]))

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


def reach(word: str, namespace: str = "", cluster: ClusterOptions = THIS_MACHINE) -> LiveJob:
    """The job with this name. Raises UsageError if the job does not run, EngineError if its engine does not answer.

    A job of a cluster may have ended. Raises UsageError if there is no such job, ApiError if the cluster refuses.
    """
    if cluster.given:
        from trainwright.cli.remote.connection import reach_on_cluster  # noqa: PLC0415 - this machine needs no HTTP

        return reach_on_cluster(cluster, word, namespace)
    run = find(word, namespace)
    if not run.live:
        raise _not_live(run)
    reached = _stored(run)
    if reached is None:
        process = f"(process {run.pid})"
        raise UsageError(f"{run.key} does not exist any more, but the run that started it is still live {process}")
    return reached


def reach_kept(run: Run) -> LiveJob:
    """A finished job that the background engine keeps, perhaps under the name of a later private run.

    Raises UsageError if the engine does not have the job, EngineError if the job is unfinished and no engine runs.
    """
    engine = run.engine or home() / ENGINE
    reached = _stored(replace(run, engine=engine)) if is_live(engine / LOCK) else None
    if reached is None and run.background and is_live(engine / LOCK):
        raise UsageError(f"{run.key} is not stored any more; its logs are in {run.folder}")
    if reached is None:
        raise _not_live(run)
    return reached


def _stored(run: Run) -> LiveJob | None:
    """The job as the engine stores it; None if the engine does not have it."""
    client = connect_to(run)
    for kind in KINDS:
        try:
            body = client.get(resource_of(kind), (run.key.namespace, run.key.name))
            return LiveJob(run.key, client, kind, body, run)
        except NotFoundError:
            continue
    return None


def connect_to(run: Run) -> JobClient:
    """A client of the engine of a live run. Raises EngineError if the engine does not answer or has another version."""
    try:
        return _api_client(run) or BlockingClient(run.socket, timeout=_ANSWER_TIMEOUT_SECONDS)
    except (UnavailableError, EngineError) as error:
        raise EngineError(f"process {run.pid} runs {run.key}, but {error}") from None


def _api_client(run: Run) -> JobClient | None:
    """A client of the engine's API; None if the engine has no API, or if it has just been started."""
    if run.api_socket is None:
        return None
    from trainwright.kube.blocking import engine_client  # noqa: PLC0415 - a private run needs no HTTP

    return engine_client(run.api_socket, _ANSWER_TIMEOUT_SECONDS)


def _not_live(run: Run) -> TrainwrightError:
    info = read_run_info(run.folder)
    if run.background and (info is None or not info.ended):
        return EngineError(f"{run.key} is unfinished, but {NO_ENGINE}")
    ended = f"ended at {info.ended}" if info is not None and info.ended else "was killed"
    status = "its status" if info is not None and info.ended else "what is known about it"
    return UsageError(
        f"{run.key} is not running; its last run {ended} "
        f"(its logs: `trainwright logs {run.word}`, {status}: `trainwright get {run.word}`)"
    )
