# SPDX-License-Identifier: Apache-2.0
"""Connect to the cluster that the user chose, and reach a job there."""

from trainwright.cli.flags import ClusterOptions, check_namespace
from trainwright.cli.live_job import LiveJob
from trainwright.cli.remote.find import JobFinder, NamedJob, parse_name, place_of
from trainwright.kube.blocking import ClusterClient
from trainwright.kube.config import ConnectionOptions, load


def connect_to_cluster(options: ClusterOptions) -> ClusterClient:
    """A client of the cluster. Raises UsageError if there is no such context. It sends no request yet."""
    access = load(ConnectionOptions(kubeconfig=options.kubeconfig, context=options.context))
    return ClusterClient(access, place_of(access))


def namespace_of(client: ClusterClient, namespace: str) -> str:
    """The namespace of `--namespace`; without it, the namespace of the context."""
    check_namespace(namespace)
    return namespace or client.access.namespace


def client_of(reached: LiveJob) -> ClusterClient:
    """The client of a job that `reach_on_cluster` has found."""
    assert isinstance(reached.client, ClusterClient)  # noqa: S101 - as above
    return reached.client


def reach_on_cluster(options: ClusterOptions, word: str, namespace: str) -> LiveJob:
    """The job `word` (NAME, NAMESPACE/NAME or KIND/NAME) of a cluster. Raises UsageError or ApiError."""
    check_namespace(namespace)
    client = connect_to_cluster(options)
    return reach_by(client, word, namespace)


def reach_by(client: ClusterClient, word: str, namespace: str) -> LiveJob:
    """The same, with a connection that several jobs share."""
    name = parse_name(word, namespace, client.access.namespace)
    kind, body = finder(client, name).find()
    return LiveJob(name.key, client, kind, body)


def finder(client: ClusterClient, name: NamedJob) -> JobFinder:
    """The search for this job."""
    return JobFinder(client.http, name, client.place)
