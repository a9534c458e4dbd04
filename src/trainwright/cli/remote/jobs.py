# SPDX-License-Identifier: Apache-2.0
"""`trainwright get` on a cluster: the jobs with their pods."""

from functools import partial

import click

from trainwright.cli.flags import ClusterOptions
from trainwright.cli.get import ListedJob
from trainwright.cli.remote.connection import connect_to_cluster, finder, namespace_of, reach_by
from trainwright.cli.remote.find import NamedJob
from trainwright.cli.remote.outcome import ending_of, ledger_of
from trainwright.cli.show.text import details, headline
from trainwright.errors import ForbiddenError, NotFoundError
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.kube.blocking import ClusterClient
from trainwright.kube.blocking_http import together
from trainwright.model.job import Body
from trainwright.model.meta import JOB_UID, KIND, Key, is_replica
from trainwright.runtime.ports import WallClock, jobs_of


def listed_jobs(
    cluster: ClusterOptions, names: tuple[str, ...], namespace: str | None, *, include_ended: bool
) -> list[ListedJob]:
    """The jobs that the user names, or all jobs of a namespace (None: of all namespaces), in the order of their keys.

    Raises UsageError or ApiError. If the caller may not list pods, a notice says so.
    """
    with connect_to_cluster(cluster) as client:
        if names:
            return [_named(client, name, namespace or "") for name in names]
        return _all(client, namespace_of(client, namespace) if namespace is not None else "", include_ended)


def _named(client: ClusterClient, name: str, namespace: str) -> ListedJob:
    reached = reach_by(client, name, namespace)
    reached.body["metadata"].pop("managedFields", None)  # as kubectl does
    ending = ending_of(reached.kind, reached.body, WallClock().now())
    ended = (headline(ending), *(f"  {line}" for line in details(ending))) if ending is not None else ()
    try:
        pods = reached.pods()
    except ForbiddenError as error:
        _notice(error)
        return ListedJob(reached.job, reached.body, ended=ended)
    # A job that has ended often has no pods any more: that is not worth a line.
    return ListedJob(reached.job, reached.body, pods if pods or not ended else None, ended=ended)


def _all(client: ClusterClient, namespace: str, include_ended: bool) -> list[ListedJob]:
    lists = together([partial(_jobs, client, kind, namespace) for kind in KINDS])
    if all(listed is None for listed in lists):
        finder(client, NamedJob(Key(namespace, ""))).check_installed()
    bodies = [body for listed in lists for body in listed or () if include_ended or ledger_of(body).outcome is None]
    pods = _pods(client, namespace) if bodies else {}
    found = []
    for body in bodies:
        meta = body["metadata"]
        meta.pop("managedFields", None)
        own = pods.get(meta["uid"], []) if pods is not None else None
        found.append(ListedJob(Key(meta["namespace"], meta["name"]), body, own))
    return sorted(found, key=lambda one: one.key)


def _jobs(client: ClusterClient, kind: Kind, namespace: str) -> list[Body] | None:
    """The jobs of a kind; None if the cluster does not have the kind."""
    try:
        return client.list(jobs_of(kind).id, namespace=namespace)[0]
    except NotFoundError:
        return None


def _pods(client: ClusterClient, namespace: str) -> dict[str, list[Body]] | None:
    """The pods of all jobs by the UID of the job; None if the caller may not list them."""
    try:
        pods, _ = client.list("pods", namespace=namespace, labels=KIND)
    except ForbiddenError as error:
        _notice(error)
        return None
    by_job: dict[str, list[Body]] = {}
    for pod in pods:
        labels = pod["metadata"]["labels"]
        if is_replica(labels):
            by_job.setdefault(labels.get(JOB_UID, ""), []).append(pod)
    return by_job


def _notice(error: ForbiddenError) -> None:
    click.echo(f"notice: {error}; the replicas are left out", err=True)
