# SPDX-License-Identifier: Apache-2.0
"""Credentials for the API server: tokens, token files, passwords, client certificates and exec plug-ins (`plugin`).

Before each request, the HTTP client gets an `AuthHeaders` from `Credentials`. If the server rejects these headers, the
client calls `Credentials.rejected`.
"""

from base64 import b64encode
from collections.abc import Mapping
from math import inf
from pathlib import Path
from time import monotonic
from typing import Protocol

from trainwright import __version__
from trainwright.errors import UnavailableError, UsageError
from trainwright.kube.certificates import (
    NOT_A_HEADER,
    AuthHeaders,
    bearer,
    client_key_pair,
    header_value,
    is_header_value,
)
from trainwright.kube.config import Access, Located, UserEntry
from trainwright.runtime.ports import Clock

#: Seconds after which a token file is read again. The kubelet writes a new token before the old token expires, so the
#: client must notice a new token soon.
_TOKEN_FILE_SECONDS = 60.0


class Credentials(Protocol):
    """Proves to the API server who the user is."""

    async def auth_headers(self) -> AuthHeaders:
        """The credentials for the next request. Raises UnavailableError if there are no credentials."""
        ...

    def current(self) -> AuthHeaders:
        """The same credentials as `auth_headers`, for a caller without an event loop."""
        ...

    def rejected(self, auth: AuthHeaders) -> bool:
        """Record that the server rejected these credentials. Returns whether the next credentials can be different."""
        ...


def credentials(access: Access, clock: Clock) -> Credentials:
    """The user's credentials. If there are several, use the first of: token file, token, password, exec plug-in."""
    user, value = access.user, access.user.value
    if value.auth_provider is not None:
        raise user.error("auth-provider", "not supported, nor by kubectl any more; use an exec plug-in")
    if value.token_file:
        return TokenFileCredentials(user, Path(value.token_file))
    if value.token or value.username or value.exec is None:
        return StaticCredentials(user)
    from trainwright.kube.plugin import PluginCredentials  # noqa: PLC0415 - asyncio is slow to import

    return PluginCredentials(user, access.server, access.cluster, clock)


class StaticCredentials:
    """A token, a password or a certificate. If the server rejects the credentials, certificate files are read again."""

    def __init__(self, user: Located[UserEntry]) -> None:
        self._user = user
        self._auth = AuthHeaders(_authorization(user), client_key_pair(user))

    async def auth_headers(self) -> AuthHeaders:
        """The credentials for the next request."""
        return self._auth

    def current(self) -> AuthHeaders:
        """The same credentials as `auth_headers`, for a caller without an event loop."""
        return self._auth

    def rejected(self, auth: AuthHeaders) -> bool:
        """Read the certificate files again. Returns whether the certificate has changed."""
        try:
            key_pair = client_key_pair(self._user)
        except UsageError:
            return False
        if self._auth is auth and key_pair != auth.key_pair:
            self._auth = AuthHeaders(auth.headers, key_pair)
        return self._auth is not auth


class TokenFileCredentials:
    """A token in a file that another program renews."""

    def __init__(self, user: Located[UserEntry], path: Path) -> None:
        self._user, self._path, self._key_pair = user, path, client_key_pair(user)
        self._auth: AuthHeaders | None = AuthHeaders(_authorization(user), self._key_pair) if user.value.token else None
        self._read_at = -inf

    async def auth_headers(self) -> AuthHeaders:
        """The token for the next request."""
        return self.current()

    def current(self) -> AuthHeaders:
        """The token. If the last read of the file was a minute ago or earlier, read the file again first."""
        now = monotonic()
        if now - self._read_at >= _TOKEN_FILE_SECONDS or self._auth is None:
            self._read()
            self._read_at = now
        assert self._auth is not None  # noqa: S101 - `_read` raises if it finds no token
        return self._auth

    def rejected(self, auth: AuthHeaders) -> bool:
        """Read the file again. Returns whether it now contains another token."""
        try:
            self._read()
        except UnavailableError:
            return False
        return self._auth is not auth

    def _read(self) -> None:
        """Read the file. If it cannot be read, keep the previous token; without a token, raise UnavailableError."""
        try:
            token = self._path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            token, reason = "", str(getattr(error, "strerror", None) or error)
        else:
            reason = "it is empty"
            if not is_header_value(token):
                token, reason = "", f"it {NOT_A_HEADER}"
        if not token and self._auth is None:
            raise UnavailableError(str(self._user.error("tokenFile", f"no token in {self._path}: {reason}")))
        headers = bearer(token)
        if token and (self._auth is None or self._auth.headers != headers):
            self._auth = AuthHeaders(headers, self._key_pair)


def user_headers(user: Located[UserEntry]) -> list[tuple[str, str]]:
    """The headers of every request of a user, without credentials. Raises UsageError if a header cannot be sent."""
    value = user.value
    headers = [("User-Agent", f"trainwright/{__version__}"), ("Accept", "application/json")]
    if value.impersonate:
        headers.append(("Impersonate-User", header_value(user, "as", value.impersonate)))
    if value.impersonate_uid:
        headers.append(("Impersonate-Uid", header_value(user, "as-uid", value.impersonate_uid)))
    groups = [header_value(user, f"as-groups[{at}]", one) for at, one in enumerate(value.impersonate_groups or ())]
    return [*headers, *(("Impersonate-Group", group) for group in groups)]


def _authorization(user: Located[UserEntry]) -> Mapping[str, str]:
    if user.value.token:
        return bearer(header_value(user, "token", user.value.token))
    if user.value.username:
        text = f"{user.value.username}:{user.value.password or ''}"
        return {"Authorization": f"Basic {b64encode(text.encode()).decode()}"}
    return {}
