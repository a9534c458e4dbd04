# SPDX-License-Identifier: Apache-2.0
"""Every exception of ours, as one tree. Problems of a manifest are values (`model.problem`), not exceptions.

    TrainwrightError
    ├── ManifestError            text that cannot be read as manifests at all      exit code 2
    │   └── MalformedError       the same, with its file and line (`manifest.text`)
    ├── UsageError               a command line that asks for the impossible       exit code 2
    ├── EngineError              the embedded engine cannot do its work            exit code 3
    └── ApiError                 an API said no, whichever engine it is of         exit code 3
        ├── NotFoundError            404
        ├── AlreadyExistsError       409 on create
        ├── ConflictError            409: what the write was based on is out of date
        ├── GoneError                410: the watch must begin with a new list
        ├── InvalidError             422
        ├── ForbiddenError           403
        │   └── QuotaError               a quota of the namespace is used up
        ├── TooManyRequestsError     429; `retry_after` says when
        └── UnavailableError         5xx, or no answer at all
            └── UntrustedError           its certificate does not hold: asking again is of no use

The command line turns each into one line on stderr and its exit code. Only `validate` catches one itself: a file that
cannot be read must not keep it from the next. `runtime` answers ApiErrors: some are facts, some are tried again.
"""


class TrainwrightError(Exception):
    """Something a person should read; its text is complete."""

    exit_code = 3


class ManifestError(TrainwrightError):
    """The text is not a manifest: unreadable, too large, not YAML, or YAML nobody should expand."""

    exit_code = 2


class UsageError(TrainwrightError):
    """The command was asked for something it cannot do."""

    exit_code = 2


class EngineError(TrainwrightError):
    """The embedded engine cannot do its work: no runtime, no room, no answer from a part of it."""


class ApiError(TrainwrightError):
    """An API refused a request or failed at it; `reason` is Kubernetes' word for it."""

    status = 500
    reason = "InternalError"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotFoundError(ApiError):
    """There is no such object."""

    status, reason = 404, "NotFound"


class AlreadyExistsError(ApiError):
    """An object of that name exists."""

    status, reason = 409, "AlreadyExists"


class ConflictError(ApiError):
    """The object is not what the write was based on: another version, or another object of that name."""

    status, reason = 409, "Conflict"


class GoneError(ApiError):
    """What the watch asks for is no longer remembered."""

    status, reason = 410, "Expired"


class InvalidError(ApiError):
    """The object cannot be right."""

    status, reason = 422, "Invalid"


class ForbiddenError(ApiError):
    """It is not allowed."""

    status, reason = 403, "Forbidden"


class QuotaError(ForbiddenError):
    """A quota of the namespace is used up: others like it would be refused as well."""


class TooManyRequestsError(ApiError):
    """Ask again later."""

    status, reason = 429, "TooManyRequests"


class UnavailableError(ApiError):
    """No answer, or the answer that there is none now."""

    status, reason = 503, "ServiceUnavailable"


class UntrustedError(UnavailableError):
    """The server is not who it should be, as far as its certificate says."""


#: By Kubernetes' word, for whoever reads an answer off a wire.
API_ERRORS = {
    kind.reason: kind
    for kind in (
        ApiError,
        NotFoundError,
        AlreadyExistsError,
        ConflictError,
        GoneError,
        InvalidError,
        ForbiddenError,
        TooManyRequestsError,
        UnavailableError,
    )
}
