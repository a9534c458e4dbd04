# SPDX-License-Identifier: Apache-2.0
"""A real registry for tests on a loopback port: authentication, redirects, pauses, interruptions, wrong bytes."""

import base64
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from image_builder import BuiltImage, digest
from msgspec import Struct, field

USER, PASSWORD, TOKEN, REFRESH = "ann", "s3cret:word", "a-token", "a-refresh-token"
BASIC = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


class Seen(Struct):
    """One request."""

    method: str
    path: str
    headers: dict[str, str]


class RegistryState(Struct):
    """What the registry has, and how it behaves."""

    manifests: dict[tuple[str, str], bytes] = field(default_factory=dict)
    tags: dict[str, list[str]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    #: "", "basic" or "bearer".
    auth: str = ""
    #: Whether the token server also serves users without credentials.
    anonymous: bool = False
    #: Blobs are at this server.
    redirect: str = ""
    #: Answers to the next requests instead of the right one: the code, and its headers.
    refusals: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    #: Of a blob: after how many bytes the next connections end.
    cuts: dict[str, list[int]] = field(default_factory=dict)
    #: How many times a blob is sent with wrong bytes.
    wrong: dict[str, int] = field(default_factory=dict)
    resumes: bool = True
    #: Where a proxy leads to.
    tunnel: str = ""
    #: If set, layers wait for it.
    gate: threading.Event | None = None
    seen: list[Seen] = field(default_factory=list)

    def add(self, name: str, image: BuiltImage, manifest: bytes | None = None) -> str:
        """Push an image as NAME:TAG and return the digest of its manifest."""
        repository, _, tag = name.partition(":")
        data = manifest if manifest is not None else image.manifest
        for blob in (image.config, *image.blobs):
            self.blobs[digest(blob)] = blob
        for version in (tag, digest(data), digest(image.manifest)):
            self.manifests[repository, version] = image.manifest if version == digest(image.manifest) else data
        self.tags.setdefault(repository, []).append(tag)
        return digest(data)

    def asked(self, part: str) -> list[Seen]:
        """The requests whose path contains this text."""
        return [one for one in self.seen if part in one.path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Print nothing."""

    def do_GET(self) -> None:
        self._handle("GET", b"")

    def do_POST(self) -> None:
        self._handle("POST", self.rfile.read(int(self.headers.get("Content-Length", "0"))))

    def do_CONNECT(self) -> None:
        """As a proxy: a tunnel to `tunnel`, whatever the client asks for."""
        state = self.server.state
        state.seen.append(Seen("CONNECT", self.path, dict(self.headers.items())))
        host, _, port = state.tunnel.rpartition(":")
        with socket.create_connection((host, int(port))) as far:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=_pump, args=(far, self.connection), daemon=True)
            back.start()
            _pump(self.connection, far)
            back.join()
        self.close_connection = True

    def _handle(self, method: str, body: bytes) -> None:
        state = self.server.state
        state.seen.append(Seen(method, self.path, dict(self.headers.items())))
        if self.path.startswith("/token"):
            self._token(state, body)
        elif state.refusals:
            code, headers = state.refusals.pop(0)
            self._answer(code, b"{}", headers)
        elif state.auth and self.headers.get("Authorization") != self._expected(state):
            self._answer(
                401, _error("UNAUTHORIZED", "authentication required"), {"WWW-Authenticate": self._challenge()}
            )
        else:
            self._serve(state)

    def _expected(self, state: RegistryState) -> str:
        return BASIC if state.auth == "basic" else f"Bearer {TOKEN}"

    def _challenge(self) -> str:
        if self.server.state.auth == "basic":
            return 'Basic realm="tests"'
        return f'Bearer realm="{self.server.url}/token",service="tests",scope="repository:x:pull"'

    def _token(self, state: RegistryState, body: bytes) -> None:
        form = parse_qs(body.decode())
        given = self.headers.get("Authorization")
        if state.anonymous or given == BASIC or form.get("refresh_token") == [REFRESH]:
            self._answer(200, json.dumps({"token": TOKEN, "expires_in": 300}).encode())
        else:
            self._answer(401, b"{}")

    def _serve(self, state: RegistryState) -> None:
        path = urlsplit(self.path).path.removeprefix("/v2/")
        name, _, version = path.rpartition("/")
        repository, _, what = name.rpartition("/")
        if path.endswith("/tags/list") and (repository in state.tags):
            self._answer(200, json.dumps({"tags": state.tags[repository]}).encode())
        elif what == "manifests" and (repository, version) in state.manifests:
            data = state.manifests[repository, version]
            self._answer(200, data, {"Content-Type": "application/json"})
        elif what == "blobs" and version in state.blobs:
            self._blob(state, version)
        else:
            self._answer(404, _error("MANIFEST_UNKNOWN", "manifest unknown"))

    def _blob(self, state: RegistryState, version: str) -> None:
        if state.redirect:
            self._answer(307, b"", {"Location": f"{state.redirect}{self.path}"})
            return
        if state.gate is not None and not state.blobs[version].startswith(b"{"):
            state.gate.wait()
        data, code, headers = state.blobs[version], 200, {}
        if state.wrong.get(version, 0):
            state.wrong[version] -= 1
            data = bytes(len(data))
        if state.resumes and (asked := self.headers.get("Range")):
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            data, code = data[start:], 206
        if state.cuts.get(version):
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: state.cuts[version].pop(0)])
            self.wfile.flush()
            self.close_connection = True
        else:
            self._answer(code, data, headers)

    def _answer(self, code: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


def _error(code: str, message: str) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": message}]}).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    #: Do not wait for connections that clients keep open.
    block_on_close = False

    def __init__(self, state: RegistryState, address: str, certificate: Path | None) -> None:
        super().__init__((address, 0), _Handler)
        self.state = state
        self.url = f"{'https' if certificate else 'http'}://{address}:{self.server_address[1]}"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that closes its connection is no error of the registry."""


class RunningRegistry(Struct):
    """A registry that runs. `host` is the first part of the names of its images."""

    state: RegistryState
    url: str

    @property
    def host(self) -> str:
        return self.url.partition("://")[2]


@contextmanager
def running(address: str = "127.0.0.1", certificate: Path | None = None) -> Iterator[RunningRegistry]:
    """A registry on a free port; with TLS if there is a file with a certificate and its key."""
    state = RegistryState()
    server = _Server(state, address, certificate)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield RunningRegistry(state, server.url)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
