# SPDX-License-Identifier: Apache-2.0
"""The client of one repository of a registry: manifests and blobs, with authentication, pauses and repetitions."""

import time
from email.utils import parsedate_to_datetime
from socket import gaierror
from ssl import SSLCertVerificationError, SSLError
from threading import Lock
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from trainwright.errors import ImageDeniedError, ImageError, ImageNotFoundError, RegistryUnreachableError
from trainwright.images.credentials import RegistryCredentials, find_credentials
from trainwright.images.manifests import ACCEPTED, sha256
from trainwright.images.reference import DOCKER_HUB, ImageReference
from trainwright.images.registry_auth import Token, get_token, parse_challenges
from trainwright.images.transport import (
    BrokenHttpError,
    HttpTransport,
    RegistryAnswer,
    UnsafeRedirectError,
    header_values,
    is_loopback,
)
from trainwright.model.problem import nearest

_DOCKER_HUB_SERVER = "registry-1.docker.io"
_MAX_MANIFEST_BYTES = 4 << 20
_MAX_CONFIG_BYTES = 8 << 20
_MAX_ERROR_BYTES = 1 << 16
#: A registry that asks for a longer pause has an error for the user instead.
_MAX_PAUSE_SECONDS = 60.0
_REPETITIONS = 4
_FIRST_PAUSE_SECONDS = 0.5
_RENEW_SECONDS = 5.0
_SHOWN_TAGS = 5
_BUSY = {429, 500, 502, 503, 504}
LOAD_HINT = (
    "save it elsewhere with `docker save` or `podman save`, and load the file with `trainwright images load FILE`"
)


class FetchedManifest(Struct, frozen=True):
    """A manifest or an index as the registry sent it."""

    data: bytes
    media_type: str
    digest: str


class _Error(Struct):
    code: str = ""
    message: str = ""


class _Errors(Struct):
    errors: list[_Error] = []


class _Tags(Struct):
    tags: list[str] | None = None


