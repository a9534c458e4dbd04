# SPDX-License-Identifier: Apache-2.0
"""The streams of `kubectl exec` and `attach` in one WebSocket: the protocols v4.channel.k8s.io and v5.channel.k8s.io.

Each message is a byte for the channel, and data. At the end the server sends a Status on its own channel and closes the
WebSocket. Version 5 adds a message with which the client closes its standard input.
"""

from collections.abc import AsyncGenerator
from contextlib import suppress

import msgspec
from aiohttp import WSMsgType, web

from trainwright.errors import BadRequestError
from trainwright.model.job import Body

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
_V4, _V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"
_UNSUPPORTED = (
    f"exec and attach need a WebSocket (GET) with the protocol {_V5} or {_V4};"
    " SPDY, which kubectl uses before 1.31 or with KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false, is not supported"
)


class Channels:
    """One WebSocket. Call `open` first, and `finish` at the end."""

    def __init__(self) -> None:
        self.response = web.WebSocketResponse(protocols=(_V5, _V4), compress=False)

    async def open(self, request: web.BaseRequest) -> None:
        """Accept the WebSocket. Raises BadRequestError if the client wants another protocol.

        If the server refuses a WebSocket, kubectl sends the same request as a POST for SPDY and shows only the answer
        to the POST. So a POST gets the same error.
        """
        if request.method != "GET" or not self.response.can_prepare(request).protocol:
            raise BadRequestError(_UNSUPPORTED)
        await self.response.prepare(request)

    async def send(self, channel: int, data: bytes) -> None:
        """Send data on a channel. Waits while the client reads slowly. Raises ConnectionError if it has gone."""
        await self.response.send_bytes(bytes((channel,)) + data)

    async def messages(self) -> AsyncGenerator[tuple[int, bytes], None]:
        """The messages of the client until it closes the WebSocket. kubectl sends bytes, the Python client text."""
        async for message in self.response:
            if message.type is WSMsgType.BINARY and message.data:
                yield message.data[0], message.data[1:]
            elif message.type is WSMsgType.TEXT and message.data:
                yield ord(message.data[0]), message.data[1:].encode()

    def closes_input(self, channel: int, data: bytes) -> bool:
        """Whether a message says that the standard input has ended."""
        return self.response.ws_protocol == _V5 and channel == CLOSE and data == bytes((STDIN,))

    async def finish(self, status: Body) -> None:
        """Send the outcome and close the WebSocket."""
        with suppress(ConnectionError):
            await self.send(STATUS, msgspec.json.encode({"metadata": {}, **status}))
        await self.response.close()


def success() -> Body:
    """The outcome of a command that has succeeded."""
    return {"status": "Success"}


def exit_code(code: int) -> Body:
    """The outcome of a command that has ended with this exit code."""
    if code == 0:
        return success()
    return {
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def failure(text: str) -> Body:
    """The outcome if the server could not do what the client wants."""
    return {"status": "Failure", "message": text, "reason": "InternalError", "code": 500}
