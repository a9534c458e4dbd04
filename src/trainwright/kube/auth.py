# SPDX-License-Identifier: Apache-2.0
"""Certificates: whom we trust and who we say we are, as an `ssl` context. Called by `session` and `auth`.

Each is a field with its content in base64, or one with the path of a file; the content wins, as with kubectl.

What is shown to the server. Made by `auth` and `plugin`, sent by `session`.

Exec plug-ins: a program that prints a token or a certificate, as kubeconfigs of most clouds have one.

`auth` makes one where a user has `exec`. It runs when there is nothing yet, when what it said has expired and when the
server refuses it; never twice at once, and never with a terminal.

Who we say we are, request by request: a token, a token file that is read again, a password, a certificate.

`session` asks for a `Proof` before each request, and for a new one when the server no longer takes the old. What a
plug-in says comes from `plugin`.
"""

import asyncio
import os
import ssl
from asyncio.subprocess import DEVNULL, PIPE, Process
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta, Struct

from trainwright.errors import UnavailableError, UsageError
from trainwright.kube.config import Access, ClusterEntry, ExecPlugin, Located, UserEntry
from trainwright.runtime.ports import Clock

#: A certificate and its key.
Pair = tuple[bytes, bytes]


def content(entry: Located[Any], name: str) -> bytes:
    """What a field of a kubeconfig holds or points to; nothing if it is not there. UsageError."""
    spelled = name.replace("_", "-")
    if data := getattr(entry.value, f"{name}_data"):
        try:
            return b64decode(data, validate=True)
        except Base64Error:
            raise entry.wrong(f"{spelled}-data", "not base64") from None
    if path := getattr(entry.value, name):
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise entry.wrong(spelled, f"cannot read {path}: {error.strerror or error}") from None
    return b""


def pair_of(user: Located[UserEntry]) -> Pair | None:
    """The user's certificate and key, if there are any."""
    certificate, key = content(user, "client_certificate"), content(user, "client_key")
    if bool(certificate) != bool(key):
        have, lack = ("client-certificate", "client-key") if certificate else ("client-key", "client-certificate")
        raise user.wrong(lack, f"missing, although there is a {have}")
    return (certificate, key) if key else None


def context_of(cluster: Located[ClusterEntry], user: Located[UserEntry], pair: Pair | None) -> ssl.SSLContext:
    """How a connection is made safe; UsageError if the certificates are none."""
    context = _trusting(cluster)
    if pair is not None:
        try:
            # One file may hold both, and a certificate must not be sent twice.
            # Without a password OpenSSL would ask the terminal for one.
            with _file(b"\n".join(dict.fromkeys(pair))) as name:
                context.load_cert_chain(name, password="")
        except (ssl.SSLError, ValueError) as error:
            raise user.wrong("client-certificate", f"not a certificate with its key: {_said(error)}") from None
    return context


def _trusting(cluster: Located[ClusterEntry]) -> ssl.SSLContext:
    authority, insecure = content(cluster, "certificate_authority"), cluster.value.insecure_skip_tls_verify
    if authority and insecure:
        raise cluster.wrong("insecure-skip-tls-verify", "true, although there is a certificate-authority to verify by")
    try:
        context = ssl.create_default_context(cadata=authority.decode("ascii") if authority else None)
    except (ssl.SSLError, ValueError) as error:
        raise cluster.wrong("certificate-authority", f"not a certificate in PEM: {_said(error)}") from None
    # Python is stricter from 3.13 on than the certificates of many clusters are good.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _said(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)


@contextmanager
def _file(data: bytes) -> Iterator[str]:
    """OpenSSL reads keys from files only; this one is in memory where the system has such."""
    if not hasattr(os, "memfd_create"):
        with NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            yield file.name
        return
    descriptor = os.memfd_create("key")
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


class AuthHeaders(Struct, frozen=True, eq=False):
    """Headers for a request, and the certificate for its connection; the same object as long as it is the same."""

    headers: Mapping[str, str]
    pair: Pair | None = None


def bearer(token: str) -> Mapping[str, str]:
    """The header that carries a token."""
    return {"Authorization": f"Bearer {token}"}


_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
#: Where a cluster's own settings for its plug-in are.
_EXTENSION = "client.authentication.k8s.io/exec"
_TIMEOUT = 60.0


class _Given(Struct, frozen=True, rename="camel"):
    expiration_timestamp: Annotated[datetime, Meta(tz=True)] | None = None
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None


