# SPDX-License-Identifier: Apache-2.0
"""The identity of a node, and the certificates of its log server.

A node gets its client certificate, for the user `system:node:NAME`, by the TLS bootstrap of kubelets. The agent makes
the key on this machine and never sends the key. The agent asks the cluster for the certificate with a
CertificateSigningRequest, which an administrator or an approval rule of the cluster approves. The Node authorizer and
NodeRestriction then limit this user to its own Node and the pods on that Node.

The certificate and its key are in one file, which the agent replaces by a rename, so a killed agent leaves either the
old pair or the new pair. The agent also keeps the key of an open request, and waits for this request after a restart.

Python's standard library makes neither keys nor requests, so the `openssl` command makes them. API servers accept the
log server's self-signed certificate unless they run with `--kubelet-certificate-authority`.
"""

import asyncio
import hashlib
import logging
import ssl
from base64 import b64decode, b64encode
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from random import random
from typing import Any, cast

import msgspec

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
from trainwright.kube.certificates import field_content, relax, ssl_reason
from trainwright.kube.cluster import KubeCluster, connected
from trainwright.kube.config import Access, ConnectionOptions, load
from trainwright.kube.http import HttpClient
from trainwright.kube.session import ApiSession
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.node import openssl
from trainwright.node.openssl import Validity, validity, write_private
from trainwright.runtime.ports import Clock, Resource

_LOG = logging.getLogger(__name__)
_WAITING = (
    "the certificate of node %s waits for an administrator's approval. Compare the node's name, then run:"
    " kubectl certificate approve %s"
)
_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
_REQUESTS = Resource(
    "certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", namespaced=False
)
#: The name of a request contains at most this many characters of the node's name; a whole name can have 253 characters.
_MAX_NAME_PART = 200
#: The pause between two reads of an open request doubles from the first to the second value.
_FIRST_POLL_SECONDS, _MAX_POLL_SECONDS = 0.2, 5.0
#: After this time without approval, the agent assumes that no rule will approve its request. The agent then logs how
#: to approve the request by hand.
_APPROVAL_RULE_SECONDS = 3.0
#: The agent renews a certificate after a part of its lifetime: the first value plus a random number up to the second
#: value. The random number is different on each machine, so that machines do not send their requests at the same time.
_RENEWAL_PART, _RENEWAL_JITTER = 0.7, 0.1
#: The pause after a failed renewal doubles from the first to the second value.
_FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS = 5.0, 600.0
#: The agent reads the clock again after at most this time, because the machine may have been suspended meanwhile.
_MAX_SLEEP_SECONDS = 600.0
_SELF_SIGNED_DAYS = "3650"


