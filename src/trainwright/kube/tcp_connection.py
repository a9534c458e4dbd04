# SPDX-License-Identifier: Apache-2.0
"""HTTP connections over TCP, with or without TLS, for `reader`. The import takes 25 ms, because of ssl and email."""

from collections.abc import Callable, Iterable, Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead
from ssl import SSLContext

from trainwright.errors import UsageError
from trainwright.kube.certificates import NOT_A_HEADER
from trainwright.kube.unix_connection import CHUNK_BYTES, CUT_OFF, BrokenAnswerError


class TcpAnswer:
    """An answer whose head has arrived."""

    def __init__(self, response: HTTPResponse) -> None:
        self._response = response
        self.status, self.retry_after = response.status, response.getheader("Retry-After", "")

    def parts(self, before: Callable[[], None]) -> Iterator[bytes]:
        """The body in parts. `before` is called before each read. Raises OSError."""
        response = self._response
        try:
            while not response.isclosed():  # newer versions of Python close the response at its end, with the socket
                before()
                if not (part := response.read1(CHUNK_BYTES)):
                    break
                yield part
        except IncompleteRead:
            raise BrokenAnswerError(CUT_OFF) from None
        except HTTPException as error:
            raise BrokenAnswerError(str(error) or type(error).__name__) from None
        if response.length:  # `read1` does not notice that the connection ended too early
            raise BrokenAnswerError(CUT_OFF)

    def close(self) -> None:
        """Close the answer. The connection can be used again if the whole answer was read."""
        self._response.close()


class TcpConnection(HTTPConnection):
    """A connection. If it cannot be used for another request, `sock` is None after the answer."""

    def open(self, seconds: float) -> None:
        """Connect. Raises OSError."""
        self.timeout = seconds
        self.connect()

    def ask(self, method: str, path: str, headers: Iterable[tuple[str, str]], body: bytes | None) -> TcpAnswer:
        """Send a request and wait for the head of its answer. Raises OSError."""
        self.putrequest(method, path)
        for name, value in headers:
            try:
                self.putheader(name, value)
            except ValueError:  # its text contains the value, which can be a secret
                self.close()
                raise UsageError(f"the HTTP header {name} cannot be sent: its value {NOT_A_HEADER}") from None
        try:
            self.endheaders(body)
            return TcpAnswer(self.getresponse())
        except OSError:
            raise
        except HTTPException as error:
            raise BrokenAnswerError(str(error) or type(error).__name__) from None


class TlsConnection(TcpConnection):
    """A connection whose server can have another name than its host (`tls-server-name`)."""

    default_port = 443

    def __init__(self, host: str, port: int, context: SSLContext, name: str) -> None:
        super().__init__(host, port)
        self._tls_context, self._name = context, name

    def connect(self) -> None:
        """Open the connection."""
        super().connect()
        self.sock = self._tls_context.wrap_socket(self.sock, server_hostname=self._name)
