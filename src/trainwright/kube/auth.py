# SPDX-License-Identifier: Apache-2.0
"""Who we say we are, request by request: a token, a token file that is read again, a password, a certificate.

`session` asks for a `Proof` before each request, and for a new one when the server no longer takes the old. What a
plug-in says comes from `plugin`.
"""

import asyncio
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from trainwright.errors import UnavailableError, UsageError
from trainwright.kube.config import Access
from trainwright.kube.kubeconfig import Entry, User
from trainwright.kube.plugin import Plugin
from trainwright.kube.proof import Proof, bearer
from trainwright.kube.tls import pair_of
from trainwright.runtime.ports import Clock

#: Seconds after which a token file is read again; the kubelet renews a pod's long before the old one ends.
_FRESH = 60.0


class Credentials(Protocol):
    """What proves who we are."""

    async def proof(self) -> Proof:
        """What to send now; UnavailableError if there is nothing."""
        ...

    def refused(self, proof: Proof) -> bool:
        """The server did not take it: whether the next one may be another."""
        ...


def credentials(access: Access, clock: Clock) -> Credentials:
    """The user's; what is said first wins: token file, token, password, plug-in, certificate alone."""
    user, value = access.user, access.user.value
    if value.auth_provider is not None:
        raise user.wrong("auth-provider", "not supported, nor by kubectl any more; use an exec plug-in")
    if value.token_file:
        return TokenFile(user, Path(value.token_file))
    if value.token or value.username or value.exec is None:
        return Fixed(user)
    return Plugin(user, access.server, access.cluster, clock)


class Fixed:
    """A token, a password or a certificate. Files of certificates are read again when the old one is refused."""

    def __init__(self, user: Entry[User]) -> None:
        self._user = user
        self._proof = Proof(_authorization(user.value), pair_of(user))

    async def proof(self) -> Proof:
        """What to send now."""
        return self._proof

    def refused(self, proof: Proof) -> bool:
        """Whether the certificate is another by now."""
        try:
            pair = pair_of(self._user)
        except UsageError:
            return False
        if self._proof is proof and pair != proof.pair:
            self._proof = Proof(proof.headers, pair)
        return self._proof is not proof


def _authorization(user: User) -> Mapping[str, str]:
    if user.token:
        return bearer(user.token)
    if user.username:
        text = f"{user.username}:{user.password or ''}"
        return {"Authorization": f"Basic {b64encode(text.encode()).decode()}"}
    return {}


class TokenFile:
    """A token that somebody renews in a file."""

    def __init__(self, user: Entry[User], path: Path) -> None:
        self._user, self._path, self._pair = user, path, pair_of(user)
        self._proof: Proof | None = Proof(bearer(user.value.token), self._pair) if user.value.token else None
        self._read_at = -_FRESH

    async def proof(self) -> Proof:
        """The token as it is in the file now, or was a minute ago."""
        now = asyncio.get_running_loop().time()
        if now - self._read_at >= _FRESH or self._proof is None:
            self._read()
            self._read_at = now
        assert self._proof is not None  # noqa: S101 - `_read` raises where it finds none
        return self._proof

    def refused(self, proof: Proof) -> bool:
        """Whether the file has another token."""
        try:
            self._read()
        except UnavailableError:
            return False
        return self._proof is not proof

    def _read(self) -> None:
        """An unreadable file does not take a token away that we have."""
        try:
            token = self._path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            token, why = "", str(getattr(error, "strerror", None) or error)
        else:
            why = "it is empty"
        if not token and self._proof is None:
            raise UnavailableError(str(self._user.wrong("tokenFile", f"no token in {self._path}: {why}")))
        headers = bearer(token)
        if token and (self._proof is None or self._proof.headers != headers):
            self._proof = Proof(headers, self._pair)
