# SPDX-License-Identifier: Apache-2.0
"""An API server for commands, with the methods of `local.sockets.blocking.BlockingClient`.

A resource is given by its ID (for example `pods`), and an object by a tuple (namespace, name). Errors about missing
rights say which right is missing.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from trainwright.errors import ForbiddenError, QuotaError
from trainwright.kube.blocking_http import BlockingHttpClient, BlockingHttpPolicy, RejectedError, http_client
from trainwright.kube.codec import Request, create_path, decode_object, encode, object_path, with_query
from trainwright.kube.config import Access, ClusterEntry, Located, UserEntry
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.units import rfc3339
from trainwright.runtime.ports import BY_ID, PODS, LogPart, Resource, Selection

_MERGE_PATCH = "application/merge-patch+json"
_HEALTH = Request("get", "", "/readyz", idempotent=True)


class ClusterClient:
    """The cluster of `access`, as the user of `access`. `place` is the cluster as a user calls it."""

    def __init__(self, access: Access, place: str, policy: BlockingHttpPolicy | None = None) -> None:
        self.access, self.place = access, place
        self.http: BlockingHttpClient = http_client(access, policy)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that no request uses."""
        self.http.close()

    def list(self, resource: str, **scope: str) -> tuple[list[Body], str]:
        """The objects of a scope (`namespace`, `labels`, `fields`). The version of the list is not read."""
        found, selection = BY_ID[resource].whole(), Selection(**scope)
        try:
            return list(self.http.list(found, selection)), ""
        except ForbiddenError as error:
            raise self.refused("list", resource, selection.namespace, error) from None

    def get(self, resource: str, key: tuple[str, str]) -> Body:
        """One object."""
        found = BY_ID[resource].whole()
        return self._send(found, key[0], Request("get", resource, object_path(found, Key(*key)), idempotent=True))

    def create(self, resource: str, body: Body) -> Body:
        """Create an object. The body contains its name and namespace."""
        version, namespace = body["apiVersion"].rpartition("/")[2], body["metadata"].get("namespace", "")
        found = replace(BY_ID[resource].whole(), version=version)
        return self._send(found, namespace, Request("create", resource, create_path(found, namespace), encode(body)))

    def patch(self, resource: str, key: tuple[str, str], body: Body) -> Body:
        """Merge-patch an object."""
        found = BY_ID[resource].whole()
        path = object_path(found, Key(*key))
        return self._send(found, key[0], Request("patch", resource, path, encode(body), _MERGE_PATCH, idempotent=True))

    def delete(self, resource: str, key: tuple[str, str], *, propagation: str = "Background", uid: str = "") -> None:
        """Delete an object, which exists until everything that it owns is gone if `propagation` is Foreground."""
        options: Body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        options |= {"preconditions": {"uid": uid}} if uid else {}
        found = BY_ID[resource].whole()
        path = object_path(found, Key(*key))
        request = Request("delete", resource, path, encode(options), idempotent=bool(uid), pinned=bool(uid))
        self._send(found, key[0], request)

    def log(self, key: tuple[str, str], container: str, part: LogPart) -> Iterator[bytes]:
        """The log of a container of the pod `key`, in parts as they arrive."""
        query = {"container": container}
        query |= {name: "true" for name in ("follow", "previous", "timestamps") if getattr(part, name)}
        query |= {"tailLines": str(part.tail)} if part.tail is not None else {}
        query |= {"sinceTime": rfc3339(part.since)} if part.since is not None else {}
        request = Request("get", "pods/log", with_query(object_path(PODS, Key(*key), "log"), query), idempotent=True)
        try:
            yield from self.http.stream(request)
        except ForbiddenError as error:
            raise self.refused("get", "pods/log", key[0], error) from None

    def _send(self, resource: Resource, namespace: str, request: Request) -> Body:
        try:
            data = self.http.send(request)
        except ForbiddenError as error:
            raise self.refused(request.verb, resource.id, namespace, error) from None
        body: Body = decode_object(resource, data)
        return body

    def refused(self, verb: str, resource: str, namespace: str, error: ForbiddenError) -> ForbiddenError:
        """The error with the missing right in its text. A used-up quota and wrong credentials are other errors."""
        if isinstance(error, QuotaError | RejectedError):
            return error
        where = f" in namespace {namespace!r}" if namespace else ""
        return ForbiddenError(f"you may not {verb} {resource}{where} of {self.place}: {error}")


def engine_client(socket: Path, seconds: float) -> ClusterClient:
    """A client of the engine on this machine whose API listens at `socket`, as its owner.

    It waits `seconds` for each answer. It repeats no request: an engine that answers with an error, or does not answer,
    does so the next time too. Raises UnavailableError if the engine does not answer.
    """
    cluster, user = Located("", "", ClusterEntry()), Located("", "", UserEntry())
    access = Access("http://localhost", cluster, user, socket=socket)
    client = ClusterClient(access, f"the engine at {socket}", BlockingHttpPolicy(seconds, retry_seconds=0.0))
    client.http.send(_HEALTH)
    return client
