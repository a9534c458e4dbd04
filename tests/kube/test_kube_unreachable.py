# SPDX-License-Identifier: Apache-2.0
"""A server that cannot be reached: which one, who named it, what happened and what to try; nothing of aiohttp's own."""

import errno
import ssl
from pathlib import Path
from socket import EAI_NONAME, gaierror

import pytest
from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientConnectorSSLError,
    ClientError,
    ConnectionTimeoutError,
    ServerDisconnectedError,
)
from aiohttp.client_reqrep import ConnectionKey

from trainwright.cli.main import run
from trainwright.kube.config import ConnectionOptions, load
from trainwright.kube.http import advice, describe
from trainwright.kube.proxy import translated

KEY = ConnectionKey("example.test", 6443, True, True, None, None, None)  # type: ignore[call-arg,arg-type,unused-ignore]
CONFIG = """\
apiVersion: v1
kind: Config
current-context: lab
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
contexts: [{name: lab, context: {cluster: c}}]
"""


def unverified() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    return error


@pytest.mark.parametrize(
    ("error", "what", "todo"),
    [
        pytest.param(
            ClientConnectorError(KEY, ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('::1', 9)")),
            "Connection refused",
            "nothing listens there: start the cluster",
            id="refused",
        ),
        pytest.param(
            ClientConnectorError(KEY, OSError(errno.EHOSTUNREACH, "Connect call failed")),
            "No route to host",
            "check the address and your VPN or firewall",
            id="no route",
        ),
        pytest.param(
            ClientConnectorDNSError(KEY, gaierror(EAI_NONAME, "Name or service not known")),
            "the name example.test does not resolve (Name or service not known)",
            "check the name, your DNS",
            id="name",
        ),
        pytest.param(
            ClientConnectorCertificateError(KEY, unverified()),
            "its certificate is not trusted (certificate verify failed: self-signed certificate)",
            "check that certificate-authority-data",
            id="certificate",
        ),
        pytest.param(
            ClientConnectorSSLError(KEY, ssl.SSLError(1, "[SSL] record layer failure")),
            "no TLS connection",
            "https:// or with http://",
            id="no TLS",
        ),
        pytest.param(ConnectionTimeoutError(), "none within 7 s", "check the address", id="no connection in time"),
        pytest.param(TimeoutError(), "none within 7 s", "", id="no answer in time"),
        pytest.param(ServerDisconnectedError(), "Server disconnected", "", id="hung up"),
    ],
)
def test_what_happened_and_what_to_try(error: Exception, what: str, todo: str) -> None:
    error = translated(error) if isinstance(error, ClientError) else error
    assert describe(error, 7.0).startswith(what)
    assert "Connect call" not in describe(error, 7.0)
    assert todo in advice(error)
    assert bool(todo) is bool(advice(error))


def test_preflight_names_server_and_context(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config"
    file.write_text(CONFIG)

    assert run(["preflight", "--kubeconfig", str(file)]) == 3
    assert capsys.readouterr().err == (
        "trainwright: no answer from http://127.0.0.1:9: Connection refused;"
        f" the address is from context 'lab' of {file};"
        " nothing listens there: start the cluster, or choose another cluster with --kubeconfig or --context\n"
    )


def test_an_address_of_the_command_line_is_from_there(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(CONFIG)

    assert load(ConnectionOptions(kubeconfig=str(file), server="http://127.0.0.1:8"), {}).origin == "--master"
    assert load(ConnectionOptions(server="http://127.0.0.1:8"), {"HOME": str(tmp_path)}).origin == "--master"
