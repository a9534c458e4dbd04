# SPDX-License-Identifier: Apache-2.0
"""`Status` objects: the answers to requests that failed and to deletions, with the texts of an API server."""

import re
from typing import Any

from trainwright.errors import (
    AlreadyExistsError,
    ApiError,
    BadRequestError,
    ConflictError,
    ErrorCause,
    FieldError,
    ForbiddenError,
    InvalidError,
    MethodNotAllowedError,
    NotFoundError,
)
from trainwright.model.job import Body
from trainwright.runtime.ports import Resource

_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
_DELETED = "object is being deleted: "
#: Our validation writes `PATH: what is wrong`, and puts `; ` between two problems.
_PROBLEM = re.compile(r"(?:^|; )(?=[A-Za-z][\w.\[\]\"$/-]*: )")
_IS_INVALID = re.compile(r"^\w+ '[^']*' is invalid: ")

#: Errors whose details say which object they are about, and errors that have details even if these are empty.
_ABOUT_OBJECTS = (NotFoundError, AlreadyExistsError, ConflictError, InvalidError, ForbiddenError)
_ABOUT_PATHS = (NotFoundError, MethodNotAllowedError)


def failure(error: ApiError, resource: Resource | None = None, name: str = "") -> Body:
    """The Status for an error. `resource` and `name` say which object the request was about."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message(error, resource, name),
        "reason": error.reason,
        **_details(error, resource, name),
        "code": error.status,
    }


def _details(error: ApiError, resource: Resource | None, name: str) -> Body:
    """The details of a Status. Errors about a request itself have none, or empty ones."""
    details: Body = {}
    if isinstance(error, FieldError) and error.about[1]:
        details = {"group": error.about[0], "kind": error.about[1]}
    elif resource is not None and isinstance(error, _ABOUT_OBJECTS) and not isinstance(error, BadRequestError):
        kind = resource.kind if _is_about_content(error) or _is_precondition(error) else resource.plural
        details = {"name": name, "group": resource.group, "kind": kind}
    found = error.causes or (causes(str(error)) if _is_about_content(error) else ())
    details["causes"] = [{key: value for key, value in one._asdict().items() if value} for one in found]
    details["retryAfterSeconds"] = max(int(error.retry_after), 1) if error.retry_after is not None else 0
    details = {key: value for key, value in details.items() if value}
    return {"details": details} if details or isinstance(error, _ABOUT_PATHS) else {}


def _is_about_content(error: ApiError) -> bool:
    """Whether the error says which fields of an object are wrong."""
    return type(error) in (InvalidError, FieldError)


def _is_precondition(error: ApiError) -> bool:
    """Whether a deletion failed because of its preconditions. An API server names the kind then, not the resource."""
    return isinstance(error, ConflictError) and "in the precondition" in str(error)


def message(error: ApiError, resource: Resource | None, name: str) -> str:
    """The text of an error as an API server would write it."""
    text = str(error)
    if isinstance(error, FieldError) and error.about[1]:
        return f'{_qualified(*error.about)} "" is invalid: {text}'
    if resource is None:
        return text
    if _is_about_content(error):
        return f'{_qualified(resource.group, resource.kind)} "{name}" is invalid: {_IS_INVALID.sub("", text)}'
    if not name:
        return text
    if isinstance(error, NotFoundError):
        return f'{resource.id} "{name}" not found'
    if isinstance(error, AlreadyExistsError):
        return f'{_DELETED if text.startswith(_DELETED) else ""}{resource.id} "{name}" already exists'
    if isinstance(error, ConflictError):
        what = _MODIFIED if "has been modified" in text else text
        on = _qualified(resource.group, resource.kind) if _is_precondition(error) else resource.id
        return f'Operation cannot be fulfilled on {on} "{name}": {what}'
    return text


def _qualified(group: str, kind: str) -> str:
    return f"{kind}.{group}" if group else kind


def causes(text: str) -> list[ErrorCause]:
    """The single problems in the text of an InvalidError; kubectl prints them instead of the message."""
    found = []
    for problem in filter(None, _PROBLEM.split(_IS_INVALID.sub("", text))):
        field, separator, what = problem.partition(": ")
        is_path = bool(separator) and " " not in field
        found.append(ErrorCause("FieldValueInvalid", what if is_path else problem, field if is_path else "<nil>"))
    return found


def success(code: int) -> Body:
    """The Status for a request that succeeded and has no object as its answer."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code}


def deleted(resource: Resource, body: Body) -> Body:
    """The Status for a deletion after which the object is gone."""
    metadata: Any = body["metadata"]
    details = {"name": metadata["name"], "group": resource.group, "kind": resource.plural, "uid": metadata["uid"]}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {key: value for key, value in details.items() if value},
    }
