# SPDX-License-Identifier: Apache-2.0
"""Which address, and which ports, belong to a pod's name: reserved when first asked for, kept over its restarts.

`hosts` and `ports` are the tables of `model.site`, for the process runtime; `admit` is the store's hook that writes its
address on every new pod. Both ask here by the same name, so a pod listens where its peers were told. What is reserved
is written to one Address object for each job, which owns it: when the job goes, so do its addresses.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import suppress
from typing import Generic, TypeVar

from trainwright.errors import GoneError, NotFoundError
from trainwright.local.network.pools import Hosts, Ports
from trainwright.local.storage.store import Store
from trainwright.model.job import Body
from trainwright.model.meta import ADDRESS, Key
from trainwright.runtime.ports import Happened
from trainwright.runtime.resources import ADDRESSES, JOBS, PODS

_Name = tuple[str, str]
#: No name of a pod ends so.
_HOSTED = "/host"
K = TypeVar("K")
V = TypeVar("V")


class Book:
    """What one owner has reserved, and what of it is not yet written."""

    def __init__(self, key: Key, owner: Body) -> None:
        self.key, self.owner = key, owner
        self.hosts: dict[str, str] = {}
        self.ports: dict[str, dict[str, int]] = {}
        self.unwritten: Body = {}
        self.stored = False


class Addresses:
    """Every reservation of this engine. `hosted` has the addresses of pods that use the host's network.

    They have one each as well: some programs count hosts. Where all pods use it (the process runtime) there is no such
    difference, and no `hosted`.
    """

    def __init__(self, store: Store, pool: Hosts, ports: Ports, hosted: Hosts | None = None) -> None:
        self._store, self._pool, self._free, self._hosted = store, pool, ports, hosted
        self._books: dict[str, Book] = {}
        #: By namespace and name: the address, and whose it is.
        self._hosts: dict[_Name, tuple[str, str]] = {}
        self._ports: dict[tuple[str, str, int], int] = {}
        self._dirty: dict[str, Book] = {}
        self.hosts: Mapping[tuple[Key, str], str] = Table(self._host_of, self._hosts)
        self.ports: Mapping[tuple[Key, str, int], int] = Table(self._port_of, self._ports)
        bodies, version = store.list(ADDRESSES)
        for body in bodies:
            self._read(body)
        self._watch, self._stale = store.watch(ADDRESSES, since=version), True

    # -- asking ---------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Have every new pod of the store told its address."""
        self._store.admit(PODS, self.admit)

    def admit(self, before: Body | None, body: Body) -> Body:
        """The new pod with its address, unless it came with one."""
        meta = body["metadata"]
        noted = meta.get("annotations") or {}
        if before is not None or ADDRESS in noted:
            return body
        pool = self._hosted if body["spec"].get("hostNetwork") else None
        host = self._reserve(meta, pool)
        return {**body, "metadata": {**meta, "annotations": {**noted, ADDRESS: host}}}

    def _reserve(self, meta: Body, pool: Hosts | None) -> str:
        """A pod that nobody owns owns its address itself."""
        if self._stale:
            self._catch_up()
        owners = [one for one in meta.get("ownerReferences") or () if one.get("controller")]
        owner = owners[0] if owners else {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        # A pod of the same name may have had a network of its own before somebody edited its job.
        name = meta["name"] if pool is None else f"{meta['name']}{_HOSTED}"
        return self._host_for((meta["namespace"], name), owner, pool or self._pool)

    def _host_of(self, asked: tuple[Key, str]) -> str:
        job, name = asked
        if self._stale:
            self._catch_up()
        known = self._hosts.get((job.namespace, name))
        return known[0] if known is not None else self._host_for((job.namespace, name), self._owner(job), self._pool)

    def _port_of(self, asked: tuple[Key, str, int]) -> int:
        job, name, port = asked
        if self._stale:
            self._catch_up()
        known = self._ports.get((job.namespace, name, port))
        if known is not None:
            return known
        host = self._host_of((job, name))
        found = self._ports[job.namespace, name, port] = self._free.take(host)
        book = self._books[self._hosts[job.namespace, name][1]]
        book.ports.setdefault(name, {})[str(port)] = found
        book.unwritten.setdefault("ports", {}).setdefault(name, {})[str(port)] = found
        self._soon(book)
        return found

    def _owner(self, job: Key) -> Body:
        """The job of that name, as owners are written; KeyError: there is none, so nothing is reserved for it."""
        for resource in JOBS.values():
            try:
                meta = self._store.get(resource, job)["metadata"]
            except NotFoundError:
                continue
            return {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "name": job.name,
                "uid": meta["uid"],
            }
        raise KeyError(job)

    def _host_for(self, name: _Name, owner: Body, pool: Hosts) -> str:
        host, before = self._hosts.get(name, ("", ""))
        if before == owner["uid"]:
            return host
        book = self._books.get(owner["uid"])
        if book is None:
            key = Key(name[0], f"{owner['name']}-{owner['uid'][:8]}")
            book = self._books[owner["uid"]] = Book(key, owner)
        if before:
            # The name has passed to another owner, and the address with it.
            self._books[before].hosts.pop(name[1], None)
        host = host or pool.take()
        self._hosts[name] = host, owner["uid"]
        book.hosts[name[1]] = host
        book.unwritten.setdefault("hosts", {})[name[1]] = host
        self._soon(book)
        return host

    # -- writing --------------------------------------------------------------------------------------------------

    def _soon(self, book: Book) -> None:
        """A burst of reservations is one write; nobody reads it before this engine ends."""
        if not self._dirty:
            # Outside of a loop whoever reserves also flushes.
            with suppress(RuntimeError):
                asyncio.get_running_loop().call_soon(self.flush)
        self._dirty[book.owner["uid"]] = book

    def flush(self) -> None:
        """Write what was reserved."""
        dirty, self._dirty = self._dirty, {}
        for book in dirty.values():
            self._write(book)

    def _write(self, book: Book) -> None:
        spec, book.unwritten = book.unwritten, {}
        if book.stored:
            # If it went with its owner, the watch says so.
            with suppress(NotFoundError):
                self._store.patch(ADDRESSES, book.key, {"spec": spec})
            return
        book.stored = True
        meta = {"name": book.key.name, "namespace": book.key.namespace, "ownerReferences": [book.owner]}
        self._store.create(ADDRESSES, {"metadata": meta, "spec": spec})

    # -- giving back ----------------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Give back what belongs to owners that are gone."""
        try:
            while changes := self._watch.take():
                for change in changes:
                    if change.what is Happened.DELETED:
                        self._drop(_owner_of(change.item)["uid"])
        except GoneError:
            bodies, version = self._store.list(ADDRESSES)
            for uid in self._books.keys() - self._dirty.keys() - {_owner_of(body)["uid"] for body in bodies}:
                self._drop(uid)
            self._watch = self._store.watch(ADDRESSES, since=version)
        self._stale = False
        self._watch.wait(self._woken)

    def _woken(self) -> None:
        self._stale = True

    def _drop(self, uid: str) -> None:
        book = self._books.pop(uid, None)
        self._dirty.pop(uid, None)
        if book is None:
            return
        for name, host in book.hosts.items():
            self._hosts.pop((book.key.namespace, name), None)
            self._pool_of(name).put(host)
        for name, ports in book.ports.items():
            for asked, port in ports.items():
                self._ports.pop((book.key.namespace, name, int(asked)), None)
                self._free.put(port)

    def _pool_of(self, name: str) -> Hosts:
        return self._hosted if self._hosted is not None and name.endswith(_HOSTED) else self._pool

    def _read(self, body: Body) -> None:
        """What an engine before this one has reserved."""
        meta, spec = body["metadata"], body.get("spec") or {}
        book = Book(Key(meta["namespace"], meta["name"]), _owner_of(body))
        book.stored, book.hosts, book.ports = True, dict(spec.get("hosts") or {}), dict(spec.get("ports") or {})
        self._books[book.owner["uid"]] = book
        for name, host in book.hosts.items():
            self._hosts[book.key.namespace, name] = host, book.owner["uid"]
            self._pool_of(name).claim(host)
        for name, ports in book.ports.items():
            for asked, port in ports.items():
                self._ports[book.key.namespace, name, int(asked)] = port
                self._free.claim(port)


def _owner_of(body: Body) -> Body:
    owner: Body = body["metadata"]["ownerReferences"][0]
    return owner


class Table(Mapping[K, V], Generic[K, V]):
    """A table that is filled as it is asked; it counts as full of entries from the start."""

    def __init__(self, find: Callable[[K], V], known: Sized) -> None:
        self._find, self._known = find, known

    def __getitem__(self, key: K) -> V:
        return self._find(key)

    def __iter__(self) -> Iterator[K]:
        """Nothing: what may be asked for has no end."""
        return iter(())

    def __len__(self) -> int:
        return len(self._known)

    def __bool__(self) -> bool:
        return True
