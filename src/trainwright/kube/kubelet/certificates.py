# SPDX-License-Identifier: Apache-2.0
"""What the log server needs to be one: a certificate of its own, and whose clients it trusts. `server` calls it.

Without a certificate from elsewhere one is made with the `openssl` command. API servers take it unless they were told
whose certificates nodes have (`--kubelet-certificate-authority`).
"""

import shutil
import ssl
import subprocess
from pathlib import Path

from trainwright.errors import UsageError

_DAYS = "3650"


def made(folder: Path, node: str, address: str) -> tuple[Path, Path] | None:
    """A certificate that the node signs itself, and its key, for as long as the agent runs; None without `openssl`."""
    program = shutil.which("openssl")
    if program is None:
        return None
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    certificate, key = folder / "kubelet.crt", folder / "kubelet.key"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", _DAYS]
    words += ["-subj", f"/O=system:nodes/CN=system:node:{node}", "-addext", f"subjectAltName=DNS:{node},IP:{address}"]
    words += ["-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run([program, *words], capture_output=True, text=True, check=True, timeout=30)  # noqa: S603 - ours
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise UsageError(f"openssl made no certificate for the log server: {said[-1] if said else error}") from None
    key.chmod(0o600)
    return certificate, key


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
