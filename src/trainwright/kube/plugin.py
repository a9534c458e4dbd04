# SPDX-License-Identifier: Apache-2.0
"""Exec plug-ins: programs that print credentials."""

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE
from base64 import b64encode
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from trainwright.errors import UnavailableError
from trainwright.kube.certificates import NOT_A_HEADER, AuthHeaders, bearer, field_content, is_header_value
from trainwright.kube.config import ClusterEntry, ExecPlugin, Located, UserEntry
from trainwright.runtime.ports import Clock

_PLUGIN_TIMEOUT_SECONDS = 60.0
_PLUGIN_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
#: The name of the extension, in a cluster entry, that contains the cluster's settings for the plug-in.
_PLUGIN_EXTENSION = "client.authentication.k8s.io/exec"


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

    def current(self) -> AuthHeaders:
        """The same credentials as `auth_headers`, for a caller without an event loop."""
        return asyncio.run(self.auth_headers())

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
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._failure(f"did not print an ExecCredential: {error}") from None
        if printed.kind != "ExecCredential" or printed.api_version != self._exec.api_version:
            raise self._failure(
                f"printed {printed.api_version} {printed.kind}; expected {self._exec.api_version} ExecCredential"
            )
        status = printed.status or _PluginStatus()
        certificate, key, token = status.client_certificate_data, status.client_key_data, (status.token or "").strip()
        if not token and not (certificate and key):
            raise self._failure("printed neither status.token nor a client certificate with its key")
        if not is_header_value(token):
            raise self._failure(f"printed a status.token that {NOT_A_HEADER}")
        key_pair = (certificate.encode(), key.encode()) if certificate and key else None
        self._auth = AuthHeaders(bearer(token) if token else {}, key_pair)
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
