# SPDX-License-Identifier: Apache-2.0
"""Lists, page by page. All pages of a list show the objects as they were when the list began.

Stored objects are never changed in place, so to remember a list is to remember references. A client gets the rest of
its list with a token; if the server no longer has the list, the client gets 410 and begins again.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable

from msgspec import Struct

from trainwright.api.queries import ListOptions
from trainwright.errors import BadRequestError, GoneError, TooNewError
from trainwright.local.cluster import LocalCluster
from trainwright.model.job import Body
from trainwright.runtime.ports import Resource

#: So many unfinished lists are remembered, and each for so many seconds. An API server has the same time.
_MAX_LISTS, _LIST_SECONDS = 64, 300.0


class Page(Struct, frozen=True):
    """One page of a list, with the version of the whole list. `rest`: the number of objects after this page."""

    items: tuple[Body, ...]
    version: str
    token: str = ""
    rest: int | None = None

    @property
    def metadata(self) -> Body:
        """The metadata of the list."""
        metadata: Body = {"resourceVersion": self.version}
        if self.token:
            metadata["continue"] = self.token
            if self.rest is not None:
                metadata["remainingItemCount"] = self.rest
        return metadata


class _OpenList(Struct, frozen=True):
    """What remains of a list, for one client. `what` is what the client asked for."""

    what: tuple[str, object]
    items: tuple[Body, ...]
    version: str
    until: float


class Lists:
    """The unfinished lists of all clients."""

    def __init__(self, cluster: LocalCluster, time: Callable[[], float]) -> None:
        self._cluster, self._time = cluster, time
        self._open: OrderedDict[str, _OpenList] = OrderedDict()

    async def page(self, resource: Resource, options: ListOptions) -> Page:
        """The first or the next page."""
        what = (resource.id, options.scope)
        if options.continue_token:
            if options.version and options.version != "0":
                raise BadRequestError("resourceVersion: not allowed together with continue")
            found = self._take(options.continue_token, what)
            items, version = found.items, found.version
        else:
            self.check_version(options.version)
            listed = await self._cluster.list(resource, options.scope)
            items, version = listed.items, listed.version
            _check_exact(options, version)
        limit = options.limit
        # As on an API server, a list with resourceVersion=0 comes from memory and has no pages.
        if not limit or len(items) <= limit or (options.version == "0" and not options.continue_token):
            return Page(items, version)
        has_selector = bool(options.scope.labels or options.scope.fields)
        rest = len(items) - limit
        return Page(items[:limit], version, self._keep(what, items[limit:], version), None if has_selector else rest)

    def check_version(self, version: str) -> None:
        """Raise TooNewError if the store has not reached this version."""
        if version and int(version) > self._cluster.durable_version:
            raise TooNewError(version, str(self._cluster.durable_version))

    def _keep(self, what: tuple[str, object], items: tuple[Body, ...], version: str) -> str:
        token = secrets.token_urlsafe(18)
        self._open[token] = _OpenList(what, items, version, self._time() + _LIST_SECONDS)
        while len(self._open) > _MAX_LISTS or next(iter(self._open.values())).until < self._time():
            self._open.popitem(last=False)
        return token

    def _take(self, token: str, what: tuple[str, object]) -> _OpenList:
        """The rest of a list. It stays known, so that a client can repeat a request that failed."""
        found = self._open.get(token)
        if found is None or found.until < self._time():
            message = "the provided continue parameter is too old to display a consistent list result"
            raise GoneError(f"{message}; start a new list without the continue parameter")
        if found.what != what:
            raise BadRequestError("continue: the token belongs to a list with another path or other selectors")
        return found


def _check_exact(options: ListOptions, version: str) -> None:
    """Only the current version can be listed exactly, because the store keeps no older versions."""
    if options.version_match == "Exact" and options.version not in ("", version):
        raise GoneError(f"the provided resource version {options.version} is too old; the newest is {version}")
