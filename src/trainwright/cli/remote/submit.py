# SPDX-License-Identifier: Apache-2.0
"""`trainwright submit` to a cluster: create jobs, and the Secrets, ConfigMaps and claims in the same files.

The files are checked first, as for a local run. A Secret, a ConfigMap or a claim that exists with the same content is
used as it is, so that a user can submit the same file again. Nothing that exists is changed.
"""

from base64 import b64encode
from collections.abc import Iterable

import click

from trainwright.cli.flags import ClusterOptions
from trainwright.cli.output import as_json
from trainwright.cli.remote.connection import connect_to_cluster
from trainwright.cli.run.changes import FieldEdit
from trainwright.cli.run.intake import Destination, take
from trainwright.errors import AlreadyExistsError, InvalidError, NotFoundError, UsageError
from trainwright.kube.blocking import ClusterClient
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import CLAIMS, CONFIG_MAPS, SECRETS, jobs_of

_BESIDE = {resource.kind: resource.id for resource in (SECRETS, CONFIG_MAPS, CLAIMS)}


class _ExistsError(UsageError):
    """An object of this name exists."""


def submit_to_cluster(
    options: ClusterOptions, files: Iterable[str], namespace: str, changes: Iterable[FieldEdit], form: str
) -> None:
    """Create the objects and print what was submitted. Raises UsageError or ApiError."""
    with connect_to_cluster(options) as client:
        given = take(files, namespace, changes, Destination(False, "submitted", client.access.namespace))
        if given.skipped:
            text = f"skipped; `kubectl create` can create it: {', '.join(given.skipped)}"
            click.echo(f"notice: {text}", err=form != "text")
        for body in given.beside:
            _create_beside(client, body)
        stored = []
        for task in given.tasks:
            stored.append(_create(client, jobs_of(task.kind).id, task.body))
            if form != "json":
                click.echo(_told(client, options, task.key, form))
    if form == "json":
        click.echo(as_json(stored[0] if len(stored) == 1 else stored), nl=False)


def _told(client: ClusterClient, options: ClusterOptions, key: Key, form: str) -> str:
    word = key.name if key.namespace == client.access.namespace else str(key)
    if form == "name":
        return word
    choice = f"--context {options.context} " if options.context else ""
    choice += f"--kubeconfig {options.kubeconfig} " if options.kubeconfig else ""
    return f"{key} submitted to {client.place}; follow it with `trainwright logs -f {choice}{word}`"


def _create(client: ClusterClient, resource: str, body: Body) -> Body:
    meta, name = body["metadata"], _name(body)
    try:
        return client.create(resource, body)
    except AlreadyExistsError:
        raise _ExistsError(f"{client.place} already has {name}; delete it first, or give another name") from None
    except InvalidError as error:
        raise UsageError(f"{client.place} refuses {name}: {error}") from None
    except NotFoundError as error:
        if str(error).startswith("namespaces "):
            raise UsageError(f"{client.place} has no namespace {meta['namespace']!r}") from None
        raise UsageError(
            f"{client.place} has no CRD of {resource} ({error}); `trainwright manifests` prints what to install"
        ) from None


def _create_beside(client: ClusterClient, body: Body) -> None:
    """Create the object, or use the one that exists if it has the same content. Raises UsageError."""
    resource, meta = _BESIDE[body["kind"]], body["metadata"]
    try:
        _create(client, resource, body)
    except _ExistsError:
        stored = client.get(resource, (meta["namespace"], meta["name"]))
        if body["kind"] != CLAIMS.kind and _content(stored) != _content(body):
            text = f"{client.place} already has {_name(body)} with other content; `kubectl apply` changes it"
            raise UsageError(text) from None


def _name(body: Body) -> str:
    return f"{body['kind']} {body['metadata']['namespace']}/{body['metadata'].get('name', '')}"


def _content(body: Body) -> tuple[Body, Body]:
    """The data of a Secret or ConfigMap. A Secret stores the texts of `stringData` as base64 in `data`."""
    texts = {key: b64encode(text.encode()).decode() for key, text in (body.get("stringData") or {}).items()}
    return {**(body.get("data") or {}), **texts}, body.get("binaryData") or {}
