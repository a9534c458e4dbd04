# SPDX-License-Identifier: Apache-2.0
"""Why an API server gave no answer, in words: what happened, and what to try. `http` puts both into its errors."""

import os
from socket import gaierror
from ssl import SSLCertVerificationError, SSLError

from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientHttpProxyError,
    ConnectionTimeoutError,
)

_CHOOSE = "or choose another one with --kubeconfig or --context"
_NETWORK = "your VPN or firewall"


def happened(error: Exception, seconds: float) -> str:
    """What went wrong. `seconds` is how long an answer was waited for."""
    cause = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    match error, cause:
        case TimeoutError(), _:
            return f"none within {seconds:g} s"
        case ClientHttpProxyError(), _:  # its own text has the proxy's URL, password and all
            return f"the proxy says {error.status} {error.message}".rstrip()
        case ClientConnectorDNSError(), _:
            return f"the name {error.host} does not resolve ({_plain(cause)})"
        case _, SSLCertVerificationError():
            why = getattr(cause, "verify_message", "") or cause
            return f"its certificate is not trusted (certificate verify failed: {why})"
        case _, SSLError():
            return f"no TLS connection ({getattr(cause, 'reason', '') or cause})"
        case _, OSError():
            return _plain(cause)
        case _:
            return str(error) or type(error).__name__


def advice(error: Exception) -> str:
    """What to try; empty: nothing in particular."""
    cause = getattr(error, "os_error", None)
    match error:
        case ClientConnectorDNSError():
            return f"check the name, your DNS and {_NETWORK}, {_CHOOSE}"
        case ClientConnectorCertificateError():
            return "check certificate-authority-data of the cluster in the kubeconfig, and whether it is this cluster's"
        case ConnectionTimeoutError():
            return f"check the address and {_NETWORK}, {_CHOOSE}"
        case ClientConnectorError() if isinstance(cause, SSLError):
            return "check whether the server's address begins with the right one of https:// and http://"
        case ClientConnectorError() if isinstance(cause, ConnectionRefusedError):
            return f"nothing listens there: start the cluster, {_CHOOSE}"
        case ClientConnectorError():
            return f"check the address and {_NETWORK}, {_CHOOSE}"
        case _:
            return ""


def _plain(cause: object) -> str:
    """The system's own words for an error."""
    if isinstance(cause, gaierror):
        return str(cause.strerror or cause)
    number = getattr(cause, "errno", None)
    return os.strerror(number) if isinstance(number, int) and number > 0 else str(cause)
