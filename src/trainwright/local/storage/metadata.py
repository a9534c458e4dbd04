# SPDX-License-Identifier: Apache-2.0
"""Rules for object bodies: JSON merge patches (RFC 7386), and the part of `metadata` that only an API server writes.

Bodies are never changed in place. The old and the new object share the parts that a write does not change. A write that
changes nothing returns the old object itself, and then the store makes no new version.
"""

import os
import random
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from msgspec import ValidationError, convert

from trainwright.errors import ConflictError, InvalidError
from trainwright.model.job import Body
from trainwright.model.meta import Key, ObjectMeta
from trainwright.runtime.ports import (
    CLAIMS,
    CONFIG_MAPS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    SECRETS,
    SERVICES,
    Resource,
)


def merge(target: Body, patch: Body) -> Body:
    """The target with the patch: a new dict that shares unchanged parts, or the target itself if nothing changes."""
    result = target
    for key, value in patch.items():
        old = target.get(key)
        if value is None:
            if key in target:
                result = target.copy() if result is target else result
                del result[key]
            continue
        new = merge(old if isinstance(old, dict) else {}, value) if isinstance(value, dict) else value
        if new is old or (key in target and same(old, new)):
            continue
        result = target.copy() if result is target else result
        result[key] = new
    return result


def same(old: Any, new: Any) -> bool:
    """Whether the values are equal as JSON. Unlike in Python, 1, 1.0 and true differ."""
    if old is new:
        return True
    if type(old) is not type(new) or old != new:
        return False
    if isinstance(old, dict):
        return all(same(value, new[key]) for key, value in old.items())
    if isinstance(old, list):
        return all(map(same, old, new))
    return True


