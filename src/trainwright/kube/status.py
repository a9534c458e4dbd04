# SPDX-License-Identifier: Apache-2.0
"""What an API server answers when it refuses: a `Status` object, or whatever a proxy before it says, as our errors.

`http` calls it for every answer that is none, `watch` for the error that ends a watch.
"""

import msgspec
from msgspec import Struct

from trainwright.errors import (
    API_ERRORS,
    ApiError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    QuotaError,
    TooManyRequestsError,
    UnavailableError,
)

#: etcd's words for an object that it cannot store, which API servers hand on as an error of their own.
_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")
#: What the quota admission of an API server says; its reason is that of any other refusal.
_QUOTA = "exceeded quota"
#: A server that asks for more patience than this, in seconds, is asked again all the same.
_LONGEST = 3600.0
#: Where Kubernetes' word is none of ours. What was malformed or too large cannot be right either.
_BY_CODE: dict[int, type[ApiError]] = {
    400: InvalidError,
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    413: InvalidError,
    422: InvalidError,
    429: TooManyRequestsError,
}


class Cause(Struct, frozen=True):
    """One of several things that are wrong."""

    reason: str = ""
    message: str = ""
    field: str = ""


class Details(Struct, frozen=True, rename="camel"):
    """What a refusal is about."""

    causes: tuple[Cause, ...] | None = None
    retry_after_seconds: int | None = None


class Status(Struct, frozen=True):
    """An answer that is no object."""

    kind: str = ""
    status: str = ""
    message: str = ""
    reason: str = ""
    code: int | None = None
    details: Details | None = None

    def blames(self, field: str) -> bool:
        """Whether that field is among what is wrong."""
        return any(field in (cause.field, cause.reason) for cause in (self.details and self.details.causes) or ())


_DECODER = msgspec.json.Decoder(Status)


def read(code: int, data: bytes) -> Status:
    """The status in an answer; one is made up for an answer that has none."""
    try:
        status = _DECODER.decode(data)
    except msgspec.MsgspecError:
        status = Status()
    if status.kind == "Status":
        return status
    text = " ".join(data[:300].decode(errors="replace").split())
    return Status(message=f"HTTP {code} without a reason{f': {text}' if text else ''}", code=code)


def error_of(status: Status, code: int = 0, retry_after: str = "") -> ApiError:
    """The error that a status means."""
    code = code or status.code or 500
    kind = API_ERRORS.get(status.reason) or _BY_CODE.get(code)
    if any(words in status.message for words in _TOO_LARGE):
        kind = InvalidError
    elif kind is ForbiddenError and _QUOTA in status.message:
        kind = QuotaError
    if kind is None:
        kind = UnavailableError if code >= 500 else ApiError
    seconds = float(retry_after) if retry_after.isdecimal() else None
    if seconds is None and status.details is not None and status.details.retry_after_seconds:
        seconds = float(status.details.retry_after_seconds)
    seconds = min(seconds, _LONGEST) if seconds is not None else None
    return kind(status.message or status.reason or f"HTTP {code}", retry_after=seconds)
