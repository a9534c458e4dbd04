# SPDX-License-Identifier: Apache-2.0
"""Certificates of a node: the log server's own, the request for a client certificate, and how long one is valid.

Python's standard library makes neither keys nor requests, so the `openssl` command does. API servers accept the log
server's certificate unless they were told which CA signs certificates of nodes (`--kubelet-certificate-authority`).

A node's own identity: a client certificate for the user `system:node:NAME`, requested, kept and renewed.

It works as the TLS bootstrap of kubelets. The key is made on this machine and never leaves it; a
CertificateSigningRequest asks the cluster for the certificate; an administrator, or the cluster by its own rules,
approves it. The Node authorizer and NodeRestriction then limit this user to its own Node and to the pods on it.

The certificate and its key are one file, replaced by a rename: after a kill at any moment there is the old pair or the
new one. A key whose request is still open is kept too, so the next start waits for the same request.
"""

import asyncio
import hashlib
import logging
import os
import shutil
import ssl
import subprocess
from base64 import b64decode, b64encode
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from random import random
from typing import Any, cast

import msgspec
from msgspec import Struct

from trainwright.errors import (
    AlreadyExistsError,
    ApiError,
    EngineError,
    ForbiddenError,
    NotFoundError,
    TooManyRequestsError,
    UnavailableError,
    UsageError,
)
from trainwright.kube.auth import content
from trainwright.kube.cluster import KubeCluster, connected
from trainwright.kube.config import Access, ConnectionOptions, load
from trainwright.kube.http import HttpClient
from trainwright.kube.session import ApiSession
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import Clock, Resource

_DAYS = "3650"
_TIMEOUT_SECONDS = 30
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Validity(Struct, frozen=True):
    """For whom a certificate was issued, and from when until when it is valid."""

    user: str
    begins: datetime
    ends: datetime


def subject(node: str) -> str:
    """The subject by which Kubernetes recognises a node, in the notation of openssl."""
    return f"/O=system:nodes/CN={user_of(node)}"


def user_of(node: str) -> str:
    """The user name of a node."""
    return f"system:node:{node}"


def self_signed(folder: Path, node: str, address: str) -> tuple[Path, Path] | None:
    """A certificate that the node signs itself, and its key, for as long as the agent runs; None without `openssl`."""
    if shutil.which("openssl") is None:
        return None
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    certificate, key = folder / "kubelet.crt", folder / "kubelet.key"
    words = ["req", "-x509", *_NEW_KEY, "-days", _DAYS, "-subj", subject(node)]
    words += ["-addext", f"subjectAltName=DNS:{node},IP:{address}", "-keyout", str(key), "-out", str(certificate)]
    try:
        _openssl(words)
    except EngineError as error:
        raise UsageError(f"openssl made no certificate for the log server: {error}") from None
    key.chmod(0o600)
    return certificate, key


def signing_request(key: Path, to: Path, node: str) -> None:
    """Make a key, and a request for a client certificate of that node. Raises EngineError."""
    _openssl(["req", "-new", *_NEW_KEY, "-subj", subject(node), "-keyout", str(key), "-out", str(to)])
    key.chmod(0o600)


def validity(certificate: Path) -> Validity:
    """Read the first certificate of a file in PEM. Raises EngineError."""
    words = ["x509", "-in", str(certificate), "-noout", "-startdate", "-enddate", "-subject", "-nameopt", "RFC2253"]
    said = dict(line.partition("=")[::2] for line in _openssl(words).splitlines())
    names = dict(part.partition("=")[::2] for part in said["subject"].strip().split(","))
    return Validity(names.get("CN", ""), _moment(said["notBefore"]), _moment(said["notAfter"]))


def _moment(text: str) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC)


