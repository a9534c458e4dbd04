# SPDX-License-Identifier: Apache-2.0
"""All exceptions of Trainwright. Problems inside a manifest are values (`model.problem`), not exceptions.

    TrainwrightError
    ├── ManifestError            text that is not a manifest                       exit code 2
    │   └── MalformedError       the same, with its file and line (`manifest.builder`)
    ├── UsageError               a command that cannot do what it is asked for     exit code 2
    ├── EngineError              the embedded engine cannot work                   exit code 3
    └── ApiError                 an API server or our store refused a request    exit code 3
        ├── NotFoundError            404
        ├── AlreadyExistsError       409 on create
        ├── ConflictError            409: the write is based on an old version
        ├── GoneError                410: the watch must begin with a new list
        ├── InvalidError             422
        ├── ForbiddenError           403
        │   └── QuotaError               a quota of the namespace is used up
        ├── TooManyRequestsError     429; `retry_after` has the pause in seconds
        └── UnavailableError         5xx, or no answer at all
            └── UntrustedError           the server's certificate is not valid: a retry does not help

The command line prints an error as one line on stderr and ends with the exit code of that error. `runtime` handles
every ApiError itself and retries after transient errors.
"""


class TrainwrightError(Exception):
    """An error for the user; its text needs no further explanation."""

    exit_code = 3


class ManifestError(TrainwrightError):
    """The text is not a manifest: unreadable, too large, not YAML, or YAML that expands beyond our limits."""

    exit_code = 2


class UsageError(TrainwrightError):
    """The command cannot do what it is asked for."""

    exit_code = 2


class EngineError(TrainwrightError):
    """The embedded engine cannot work: no runtime, no disk space, or a part of the engine does not answer."""


class ApiError(TrainwrightError):
    """An API refused a request or failed; `reason` is the reason as Kubernetes spells it."""

    status = 500
    reason = "InternalError"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


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


class ForbiddenError(ApiError):
    """The user has no right to do this."""

    status, reason = 403, "Forbidden"


class QuotaError(ForbiddenError):
    """A quota of the namespace is used up, so the server would refuse similar objects too."""


class TooManyRequestsError(ApiError):
    """The server asks for a pause before the next request."""

    status, reason = 429, "TooManyRequests"


class UnavailableError(ApiError):
    """The server does not answer or is temporarily unavailable."""

    status, reason = 503, "ServiceUnavailable"


class UntrustedError(UnavailableError):
    """The certificate of the server is not valid."""


#: The error classes by reason, to decode the error responses of an API server.
API_ERRORS: dict[str, type[ApiError]] = {kind.reason: kind for kind in ApiError.__subclasses__()}
API_ERRORS[ApiError.reason] = ApiError
