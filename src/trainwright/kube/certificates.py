# SPDX-License-Identifier: Apache-2.0
"""What a client sends as credentials, the certificates of a kubeconfig, and the TLS settings of a connection.

A kubeconfig contains certificates and keys as base64 text or as paths of files. If a kubeconfig sets both fields, the
base64 text is used, as in kubectl. The module ssl is imported with the first TLS connection: requests to an engine on
this machine do not need it, and its import takes 10 ms.
"""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    import ssl

    from trainwright.kube.config import ClusterEntry, Located, UserEntry

#: A certificate and its key, in PEM.
KeyPair = tuple[bytes, bytes]


class AuthHeaders(Struct, frozen=True, eq=False):
    """Headers for a request, and the client certificate for its connection. If they change, a new object is made."""

    headers: Mapping[str, str]
    key_pair: KeyPair | None = None


#: Why a value cannot be sent. Errors never show the value itself, because it can be a secret.
NOT_A_HEADER = "has a control character or a non-ASCII character in it, which an HTTP header cannot contain"


def is_header_value(text: str) -> bool:
    """Whether an HTTP header can contain this text."""
    return text.isascii() and text.isprintable()


def header_value(entry: Located[Any], name: str, given: str) -> str:
    """The content of a kubeconfig field, without space around it, for a header. Raises UsageError without the value."""
    if not is_header_value(value := given.strip()):
        raise entry.error(name, NOT_A_HEADER)
    return value


def bearer(token: str) -> Mapping[str, str]:
    """The header for a token."""
    return {"Authorization": f"Bearer {token}"}


def field_content(entry: Located[Any], name: str) -> bytes:
    """The content of a kubeconfig field: its base64 data or its file; empty if neither is set. Raises UsageError."""
    spelled = name.replace("_", "-")
    if data := getattr(entry.value, f"{name}_data"):
        try:
            return b64decode(data, validate=True)
        except ValueError:
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
    import ssl  # noqa: PLC0415 - slow to import

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
    import ssl  # noqa: PLC0415 - slow to import

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
    import ssl  # noqa: PLC0415 - slow to import

    context.verify_flags &= ~ssl.VERIFY_X509_STRICT


def ssl_reason(error: Exception) -> str:
    """OpenSSL's short reason for an error, or the whole error text if there is no reason."""
    return getattr(error, "reason", None) or str(error)


@contextmanager
def _file(data: bytes) -> Iterator[str]:
    """A file with this content, because OpenSSL reads keys only from files. If possible, the file is in memory."""
    if not hasattr(os, "memfd_create"):
        from tempfile import NamedTemporaryFile  # noqa: PLC0415 - slow to import, and Linux does not need it

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
