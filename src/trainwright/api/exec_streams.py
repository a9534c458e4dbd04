# SPDX-License-Identifier: Apache-2.0
"""The standard streams of one command in a container: pipes or a pseudo-terminal, copied to and from a WebSocket.

Descriptors do not block. A command that does not read its input and a client that does not read the output slow down
only each other.
"""

import asyncio
import fcntl
import os
import struct
import termios
from collections import deque
from contextlib import suppress

import msgspec
from msgspec import Struct

from trainwright.api.channels import RESIZE, STDERR, STDIN, STDOUT, Channels
from trainwright.node.watches import end_tasks

_CHUNK_BYTES = 64 * 1024
#: The server stops reading from the client if the command has not read this many bytes of its input.
_MAX_PENDING_BYTES = 1 << 20
#: The kernel passes the last bytes of a terminal on with a delay.
_TERMINAL_LINGER_SECONDS = 0.1
_MAX_CELLS = 0xFFFF


class StreamOptions(Struct, frozen=True, kw_only=True):
    """The streams that the client wants."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


class _TerminalSize(Struct, frozen=True, rename="pascal"):
    """The message on the channel for the size of the terminal."""

    width: int
    height: int


class CommandStreams:
    """The streams of one command. `theirs` are the descriptors for the command: stdin, stdout, stderr."""

    def __init__(self, options: StreamOptions) -> None:
        self._tty = options.tty
        self._open: set[int] = set()
        #: The descriptor to which the input is written, and the descriptors from which output is read, by channel.
        self._input: int | None = None
        self._outputs: dict[int, int] = {}
        self._pending, self._pending_bytes = deque[memoryview](), 0
        self._at_end = False
        self._changed = asyncio.Event()
        try:
            self.theirs = self._terminal(options) if options.tty else self._pipes(options)
        except BaseException:
            self.close()
            raise

    def _terminal(self, options: StreamOptions) -> list[int]:
        ours, theirs = self._owned(*os.openpty())
        os.set_blocking(ours, False)
        self._input, self._outputs = (ours if options.stdin else None), {STDOUT: ours}
        return [theirs, theirs, theirs]

    def _pipes(self, options: StreamOptions) -> list[int]:
        (null,) = self._owned(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        theirs = [null, null, null]
        if options.stdin:
            theirs[STDIN], self._input = self._owned(*os.pipe())
            os.set_blocking(self._input, False)
        for channel, wanted in ((STDOUT, options.stdout), (STDERR, options.stderr)):
            if wanted:
                self._outputs[channel], theirs[channel] = self._owned(*os.pipe())
                os.set_blocking(self._outputs[channel], False)
        return theirs

    def _owned(self, *fds: int) -> tuple[int, ...]:
        self._open.update(fds)
        return fds

    def close_theirs(self) -> None:
        """Close the descriptors of the command, which has its own copies, so that we see when it closes them."""
        self._close(*self.theirs)

    def close(self) -> None:
        """Close all descriptors."""
        self._close(*self._open)

    def _close(self, *fds: int) -> None:
        for fd in set(fds) & self._open:
            self._open.discard(fd)
            os.close(fd)

    # -- output ------------------------------------------------------------------------------------------------------

    async def send_output(self, channels: Channels, ended: asyncio.Future[int]) -> None:
        """Send the output until the command has ended and all its output is sent. Raises ConnectionError."""
        loop = asyncio.get_running_loop()
        pumps = [loop.create_task(self._pump(fd, number, channels, ended)) for number, fd in self._outputs.items()]
        try:
            for pump in pumps:
                await pump
        finally:
            await end_tasks(*pumps)

    async def _pump(self, fd: int, channel: int, channels: Channels, ended: asyncio.Future[int]) -> None:
        """Copy one stream. A process that outlives the command may keep it open: that output is not awaited."""
        while True:
            try:
                data = os.read(fd, _CHUNK_BYTES)
            except BlockingIOError:
                if not ended.done():
                    await _readable(fd, ended)
                elif not self._tty or not await _readable(fd, None):
                    return
                continue
            except OSError:  # reading a pseudo-terminal fails with EIO after all its processes have ended
                return
            if not data:
                return
            await channels.send(channel, data)

    # -- input -------------------------------------------------------------------------------------------------------

    async def receive(self, channels: Channels) -> None:
        """Handle the messages of the client until it closes the WebSocket."""
        writer = asyncio.get_running_loop().create_task(self._write_input())
        try:
            async for channel, data in channels.messages():
                if channel == STDIN:
                    await self._feed(data)
                elif channel == RESIZE and self._tty:
                    self._resize(data)
                elif channels.closes_input(channel, data):
                    self._at_end = True
                    self._changed.set()
        finally:
            await end_tasks(writer)

    async def _feed(self, data: bytes) -> None:
        if self._input is None or self._at_end or not data:
            return
        self._pending.append(memoryview(data))
        self._pending_bytes += len(data)
        self._changed.set()
        while self._pending_bytes > _MAX_PENDING_BYTES and not self._at_end:
            self._changed.clear()
            await self._changed.wait()

    async def _write_input(self) -> None:
        """Write the input to the command until the input ends, or until the command closes it."""
        fd = self._input
        while fd is not None:
            while not self._pending and not self._at_end:
                self._changed.clear()
                await self._changed.wait()
            if not self._pending:
                break
            try:
                count = os.write(fd, self._pending[0])
            except BlockingIOError:
                await _writable(fd)
                continue
            except OSError:  # the command has closed its input, or has ended
                break
            self._pending[0] = self._pending[0][count:]
            self._pending_bytes -= count
            if not self._pending[0]:
                self._pending.popleft()
            self._changed.set()
        self._end_input()

    def _end_input(self) -> None:
        """Close the input. A terminal stays open, because its output has the same descriptor."""
        self._at_end = True
        self._changed.set()
        if self._input is not None and not self._tty:
            self._close(self._input)
        self._input = None

    def _resize(self, data: bytes) -> None:
        """Set the size of the terminal. The kernel then sends SIGWINCH to the command."""
        with suppress(msgspec.MsgspecError, OSError):
            size = msgspec.json.decode(data, type=_TerminalSize)
            if 0 <= size.width <= _MAX_CELLS and 0 <= size.height <= _MAX_CELLS:
                packed = struct.pack("HHHH", size.height, size.width, 0, 0)
                fcntl.ioctl(self._outputs[STDOUT], termios.TIOCSWINSZ, packed)


async def _readable(fd: int, ended: asyncio.Future[int] | None) -> bool:
    """Wait until the descriptor can be read or the command has ended; without `ended`, for the linger time at most."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake(*_: object) -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(fd, wake)
    if ended is not None:
        ended.add_done_callback(wake)
    try:
        async with asyncio.timeout(None if ended is not None else _TERMINAL_LINGER_SECONDS):
            await ready
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)
        if ended is not None:
            ended.remove_done_callback(wake)
    return True


async def _writable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(fd, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_writer(fd)
