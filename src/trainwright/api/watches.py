# SPDX-License-Identifier: Apache-2.0
"""Sends the changes of objects to all clients that watch. Each event is encoded once, whatever the number of clients.

A watch has no task of its own: when the store shows new writes, one callback takes the new events of every watch and
writes them to its connection. A client that reads too slowly gets no further events until it has read; its events stay
in the log of the store, so it costs no memory. If the log has dropped them by then, the client gets the error 410 and
lists again.

All watches together get only a part of the time of the event loop. If there is more to send, events wait, and several
events become one write, which costs less.
"""

import asyncio
from asyncio import Handle, Transport
from collections.abc import Callable
from typing import Any

import msgspec

from trainwright.api.formats import ObjectFormat
from trainwright.api.queries import ListOptions
from trainwright.api.statuses import failure
from trainwright.errors import ApiError, GoneError
from trainwright.local.storage.history import Watch
from trainwright.local.storage.store import Store
from trainwright.model.job import Body
from trainwright.runtime.ports import Clock, Resource, WatchEvent, WatchEventType

#: A watch is paused while its connection has more unsent bytes than this.
_MAX_UNSENT_BYTES = 1 << 20
#: Seconds between two looks at paused watches, and the longest pause.
_PAUSE_CHECK_SECONDS, _MAX_PAUSE_SECONDS = 0.1, 60.0
#: Seconds between two bookmarks.
_BOOKMARK_SECONDS = 60.0
#: So many encoded events are remembered for watches that have not sent them yet.
_MAX_REMEMBERED = 2048
#: After the time that it took to send events, the next ones wait for this many times as long.
_REST_FACTOR = 19.0
#: Events are sent for this many seconds without a rest. Meanwhile nothing else happens in the engine.
_SEND_SECONDS = 0.005
_BOOKMARK = WatchEventType.BOOKMARK


class OpenWatch:
    """One watch of one client. `done` is set when the watch has ended."""

    def __init__(self, hub: "WatchHub", watch: Watch, encoder: "EventEncoder", transport: Transport) -> None:
        self._hub, self._watch, self._encoder, self._transport = hub, watch, encoder, transport
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_first = True
        self._first_end = ""
        #: Events that are taken from the log and not sent yet.
        self._taken: tuple[WatchEvent, ...] = ()
        self.bookmarks = False
        self.paused_since: float | None = None

    def begin(self, *, initial_events_end: str) -> None:
        """Send what there is, then a bookmark with the version `initial_events_end` if it is not empty, and go on."""
        self._first_end = initial_events_end
        self.send()

    def send(self) -> None:
        """Send new events, and wait for the next ones."""
        if self.done.done():
            return
        try:
            self._taken = self._taken or self._watch.take()
        except GoneError as error:
            self.fail(error)
            return
        if self._taken:
            self._write_some()
            if self._must_pause():
                return
        elif self._first_end:
            self._write(self._bookmark(self._first_end, initial_events_end=True))
            self._first_end = ""
        if self._taken or self._first_end:
            self._hub.woken(self)  # more events, or the bookmark that follows them
        else:
            self._watch.wait(self._woken)

    def _write_some(self) -> None:
        """Write the next events, but not many more bytes than a connection may have unsent."""
        parts, size = list[bytes](), 0
        for event in self._taken:
            parts.append(self._encoded(event))
            size += len(parts[-1])
            if size > _MAX_UNSENT_BYTES:
                break
        self._taken = self._taken[len(parts) :]
        self._write(b"".join(parts))

    def _woken(self) -> None:
        self._hub.woken(self)

    def _must_pause(self) -> bool:
        if self._transport.is_closing():
            self.close()
            return True
        if self._transport.get_write_buffer_size() <= _MAX_UNSENT_BYTES:
            return False
        self._hub.pause(self)
        return True

    def can_continue(self) -> bool:
        """Whether the client has read enough to get further events."""
        return self._transport.get_write_buffer_size() <= _MAX_UNSENT_BYTES // 2

    def bookmark(self, version: str) -> None:
        """Tell the client which version the watch has reached, if the client has asked for bookmarks."""
        is_idle = self.paused_since is None and not self._taken and not self._first_end
        if self.bookmarks and is_idle and not self.done.done():
            self._write(self._bookmark(version))

    def fail(self, error: ApiError) -> None:
        """End the watch with an error event."""
        self._write(msgspec.json.encode({"type": "ERROR", "object": failure(error)}) + b"\n")
        self.close()

    def abort(self) -> None:
        """End the connection of a client that does not read."""
        self._transport.abort()
        self.close()

    def close(self) -> None:
        """End the watch."""
        self._watch.close()
        if not self.done.done():
            self.done.set_result(None)

    def _encoded(self, event: WatchEvent) -> bytes:
        if event.what is _BOOKMARK:
            return self._bookmark(event.version) if self.bookmarks else b""
        if self._is_first:
            self._is_first = False
            return self._encoder.first(event)
        return self._encoder.later(event)

    def _bookmark(self, version: str, *, initial_events_end: bool = False) -> bytes:
        is_first, self._is_first = self._is_first, False
        return self._encoder.bookmark(version, is_first=is_first, initial_events_end=initial_events_end)

    def _write(self, data: bytes) -> None:
        """Write one chunk of the answer, whose transfer encoding is `chunked`."""
        if data and not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))