class RegistryClient:
    """Sends requests about one repository. Several threads can share it."""

    def __init__(self, reference: ImageReference, transport: HttpTransport) -> None:
        self.reference = reference
        self._transport = transport
        self._server = _DOCKER_HUB_SERVER if reference.host == DOCKER_HUB else reference.host
        # Only this machine may be asked without TLS. If its registry has TLS, `_send` notices.
        self._scheme = "http" if is_loopback(urlsplit(f"//{self._server}").hostname or "") else "https"
        self._lock = Lock()
        self._token: Token | None = None
        self._notes: list[str] = []
        self._credentials: RegistryCredentials | None = None
        self._has_credentials = False

    # -- what a registry has -------------------------------------------------------------------------------------------

    def manifest(self, version: str) -> FetchedManifest:
        """The manifest or index with this tag or digest. Raises ImageError."""
        answer = self._get(f"/manifests/{version}", {"Accept": ", ".join(ACCEPTED)})
        if answer.status != 200:
            raise self._refusal(answer, version)
        data = self._whole(answer, _MAX_MANIFEST_BYTES)
        digest = sha256(data)
        if version.startswith("sha256:") and digest != version:
            raise ImageError(f"{self.reference}: the registry sent a manifest with the digest {digest}")
        return FetchedManifest(data, answer.headers.get("Content-Type", ""), digest)

    def small_blob(self, digest: str) -> bytes:
        """A blob that is read as a whole, such as a configuration. Raises ImageError."""
        answer = self._get(f"/blobs/{digest}", {})
        if answer.status != 200:
            raise self._refusal(answer, digest)
        data = self._whole(answer, _MAX_CONFIG_BYTES)
        if sha256(data) != digest:
            raise ImageError(f"{self.reference}: the registry sent {sha256(data)} instead of {digest}")
        return data

    def blob(self, digest: str, offset: int) -> RegistryAnswer:
        """An open answer with the blob from `offset` on (206), or the whole blob (200). Raises ImageError, OSError."""
        answer = self._send(f"/blobs/{digest}", {"Range": f"bytes={offset}-"} if offset else {})
        if answer.status in (200, 206, 416):
            return answer
        raise self._refusal(answer, digest)

    def _tags(self) -> list[str]:
        try:
            answer = self._send("/tags/list", {}, repetitions=0)
            if answer.status != 200:
                answer.close()
                return []
            return msgspec.json.decode(answer.body(_MAX_MANIFEST_BYTES), type=_Tags).tags or []
        except (OSError, ImageError, msgspec.MsgspecError):
            return []

    # -- requests ------------------------------------------------------------------------------------------------------

    def _get(self, path: str, headers: dict[str, str]) -> RegistryAnswer:
        """The same as `_send`, with an error that says what to do."""
        try:
            return self._send(path, headers)
        except OSError as error:
            raise self.unreachable(error) from None

    def _whole(self, answer: RegistryAnswer, limit: int) -> bytes:
        try:
            return answer.body(limit)
        except OSError as error:
            raise self.unreachable(error) from None

    def _send(self, path: str, headers: dict[str, str], repetitions: int = _REPETITIONS) -> RegistryAnswer:
        """Send a request, with a token if the registry asks for one, and again if the registry is busy."""
        pause, may_authorize = _FIRST_PAUSE_SECONDS, True
        while True:
            token = self._current_token()
            try:
                answer = self._ask(path, headers | ({"Authorization": token.header} if token else {}))
            except UnsafeRedirectError as error:
                raise ImageError(f"{self.reference}: {error}") from None
            if answer.status == 401 and may_authorize:
                may_authorize = False
                if self._authorize(answer, token):
                    continue
            if answer.status not in _BUSY or not repetitions:
                return answer
            wait = max(pause, _retry_after(answer))
            if wait > _MAX_PAUSE_SECONDS:
                return answer
            answer.close()
            time.sleep(wait)
            pause, repetitions = pause * 2, repetitions - 1

    def _ask(self, path: str, headers: dict[str, str]) -> RegistryAnswer:
        url = f"://{self._server}/v2/{self.reference.repository}{path}"
        if self._scheme == "https":
            return self._transport.get(f"https{url}", headers)
        answer: RegistryAnswer | None = None
        problem = BrokenHttpError("the answer is neither HTTP nor TLS")
        try:
            answer = self._transport.get(f"http{url}", headers)
            if answer.status != 400:
                return answer
        except (BrokenHttpError, ConnectionResetError) as error:
            problem = BrokenHttpError(str(error))
        # A registry of this machine may have TLS, and answers a request without TLS in one of these ways.
        try:
            secure = self._transport.get(f"https{url}", headers)
        except OSError:
            if answer is not None:
                return answer
            raise problem from None
        if answer is not None:
            answer.close()
        self._scheme = "https"
        return secure

    # -- authentication ------------------------------------------------------------------------------------------------

    def _current_token(self) -> Token | None:
        with self._lock:
            if self._token is not None and self._token.ends - time.monotonic() < _RENEW_SECONDS:
                self._token = None
            return self._token

    def _authorize(self, answer: RegistryAnswer, used: Token | None) -> bool:
        """Get what the registry asks for, instead of `used`. Returns whether to send the request again."""
        challenges = parse_challenges(header_values(answer.headers, "WWW-Authenticate"))
        with self._lock:
            if self._token is not used and self._token is not None:
                answer.close()
                return True  # another thread has just got a new token
            credentials = self._find_credentials()
            for challenge in challenges:
                if challenge.scheme == "bearer":
                    answer.close()
                    try:
                        self._token = get_token(self._transport, challenge, self.reference.repository, credentials)
                    except ImageDeniedError as error:
                        raise self._denied(str(error)) from None
                    return True
                if credentials is not None and credentials.username and used is None:
                    answer.close()
                    self._token = Token(credentials.basic(), float("inf"))
                    return True
        return False

    def _find_credentials(self) -> RegistryCredentials | None:
        if not self._has_credentials:
            self._credentials = find_credentials(self.reference.host, self.reference.repository, self._notes)
            self._has_credentials = True
        return self._credentials

    # -- errors --------------------------------------------------------------------------------------------------------

    def _refusal(self, answer: RegistryAnswer, version: str) -> ImageError:
        """The error for an answer that is not what we asked for."""
        words = _words(answer)
        if answer.status in (401, 403):
            return self._denied(words)
        if answer.status == 404:
            return self._not_found(words, version)
        if answer.status == 429:
            wait = _retry_after(answer)
            pause = f"; try again in {wait:.0f} s" if wait else ""
            return RegistryUnreachableError(f"{self.reference.host} answers too many requests (429): {words}{pause}")
        kind = RegistryUnreachableError if answer.status >= 500 else ImageError
        return kind(f"{self.reference}: {self.reference.host} answered {answer.status}: {words}")

    def _denied(self, words: str) -> ImageDeniedError:
        host, found = self.reference.host, self._credentials
        who = f"as {found.username or 'the owner of a token'} of {found.origin}" if found else "without credentials"
        notes = "".join(f"; {note}" for note in self._notes)
        return ImageDeniedError(
            f"{host} does not give us {self.reference.familiar()} ({words}); it was asked {who}{notes}; "
            f"check the name, or log in with `docker login {host}` or `podman login {host}`"
        )

    def _not_found(self, words: str, version: str) -> ImageNotFoundError:
        host, name = self.reference.host, self.reference.repository
        tags = [] if self.reference.digest else self._tags()
        if not tags:
            return ImageNotFoundError(f"{host} has no image {self.reference.familiar()} ({words}); check the name")
        near = nearest(version, tags)
        hint = f"; did you mean `{near}`?" if near else ""
        shown = ", ".join(tags[-_SHOWN_TAGS:]) + (" …" if len(tags) > _SHOWN_TAGS else "")
        return ImageNotFoundError(f"{host} has {name}, but not with the tag {version!r}; it has {shown}{hint}")

    def unreachable(self, error: OSError) -> RegistryUnreachableError:
        """The error for a registry that does not answer."""
        what = _what_happened(error, self._server, self._transport.timeout)
        return RegistryUnreachableError(
            f"{self.reference.familiar()} cannot be pulled: no answer from {self._server}: {what}; check the name and "
            f"your network; without a network, {LOAD_HINT}"
        )