class NodeIdentity:
    """The identity of one node. Its files are below the agent's folder."""

    def __init__(self, folder: Path, node: str, clock: Clock) -> None:
        self.node, self.user = node, user_of(node)
        #: The agent writes this file. Later starts read it and need no --bootstrap-kubeconfig. kubectl can use it, too.
        self.kubeconfig = folder / "kubeconfig"
        self._folder = folder / "pki"
        self._certificate = self._folder / "client.pem"
        self._key, self._request = self._folder / "pending.key", self._folder / "pending.csr"
        self._clock = clock
        self._renewal_part = _RENEWAL_PART + _RENEWAL_JITTER * random()  # noqa: S311 - jitter, not a secret

    def stored(self) -> Validity | None:
        """The validity of the certificate from an earlier start; None if there is no usable certificate."""
        if not self._certificate.exists() or not self.kubeconfig.exists():
            return None
        try:
            found = validity(self._certificate)
        except EngineError as error:
            _LOG.warning("the certificate in %s cannot be used: %s", self._certificate, error)
            return None
        return found if found.user == self.user and found.ends > self._clock.now() else None

    def access(self) -> Access:
        """How to reach the cluster with the stored certificate."""
        return load(ConnectionOptions(kubeconfig=str(self.kubeconfig)))

    def belongs_to(self, access: Access) -> bool:
        """Whether the stored certificate is for this cluster: the server and the CA are compared."""
        ours = self.access()
        return ours.server == access.server and _authority(ours) == _authority(access)

    # -- requesting --------------------------------------------------------------------------------------------------

    async def obtain(self, access: Access, timeout: float) -> Access:
        """Request a certificate as the user of `access`. Returns the access with this certificate. Raises EngineError.

        The agent waits `timeout` seconds for the approval; 0: it waits without a limit.
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
            "metadata": {"name": f"trainwright-{self.node[:_MAX_NAME_PART].rstrip('.-')}-{digest}"},
            "spec": {
                "request": b64encode(request).decode(),
                "signerName": _SIGNER,
                "usages": ["digital signature", "client auth"],
            },
        }
        certificate = await self._issued(cluster, body, timeout)
        await asyncio.to_thread(self._store, certificate)

    def _pending(self) -> bytes:
        """The open request of an earlier start, or a new request with a new key."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder.chmod(0o700)
        if not (self._key.exists() and self._request.exists()):
            key, request = self._key.with_suffix(".key.new"), self._request.with_suffix(".csr.new")
            openssl.run(
                ["req", "-new", *openssl.NEW_KEY, *_subject(self.node), "-keyout", str(key), "-out", str(request)]
            )
            key.chmod(0o600)
            key.replace(self._key)
            request.replace(self._request)
        return self._request.read_bytes()

    async def _issued(self, cluster: KubeCluster, body: Body, timeout: float) -> bytes:
        """Wait until the request is approved and signed, and return the certificate."""
        loop, pause, logged = asyncio.get_running_loop(), _FIRST_POLL_SECONDS, False
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
                    raise EngineError(_refusal_text(name, refusal, conditions[refusal]))
            approved = "Approved" in conditions
            if loop.time() + pause > deadline:
                raise EngineError(_timeout_text(name, timeout, approved=approved))
            if not approved and not logged and loop.time() - began > _APPROVAL_RULE_SECONDS:
                logged = True
                _LOG.warning(_WAITING, self.node, name)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _MAX_POLL_SECONDS)
            with suppress(UnavailableError, TooManyRequestsError):  # after an error, read again after the next pause
                found = await self._ensured(cluster, body)

    async def _ensured(self, cluster: KubeCluster, body: Body) -> Body:
        """The request as the cluster has it. A missing request is created again: Kubernetes removes old requests."""
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
                " an account that may request one"
            ) from None

    def _store(self, certificate: bytes) -> None:
        """Replace the old certificate and key with the new certificate and key."""
        pair = certificate.rstrip() + b"\n" + self._key.read_bytes()
        new_file = self._certificate.with_name("client.pem.new")
        write_private(new_file, pair)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(new_file, password="")
        except (OSError, ValueError) as error:
            new_file.unlink()
            text = ssl_reason(error)
            raise EngineError(f"the cluster issued a certificate that does not fit its request: {text}") from None
        new_file.replace(self._certificate)
        self._key.unlink()
        self._request.unlink()

    def _write_kubeconfig(self, access: Access) -> None:
        cluster = access.cluster.value
        fields: dict[str, Any] = {
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
            "clusters": [{"name": "cluster", "cluster": {name: value for name, value in fields.items() if value}}],
            "users": [{"name": self.user, "user": {"client-certificate": file, "client-key": file}}],
            "contexts": [{"name": "node", "context": {"cluster": "cluster", "user": self.user}}],
            "current-context": "node",
        }
        new_file = self.kubeconfig.with_name("kubeconfig.new")
        write_private(new_file, msgspec.json.format(msgspec.json.encode(config)))
        new_file.replace(self.kubeconfig)

    # -- renewing ----------------------------------------------------------------------------------------------------

    async def keep_renewed(self, session: ApiSession, bootstrap: Access | None) -> None:
        """Renew the certificate each time it is due, and let `session` use the new certificate. Never returns.

        If the certificate has expired, the user of `bootstrap` requests the next certificate.
        """
        pause = _FIRST_RETRY_SECONDS
        while True:
            ends = await self._until_due()
            try:
                await self._renew(session, bootstrap, ends - self._clock.now().timestamp())
                pause = _FIRST_RETRY_SECONDS
            except (ApiError, EngineError) as error:
                text = "the certificate of node %s, which ends at %s, could not be renewed: %s"
                _LOG.warning(text, self.node, validity(self._certificate).ends, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _MAX_RETRY_SECONDS)

    async def _until_due(self) -> float:
        """Wait until the certificate must be renewed. Returns the time at which it expires, in seconds since 1970."""
        found = await asyncio.to_thread(validity, self._certificate)
        # Signers set `found.begins` to some minutes before the signing, since the clock of a machine may be slow. So
        # the lifetime counts from the time at which the agent wrote the file, which is closer to the signing.
        stored = datetime.fromtimestamp(self._certificate.stat().st_mtime, UTC)
        begins = max(found.begins, min(stored, found.ends))
        due = begins + (found.ends - begins) * self._renewal_part
        while (left := (due - self._clock.now()).total_seconds()) > 0:
            await asyncio.sleep(min(left, _MAX_SLEEP_SECONDS))
        return found.ends.timestamp()

    async def _renew(self, session: ApiSession, bootstrap: Access | None, left: float) -> None:
        if left > 0:
            await self._obtain(KubeCluster(HttpClient(session)), left)
        elif bootstrap is not None:
            async with connected(bootstrap) as cluster:
                await self._obtain(cluster, _MAX_RETRY_SECONDS)
        else:
            raise EngineError("it has expired; start the agent again with --bootstrap-kubeconfig FILE")
        await session.reload()
        found = validity(self._certificate)
        _LOG.info("the certificate of node %s was renewed; the new one ends at %s", self.node, found.ends)