def _openssl(words: list[str]) -> str:
    program = shutil.which("openssl")
    if program is None:
        raise EngineError("there is no `openssl` command on this machine; install the package openssl")
    try:
        done = subprocess.run(  # noqa: S603 - our own words
            [program, *words], capture_output=True, text=True, check=True, timeout=_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise EngineError(f"openssl {words[0]}: {said[-1] if said else error}") from None
    return done.stdout


def tls_context(certificate: Path, key: Path, authority: str) -> ssl.SSLContext:
    """How the server speaks; a client's certificate must be one of `authority`'s, in PEM, or there is none."""
    found = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # Without a password OpenSSL would ask the terminal for one.
        found.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise UsageError(f"{certificate} is not a certificate with its key {key}: {_said(error)}") from None
    if authority:
        try:
            found.load_verify_locations(cadata=authority)
        except (OSError, ValueError) as error:
            raise UsageError(f"the client CA is not a certificate in PEM: {_said(error)}") from None
        found.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python is stricter from 3.13 on than many certificates are good
        found.verify_mode = ssl.CERT_OPTIONAL
    return found


def _said(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)


_LOG = logging.getLogger(__name__)
_WAITING = (
    "the certificate of node %s waits for an administrator's approval. Compare the node's name, then run:"
    " kubectl certificate approve %s"
)
_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
_REQUESTS = Resource(
    "certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", namespaced=False
)
#: Object names may have 253 characters.
_NAME_LENGTH = 200
#: Seconds between two looks at an open request, doubling.
_FIRST_LOOK, _LONGEST_LOOK = 0.2, 5.0
#: Seconds after which an administrator is told how to approve a request: the cluster itself is quicker.
_APPROVED_BY_RULE = 3.0
#: The part of its lifetime after which a certificate is renewed; the second is a random addition, so that machines that
#: were set up together do not ask together.
_RENEWED, _SPREAD = 0.7, 0.1
#: Seconds until a renewal that failed is tried again, doubling.
_FIRST_RETRY, _LONGEST_RETRY = 5.0, 600.0
#: Seconds: a machine that slept looks at its clock again after so long.
_LONGEST_SLEEP = 600.0


class NodeIdentity:
    """The identity of one node, kept below the agent's folder."""

    def __init__(self, folder: Path, node: str, clock: Clock) -> None:
        self.node = node
        #: For `trainwright node` without --bootstrap-kubeconfig, and for people: `kubectl --kubeconfig`.
        self.kubeconfig = folder / "kubeconfig"
        self._folder = folder / "pki"
        self._certificate = self._folder / "client.pem"
        self._key, self._request = self._folder / "pending.key", self._folder / "pending.csr"
        self._clock = clock
        self._renewed = _RENEWED + _SPREAD * random()  # noqa: S311 - jitter, not a secret

    @property
    def user(self) -> str:
        """The user name that the certificate is for."""
        return user_of(self.node)

    def kept(self) -> Validity | None:
        """The certificate that an agent before us got; None if there is none of use, for whatever reason."""
        if not self._certificate.exists() or not self.kubeconfig.exists():
            return None
        try:
            found = validity(self._certificate)
        except EngineError as error:
            _LOG.warning("the certificate in %s cannot be used: %s", self._certificate, error)
            return None
        return found if found.user == self.user and found.ends > self._clock.now() else None

    def access(self) -> Access:
        """How to reach the cluster with the certificate that is kept."""
        return load(ConnectionOptions(kubeconfig=str(self.kubeconfig)))

    def belongs_to(self, access: Access) -> bool:
        """Whether the certificate that is kept was issued by this cluster, as far as server and CA tell."""
        ours = self.access()
        return ours.server == access.server and _authority(ours) == _authority(access)

    # -- requesting --------------------------------------------------------------------------------------------------

    async def obtain(self, access: Access, timeout: float) -> Access:
        """Request a certificate as the user of `access`; how to reach the cluster with it. Raises EngineError.

        It waits for the approval for `timeout` seconds; 0: for ever.
        """
        async with connected(access) as cluster:
            await self._obtain(cluster, timeout)
        self._write_kubeconfig(access)
        return self.access()

    async def _obtain(self, cluster: KubeCluster, timeout: float) -> None:
        request = await asyncio.to_thread(self._pending)
        digest = hashlib.sha256(request).hexdigest()[:10]
        body: Body = {
            "apiVersion": _REQUESTS.api_version,
            "kind": _REQUESTS.kind,
            "metadata": {"name": f"trainwright-{self.node[:_NAME_LENGTH].rstrip('.-')}-{digest}"},
            "spec": {
                "request": b64encode(request).decode(),
                "signerName": _SIGNER,
                "usages": ["digital signature", "client auth"],
            },
        }
        certificate = await self._issued(cluster, body, timeout)
        await asyncio.to_thread(self._store, certificate)

    def _pending(self) -> bytes:
        """The request that is open, or a new one with a new key."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder.chmod(0o700)
        if not (self._key.exists() and self._request.exists()):
            key, request = self._key.with_suffix(".key.new"), self._request.with_suffix(".csr.new")
            signing_request(key, request, self.node)
            key.replace(self._key)
            request.replace(self._request)
        return self._request.read_bytes()

    async def _issued(self, cluster: KubeCluster, body: Body, timeout: float) -> bytes:
        """The certificate, once the request is approved and signed."""
        loop, pause, told = asyncio.get_running_loop(), _FIRST_LOOK, False
        name, began = body["metadata"]["name"], loop.time()
        deadline = began + timeout if timeout else inf
        found = await self._ensured(cluster, body)
        while True:
            status = found.get("status") or {}
            if status.get("certificate"):
                return b64decode(status["certificate"])
            conditions: dict[str, Body] = {one["type"]: one for one in status.get("conditions") or ()}
            for refusal in ("Denied", "Failed"):
                if refusal in conditions:
                    raise EngineError(_refused(name, refusal, conditions[refusal]))
            approved = "Approved" in conditions
            if loop.time() + pause > deadline:
                raise EngineError(_late(name, timeout, approved=approved))
            if not approved and not told and loop.time() - began > _APPROVED_BY_RULE:
                told = True
                _LOG.warning(_WAITING, self.node, name)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_LOOK)
            with suppress(UnavailableError, TooManyRequestsError):  # whoever waits for a person waits for a server too
                found = await self._ensured(cluster, body)

    async def _ensured(self, cluster: KubeCluster, body: Body) -> Body:
        """The request as the cluster has it now, created if it is missing: Kubernetes removes old ones."""
        key = Key("", body["metadata"]["name"])
        try:
            with suppress(NotFoundError):
                return cast(Body, await cluster.get(_REQUESTS, key))
            with suppress(AlreadyExistsError):
                return cast(Body, await cluster.create(_REQUESTS, body))
            return cast(Body, await cluster.get(_REQUESTS, key))
        except ForbiddenError as error:
            raise EngineError(
                f"no certificate for node {self.node} can be requested: {error}; `trainwright manifests --nodes` prints"
                " an account that may"
            ) from None

    def _store(self, certificate: bytes) -> None:
        """Put the new pair in place of the old one."""
        pair = certificate.rstrip() + b"\n" + self._key.read_bytes()
        beside = self._certificate.with_name("client.pem.new")
        _write(beside, pair)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(beside, password="")
        except (OSError, ValueError) as error:
            beside.unlink()
            said = getattr(error, "reason", None) or error
            raise EngineError(f"the cluster issued a certificate that does not fit its request: {said}") from None
        beside.replace(self._certificate)
        self._key.unlink()
        self._request.unlink()

    def _write_kubeconfig(self, access: Access) -> None:
        cluster = access.cluster.value
        told: dict[str, Any] = {
            "server": access.server,
            "certificate-authority-data": b64encode(_authority(access)).decode(),
            "tls-server-name": cluster.tls_server_name,
            "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
            "proxy-url": cluster.proxy_url,
        }
        file = str(self._certificate)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": {name: value for name, value in told.items() if value}}],
            "users": [{"name": self.user, "user": {"client-certificate": file, "client-key": file}}],
            "contexts": [{"name": "node", "context": {"cluster": "cluster", "user": self.user}}],
            "current-context": "node",
        }
        beside = self.kubeconfig.with_name("kubeconfig.new")
        _write(beside, msgspec.json.format(msgspec.json.encode(config)))
        beside.replace(self.kubeconfig)

    # -- renewing ----------------------------------------------------------------------------------------------------

    async def keep_renewed(self, session: ApiSession, bootstrap: Access | None) -> None:
        """Renew the certificate whenever it is due; `session` uses the new one from then on. Never returns.

        A certificate that has ended proves nothing any more: then the user of `bootstrap` requests the next one.
        """
        pause = _FIRST_RETRY
        while True:
            ends = await self._until_due()
            try:
                await self._renew(session, bootstrap, ends - self._clock.now().timestamp())
                pause = _FIRST_RETRY
            except (ApiError, EngineError) as error:
                when = validity(self._certificate).ends
                _LOG.warning("the certificate of node %s, which ends at %s, is not renewed: %s", self.node, when, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_RETRY)

    async def _until_due(self) -> float:
        """Wait until it is time to renew the certificate; when it ends, in seconds since 1970."""
        found = await asyncio.to_thread(validity, self._certificate)
        # Signers date a certificate back by some minutes, for machines whose clock is slow.
        stored = datetime.fromtimestamp(self._certificate.stat().st_mtime, UTC)
        begins = max(found.begins, min(stored, found.ends))
        due = begins + (found.ends - begins) * self._renewed
        while (left := (due - self._clock.now()).total_seconds()) > 0:
            await asyncio.sleep(min(left, _LONGEST_SLEEP))
        return found.ends.timestamp()

    async def _renew(self, session: ApiSession, bootstrap: Access | None, left: float) -> None:
        if left > 0:
            await self._obtain(KubeCluster(HttpClient(session)), left)
        elif bootstrap is not None:
            async with connected(bootstrap) as cluster:
                await self._obtain(cluster, _LONGEST_RETRY)
        else:
            raise EngineError("it has ended; start the agent again with --bootstrap-kubeconfig FILE")
        await session.reload()
        found = validity(self._certificate)
        _LOG.info("the certificate of node %s was renewed; the new one ends at %s", self.node, found.ends)


def _refused(name: str, refusal: str, condition: Body) -> str:
    why = ": ".join(text for text in (condition.get("reason"), condition.get("message")) if text)
    done = "was denied" if refusal == "Denied" else "could not be signed"
    return (
        f"the certificate signing request {name} {done}{f' ({why})' if why else ''};"
        f" to ask again, run `kubectl delete csr {name}` and start the agent again"
    )


def _late(name: str, timeout: float, *, approved: bool) -> str:
    if not approved:
        return (
            f"the certificate signing request {name} was not approved within {timeout:g} s; an administrator does that"
            f" with `kubectl certificate approve {name}`, before or after the agent is started again"
        )
    return (
        f"the certificate signing request {name} is approved, but no certificate was issued within {timeout:g} s: does"
        f" kube-controller-manager sign for {_SIGNER} (--cluster-signing-cert-file, --cluster-signing-key-file)?"
    )


def _authority(access: Access) -> bytes:
    return content(access.cluster, "certificate_authority")


def _write(path: Path, data: bytes) -> None:
    """Write a file that only its owner reads, down to the disk."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