def _what_happened(error: OSError, server: str, seconds: float) -> str:
    match error:
        case BrokenHttpError():
            return str(error)
        case TimeoutError() if not error.errno:
            return f"none within {seconds:g} s"
        case gaierror():
            return f"the name {server.rpartition(':')[0] or server} does not resolve ({error.strerror or error})"
        case SSLCertVerificationError():
            return f"its certificate is not trusted ({error.verify_message}); SSL_CERT_FILE can name your own CA"
        case SSLError():
            return f"no TLS connection ({error.reason or error}); only a registry on this machine may have no TLS"
        case _:
            return error.strerror or str(error) or type(error).__name__


def _words(answer: RegistryAnswer) -> str:
    """What the registry says about an error, on one line."""
    try:
        data = answer.body(_MAX_ERROR_BYTES)
        found = msgspec.json.decode(data, type=_Errors).errors
    except (OSError, msgspec.MsgspecError):
        found = []
    texts = [" ".join(f"{one.code.lower()}: {one.message}".strip(": ").split()) for one in found]
    return "; ".join(text for text in texts if text)[:300] or f"answer {answer.status}"


def _retry_after(answer: RegistryAnswer) -> float:
    """The pause that the registry asks for, in seconds: a number, or a date as in an e-mail."""
    text = (answer.headers.get("Retry-After") or "").strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, OverflowError):
        return 0.0
