# SPDX-License-Identifier: Apache-2.0
"""Requests over a Unix socket, and answers that a server of ours would never send."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from trainwright.errors import UnavailableError
from trainwright.kube.blocking import engine_client
from trainwright.kube.blocking_http import NoAnswerInTimeError
from trainwright.kube.codec import Request

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_GET = Request("get", "", "/x", idempotent=True)


@contextmanager
def _server(path: Path, *answers: bytes | None) -> Iterator[list[bytes]]:
    """Send these answers, each after a request, and close the connection after None. Yields the requests."""
    seen: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def work() -> None:
        connection: socket.socket | None = None
        for answer in answers:
            if connection is None:
                connection, _ = listener.accept()
            if answer is None:
                connection.close()
                connection = None
                continue
            seen.append(connection.recv(65536))
            connection.sendall(answer)
        if connection is not None:
            connection.recv(65536)
            connection.close()

    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        listener.close()


@pytest.mark.parametrize(
    ("answer", "data"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length:3\r\n\r\nabc", b"abc"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n",
         b"abc0123456789"),
    ],
)  # fmt: skip
def test_answers(tmp_path: Path, answer: bytes, data: bytes) -> None:
    with _server(tmp_path / "s", _OK, answer, _OK) as seen, engine_client(tmp_path / "s", 5.0) as client:
        assert client.http.send(_GET) == data
        assert client.http.send(_GET) == b"ok"  # the connection is used again
    assert seen[1].startswith(b"GET /x HTTP/1.1\r\nHost: localhost\r\n")
    assert b"Authorization" not in seen[1]


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"", "the engine has closed the connection"),
        (b"NONSENSE\r\n\r\n", "the answer is not HTTP/1.1"),
        (b"HTTP/1.1 two\r\n\r\n", "the answer is not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "in the middle of the answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "is not a number"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "in the middle of the answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc", "in the middle of the answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n", "has another length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "is not a number"),
    ],
)
def test_broken_answers(tmp_path: Path, answer: bytes, what: str) -> None:
    with (
        _server(tmp_path / "s", _OK, answer, None),
        engine_client(tmp_path / "s", 5.0) as client,
        pytest.raises(UnavailableError, match=f"the engine at .* has gone: .*{what}"),
    ):
        client.http.send(_GET)


def test_a_connection_that_the_engine_ends_is_not_used_again(tmp_path: Path) -> None:
    last = _OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with _server(tmp_path / "s", last, None, _OK), engine_client(tmp_path / "s", 5.0) as client:
        assert client.http.send(_GET) == b"ok"


def test_an_engine_that_does_not_answer_in_time(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        with pytest.raises(NoAnswerInTimeError, match="is its process stopped"):
            engine_client(tmp_path / "s", 0.2)


def test_an_engine_with_a_full_disk_is_asked_once(tmp_path: Path) -> None:
    full = b'{"kind":"Status","reason":"ServiceUnavailable","message":"the disk is full","code":503}'
    answer = b"HTTP/1.1 503 Full\r\nContent-Length: %d\r\n\r\n%s" % (len(full), full)
    with _server(tmp_path / "s", _OK, answer) as seen, engine_client(tmp_path / "s", 5.0) as client:
        with pytest.raises(UnavailableError, match="the disk is full"):
            client.http.send(_GET)
        assert len(seen) == 2


def test_the_client_of_an_engine_imports_neither_ssl_nor_http_client() -> None:
    program = (
        "import sys, trainwright.kube.blocking; print({'ssl', 'http.client', 'email', 'asyncio'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
