# SPDX-License-Identifier: Apache-2.0
"""Texts about a server that cannot be reached: what happened, and what the user can try."""

import os
from pathlib import Path
from socket import gaierror

_CHOOSE = "or choose another cluster with --kubeconfig or --context"
_NETWORK = "your VPN or firewall"


def no_answer(server: str, origin: str, what: str, todo: str) -> str:
    """The whole text. `origin` says where the address is from. `origin` and `todo` can be empty."""
    text = f"no answer from {server}: {what}"
    text += f"; the address is from {origin}" if origin else ""
    return f"{text}; {todo}" if todo else text


def what_happened(error: Exception, host: str, seconds: float) -> str:
    """A text about the error. `seconds` is the time for which the client waited for an answer."""
    from ssl import SSLCertVerificationError, SSLError  # noqa: PLC0415 - slow to import

    match error:
        case TimeoutError() if not error.errno:
            return f"none within {seconds:g} s"
        case gaierror():
            return f"the name {host} does not resolve ({error.strerror or error})"
        case SSLCertVerificationError():
            reason = getattr(error, "verify_message", "") or error
            return f"its certificate is not trusted (certificate verify failed: {reason})"
        case SSLError():
            return f"no TLS connection ({getattr(error, 'reason', '') or error})"
        case OSError():
            return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        case _:
            return str(error) or type(error).__name__


def what_to_try(error: Exception) -> str:
    """A text about what the user can try after there was no connection."""
    from ssl import SSLCertVerificationError, SSLError  # noqa: PLC0415 - slow to import

    match error:
        case gaierror():
            return f"check the name, your DNS and {_NETWORK}, {_CHOOSE}"
        case SSLCertVerificationError():
            return "check that certificate-authority-data in the kubeconfig is the CA of this cluster"
        case SSLError():
            return "check whether the server's address must begin with https:// or with http://"
        case ConnectionRefusedError():
            return f"nothing listens there: start the cluster, {_CHOOSE}"
        case _:
            return f"check the address and {_NETWORK}, {_CHOOSE}"


def no_engine(socket: Path, error: Exception, *, connecting: bool) -> str:
    """The text about an engine on this machine that does not answer."""
    if isinstance(error, TimeoutError):
        return f"the engine at {socket} does not answer; is its process stopped (Ctrl-Z)?"
    reason = getattr(error, "strerror", None) or error
    return f"no engine answers at {socket}: {reason}" if connecting else f"the engine at {socket} has gone: {reason}"
