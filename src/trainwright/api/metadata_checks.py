# SPDX-License-Identifier: Apache-2.0
"""Checks the metadata that clients send, with the rules and the texts of an API server, which kubectl prints.

The store checks only what it needs itself: that it can decode the metadata, and that no immutable field changes.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from trainwright.api.resources import ServedResource
from trainwright.errors import BadRequestError, ErrorCause, FieldError
from trainwright.model.job import Body
from trainwright.runtime.ports import EVENTS, LEASES, NAMESPACES, SERVICES

_LABEL_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_DNS_LABEL.pattern}(\.{_DNS_LABEL.pattern})*")
_MAX_LABEL, _MAX_SUBDOMAIN = 63, 253
_ENDS = "and must start and end with an alphanumeric character"
_REGEX = "regex used for validation is"
_BAD_LABEL_NAME = (
    f"name part must consist of alphanumeric characters, '-', '_' or '.', {_ENDS} "
    f"(e.g. 'MyName',  or 'my.name',  or '123-abc', {_REGEX} '{_LABEL_NAME.pattern}')"
)
_BAD_LABEL_VALUE = (
    f"a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', {_ENDS} "
    f"(e.g. 'MyValue',  or 'my_value',  or '12345', {_REGEX} '{_LABEL_VALUE.pattern}')"
)
_BAD_SUBDOMAIN = (
    f"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', {_ENDS} "
    f"(e.g. 'example.com', {_REGEX} '{_SUBDOMAIN.pattern}')"
)
_BAD_DNS_LABEL = (
    f"a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', {_ENDS} "
    f"(e.g. 'my-name',  or '123-abc', {_REGEX} '{_DNS_LABEL.pattern}')"
)
_NOT_QUALIFIED = "name is neither a standard finalizer name nor is it fully qualified"
_NO_NEW_FINALIZERS = "no new finalizers can be added if the object is being deleted"
_COLLECTIONS = ("annotations", "finalizers", "labels", "ownerReferences")
_STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
_NO_NAME = "Required value: name or generateName is required"
_EMPTY_OWNER = "must not be empty"
_GO_TYPES = {bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
#: As on an API server, the finalizers of these need no domain.
_FREE_FINALIZERS = (EVENTS.id, LEASES.id)
#: As on an API server, the names of these are labels, not subdomains.
_NAMED_BY_LABEL = (SERVICES.id, NAMESPACES.id)


def check_metadata(served: ServedResource, metadata: Body) -> None:
    """Raise BadRequestError for wrong types, FieldError for wrong values."""
    for field in ("labels", "annotations"):
        _check_texts(served, field, metadata.get(field))
    found = [
        *_name_causes(served, metadata),
        *_label_causes(metadata.get("labels") or {}),
        *_annotation_causes(metadata.get("annotations") or {}),
        *_owner_causes(metadata.get("ownerReferences")),
        *(
            ()
            if served.custom or served.resource.id in _FREE_FINALIZERS
            else _finalizer_causes(metadata.get("finalizers"))
        ),
    ]
    if found:
        raise FieldError(found)


def finalizer_warnings(served: ServedResource, metadata: Body) -> list[str]:
    """The warnings about finalizers of custom resources without a domain."""
    if not served.custom:
        return []
    text = "prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers"
    return [f'metadata.finalizers: "{one}": {text}' for one in _texts(metadata.get("finalizers")) if _is_bare(one)]


def without_empty(body: Body) -> Body:
    """The object without empty maps and lists in its metadata, which an API server does not store."""
    metadata = {name: value for name, value in body["metadata"].items() if value or name not in _COLLECTIONS}
    return body if len(metadata) == len(body["metadata"]) else {**body, "metadata": metadata}


def check_finalizers(before: Body, after: Body) -> None:
    """Raise FieldError for a new finalizer of an object that is being deleted."""
    have = before.get("finalizers") or ()
    added = [one for one in _texts(after.get("finalizers")) if one not in have]
    if added and "deletionTimestamp" in before:
        shown = ", ".join(f'"{one}"' for one in added)
        text = f"Forbidden: {_NO_NEW_FINALIZERS}, found new finalizers []string{{{shown}}}"
        raise FieldError([ErrorCause("FieldValueForbidden", text, "metadata.finalizers")])


def check_immutable(before: Body, after: Body) -> None:
    """Raise FieldError if metadata that never changes would change."""
    for name in ("uid", "deletionTimestamp", "deletionGracePeriodSeconds"):
        value = after.get(name)
        is_ignored = name == "deletionTimestamp" and name in before
        if value is not None and value != before.get(name) and not is_ignored:
            raise FieldError([_invalid(f"metadata.{name}", value, "field is immutable")])


def _check_texts(served: ServedResource, field: str, values: Any) -> None:
    """Raise BadRequestError unless the values are a mapping of texts, or missing."""
    if values is None:
        return
    wrong = [values] if not isinstance(values, dict) else [one for one in values.values() if not isinstance(one, str)]
    for one in wrong:
        if one is None:
            continue
        resource, where = served.resource, "" if served.custom else "metadata."
        what = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
        of = "string" if isinstance(values, dict) else "map[string]string"
        found = _GO_TYPES.get(type(one), "string")
        into = f"Go struct field ObjectMeta.{where}{field} of type {of}"
        raise BadRequestError(f"{what}: json: cannot unmarshal {found} into {into}")


def _invalid(field: str, value: Any, what: str) -> ErrorCause:
    return ErrorCause("FieldValueInvalid", f"Invalid value: {msgspec.json.encode(value).decode()}: {what}", field)


def _name_causes(served: ServedResource, metadata: Body) -> Iterator[ErrorCause]:
    name, prefix = metadata.get("name"), metadata.get("generateName")
    if not name and not prefix:
        yield ErrorCause("FieldValueRequired", _NO_NAME, "metadata.name")
    elif isinstance(name, str) and name and served.resource.id != EVENTS.id:
        for what in _name_problems(served, name):
            yield _invalid("metadata.name", name, what)


def _name_problems(served: ServedResource, name: str) -> Iterator[str]:
    is_label = served.resource.id in _NAMED_BY_LABEL
    if is_label and "." in name:
        yield "must not contain dots"
        return
    most = _MAX_LABEL if is_label else _MAX_SUBDOMAIN
    if len(name) > most:
        yield f"must be no more than {most} {'bytes' if is_label else 'characters'}"
    if not (_DNS_LABEL if is_label else _SUBDOMAIN).fullmatch(name):
        yield _BAD_DNS_LABEL if is_label else _BAD_SUBDOMAIN


def _key_problems(key: str) -> Iterator[str]:
    """What is wrong with the key of a label or an annotation, or with the name of a finalizer."""
    prefix, separator, name = key.rpartition("/")
    if separator and not prefix:
        yield "prefix part must be non-empty"
    elif separator and not _SUBDOMAIN.fullmatch(prefix):
        yield f"prefix part {_BAD_SUBDOMAIN}"
    if not name:
        yield "name part must be non-empty"
    elif len(name) > _MAX_LABEL:
        yield f"name part must be no more than {_MAX_LABEL} bytes"
    if not _LABEL_NAME.fullmatch(name):
        yield _BAD_LABEL_NAME


def _value_problems(value: str) -> Iterator[str]:
    if len(value) > _MAX_LABEL:
        yield f"must be no more than {_MAX_LABEL} bytes"
    if not _LABEL_VALUE.fullmatch(value):
        yield _BAD_LABEL_VALUE


def _label_causes(labels: Body) -> Iterator[ErrorCause]:
    for key, value in labels.items():
        yield from (_invalid("metadata.labels", key, what) for what in _key_problems(key))
        yield from (_invalid("metadata.labels", value, what) for what in _value_problems(value or ""))


def _annotation_causes(annotations: Body) -> Iterator[ErrorCause]:
    for key in annotations:
        yield from (_invalid("metadata.annotations", key, what) for what in _key_problems(key.lower()))


def _owner_causes(owners: Any) -> Iterator[ErrorCause]:
    for owner in owners if isinstance(owners, list) else ():
        if not isinstance(owner, dict):
            continue
        if not owner.get("apiVersion"):
            yield _invalid("metadata.ownerReferences.apiVersion", "", "version must not be empty")
        for field in ("kind", "name", "uid"):
            if not owner.get(field):
                yield _invalid(f"metadata.ownerReferences.{field}", "", _EMPTY_OWNER)
    controllers = [one for one in owners or () if isinstance(one, dict) and one.get("controller") is True]
    if len(controllers) > 1:
        first, second = (f"{one.get('kind')}/{one.get('name')}" for one in controllers[:2])
        text = (
            f'Only one reference can have Controller set to true. Found "true" in references for {first} and {second}'
        )
        yield _invalid("metadata.ownerReferences", owners, text)


def _texts(values: Any) -> list[str]:
    return [one for one in values if isinstance(one, str)] if isinstance(values, list) else []


def _is_bare(finalizer: str) -> bool:
    return "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS


def _finalizer_causes(finalizers: Any) -> Iterator[ErrorCause]:
    for index, one in enumerate(_texts(finalizers)):
        for what in _key_problems(one):
            yield _invalid(f"metadata.finalizers[{index}]", one, what)
        if _is_bare(one):
            yield _invalid(f"metadata.finalizers[{index}]", one, _NOT_QUALIFIED)
