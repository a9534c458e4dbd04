# SPDX-License-Identifier: Apache-2.0
"""Exec plug-ins: a program that prints a token or a certificate, as kubeconfigs of most clouds have one.

`auth` makes one where a user has `exec`. It runs when there is nothing yet, when what it said has expired and when the
server refuses it; never twice at once, and never with a terminal.
"""

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE, Process
from base64 import b64encode
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from trainwright.errors import UnavailableError
from trainwright.kube.kubeconfig import Cluster, Entry, Exec, User
from trainwright.kube.proof import Proof, bearer
from trainwright.kube.tls import content
from trainwright.runtime.ports import Clock

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

    def __init__(self, user: Entry[User], server: str, cluster: Entry[Cluster], clock: Clock) -> None:
        assert user.value.exec is not None  # noqa: S101 - `auth.credentials` looked
        self._exec: Exec = user.value.exec
        self._user, self._clock = user, clock
        self._env = {one.name: one.value for one in self._exec.env or ()}
        self._check()
        self._env["KUBERNETES_EXEC_INFO"] = _info(self._exec, server, cluster)
        self._proof: Proof | None = None
        self._expires: datetime | None = None
        self._running = asyncio.Lock()

    async def proof(self) -> Proof:
        """What it said last, or says now; UnavailableError if it fails."""
        async with self._running:
            if self._proof is None or (self._expires is not None and self._clock.now() >= self._expires):
                self._take(await self._run())
            assert self._proof is not None  # noqa: S101 - `_take` raises where there is none
            return self._proof

    def refused(self, proof: Proof) -> bool:
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
        self._proof = Proof(bearer(given.token) if given.token else {}, pair)
        self._expires = given.expiration_timestamp


async def _ended(process: Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


def _info(plugin: Exec, server: str, cluster: Entry[Cluster]) -> str:
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
