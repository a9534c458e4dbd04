# SPDX-License-Identifier: Apache-2.0
"""Authentication at a registry: the challenge of an answer 401, and the token that it asks for."""

import re
import time
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct

from trainwright.errors import ImageDeniedError, ImageError
from trainwright.images.credentials import RegistryCredentials
from trainwright.images.transport import HttpTransport, is_loopback

_PARAMETER = re.compile(r'([A-Za-z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_SCHEME = re.compile(r"\s*(Bearer|Basic)\b\s*(.*)", re.IGNORECASE | re.DOTALL)
_MAX_TOKEN_BYTES = 1 << 20
#: Tokens without a time are valid for 60 seconds, by docker's specification.
_DEFAULT_TOKEN_SECONDS = 60.0


class Challenge(Struct, frozen=True):
    """How a registry wants to be asked: the scheme, `bearer` or `basic`, and its parameters."""

    scheme: str
    parameters: dict[str, str]


class Token(Struct, frozen=True):
    """The value of the header Authorization, and when it ends by the monotonic clock."""

    header: str
    ends: float


class _TokenAnswer(Struct):
    token: str = ""
    access_token: str = ""
    expires_in: float | None = None


def parse_challenges(headers: list[str]) -> list[Challenge]:
    """The challenges that we know, Bearer first."""
    found = []
    for header in headers:
        if (match := _SCHEME.match(header)) is not None:
            pairs = {key.lower(): quoted or bare for key, quoted, bare in _PARAMETER.findall(match[2])}
            found.append(Challenge(match[1].lower(), pairs))
    return sorted(found, key=lambda one: one.scheme != "bearer")


def get_token(
    transport: HttpTransport, challenge: Challenge, repository: str, credentials: RegistryCredentials | None
) -> Token:
    """Get a token from the server that the challenge names. Raises ImageError and OSError.

    Credentials are sent to this server, which the registry chooses; therefore it must use TLS.
    """
    realm = challenge.parameters.get("realm", "")
    parts = urlsplit(realm)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise ImageError(f"the registry asks for a token from {realm[:80]!r}, expected a server with https://")
    query = {"scope": challenge.parameters.get("scope") or f"repository:{repository}:pull"}
    if service := challenge.parameters.get("service"):
        query["service"] = service
    headers = {"Accept": "application/json"}
    if credentials is not None and credentials.identity_token:
        query |= {"grant_type": "refresh_token", "client_id": "trainwright"}
        query["refresh_token"] = credentials.identity_token
        answer = transport.post_form(realm, query)
    else:
        if credentials is not None:
            headers["Authorization"] = credentials.basic()
        answer = transport.get(f"{realm}{'&' if parts.query else '?'}{urlencode(query)}", headers)
    data = answer.body(_MAX_TOKEN_BYTES)
    if answer.status in (400, 401, 403):
        raise ImageDeniedError(f"the token server {parts.netloc} answered {answer.status}")
    if answer.status != 200:
        raise ImageError(f"the token server {parts.netloc} answered {answer.status}, expected a token")
    return _decode_token(data, parts.netloc)


def _decode_token(data: bytes, server: str) -> Token:
    try:
        found = msgspec.json.decode(data, type=_TokenAnswer)
    except msgspec.MsgspecError as error:
        raise ImageError(f"the token server {server} sent an answer that is not valid: {error}") from None
    text = found.token or found.access_token
    if not text or not text.isprintable():
        raise ImageError(f"the token server {server} sent no token")
    return Token(f"Bearer {text}", time.monotonic() + (found.expires_in or _DEFAULT_TOKEN_SECONDS))