class _Credential(Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    status: _Given | None = None


_DECODER = msgspec.json.Decoder(_Credential)


class Plugin:
    """The `Credentials` that a plug-in gives."""

    def __init__(self, user: Located[UserEntry], server: str, cluster: Located[ClusterEntry], clock: Clock) -> None:
        assert user.value.exec is not None  # noqa: S101 - `auth.credentials` looked
        self._exec: ExecPlugin = user.value.exec
        self._user, self._clock = user, clock
        self._env = {one.name: one.value for one in self._exec.env or ()}
        self._check()
        self._env["KUBERNETES_EXEC_INFO"] = _info(self._exec, server, cluster)
        self._proof: AuthHeaders | None = None
        self._expires: datetime | None = None
        self._running = asyncio.Lock()

    async def proof(self) -> AuthHeaders:
        """What it said last, or says now; UnavailableError if it fails."""
        async with self._running:
            if self._proof is None or (self._expires is not None and self._clock.now() >= self._expires):
                self._take(await self._run())
            assert self._proof is not None  # noqa: S101 - `_take` raises where there is none
            return self._proof

    def refused(self, proof: AuthHeaders) -> bool:
        """It is asked again, unless somebody did so already."""
        if self._proof is proof:
            self._proof = None
        return True

    def _check(self) -> None:
        if self._exec.api_version not in _VERSIONS:
            found = self._exec.api_version or "nothing"
            raise self._user.wrong("exec.apiVersion", f"{found!r}; expected {' or '.join(_VERSIONS)}")
        if self._exec.interactive_mode == "Always":
            raise self._user.wrong("exec.interactiveMode", "'Always'; it would need a terminal, and gets none here")

    def _fail(self, what: str) -> UnavailableError:
        return UnavailableError(str(self._user.wrong("exec", f"{self._exec.command} {what}")))

    async def _run(self) -> bytes:
        try:
            process = await asyncio.create_subprocess_exec(
                self._exec.command, *self._exec.args or (),
                stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env={**os.environ, **self._env},
            )  # fmt: skip
        except OSError as error:
            hint = f"; {' '.join(self._exec.install_hint.split())}" if self._exec.install_hint else ""
            raise self._fail(f"cannot be run: {error.strerror or error}{hint}") from None
        try:
            out, err = await asyncio.wait_for(process.communicate(), _TIMEOUT)
        except TimeoutError:
            raise self._fail(f"said nothing for {_TIMEOUT:g} s") from None
        finally:
            await _ended(process)
        if process.returncode:
            said = err.decode(errors="replace").strip().rpartition("\n")[2][:500] or "without a word"
            raise self._fail(f"ended with exit code {process.returncode}: {said}")
        return out

    def _take(self, out: bytes) -> None:
        try:
            said = _DECODER.decode(out)
        except msgspec.MsgspecError as error:
            raise self._fail(f"did not print an ExecCredential: {error}") from None
        given = said.status or _Given()
        if said.kind != "ExecCredential" or said.api_version != self._exec.api_version:
            raise self._fail(
                f"printed {said.api_version} {said.kind}; expected {self._exec.api_version} ExecCredential"
            )
        certificate, key = given.client_certificate_data, given.client_key_data
        if not given.token and not (certificate and key):
            raise self._fail("printed neither status.token nor a client certificate with its key")
        pair = (certificate.encode(), key.encode()) if certificate and key else None
        if self._proof is not None and self._proof.pair == pair:
            pair = self._proof.pair
        self._proof = AuthHeaders(bearer(given.token) if given.token else {}, pair)
        self._expires = given.expiration_timestamp


async def _ended(process: Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


def _info(plugin: ExecPlugin, server: str, cluster: Located[ClusterEntry]) -> str:
    """What the plug-in is told."""
    spec: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
        value = cluster.value
        own = [one.get("extension") for one in value.extensions or () if one.get("name") == _EXTENSION]
        told = {
            "server": server,
            "tls-server-name": value.tls_server_name,
            "insecure-skip-tls-verify": value.insecure_skip_tls_verify,
            "certificate-authority-data": b64encode(content(cluster, "certificate_authority")).decode(),
            "proxy-url": value.proxy_url,
            "config": own[0] if own else None,
        }
        spec["cluster"] = {name: value for name, value in told.items() if value}
    return msgspec.json.encode({"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}).decode()


#: Seconds after which a token file is read again; the kubelet renews a pod's long before the old one ends.
_FRESH = 60.0


class Credentials(Protocol):
    """What proves who we are."""

    async def proof(self) -> AuthHeaders:
        """What to send now; UnavailableError if there is nothing."""
        ...

    def refused(self, proof: AuthHeaders) -> bool:
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
        return StaticCredentials(user)
    return Plugin(user, access.server, access.cluster, clock)


class StaticCredentials:
    """A token, a password or a certificate. Files of certificates are read again when the old one is refused."""

    def __init__(self, user: Located[UserEntry]) -> None:
        self._user = user
        self._proof = AuthHeaders(_authorization(user.value), pair_of(user))

    async def proof(self) -> AuthHeaders:
        """What to send now."""
        return self._proof

    def refused(self, proof: AuthHeaders) -> bool:
        """Whether the certificate is another by now."""
        try:
            pair = pair_of(self._user)
        except UsageError:
            return False
        if self._proof is proof and pair != proof.pair:
            self._proof = AuthHeaders(proof.headers, pair)
        return self._proof is not proof


def _authorization(user: UserEntry) -> Mapping[str, str]:
    if user.token:
        return bearer(user.token)
    if user.username:
        text = f"{user.username}:{user.password or ''}"
        return {"Authorization": f"Basic {b64encode(text.encode()).decode()}"}
    return {}


class TokenFile:
    """A token that somebody renews in a file."""

    def __init__(self, user: Located[UserEntry], path: Path) -> None:
        self._user, self._path, self._pair = user, path, pair_of(user)
        self._proof: AuthHeaders | None = (
            AuthHeaders(bearer(user.value.token), self._pair) if user.value.token else None
        )
        self._read_at = -_FRESH

    async def proof(self) -> AuthHeaders:
        """The token as it is in the file now, or was a minute ago."""
        now = asyncio.get_running_loop().time()
        if now - self._read_at >= _FRESH or self._proof is None:
            self._read()
            self._read_at = now
        assert self._proof is not None  # noqa: S101 - `_read` raises where it finds none
        return self._proof

    def refused(self, proof: AuthHeaders) -> bool:
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
            self._proof = AuthHeaders(headers, self._pair)
