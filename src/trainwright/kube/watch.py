# SPDX-License-Identifier: Apache-2.0
"""A watch's bytes to changes. `cluster` opens the watch, `runtime`'s informers go on where it ends.

Lines are split here: aiohttp's own reader has a limit that large objects exceed. Whatever came in one chunk is one
batch, so that a burst is looked at once.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Raw, Struct

from trainwright.errors import ApiError, UnavailableError
from trainwright.jsonlines import LineSplitter, LineTooLongError
from trainwright.kube.codec import item, metadata, unreadable
from trainwright.kube.status import error_of, read
from trainwright.runtime.ports import Change, Happened, Resource

#: Many times what etcd stores of one object.
_LONGEST = 1 << 26
_HAPPENED = {one.value: one for one in Happened}


class _Event(Struct, frozen=True):
    type: str
    object: Raw


_EVENT = msgspec.json.Decoder(_Event)


async def changes(resource: Resource, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[tuple[Change, ...], None]:
    """The changes in a stream, until it ends; GoneError and its like where the server says so."""
    lines = LineSplitter(_LONGEST)
    async with aclosing(chunks):
        async for chunk in chunks:
            batch: list[Change] = []
            try:
                batch.extend(_change(resource, line) for line in lines.feed(chunk) if line)
            except LineTooLongError as error:
                raise UnavailableError(f"the watch of {resource.id} sends {error}") from None
            except ApiError:
                # What came before the error did happen.
                if batch:
                    yield tuple(batch)
                raise
            if batch:
                yield tuple(batch)
    if lines.partial:
        raise UnavailableError(f"the watch of {resource.id} broke off within an event")


def _change(resource: Resource, line: bytes) -> Change:
    try:
        event = _EVENT.decode(line)
    except msgspec.MsgspecError as error:
        raise UnavailableError(f"the watch of {resource.id} sends what is no event: {error}") from None
    what = _HAPPENED.get(event.type)
    if what is None:
        raise error_of(read(500, bytes(event.object)))
    if what is Happened.BOOKMARK:
        return Change(what, metadata(event.object).resource_version)
    return _told(resource, what, event.object)


def _told(resource: Resource, what: Happened, data: Raw) -> Change:
    try:
        one = item(resource, data)
    except ApiError as error:
        # Passing over it must not lose our place.
        meta: dict[str, Any] = msgspec.json.decode(data).get("metadata") or {}
        unreadable(resource, meta, error)
        return Change(Happened.BOOKMARK, str(meta.get("resourceVersion", "")))
    version = one["metadata"]["resourceVersion"] if isinstance(one, dict) else one.metadata.resource_version
    return Change(what, version, one)
