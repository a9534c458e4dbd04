# SPDX-License-Identifier: Apache-2.0
"""Creates, replaces, patches and deletes objects, with the meaning that a Kubernetes API server gives these verbs.

Between the read and the write of one object here, nothing else runs, so a patch never overwrites another change.
"""

from collections.abc import Callable
from typing import Any

from trainwright.api import bodies, content_checks, known_fields, metadata_checks
from trainwright.api.bodies import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, DeleteOptions
from trainwright.api.jsonpatch import PatchError, apply_json_patch
from trainwright.api.queries import WriteOptions
from trainwright.api.resources import ServedResource
from trainwright.api.strategic import strategic_merge
from trainwright.errors import AlreadyExistsError, BadRequestError, ConflictError, ErrorCause, FieldError
from trainwright.kinds.base import stored
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.collector import deleted_body, deleted_metadata
from trainwright.local.storage.metadata import key_of, merge, same, timestamp, without_nulls
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import EVENTS, LEASES, NAMESPACES, PODS, SERVICES, Propagation, Resource, Selection

_MISSING_VERSION = ErrorCause(
    "FieldValueInvalid", "Invalid value: 0: must be specified for an update", "metadata.resourceVersion"
)
#: As on an API server, a PUT creates an object of these resources.
_CREATED_BY_PUT = (EVENTS.id, LEASES.id, SERVICES.id)
#: The preconditions of a deletion: the field, its name in messages, and what may have happened to the object.
_PRECONDITIONS = (
    ("uid", "UID", "deleted and then recreated"),
    ("resourceVersion", "ResourceVersion", "modified"),
)


