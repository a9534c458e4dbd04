# SPDX-License-Identifier: Apache-2.0
"""Which address, and which ports, belong to a pod's name: reserved when first asked for, kept over its restarts.

The controller calls `reserve` before each pass over a job whose names do not resolve (process runtime); `admit` is the
store's hook that writes its address on every new pod. Both ask here by the same name, so a pod listens where its peers
were told. What is reserved is written to one Address object for each job, which owns it: when the job goes, so do its
addresses.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType

from msgspec.structs import replace

from trainwright.core.ports import endpoints as needed
from trainwright.errors import GoneError, NotFoundError
from trainwright.local.storage.store import Store
from trainwright.model.job import Body, Job
from trainwright.model.meta import ADDRESS, Key
from trainwright.model.site import Endpoints, Site
from trainwright.node.network.pools import AddressPool, PortPool
from trainwright.runtime.ports import ADDRESSES, JOBS, PODS, WatchEventType

_Name = tuple[str, str]
#: Hosts and ports as `model.site` has them.
Reserved = tuple[Mapping[tuple[Key, str], str], Mapping[tuple[Key, str, int], int]]
#: No name of a pod ends so.
_HOSTED = "/host"


class OwnerReservations:
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

    def __init__(self, store: Store, pool: AddressPool, ports: PortPool, hosted: AddressPool | None = None) -> None:
        self._store, self._pool, self._free, self._hosted = store, pool, ports, hosted
        self._books: dict[str, OwnerReservations] = {}
        #: By namespace and name: the address, and whose it is.
        self._hosts: dict[_Name, tuple[str, str]] = {}
        self._ports: dict[tuple[str, str, int], int] = {}
        self._dirty: dict[str, OwnerReservations] = {}
        #: By UID of a job: what it was last reserved, and for which replicas.
        self._reserved: dict[str, tuple[tuple[Endpoints, ...], Reserved]] = {}
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

    def _reserve(self, meta: Body, pool: AddressPool | None) -> str:
        """A pod that nobody owns owns its address itself."""
        if self._stale:
            self._catch_up()
        owners = [one for one in meta.get("ownerReferences") or () if one.get("controller")]
        owner = owners[0] if owners else {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        # A pod of the same name may have had a network of its own before somebody edited its job.
        name = meta["name"] if pool is None else f"{meta['name']}{_HOSTED}"
        return self._host_for((meta["namespace"], name), owner, pool or self._pool)

    def placed(self, site: Site, job: Job) -> Site:
        """The site for a pass over this job, with everything that the pass may ask it for."""
        hosts, ports = self.reserve(job, needed(job))
        return replace(site, hosts=hosts, ports=ports)

    def reserve(self, job: Job, endpoints: tuple[Endpoints, ...]) -> Reserved:
        """The host of each of these replicas, and its ports. NotFoundError: the job is gone."""
        if self._stale:
            self._catch_up()
        asked, known = self._reserved.get(job.uid, ((), None))
        if known is not None and asked == endpoints:
            return known
        every = [(name, one.ports) for one in endpoints for name in one.names]
        hosts = {(job.key, name): self._host_of(job, name) for name, _ in every}
        ports = {(job.key, name, port): self._port_of(job.key, name, port) for name, some in every for port in some}
        found = MappingProxyType(hosts), MappingProxyType(ports)
        self._reserved[job.uid] = endpoints, found
        return found

    def _host_of(self, job: Job, name: str) -> str:
        known = self._hosts.get((job.key.namespace, name))
        return (
            known[0] if known is not None else self._host_for((job.key.namespace, name), self._owner(job), self._pool)
        )

    def _port_of(self, job: Key, name: str, port: int) -> int:
        known = self._ports.get((job.namespace, name, port))
        if known is not None:
            return known
        host, owner = self._hosts[job.namespace, name]
        found = self._ports[job.namespace, name, port] = self._free.take(host)
        book = self._books[owner]
        book.ports.setdefault(name, {})[str(port)] = found
        book.unwritten.setdefault("ports", {}).setdefault(name, {})[str(port)] = found
        self._soon(book)
        return found

    def _owner(self, job: Job) -> Body:
        """The job, as owners are written. Nothing is reserved for one that is gone: nobody would give it back."""
        resource = JOBS[job.kind]
        if self._store.get(resource, job.key)["metadata"]["uid"] != job.uid:
            raise NotFoundError(f"{resource.id} {job.key} is another job by now")
        return {"apiVersion": resource.api_version, "kind": resource.kind, "name": job.key.name, "uid": job.uid}

    def _host_for(self, name: _Name, owner: Body, pool: AddressPool) -> str:
        host, before = self._hosts.get(name, ("", ""))
        if before == owner["uid"]:
            return host
        book = self._books.get(owner["uid"])
        if book is None:
            key = Key(name[0], f"{owner['name']}-{owner['uid'][:8]}")
            book = self._books[owner["uid"]] = OwnerReservations(key, owner)
        if before:
            # The name has passed to another owner, and the address with it.
            self._books[before].hosts.pop(name[1], None)
            self._reserved.clear()
        host = host or pool.take()
        self._hosts[name] = host, owner["uid"]
        book.hosts[name[1]] = host
        book.unwritten.setdefault("hosts", {})[name[1]] = host
        self._soon(book)
        return host

    # -- writing --------------------------------------------------------------------------------------------------

    def _soon(self, book: OwnerReservations) -> None:
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

    def _write(self, book: OwnerReservations) -> None:
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
                    if change.what is WatchEventType.DELETED:
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
        self._reserved.clear()
        if book is None:
            return
        for name, host in book.hosts.items():
            self._hosts.pop((book.key.namespace, name), None)
            self._pool_of(name).put(host)
        for name, ports in book.ports.items():
            for asked, port in ports.items():
                self._ports.pop((book.key.namespace, name, int(asked)), None)
                self._free.put(port)

    def _pool_of(self, name: str) -> AddressPool:
        return self._hosted if self._hosted is not None and name.endswith(_HOSTED) else self._pool

    def _read(self, body: Body) -> None:
        """What an engine before this one has reserved."""
        meta, spec = body["metadata"], body.get("spec") or {}
        book = OwnerReservations(Key(meta["namespace"], meta["name"]), _owner_of(body))
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
