# SPDX-License-Identifier: Apache-2.0
"""Certificates of a node: the log server's own, the request for a client certificate, and how long one is valid.

Python's standard library makes neither keys nor requests, so the `openssl` command does. API servers accept the log
server's certificate unless they were told which CA signs certificates of nodes (`--kubelet-certificate-authority`).
"""

import shutil
import ssl
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from trainwright.errors import EngineError, UsageError

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


def made(folder: Path, node: str, address: str) -> tuple[Path, Path] | None:
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


def request(key: Path, to: Path, node: str) -> None:
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


def context(certificate: Path, key: Path, authority: str) -> ssl.SSLContext:
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