def without_nulls(value: Any) -> Any:
    """The value without members that are null, as an API server stores it; the value itself if it has none.

    Items of lists stay, because the position of the other items would change.
    """
    if isinstance(value, dict):
        kept = {name: without_nulls(member) for name, member in value.items() if member is not None}
        unchanged = len(kept) == len(value) and all(kept[name] is member for name, member in value.items())
        return value if unchanged else kept
    if isinstance(value, list):
        items = [without_nulls(item) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value


OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
EXPECTED_NAME = "expected lower-case letters, digits, `-` and `.`, with a letter or digit at both ends, at most 253"
#: Only the store writes these fields. It ignores values from clients, but refuses a change of an immutable field.
_SERVER_FIELDS = ("creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "selfLink", "uid")
_ASSIGNED_FIELDS = frozenset((*_SERVER_FIELDS, "generation", "resourceVersion"))
_IMMUTABLE_FIELDS = ("name", "namespace", "uid", "deletionGracePeriodSeconds")
FIXED_FIELDS = frozenset(("name", "namespace", *_ASSIGNED_FIELDS))
#: As in an API server, objects of these resources have no generation.
_WITHOUT_GENERATION = frozenset(
    one.id for one in (CLAIMS, CONFIG_MAPS, EVENTS, LEASES, NAMESPACES, NODES, SECRETS, SERVICES)
)
_NON_SPEC_PARTS = ("metadata", "status")


def timestamp(moment: datetime) -> str:
    """A time as Kubernetes writes it: seconds, UTC."""
    return _timestamp(int(moment.timestamp()))


@lru_cache(maxsize=64)
def _timestamp(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19] + "Z"


#: `os.urandom` would give the GIL to the thread that writes the journal, once per object. UIDs need not be secret.
_random = random.Random(os.urandom(64))  # noqa: S311
_random_bits = _random.getrandbits
os.register_at_fork(after_in_child=lambda: _random.seed(os.urandom(64)))


def uid() -> str:
    """A random UUID."""
    digits = _random_bits(128).to_bytes(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def new_object(resource: Resource, body: Body, now: datetime) -> Body:
    """A new object with name and UID, but without a version. Its generation is 1 if the resource has generations."""
    api_version = resource.api_version
    if body.get("apiVersion", api_version) != api_version or body.get("kind", resource.kind) != resource.kind:
        _check_kind(resource, body)
    given = body.get("metadata")
    given = given if isinstance(given, dict) else {}
    metadata = {key: value for key, value in given.items() if key not in _ASSIGNED_FIELDS}
    metadata["name"] = _name(given)
    _check_namespace(resource, metadata)
    metadata["uid"] = uid()
    if resource.id not in _WITHOUT_GENERATION:
        metadata["generation"] = 1
    metadata["creationTimestamp"] = timestamp(now)
    return {"apiVersion": api_version, "kind": resource.kind, **body, "metadata": metadata}


def _check_kind(resource: Resource, body: Body) -> None:
    for path, expected in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        found = body.get(path, expected)
        if found != expected:
            raise InvalidError(f"{path}: {found!r}; expected {expected!r}, as these are {resource.id}")


def _name(metadata: Body) -> str:
    name = metadata.get("name")
    if not name and metadata.get("generateName"):
        name = f"{metadata['generateName']}{uid()[-10:]}"
    if not isinstance(name, str) or not OBJECT_NAME.fullmatch(name):
        raise InvalidError(f"metadata.name: {name!r}; {EXPECTED_NAME}")
    return name


def _check_namespace(resource: Resource, metadata: Body) -> None:
    namespace = metadata.get("namespace")
    if resource.namespaced and (not isinstance(namespace, str) or not OBJECT_NAME.fullmatch(namespace)):
        raise InvalidError(
            f"metadata.namespace: {namespace!r}; expected the name of a namespace: {resource.id} have one"
        )
    if not resource.namespaced and namespace:
        raise InvalidError(f"metadata.namespace: {namespace!r}; expected none: {resource.id} belong to no namespace")


def check(metadata: Body) -> None:
    """Raise InvalidError if readers could not decode the metadata."""
    try:
        convert(metadata, ObjectMeta)
    except ValidationError as error:
        raise InvalidError(readable(error, "metadata")) from None
    for index, owner in enumerate(metadata.get("ownerReferences") or ()):
        if not owner.get("uid"):
            raise InvalidError(f"metadata.ownerReferences[{index}].uid: missing; expected the owner's UID")


def readable(error: ValidationError, at: str = "") -> str:
    """msgspec's message, but with the path at the beginning, as in all our errors."""
    message, _, path = str(error).partition(" - at `")
    path = f"{at}{path.rstrip('`').removeprefix('$')}".lstrip(".")
    return f"{path}: {message[:1].lower()}{message[1:]}"


def key_of(body: Body) -> Key:
    """The key of an object in its table."""
    metadata = body["metadata"]
    return Key(metadata.get("namespace", ""), metadata["name"])


def writable(resource: Resource, before: Body, asked: Body) -> Body:
    """The client's body without fields that only the store writes. InvalidError: an immutable field would change."""
    _check_kind(resource, {name: value for name in ("apiVersion", "kind") if (value := asked.get(name)) is not None})
    part = {name: value for name, value in asked.items() if name not in _NON_SPEC_PARTS}
    metadata = asked.get("metadata")
    if isinstance(metadata, dict):
        _check_metadata(before["metadata"], metadata)
        part["metadata"] = {name: value for name, value in metadata.items() if name not in FIXED_FIELDS}
    return part


def _check_metadata(have: Body, asked: Body) -> None:
    # As in an API server, a deletionTimestamp is refused before the object is being deleted, and ignored afterwards.
    names = _IMMUTABLE_FIELDS if "deletionTimestamp" in have else (*_IMMUTABLE_FIELDS, "deletionTimestamp")
    for name in names:
        if (value := asked.get(name)) is not None and value != have.get(name):
            raise InvalidError(f"metadata.{name}: {value!r}; it is {have.get(name)!r} and cannot change")


def check_finalizers(before: Body, after: Body) -> None:
    """Raise InvalidError for new finalizers on an object that is being deleted, as an API server does."""
    have = before.get("finalizers") or ()
    added = [one for one in after.get("finalizers") or () if one not in have]
    if added and "deletionTimestamp" in before:
        raise InvalidError(f"metadata.finalizers: {added}; none can be added while the object is being deleted")


def check_version(what: str, have: Body, uid: str, version: str) -> None:
    """Raise ConflictError unless the object has this UID and this version; an empty text matches every object."""
    if uid and have["uid"] != uid:
        raise ConflictError(f"{what}: its UID is {have['uid']}, not {uid}: another object of that name")
    if version and have["resourceVersion"] != version:
        raise ConflictError(
            f"{what}: the object has been modified: it is at version {have['resourceVersion']}, not {version}"
        )


def spec_changed(before: Body, after: Body) -> bool:
    """Whether any part except metadata and status differs."""
    return any(
        not same(before.get(part), after.get(part))
        for part in before.keys() | after.keys()
        if part not in _NON_SPEC_PARTS
    )
