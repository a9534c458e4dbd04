# SPDX-License-Identifier: Apache-2.0
"""Reads the bodies of requests, JSON and the protobuf of kubectl, within limits."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from trainwright.api import protobuf, queries
from trainwright.api.resources import ServedResource
from trainwright.api.untrusted import check_levels
from trainwright.errors import BadRequestError, ErrorCause, FieldError, InvalidError, UnsupportedMediaTypeError
from trainwright.model.job import Body
from trainwright.runtime.ports import Propagation

#: As on an API server, a body has at most this many bytes.
MAX_BODY_BYTES = 3 << 20
JSON, PROTOBUF = "application/json", "application/vnd.kubernetes.protobuf"
MERGE_PATCH, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
STRATEGIC_PATCH, APPLY_PATCH = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
_UNKNOWN_FORMAT = "the body of the request was in an unknown format - accepted media types include: "
OTHER_NAMESPACE = "the namespace of the provided object does not match the namespace sent on the request"


class DeleteOptions(Struct, frozen=True, rename="camel"):
    """The options of a deletion, in its body or in its query."""

    grace_period_seconds: int | None = None
    propagation_policy: str | None = None
    orphan_dependents: bool | None = None
    dry_run: list[str] | None = None
    preconditions: dict[str, str] | None = None


def media_type(header: str) -> str:
    """The media type of a Content-Type header. Some clients send none: their bodies are JSON."""
    return header.partition(";")[0].strip().lower() or JSON


def decode(data: bytes, kind: str) -> Any:
    """The content of a body with this media type. Raises BadRequestError or UnsupportedMediaTypeError."""
    if kind == PROTOBUF:
        return _decode_protobuf(data)
    if kind not in (JSON, MERGE_PATCH, JSON_PATCH, STRATEGIC_PATCH):
        raise unsupported(JSON, PROTOBUF)
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequestError(f"the body cannot be read as JSON: {error}") from None
    try:
        check_levels(content, "the body")
    except InvalidError as error:
        raise BadRequestError(str(error)) from None
    return content


def decode_object(data: bytes, kind: str) -> Body:
    """The object in a body."""
    if kind not in (JSON, PROTOBUF):
        raise unsupported(JSON, PROTOBUF)
    content = decode(data, kind)
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise BadRequestError(f"the body is a {type(content).__name__}; expected an object")
    metadata = content.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise BadRequestError("metadata: expected an object")
    return content


def unsupported(*accepted: str) -> UnsupportedMediaTypeError:
    """The error for a body in another format."""
    return UnsupportedMediaTypeError(_UNKNOWN_FORMAT + ", ".join(accepted))


def _decode_protobuf(data: bytes) -> Any:
    try:
        return protobuf.decode(data)
    except ValueError as error:
        raise BadRequestError(f"the body cannot be read as protobuf: {error}") from None


def delete_options(data: bytes, kind: str) -> DeleteOptions:
    """The options in the body of a deletion; an empty body has none."""
    if not data.strip():
        return DeleteOptions()
    try:
        return msgspec.convert(decode_object(data, kind), DeleteOptions)
    except msgspec.ValidationError as error:
        raise BadRequestError(f"the options of the deletion cannot be read: {error}") from None


def with_query(options: DeleteOptions, query: Mapping[str, str]) -> DeleteOptions:
    """The options of a deletion with those in its query, which have priority. Raises FieldError."""
    grace, dry_run = queries.number(query, "gracePeriodSeconds"), query.get("dryRun", "")
    whole = DeleteOptions(
        grace_period_seconds=options.grace_period_seconds if grace is None else grace,
        propagation_policy=query.get("propagationPolicy") or options.propagation_policy,
        orphan_dependents=queries.truth(query, "orphanDependents") or options.orphan_dependents,
        dry_run=[dry_run] if dry_run else options.dry_run or None,
        preconditions=options.preconditions,
    )
    found = [*queries.dry_run_causes(whole.dry_run or ()), *_propagation_causes(whole)]
    if found:
        raise FieldError(found, about=("meta.k8s.io", "DeleteOptions"))
    return whole


def _propagation_causes(options: DeleteOptions) -> Iterator[ErrorCause]:
    policy, field = options.propagation_policy, "propagationPolicy"
    if policy is None:
        return
    if options.orphan_dependents is not None:
        text = f'Invalid value: "{policy}": orphanDependents and deletionPropagation cannot be both set'
        yield ErrorCause("FieldValueInvalid", text, field)
    if policy not in tuple(Propagation):
        yield queries.unsupported(field, f'"{policy}"', "Foreground", "Background", "Orphan", "nil")


def check_identity(served: ServedResource, body: Body, namespace: str, name: str) -> Body:
    """The object with the kind, namespace and name of its path, which the client may leave out.

    `name` is empty for a new object. Raises BadRequestError if the object names others.
    """
    _check_type(served, body)
    resource, metadata = served.resource, dict(body.get("metadata") or {})
    if resource.namespaced:
        metadata["namespace"] = metadata.get("namespace") or namespace
        if metadata["namespace"] != namespace:
            raise BadRequestError(OTHER_NAMESPACE)
    else:
        metadata.pop("namespace", None)
    if name:
        metadata["name"] = metadata.get("name") or name
        check_name(metadata, name)
    return {**body, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}


def check_name(metadata: Body, name: str) -> None:
    """Raise BadRequestError unless the object has the name of its path."""
    given = metadata.get("name")
    if not given:
        what = f"the name of the object ({name} based on URL) was undeterminable"
        raise BadRequestError(f"{what}: name must be provided")
    if given != name:
        raise BadRequestError(f"the name of the object ({given}) does not match the name on the URL ({name})")


def check_patched_type(served: ServedResource, before: Body, after: Body) -> None:
    """Raise FieldError if a patch has changed the kind or the API version."""
    resource = served.resource
    for field, expected in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        found = after.get(field)
        if found not in (before[field], expected):
            raise FieldError([ErrorCause("FieldValueInvalid", f'Invalid value: "{found}": must be {expected}', field)])


def _check_type(served: ServedResource, body: Body) -> None:
    """Raise BadRequestError or FieldError if the object has another kind or API version than its path."""
    resource = served.resource
    api_version, kind = body.get("apiVersion") or resource.api_version, body.get("kind") or resource.kind
    if not served.custom and (api_version, kind) != (resource.api_version, resource.kind):
        version = str(api_version).rpartition("/")[2]
        what = f'no kind "{kind}" is registered for version "{api_version}"'
        raise BadRequestError(f'{kind} in version "{version}" cannot be handled as a {resource.kind}: {what}')
    if api_version != resource.api_version:
        expected = f"the expected API version ({resource.api_version})"
        raise BadRequestError(f"the API version in the data ({api_version}) does not match {expected}")
    if kind != resource.kind:
        cause = ErrorCause("FieldValueInvalid", f'Invalid value: "{kind}": must be {resource.kind}', "kind")
        raise FieldError([cause])