class Writes:
    """The writes to one store. Each method returns the object after the write and a list of warnings."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster, self._store = cluster, cluster.store

    async def create(self, served: ServedResource, body: Body, options: WriteOptions) -> tuple[Body, list[str]]:
        """Create an object."""
        known, warnings = _checked(served, None, body, options)
        if body["metadata"].get("resourceVersion"):
            raise BadRequestError("resourceVersion should not be set on objects to be created")
        return await self._cluster.durably(lambda: self._create(_stored(served), known, options)), warnings

    def _create(self, resource: Resource, body: Body, options: WriteOptions) -> Body:
        try:
            return self._store.create(resource, body, dry_run=options.dry_run)
        except AlreadyExistsError as error:
            if "deletionTimestamp" in self._store.get(resource, key_of(body))["metadata"]:
                raise AlreadyExistsError(f"object is being deleted: {error}") from None
            raise

    def creates(self, served: ServedResource, key: Key) -> bool:
        """Whether a PUT creates the object: it does not exist, and API servers do so for this resource."""
        return served.resource.id in _CREATED_BY_PUT and key not in self._store.keys(served.resource)

    async def replace(
        self, served: ServedResource, key: Key, body: Body, options: WriteOptions, *, status: bool = False
    ) -> tuple[Body, list[str]]:
        """Replace an object, or its status."""
        warnings: list[str] = []

        def change() -> Body:
            before = self._store.get(_stored(served), key)
            uid, have = body["metadata"].get("uid", ""), before["metadata"]["uid"]
            if uid and uid != have:
                raise ConflictError(f"Precondition failed: UID in precondition: {uid}, UID in object meta: {have}")
            if _needs_version(served) and not body["metadata"].get("resourceVersion"):
                raise FieldError([_MISSING_VERSION])
            known, found = (body, []) if status else _checked(served, before, body, options)
            warnings.extend(found)
            if served.job is not None:
                known = stored(served.job, known)
            return self._replace(served, key, known, options, status=status)

        return await self._cluster.durably(change), warnings

    async def patch(
        self, served: ServedResource, key: Key, patch: Any, kind: str, options: WriteOptions, *, status: bool = False
    ) -> tuple[Body, list[str]]:
        """Change an object, or its status, by a patch with the media type `kind`."""
        return await self.edit(served, key, lambda one: patched(served, one, patch, kind), options, status=status)

    async def edit(
        self,
        served: ServedResource,
        key: Key,
        make: Callable[[Body], Body],
        options: WriteOptions,
        *,
        status: bool = False,
    ) -> tuple[Body, list[str]]:
        """Change an object, or its status. `make` makes the new object of the stored one."""
        resource, warnings = _stored(served), list[str]()

        def change() -> Body:
            before = self._store.get(resource, key)
            after = make(before)
            if after is before or same(before, after):
                return before
            _check_patched(served, key, before, after)
            if not status:
                try:
                    after, found = _checked(served, before, after, options)
                except BadRequestError as error:  # the patch can be read, but its result cannot
                    raise _wrong_patch(str(error)) from None
                warnings.extend(found)
            return before if same(before, after) else self._replace(served, key, after, options, status=status)

        return await self._cluster.durably(change), warnings

    async def delete(self, served: ServedResource, key: Key, options: DeleteOptions) -> tuple[Body, bool]:
        """Delete an object. The second value is True if the object is gone, False if it waits for its end."""
        resource = _stored(served)

        def change() -> tuple[Body, bool]:
            before = self._store.get(resource, key)
            self.check_preconditions(served, key, options)
            grace, policy = options.grace_period_seconds, _propagation(options)
            if options.dry_run:
                metadata = deleted_metadata(before, self._store.now(), grace, policy)
                if metadata is None:
                    return self._gone(before), True
                return {**deleted_body(before), "metadata": metadata}, False
            version = str(self._store.last_version + 1)
            left = self._store.delete(resource, key, grace=grace, propagation=policy)
            return (self._gone(before, version), True) if left is None else (left, False)

        return await self._cluster.durably(change)

    def _gone(self, before: Body, version: str = "") -> Body:
        """The last state of an object. Clients see that of a pod, so it says that the pod was deleted."""
        metadata = {**before["metadata"], "resourceVersion": version or before["metadata"]["resourceVersion"]}
        if before["kind"] != PODS.kind:
            return {**before, "metadata": metadata}
        metadata["deletionGracePeriodSeconds"] = 0
        if "deletionTimestamp" not in metadata:
            metadata["generation"] = metadata.get("generation", 0) + 1
        metadata.setdefault("deletionTimestamp", timestamp(self._store.now()))
        return {**before, "metadata": metadata}

    def check_preconditions(self, served: ServedResource, key: Key, options: DeleteOptions) -> None:
        """Raise ConflictError if the object has another UID or version than the deletion expects."""
        have, wanted = self._store.get(_stored(served), key)["metadata"], options.preconditions or {}
        for field, name, end in _PRECONDITIONS:
            if not wanted.get(field) or wanted[field] == have[field]:
                continue
            if served.resource.id == NAMESPACES.id:
                what = f"{name} in precondition: {wanted[field]}, {name} in object meta: {have[field]}"
                raise ConflictError(f"Precondition failed: {what}")
            found = f"({wanted[field]}) does not match the {name} in record ({have[field]})"
            raise ConflictError(f"the {name} in the precondition {found}. The object might have been {end}")

    async def delete_all(self, served: ServedResource, scope: Selection, options: DeleteOptions) -> list[Body]:
        """Delete all objects of a scope. Returns them."""
        resource = _stored(served)

        def change() -> list[Body]:
            found = list(self._store.list(resource, scope)[0])
            for body in found if not options.dry_run else ():
                key = Key(body["metadata"].get("namespace", ""), body["metadata"]["name"])
                if key in self._store.keys(resource):  # the deletion of an owner may have removed it already
                    policy = _propagation(options)
                    self._store.delete(resource, key, grace=options.grace_period_seconds, propagation=policy)
            return found

        return await self._cluster.durably(change)

    def _replace(self, served: ServedResource, key: Key, body: Body, options: WriteOptions, *, status: bool) -> Body:
        resource = _stored(served)
        before = self._store.get(resource, key)
        document = {**body, "apiVersion": before["apiVersion"], "kind": before["kind"]}
        if not status:
            return self._store.replace(resource, key, document, dry_run=options.dry_run)
        version = document["metadata"].get("resourceVersion") or before["metadata"]["resourceVersion"]
        fixed = {"uid": before["metadata"]["uid"], "resourceVersion": version}
        whole = {
            **document,
            "metadata": {**document["metadata"], "name": key.name, "namespace": key.namespace, **fixed},
        }
        if options.dry_run:
            return {**before, "status": document.get("status")} if "status" in document else before
        return self._store.replace_status(resource, whole)


def patched(served: ServedResource, before: Body, patch: Any, kind: str) -> Body:
    """The object after a patch, before it is checked. Raises BadRequestError or UnsupportedMediaTypeError."""
    if kind == JSON_PATCH:
        after = _json_patched(before, patch)
    elif kind == STRATEGIC_PATCH and not served.custom:
        after = strategic_merge(served.resource.kind, before, _object(patch))
    elif kind == MERGE_PATCH:
        after = merge(before, _object(patch))
    else:
        raise bodies.unsupported(JSON_PATCH, MERGE_PATCH, *(() if served.custom else (STRATEGIC_PATCH,)))
    if not isinstance(after, dict):
        raise BadRequestError("the patch leaves no object")
    if after.get("metadata") is None:
        return {**after, "metadata": {}}
    if not isinstance(after["metadata"], dict):
        raise _wrong_patch("metadata: expected an object")
    return after


def _json_patched(before: Body, patch: Any) -> Body:
    """The object after a JSON patch. Raises FieldError, because kubectl prints only the causes of an error."""
    try:
        return apply_json_patch(before, patch)
    except PatchError as error:
        raise _wrong_patch(str(error)) from None


def _needs_version(served: ServedResource) -> bool:
    """Whether a PUT must state the version that it replaces."""
    return served.custom or served.resource.id == LEASES.id


def _wrong_patch(text: str) -> FieldError:
    return FieldError([ErrorCause("FieldValueInvalid", f"Invalid value: {text}", "patch")])


def check_patch_type(served: ServedResource, kind: str) -> None:
    """Raise UnsupportedMediaTypeError for a patch that this resource does not take, such as a server-side apply."""
    accepted = (JSON_PATCH, MERGE_PATCH) if served.custom else (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH)
    if kind == APPLY_PATCH or kind not in accepted:
        raise bodies.unsupported(*accepted)


def _object(patch: Any) -> Body:
    if not isinstance(patch, dict):
        raise BadRequestError(f"the patch is a {type(patch).__name__}; expected an object")
    return patch


def _stored(served: ServedResource) -> Resource:
    """The resource in its stored version, which has the objects of all versions."""
    resource = served.resource
    if served.job is None or served.job.version == resource.version:
        return resource
    return Resource(resource.group, served.job.version, resource.plural, resource.kind)


def _checked(served: ServedResource, before: Body | None, body: Body, options: WriteOptions) -> tuple[Body, list[str]]:
    """The object without unknown fields and empty metadata, and the warnings about it.

    Raises BadRequestError for unknown fields if the client wants strict validation, FieldError for wrong values.
    """
    unknown, resource = known_fields.unknown_fields(served, body), served.resource
    if unknown and options.field_validation == "Strict":
        what = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
        raise BadRequestError(f"{what}: strict decoding error: {', '.join(one.text for one in unknown)}")
    known = without_nulls(known_fields.without(body, unknown))
    metadata_checks.check_metadata(served, known["metadata"])
    known = metadata_checks.without_empty(known)
    if before is not None:
        metadata_checks.check_finalizers(before["metadata"], known["metadata"])
    if before is not None and resource.id == NAMESPACES.id:
        known = {**known, "spec": before.get("spec", {})}  # as on an API server, clients cannot change it
    if served.job is None:  # the store checks jobs
        content_checks.check_content(resource.kind, before, known)
    shown = [] if options.field_validation == "Ignore" else [one.text for one in unknown]
    return known, [*shown, *metadata_checks.finalizer_warnings(served, known["metadata"])]


def _check_patched(served: ServedResource, key: Key, before: Body, after: Body) -> None:
    """Raise BadRequestError or FieldError if a patch has changed what identifies the object."""
    metadata = after["metadata"]
    bodies.check_name(metadata, key.name)
    if metadata.get("namespace", "") != key.namespace:
        raise BadRequestError(bodies.OTHER_NAMESPACE)
    bodies.check_patched_type(served, before, after)
    metadata_checks.check_immutable(before["metadata"], metadata)


def _propagation(options: DeleteOptions) -> Propagation:
    """How to delete the dependents. `with_query` has checked the policy."""
    if options.propagation_policy is None:
        return Propagation.ORPHAN if options.orphan_dependents else Propagation.BACKGROUND
    return Propagation(options.propagation_policy)
