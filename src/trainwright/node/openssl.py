# SPDX-License-Identifier: Apache-2.0
"""Keys and certificates, made by the `openssl` command: Python's standard library makes neither."""

import os
import shutil
import ssl
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from trainwright.errors import EngineError

#: The arguments that make a new key without a password.
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_TIMEOUT_SECONDS = 30


class Validity(Struct, frozen=True):
    """The user of a certificate, and the times between which the certificate is valid."""

    user: str
    begins: datetime
    ends: datetime


def is_installed() -> bool:
    """Whether this machine has the command."""
    return shutil.which("openssl") is not None


def run(arguments: list[str]) -> str:
    """Run the command and return its output. Raises EngineError."""
    program = shutil.which("openssl")
    if program is None:
        raise EngineError("there is no `openssl` command on this machine; install the package openssl")
    try:
        done = subprocess.run(  # noqa: S603 - our own arguments
            [program, *arguments], capture_output=True, text=True, check=True, timeout=_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise EngineError(f"openssl {arguments[0]}: {lines[-1] if lines else error}") from None
    return done.stdout


def validity(certificate: Path) -> Validity:
    """Read the user and the times of the first certificate in a PEM file. Raises EngineError."""
    arguments = ["x509", "-in", str(certificate), "-noout", "-startdate", "-enddate", "-subject", "-nameopt", "RFC2253"]
    fields = dict(line.partition("=")[::2] for line in run(arguments).splitlines())
    names = dict(part.partition("=")[::2] for part in fields["subject"].strip().split(","))
    return Validity(names.get("CN", ""), _time(fields["notBefore"]), _time(fields["notAfter"]))


def _time(text: str) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, and flush it to the disk."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0) as file:
        file.write(data)
        os.fsync(file)
