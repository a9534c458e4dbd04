# SPDX-License-Identifier: Apache-2.0
"""Credentials for the API server: tokens, token files, passwords, client certificates and exec plug-ins.

Before each request, the HTTP client gets an `AuthHeaders` from `Credentials`. If the server rejects these headers, the
client calls `Credentials.rejected`. A kubeconfig contains certificates and keys as base64 text or as paths of files. If
a kubeconfig sets both fields, the base64 text is used, as in kubectl.
"""

import asyncio
import os
import ssl
from asyncio.subprocess import DEVNULL, PIPE
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

#: A certificate and its key, in PEM.
KeyPair = tuple[bytes, bytes]
#: Seconds after which a token file is read again. The kubelet writes a new token before the old token expires, so the
#: client must notice a new token soon.
_TOKEN_FILE_SECONDS = 60.0
_PLUGIN_TIMEOUT_SECONDS = 60.0
_PLUGIN_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
#: The name of the extension, in a cluster entry, that contains the cluster's settings for the plug-in.
_PLUGIN_EXTENSION = "client.authentication.k8s.io/exec"


class AuthHeaders(Struct, frozen=True, eq=False):
    """Headers for a request, and the client certificate for its connection. If they change, a new object is made."""

    headers: Mapping[str, str]
    key_pair: KeyPair | None = None


class Credentials(Protocol):
    """Proves to the API server who the user is."""

    async def auth_headers(self) -> AuthHeaders:
        """The credentials for the next request. Raises UnavailableError if there are no credentials."""
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
    return PluginCredentials(user, access.server, access.cluster, clock)


class StaticCredentials:
    """A token, a password or a certificate. If the server rejects the credentials, certificate files are read again."""

    def __init__(self, user: Located[UserEntry]) -> None:
        self._user = user
        self._auth = AuthHeaders(_authorization(user.value), client_key_pair(user))

    async def auth_headers(self) -> AuthHeaders:
        """The credentials for the next request."""
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
        self._auth: AuthHeaders | None = (
            AuthHeaders(_bearer(user.value.token), self._key_pair) if user.value.token else None
        )
        self._read_at = -_TOKEN_FILE_SECONDS

    async def auth_headers(self) -> AuthHeaders:
        """The token. If the last read of the file was a minute ago or earlier, read the file again first."""
        now = asyncio.get_running_loop().time()
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
        if not token and self._auth is None:
            raise UnavailableError(str(self._user.error("tokenFile", f"no token in {self._path}: {reason}")))
        headers = _bearer(token)
        if token and (self._auth is None or self._auth.headers != headers):
            self._auth = AuthHeaders(headers, self._key_pair)


def _authorization(user: UserEntry) -> Mapping[str, str]:
    if user.token:
        return _bearer(user.token)
    if user.username:
        text = f"{user.username}:{user.password or ''}"
        return {"Authorization": f"Basic {b64encode(text.encode()).decode()}"}
    return {}


