# SPDX-License-Identifier: Apache-2.0
"""All exceptions of Trainwright. Problems inside a manifest are values (`model.problem`), not exceptions.

    TrainwrightError
    ├── ManifestError            text that is not a manifest                       exit code 2
    │   └── MalformedError       the same, with its file and line (`manifest.builder`)
    ├── UsageError               a command that cannot do what it is asked for     exit code 2
    │   └── ForeignDefinitionError   the CRD of a kind belongs to another operator
    ├── EngineError              the embedded engine cannot work                   exit code 3
    ├── ImageError               an image cannot be pulled, loaded or removed      exit code 3
    │   ├── ImageNameError           the text is not the name of an image              exit code 2
    │   ├── ImageNotFoundError       the registry has no such image
    │   ├── ImageDeniedError         the registry does not give us the image
    │   └── RegistryUnreachableError the registry does not answer, or cannot answer now
    └── ApiError                 an API server or our store refused a request    exit code 3
        ├── NotFoundError            404
        ├── AlreadyExistsError       409 on create
        ├── ConflictError            409: the write is based on an old version
        ├── GoneError                410: the watch must begin with a new list
        ├── InvalidError             422
        │   ├── FieldError               the same, with each wrong field by itself
        │   ├── BadRequestError          400: the request itself cannot be read
        │   └── TooLargeError            413
        ├── ForbiddenError           403
        │   ├── UnauthorizedError        401
        │   └── QuotaError               a quota of the namespace is used up
        ├── MethodNotAllowedError    405
        ├── NotAcceptableError       406
        ├── UnsupportedMediaTypeError  415
        ├── TooManyRequestsError     429; `retry_after` has the pause in seconds
        └── UnavailableError         5xx, or no answer at all
            ├── TooNewError              504: the server has not reached the version that the request names
            └── UntrustedError           the server's certificate is not valid: a retry does not help

The command line prints an error as one line on stderr and ends with the exit code of that error. `runtime` handles
every ApiError itself and retries after transient errors.
"""

from collections.abc import Iterable
from typing import NamedTuple


class ErrorCause(NamedTuple):
    """One cause of an error, with the words of Kubernetes: a reason such as FieldValueInvalid, and the wrong field."""

    reason: str
    message: str
    field: str = ""


class TrainwrightError(Exception):
    """An error for the user; its text needs no further explanation."""

    exit_code = 3


class ManifestError(TrainwrightError):
    """The text is not a manifest: unreadable, too large, not YAML, or YAML that expands beyond our limits."""

    exit_code = 2


class UsageError(TrainwrightError):
    """The command cannot do what it is asked for."""

    exit_code = 2


class ForeignDefinitionError(UsageError):
    """The CRD of a kind belongs to another operator, so ours cannot store the state of its jobs."""


class EngineError(TrainwrightError):
    """The embedded engine cannot work: no runtime, no disk space, or a part of the engine does not answer."""


class ImageError(TrainwrightError):
    """An image cannot be pulled, loaded, unpacked or removed."""


class ImageNameError(ImageError):
    """The text is not the name of an image. Kubernetes calls this InvalidImageName."""

    exit_code = 2


class ImageNotFoundError(ImageError):
    """The registry answers that it has no such image."""


class ImageDeniedError(ImageError):
    """The registry wants other credentials, or this user may not read the image."""


class RegistryUnreachableError(ImageError):
    """The registry does not answer, or answers that it cannot serve us now."""


class ApiError(TrainwrightError):
    """An API refused a request or failed; `reason` is the reason as Kubernetes spells it."""

    status = 500
    reason = "InternalError"

    def __init__(self, message: str, *, retry_after: float | None = None, causes: Iterable[ErrorCause] = ()) -> None:
        super().__init__(message)
        self.retry_after, self.causes = retry_after, tuple(causes)


class NotFoundError(ApiError):
    """The object does not exist."""

    status, reason = 404, "NotFound"


class AlreadyExistsError(ApiError):
    """An object with this name exists."""

    status, reason = 409, "AlreadyExists"


class ConflictError(ApiError):
    """The write is based on another version or another UID of the object."""

    status, reason = 409, "Conflict"


class GoneError(ApiError):
    """The server no longer has the version from which a watch should continue."""

    status, reason = 410, "Expired"


class InvalidError(ApiError):
    """The object is not valid."""

    status, reason = 422, "Invalid"


class FieldError(InvalidError):
    """Fields that are not valid. `about` is the group and kind of the object with these fields, if it is not stored."""

    def __init__(self, causes: Iterable[ErrorCause], *, about: tuple[str, str] = ("", "")) -> None:
        found = tuple(causes)
        texts = [f"{one.field}: {one.message}" for one in found]
        super().__init__(texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]", causes=found)
        self.about = about


class BadRequestError(InvalidError):
    """The request cannot be read: a wrong parameter, or a body that is no object."""

    status, reason = 400, "BadRequest"


class TooLargeError(InvalidError):
    """The body of the request is too large."""

    status, reason = 413, "RequestEntityTooLarge"


class MethodNotAllowedError(ApiError):
    """The resource does not have this verb."""

    status, reason = 405, "MethodNotAllowed"


class NotAcceptableError(ApiError):
    """The server has no answer in a format that the client accepts."""

    status, reason = 406, "NotAcceptable"


class UnsupportedMediaTypeError(ApiError):
    """The server cannot read bodies in this format."""

    status, reason = 415, "UnsupportedMediaType"


class ForbiddenError(ApiError):
    """The user has no right to do this."""

    status, reason = 403, "Forbidden"


class UnauthorizedError(ForbiddenError):
    """The request has no valid credentials."""

    status, reason = 401, "Unauthorized"


class QuotaError(ForbiddenError):
    """A quota of the namespace is used up, so the server would refuse similar objects too."""


class TooManyRequestsError(ApiError):
    """The server asks for a pause before the next request."""

    status, reason = 429, "TooManyRequests"


class UnavailableError(ApiError):
    """The server does not answer or is temporarily unavailable."""

    status, reason = 503, "ServiceUnavailable"


class TooNewError(UnavailableError):
    """The server has not reached the version that the request names."""

    status, reason = 504, "Timeout"

    def __init__(self, wanted: str, newest: str) -> None:
        cause = ErrorCause("ResourceVersionTooLarge", "Too large resource version")
        super().__init__(
            f"Timeout: Too large resource version: {wanted}, current: {newest}", retry_after=1, causes=[cause]
        )


class UntrustedError(UnavailableError):
    """The certificate of the server is not valid."""


#: The error classes by reason, to decode the error responses of an API server.
API_ERRORS: dict[str, type[ApiError]] = {kind.reason: kind for kind in ApiError.__subclasses__()}
API_ERRORS[ApiError.reason] = ApiError