class EventEncoder:
    """Encodes the events of all watches with one form, each event once."""

    def __init__(self, form: ObjectFormat, clock: Clock) -> None:
        self.form, self._clock = form, clock
        #: Encoded events by the identity of the object and the type. The object is kept with them, so that no other
        #: object gets its identity.
        self._encoded: dict[tuple[int, WatchEventType], tuple[Body, bytes]] = {}

    def first(self, event: WatchEvent) -> bytes:
        """The first event of a watch: if it is a Table, it has the definitions of the columns."""
        if not self.form.is_table:
            return self.later(event)
        return self.form.event(event.what.value, event.item, self._clock.now(), is_first=True)

    def later(self, event: WatchEvent) -> bytes:
        """Any later event."""
        item: Any = event.item
        key = (id(item), event.what)
        found = self._encoded.get(key)
        if found is not None:
            return found[1]
        data = self.form.event(event.what.value, item, self._clock.now(), is_first=False)
        if len(self._encoded) >= _MAX_REMEMBERED:
            self._encoded.clear()
        self._encoded[key] = item, data
        return data

    def bookmark(self, version: str, *, is_first: bool, initial_events_end: bool) -> bytes:
        """A bookmark. A Table has the definitions of its columns in the first event of a watch, also in this one."""
        now = self._clock.now()
        return self.form.bookmark(version, now, is_first=is_first, initial_events_end=initial_events_end)

    def forget(self) -> None:
        """Forget the encoded events: the ages in Tables change with the time."""
        self._encoded.clear()


class WatchHub:
    """All watches. `durable` is the version of the last write that clients may see."""

    def __init__(self, store: Store, clock: Clock, durable: Callable[[], int]) -> None:
        self._store, self._clock, self._durable = store, clock, durable
        self._loop = asyncio.get_running_loop()
        self._watches: set[OpenWatch] = set()
        self._woken: dict[OpenWatch, None] = {}
        self._flush: Handle | None = None
        #: Before this time, no events are sent.
        self._rest_until = 0.0
        self._paused: set[OpenWatch] = set()
        self._timer: Handle | None = None
        self._encoders: dict[object, EventEncoder] = {}
        self._second = 0
        self._bookmark_timer = self._loop.call_later(_BOOKMARK_SECONDS, self._send_bookmarks)

    def __len__(self) -> int:
        return len(self._watches)

    def open(self, resource: Resource, options: ListOptions, form: ObjectFormat, transport: Transport) -> OpenWatch:
        """A new watch. The caller sends the head of the answer and then calls `begin`. Raises GoneError.

        Without a version, the watch begins with all objects; `OpenWatch.begin` marks their end if the client wants it.
        """
        since = "" if options.initial_events or options.version == "0" else options.version
        if options.initial_events is False and not since:
            since = self._store.version
        watch = self._store.watch(resource, options.scope, since)
        encoder = self._encoders.setdefault(form.key, EventEncoder(form, self._clock))
        one = OpenWatch(self, watch, encoder, transport)
        one.bookmarks = options.bookmarks
        self._watches.add(one)
        one.done.add_done_callback(lambda _: self._forget(one))
        return one

    def close(self) -> None:
        """End all watches."""
        self._bookmark_timer.cancel()
        for one in [*self._watches]:
            one.close()

    def woken(self, one: OpenWatch) -> None:
        """Send the new events of a watch in the next iteration of the event loop, together with those of the others."""
        self._woken[one] = None
        self._schedule()

    def _schedule(self) -> None:
        if self._flush is None:
            rest = self._rest_until - self._loop.time()
            self._flush = (
                self._loop.call_later(rest, self._send_all) if rest > 0 else self._loop.call_soon(self._send_all)
            )

    def pause(self, one: OpenWatch) -> None:
        """Send nothing more to a client before it has read what it was sent."""
        one.paused_since = self._loop.time()
        self._paused.add(one)
        if self._timer is None:
            self._timer = self._loop.call_later(_PAUSE_CHECK_SECONDS, self._check_paused)

    def _forget(self, one: OpenWatch) -> None:
        self._watches.discard(one)
        self._woken.pop(one, None)
        self._paused.discard(one)
        if not self._watches:
            self._encoders.clear()

    def _send_all(self) -> None:
        """Send events for some milliseconds. Watches for which there was no time are the next ones."""
        self._flush = None
        woken, self._woken = self._woken, {}
        began = self._loop.time()
        if int(began) != self._second:
            self._second = int(began)
            for encoder in self._encoders.values():
                encoder.forget()
        ended = began
        for number, one in enumerate(woken, start=1):
            one.send()
            ended = self._loop.time()
            if ended - began > _SEND_SECONDS:
                self._woken = dict.fromkeys([*list(woken)[number:], *self._woken])
                break
        self._rest_until = ended + _REST_FACTOR * (ended - began)
        if self._woken:
            self._schedule()

    def _check_paused(self) -> None:
        self._timer, now = None, self._loop.time()
        for one in [*self._paused]:
            if one.can_continue():
                self._paused.discard(one)
                one.paused_since = None
                one.send()
            elif one.paused_since is not None and now - one.paused_since > _MAX_PAUSE_SECONDS:
                one.abort()
        if self._paused and self._timer is None:
            self._timer = self._loop.call_later(_PAUSE_CHECK_SECONDS, self._check_paused)

    def _send_bookmarks(self) -> None:
        version = str(self._durable())
        for one in self._watches - self._woken.keys():
            one.bookmark(version)
        self._bookmark_timer = self._loop.call_later(_BOOKMARK_SECONDS, self._send_bookmarks)