def _bearer(token: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {token}"}


# -- exec plug-ins -----------------------------------------------------------------------------------------------------


class _PluginStatus(Struct, frozen=True, rename="camel"):
    expiration_timestamp: Annotated[datetime, Meta(tz=True)] | None = None
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None


class _ExecCredential(Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    status: _PluginStatus | None = None


_DECODER = msgspec.json.Decoder(_ExecCredential)


class PluginCredentials:
    """The credentials that an exec plug-in prints: a token or a certificate.

    The plug-in runs if there are no credentials yet, if they have expired, or if the server has rejected them. Only one
    run takes place at a time, and the plug-in has no terminal.
    """

    def __init__(self, user: Located[UserEntry], server: str, cluster: Located[ClusterEntry], clock: Clock) -> None:
        assert user.value.exec is not None  # noqa: S101 - `credentials` has checked it
        self._exec: ExecPlugin = user.value.exec
        self._user, self._clock = user, clock
        self._env = {one.name: one.value for one in self._exec.env or ()}
        self._check()
        self._env["KUBERNETES_EXEC_INFO"] = _plugin_input(self._exec, server, cluster)
        self._auth: AuthHeaders | None = None
        self._expires: datetime | None = None
        self._lock = asyncio.Lock()

    async def auth_headers(self) -> AuthHeaders:
        """Valid credentials. If there are none, run the plug-in first. Raises UnavailableError if the plug-in fails."""
        async with self._lock:
            if self._auth is None or (self._expires is not None and self._clock.now() >= self._expires):
                self._accept(await self._run())
            assert self._auth is not None  # noqa: S101 - `_accept` raises if there are no credentials
            return self._auth

    def rejected(self, auth: AuthHeaders) -> bool:
        """Drop the credentials if they are still `auth`, so that the next request runs the plug-in. Returns True."""
        if self._auth is auth:
            self._auth = None
        return True

    def _check(self) -> None:
        if self._exec.api_version not in _PLUGIN_VERSIONS:
            found = self._exec.api_version or "nothing"
            raise self._user.error("exec.apiVersion", f"{found!r}; expected {' or '.join(_PLUGIN_VERSIONS)}")
        if self._exec.interactive_mode == "Always":
            raise self._user.error("exec.interactiveMode", "'Always'; it would need a terminal, and gets none here")

    def _failure(self, text: str) -> UnavailableError:
        return UnavailableError(str(self._user.error("exec", f"{self._exec.command} {text}")))

    async def _run(self) -> bytes:
        try:
            process = await asyncio.create_subprocess_exec(
                self._exec.command, *self._exec.args or (),
                stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env={**os.environ, **self._env},
            )  # fmt: skip
        except OSError as error:
            hint = f"; {' '.join(self._exec.install_hint.split())}" if self._exec.install_hint else ""
            raise self._failure(f"cannot be run: {error.strerror or error}{hint}") from None
        try:
            out, err = await asyncio.wait_for(process.communicate(), _PLUGIN_TIMEOUT_SECONDS)
        except TimeoutError:
            raise self._failure(f"did not end within {_PLUGIN_TIMEOUT_SECONDS:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            message = err.decode(errors="replace").strip().rpartition("\n")[2][:500] or "it printed no error"
            raise self._failure(f"ended with exit code {process.returncode}: {message}")
        return out

    def _accept(self, out: bytes) -> None:
        """Take the credentials from the plug-in's output."""
        try:
            printed = _DECODER.decode(out)
        except msgspec.MsgspecError as error:
            raise self._failure(f"did not print an ExecCredential: {error}") from None
        if printed.kind != "ExecCredential" or printed.api_version != self._exec.api_version:
            raise self._failure(
                f"printed {printed.api_version} {printed.kind}; expected {self._exec.api_version} ExecCredential"
            )
        status = printed.status or _PluginStatus()
        certificate, key = status.client_certificate_data, status.client_key_data
        if not status.token and not (certificate and key):
            raise self._failure("printed neither status.token nor a client certificate with its key")
        key_pair = (certificate.encode(), key.encode()) if certificate and key else None
        self._auth = AuthHeaders(_bearer(status.token) if status.token else {}, key_pair)
        self._expires = status.expiration_timestamp


def _plugin_input(plugin: ExecPlugin, server: str, cluster: Located[ClusterEntry]) -> str:
    """The ExecCredential that the plug-in gets in its environment."""
    spec: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
        value = cluster.value
        settings = [one.get("extension") for one in value.extensions or () if one.get("name") == _PLUGIN_EXTENSION]
        fields = {
            "server": server,
            "tls-server-name": value.tls_server_name,
            "insecure-skip-tls-verify": value.insecure_skip_tls_verify,
            "certificate-authority-data": b64encode(field_content(cluster, "certificate_authority")).decode(),
            "proxy-url": value.proxy_url,
            "config": settings[0] if settings else None,
        }
        spec["cluster"] = {name: value for name, value in fields.items() if value}
    return msgspec.json.encode({"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}).decode()


# -- certificates ------------------------------------------------------------------------------------------------------


def field_content(entry: Located[Any], name: str) -> bytes:
    """The content of a kubeconfig field: its base64 data or its file; empty if neither is set. Raises UsageError."""
    spelled = name.replace("_", "-")
    if data := getattr(entry.value, f"{name}_data"):
        try:
            return b64decode(data, validate=True)
        except Base64Error:
            raise entry.error(f"{spelled}-data", "not base64") from None
    if path := getattr(entry.value, name):
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise entry.error(spelled, f"cannot read {path}: {error.strerror or error}") from None
    return b""


def client_key_pair(user: Located[UserEntry]) -> KeyPair | None:
    """The user's certificate and key; None if the user has no certificate."""
    certificate, key = field_content(user, "client_certificate"), field_content(user, "client_key")
    if bool(certificate) != bool(key):
        have, lack = ("client-certificate", "client-key") if certificate else ("client-key", "client-certificate")
        raise user.error(lack, f"missing, although there is a {have}")
    return (certificate, key) if key else None


def ssl_context(cluster: Located[ClusterEntry], user: Located[UserEntry], key_pair: KeyPair | None) -> ssl.SSLContext:
    """The TLS settings of a connection. Raises UsageError if a certificate cannot be used."""
    context = _server_context(cluster)
    if key_pair is not None:
        try:
            # If one file contains certificate and key, both parts of `key_pair` are the text of this file. Then
            # `dict.fromkeys` keeps the text once, so that OpenSSL sends the certificate once. Without `password`,
            # OpenSSL would ask for a password on the terminal.
            with _file(b"\n".join(dict.fromkeys(key_pair))) as name:
                context.load_cert_chain(name, password="")
        except (ssl.SSLError, ValueError) as error:
            raise user.error("client-certificate", f"not a certificate with its key: {ssl_reason(error)}") from None
    return context


def _server_context(cluster: Located[ClusterEntry]) -> ssl.SSLContext:
    authority, insecure = field_content(cluster, "certificate_authority"), cluster.value.insecure_skip_tls_verify
    if authority and insecure:
        raise cluster.error("insecure-skip-tls-verify", "true, although there is a certificate-authority to verify by")
    try:
        context = ssl.create_default_context(cadata=authority.decode("ascii") if authority else None)
    except (ssl.SSLError, ValueError) as error:
        raise cluster.error("certificate-authority", f"not a certificate in PEM: {ssl_reason(error)}") from None
    relax(context)
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def relax(context: ssl.SSLContext) -> None:
    """Accept certificates that break rules of RFC 5280. Many clusters have them, but Python 3.13 rejects them."""
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT


def ssl_reason(error: Exception) -> str:
    """OpenSSL's short reason for an error, or the whole error text if there is no reason."""
    return getattr(error, "reason", None) or str(error)


@contextmanager
def _file(data: bytes) -> Iterator[str]:
    """A file with this content, because OpenSSL reads keys only from files. If possible, the file is in memory."""
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
