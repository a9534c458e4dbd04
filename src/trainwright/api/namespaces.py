# SPDX-License-Identifier: Apache-2.0
"""Namespaces: a namespace is made when somebody first uses it, and its deletion deletes everything in it.

On a cluster a namespace must exist before its objects. Here users have never had to make one, so the first object of a
namespace makes it.
"""

import asyncio
from contextlib import suppress

from trainwright.errors import AlreadyExistsError, ErrorCause, ForbiddenError, NotFoundError
from trainwright.local.cluster import LocalCluster
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import NAMESPACES, RESOURCES, Propagation, Resource, Selection

DEFAULT = "default"
_POLL_SECONDS = 0.05
_NAME_LABEL = "kubernetes.io/metadata.name"
_SPEC, _ACTIVE = {"finalizers": ["kubernetes"]}, {"phase": "Active"}


def admit(before: Body | None, body: Body) -> Body:
    """Add what an API server adds to a namespace."""
    metadata = body["metadata"]
    labels = {**(metadata.get("labels") or {}), _NAME_LABEL: metadata["name"]}
    named = {**body, "metadata": {**metadata, "labels": labels}}
    return named if before is not None else {**named, "spec": _SPEC, "status": _ACTIVE}


class Namespaces:
    """Makes and deletes namespaces."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        cluster.store.admit(NAMESPACES, admit)
        self._deletions: dict[str, asyncio.Task[None]] = {}

    async def require(self, name: str) -> None:
        """Make the namespace of an object if it does not exist."""
        if name and Key("", name) not in self._cluster.store.keys(NAMESPACES):
            with suppress(AlreadyExistsError):
                await self._cluster.create(NAMESPACES, {"metadata": {"name": name}})

    def check(self, resource: Resource, name: str, of: str) -> None:
        """Raise ForbiddenError if the namespace of a new object, with the name `of`, is being deleted."""
        key = Key("", name)
        if key not in self._cluster.store.keys(NAMESPACES):
            return
        if "deletionTimestamp" not in self._cluster.store.get(NAMESPACES, key)["metadata"]:
            return
        why = f"unable to create new content in namespace {name} because it is being terminated"
        cause = ErrorCause("NamespaceTerminating", f"namespace {name} is being terminated", "metadata.namespace")
        raise ForbiddenError(f'{resource.id} "{of}" is forbidden: {why}', causes=[cause])

    async def require_all(self) -> None:
        """Make the namespace `default`, and those of all stored objects: other programs do not make namespaces."""
        found = {key.namespace for one in RESOURCES for key in self._cluster.store.keys(one)}
        for name in sorted({DEFAULT, *found} - {""}):
            await self.require(name)
        for body in self._cluster.store.list(NAMESPACES.whole())[0]:
            if "deletionTimestamp" in body["metadata"]:  # an earlier engine has not finished
                self._start_deletion(body["metadata"]["name"])

    async def delete(self, name: str) -> Body:
        """Begin to delete a namespace with everything in it. Returns the namespace, whose phase is Terminating.

        Raises ForbiddenError for the namespace `default`, as an API server does.
        """
        if name == DEFAULT:
            raise ForbiddenError(f'namespaces "{name}" is forbidden: this namespace may not be deleted')
        body: Body = await self._cluster.delete(NAMESPACES, Key("", name))
        self._start_deletion(name)
        return body

    def _start_deletion(self, name: str) -> None:
        if name not in self._deletions:
            task = asyncio.create_task(self._delete(name))
            self._deletions[name] = task
            task.add_done_callback(lambda _: self._deletions.pop(name, None))

    async def _delete(self, name: str) -> None:
        """Delete all objects of a namespace, wait until they are gone, and then delete the namespace."""
        scope, resources = Selection(name), [one.whole() for one in RESOURCES if one.namespaced]
        while found := [(one, body) for one in resources for body in self._cluster.store.list(one, scope)[0]]:
            for resource, body in found:
                if not body["metadata"].get("deletionTimestamp"):
                    with suppress(NotFoundError):  # the deletion of its owner has removed it
                        key = Key(name, body["metadata"]["name"])
                        await self._cluster.delete(resource, key, propagation=Propagation.BACKGROUND)
            await asyncio.sleep(_POLL_SECONDS)
        with suppress(NotFoundError):
            await self._cluster.patch(NAMESPACES, Key("", name), {"spec": {"finalizers": None}})
