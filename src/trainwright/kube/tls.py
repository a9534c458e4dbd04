# SPDX-License-Identifier: Apache-2.0
"""Certificates: whom we trust and who we say we are, as an `ssl` context. Called by `session` and `auth`.

Each is a field with its content in base64, or one with the path of a file; the content wins, as with kubectl.
"""

import os
import ssl
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from trainwright.kube.kubeconfig import Cluster, Entry, User

#: A certificate and its key.
Pair = tuple[bytes, bytes]


def content(entry: Entry[Any], name: str) -> bytes:
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


def pair_of(user: Entry[User]) -> Pair | None:
    """The user's certificate and key, if there are any."""
    certificate, key = content(user, "client_certificate"), content(user, "client_key")
    if bool(certificate) != bool(key):
        have, lack = ("client-certificate", "client-key") if certificate else ("client-key", "client-certificate")
        raise user.wrong(lack, f"missing, although there is a {have}")
    return (certificate, key) if key else None


def context_of(cluster: Entry[Cluster], user: Entry[User], pair: Pair | None) -> ssl.SSLContext:
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


def _trusting(cluster: Entry[Cluster]) -> ssl.SSLContext:
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