def _refusal_text(name: str, refusal: str, condition: Body) -> str:
    reason = ": ".join(text for text in (condition.get("reason"), condition.get("message")) if text)
    outcome = "was denied" if refusal == "Denied" else "could not be signed"
    return (
        f"the certificate signing request {name} {outcome}{f' ({reason})' if reason else ''};"
        f" to request it again, run `kubectl delete csr {name}` and restart the agent"
    )


def _timeout_text(name: str, timeout: float, *, approved: bool) -> str:
    if not approved:
        return (
            f"the certificate signing request {name} was not approved within {timeout:g} s; an administrator approves"
            f" it with `kubectl certificate approve {name}`, before or after the agent is started again"
        )
    return (
        f"the certificate signing request {name} is approved, but no certificate was issued within {timeout:g} s: does"
        f" kube-controller-manager sign for {_SIGNER} (--cluster-signing-cert-file, --cluster-signing-key-file)?"
    )


def _authority(access: Access) -> bytes:
    return field_content(access.cluster, "certificate_authority")


# -- certificates and keys ---------------------------------------------------------------------------------------------


def user_of(node: str) -> str:
    """The user name of a node."""
    return f"system:node:{node}"


def _subject(node: str) -> tuple[str, str]:
    return "-subj", f"/O=system:nodes/CN={user_of(node)}"


def self_signed(folder: Path, node: str, address: str) -> tuple[Path, Path] | None:
    """Make a self-signed certificate and its key for the log server. Returns None if there is no `openssl`."""
    if not openssl.is_installed():
        return None
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    certificate, key = folder / "kubelet.crt", folder / "kubelet.key"
    arguments = ["req", "-x509", *openssl.NEW_KEY, "-days", _SELF_SIGNED_DAYS, *_subject(node)]
    arguments += ["-addext", f"subjectAltName=DNS:{node},IP:{address}", "-keyout", str(key), "-out", str(certificate)]
    try:
        openssl.run(arguments)
    except EngineError as error:
        raise UsageError(f"openssl could not make a certificate for the log server: {error}") from None
    key.chmod(0o600)
    return certificate, key


def tls_context(certificate: Path, key: Path, authority: str) -> ssl.SSLContext:
    """The TLS settings of the log server. A client's certificate must be signed by `authority`, a CA in PEM."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # If no password is given here, OpenSSL asks for a password on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise UsageError(f"{certificate} is not a certificate with its key {key}: {ssl_reason(error)}") from None
    if authority:
        try:
            context.load_verify_locations(cadata=authority)
        except (OSError, ValueError) as error:
            raise UsageError(f"the client CA is not a certificate in PEM: {ssl_reason(error)}") from None
        relax(context)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
