# SPDX-License-Identifier: Apache-2.0
"""Reserves an address and ports for each pod name. A later pod with the same name gets the same address and ports.

In the process runtime, names of pods do not resolve, so pods need the addresses of their peers. The controller calls
`with_reservations` before it reconciles a job, to get these addresses. The store calls `admit` to write the address
into each new pod. Both look up the address by the pod's name, so a pod listens where its peers connect. One Address
object per owner (a job, or a pod without a controller) stores the reservations until the owner is deleted.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType

from msgspec.structs import replace

from trainwright.core.ports import endpoints as endpoints_of
from trainwright.errors import GoneError, NotFoundError
from trainwright.local.storage.store import Store
from trainwright.model.job import Body, Job
from trainwright.model.meta import ADDRESS, Key
from trainwright.model.site import Endpoints, Site
from trainwright.node.network.pools import AddressPool, PortPool
from trainwright.runtime.ports import ADDRESSES, JOBS, PODS, WatchEventType

_NamespacedName = tuple[str, str]
#: The hosts and ports of a `Site`.
Reserved = tuple[Mapping[tuple[Key, str], str], Mapping[tuple[Key, str, int], int]]
#: Added to the pod name in reservations from `host_pool`. A pod name has no slash, so the result is no pod name.
_HOST_NETWORK_SUFFIX = "/host"


class OwnerReservations:
    """The reservations of one owner, which is a job or a pod without a controller."""

    def __init__(self, key: Key, owner: Body) -> None:
        self.key, self.owner = key, owner
        self.hosts: dict[str, str] = {}
        self.ports: dict[str, dict[str, int]] = {}
        self.unwritten: Body = {}
        self.stored = False


class Addresses:
    """All reservations of this engine. `host_pool` contains the addresses for pods with host network.

    Each pod with host network also has an address of its own, because some programs count hosts by their addresses. In
    the process runtime all pods use the host network, so there is no `host_pool`.
    """

    def __init__(self, store: Store, pool: AddressPool, ports: PortPool, host_pool: AddressPool | None = None) -> None:
        self._store, self._pool, self._port_pool, self._host_pool = store, pool, ports, host_pool
        self._owners: dict[str, OwnerReservations] = {}
        #: By namespace and name: the address, and the UID of its owner.
        self._hosts: dict[_NamespacedName, tuple[str, str]] = {}
        self._ports: dict[tuple[str, str, int], int] = {}
        self._unwritten: dict[str, OwnerReservations] = {}
        self._flush_scheduled = False
        #: By job UID: the endpoints and the result of the last `reserve`. A call with equal endpoints gets this result.
        self._reserved: dict[str, tuple[tuple[Endpoints, ...], Reserved]] = {}
        bodies, version = store.list(ADDRESSES)
        for body in bodies:
            self._load(body)
        self._watch, self._watch_pending = store.watch(ADDRESSES, since=version), True
        for pod in store.list(PODS.whole())[0]:
            self._claim_of(pod)

    # -- reserving ------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Register `admit` in the store."""
        self._store.admit(PODS, self.admit, has_effects=True)

    def admit(self, before: Body | None, body: Body) -> Body:
        """Write the reserved address into a new pod, unless the pod already has an address."""
        meta = body["metadata"]
        annotations = meta.get("annotations") or {}
        if before is not None or ADDRESS in annotations:
            return body
        pool = self._host_pool if body["spec"].get("hostNetwork") else None
        host = self._reserve(meta, pool)
        return {**body, "metadata": {**meta, "annotations": {**annotations, ADDRESS: host}}}

    def _reserve(self, meta: Body, pool: AddressPool | None) -> str:
        """Reserve an address for a pod."""
        self._release_deleted()
        owner = _controller_of(meta)
        # A user can edit the job and switch host network on or off. The suffix keeps the addresses of both cases apart.
        name = meta["name"] if pool is None else f"{meta['name']}{_HOST_NETWORK_SUFFIX}"
        return self._host_for((meta["namespace"], name), owner, pool or self._pool)

    def with_reservations(self, site: Site, job: Job) -> Site:
        """The site for one pass of this job, with all hosts and ports that the pass can need."""
        hosts, ports = self.reserve(job, endpoints_of(job))
        return replace(site, hosts=hosts, ports=ports)

    def reserve(self, job: Job, endpoints: tuple[Endpoints, ...]) -> Reserved:
        """The hosts and ports for all names in `endpoints`. Raises NotFoundError if the job no longer exists."""
        self._release_deleted()
        requested, known = self._reserved.get(job.uid, ((), None))
        if known is not None and requested == endpoints:
            return known
        names = [(name, one.ports) for one in endpoints for name in one.names]
        hosts = {(job.key, name): self._host_of(job, name) for name, _ in names}
        pairs = [(name, port) for name, ports in names for port in ports]
        ports = {(job.key, name, port): self._port_of(job.key, name, port) for name, port in pairs}
        reserved = MappingProxyType(hosts), MappingProxyType(ports)
        self._reserved[job.uid] = endpoints, reserved
        return reserved

    def _host_of(self, job: Job, name: str) -> str:
        key = job.key.namespace, name
        known = self._hosts.get(key)
        return known[0] if known is not None else self._host_for(key, self._owner_reference(job), self._pool)

    def _port_of(self, job: Key, name: str, port: int) -> int:
        known = self._ports.get((job.namespace, name, port))
        if known is not None:
            return known
        host, owner = self._hosts[job.namespace, name]
        reserved = self._ports[job.namespace, name, port] = self._port_pool.take(host)
        reservations = self._owners[owner]
        reservations.ports.setdefault(name, {})[str(port)] = reserved
        reservations.unwritten.setdefault("ports", {}).setdefault(name, {})[str(port)] = reserved
        self._schedule_flush(reservations)
        return reserved

    def _owner_reference(self, job: Job) -> Body:
        """The owner reference of the job. NotFoundError: the job is deleted, so nothing would release its addresses."""
        resource = JOBS[job.kind]
        if self._store.get(resource, job.key)["metadata"]["uid"] != job.uid:
            raise NotFoundError(f"{resource.id} {job.key} has been replaced by another job")
        return {"apiVersion": resource.api_version, "kind": resource.kind, "name": job.key.name, "uid": job.uid}

    def _host_for(self, name: _NamespacedName, owner: Body, pool: AddressPool) -> str:
        host, previous_owner = self._hosts.get(name, ("", ""))
        if previous_owner == owner["uid"]:
            return host
        if previous_owner:
            # Another owner had this pod name. The new owner gets the address, so the old owner must not release it.
            self._owners[previous_owner].hosts.pop(name[1], None)
            self._reserved.clear()
        return self._keep(name, host or pool.take(), owner)

    def _keep(self, name: _NamespacedName, host: str, owner: Body) -> str:
        """Record that an owner has an address."""
        reservations = self._owners.get(owner["uid"])
        if reservations is None:
            key = Key(name[0], f"{owner['name']}-{owner['uid'][:8]}")
            reservations = self._owners[owner["uid"]] = OwnerReservations(key, owner)
        self._hosts[name] = host, owner["uid"]
        reservations.hosts[name[1]] = host
        reservations.unwritten.setdefault("hosts", {})[name[1]] = host
        self._schedule_flush(reservations)
        return host

    # -- storing --------------------------------------------------------------------------------------------------

    def _schedule_flush(self, reservations: OwnerReservations) -> None:
        """Write later, so that one write stores many reservations. Only a later engine reads them.

        The journal keeps the current write back until then: a later engine must know the address of every pod.
        """
        if not self._flush_scheduled:
            self._flush_scheduled = True
            # Without a running event loop the caller must call `flush`.
            with suppress(RuntimeError):
                asyncio.get_running_loop().call_soon(self.flush)
            if self._store.journal is not None:
                self._store.journal.hold()
        self._unwritten[reservations.owner["uid"]] = reservations

    def flush(self) -> None:
        """Store all new reservations."""
        pending, self._unwritten = self._unwritten, {}
        try:
            for reservations in pending.values():
                self._write(reservations)
        finally:
            if self._flush_scheduled and self._store.journal is not None:
                self._store.journal.release()
            self._flush_scheduled = False

    def _write(self, reservations: OwnerReservations) -> None:
        spec, reservations.unwritten = reservations.unwritten, {}
        if reservations.stored:
            # If the owner was deleted, the Address object is deleted too. `_release_deleted` releases its reservations.
            with suppress(NotFoundError):
                self._store.patch(ADDRESSES, reservations.key, {"spec": spec})
            return
        reservations.stored = True
        key, owners = reservations.key, [reservations.owner]
        meta = {"name": key.name, "namespace": key.namespace, "ownerReferences": owners}
        self._store.create(ADDRESSES, {"metadata": meta, "spec": spec})

    # -- releasing ------------------------------------------------------------------------------------------------

    def _release_deleted(self) -> None:
        """Release the reservations of deleted owners, if the watch has reported changes."""
        if not self._watch_pending:
            return
        try:
            while changes := self._watch.take():
                for change in changes:
                    if change.what is WatchEventType.DELETED:
                        self._release(_owner_of(change.item))
        except GoneError:
            bodies, version = self._store.list(ADDRESSES)
            for uid in self._owners.keys() - self._unwritten.keys() - {_owner_of(body) for body in bodies}:
                self._release(uid)
            self._watch = self._store.watch(ADDRESSES, since=version)
        self._watch_pending = False
        self._watch.wait(self._on_write)

    def _on_write(self) -> None:
        self._watch_pending = True

    def _release(self, uid: str) -> None:
        reservations = self._owners.pop(uid, None)
        self._unwritten.pop(uid, None)
        self._reserved.clear()
        if reservations is None:
            return
        for name, host in reservations.hosts.items():
            self._hosts.pop((reservations.key.namespace, name), None)
            self._pool_of(name).put(host)
        for name, ports in reservations.ports.items():
            for requested, port in ports.items():
                self._ports.pop((reservations.key.namespace, name, int(requested)), None)
                self._port_pool.put(port)

    def _pool_of(self, name: str) -> AddressPool:
        return self._host_pool if self._host_pool is not None and name.endswith(_HOST_NETWORK_SUFFIX) else self._pool

    def _load(self, body: Body) -> None:
        """Load the reservations that an earlier engine has stored.

        If the job was deleted without its pods (`--cascade=orphan`), the reservations have no owner. They are removed,
        and each pod that is left reserves its own address (`_claim_of`).
        """
        meta, spec = body["metadata"], body.get("spec") or {}
        key = Key(meta["namespace"], meta["name"])
        if not _owner_of(body):
            self._store.delete(ADDRESSES, key)
            return
        reservations = OwnerReservations(key, meta["ownerReferences"][0])
        reservations.stored = True
        reservations.hosts, reservations.ports = dict(spec.get("hosts") or {}), dict(spec.get("ports") or {})
        self._owners[reservations.owner["uid"]] = reservations
        for name, host in [*reservations.hosts.items()]:
            pool = self._pool_of(name)
            if not pool.contains(host):  # the subnet of the earlier engine is gone: the name gets another address
                del reservations.hosts[name]
                continue
            self._hosts[reservations.key.namespace, name] = host, reservations.owner["uid"]
            pool.claim(host)
        for name, ports in reservations.ports.items():
            for requested, port in ports.items():
                self._ports[reservations.key.namespace, name, int(requested)] = port
                self._port_pool.claim(port)

    def _claim_of(self, pod: Body) -> None:
        """Reserve the address of a stored pod again, if the earlier engine ended before it stored the reservation.

        A pod that has not started and whose address is of a subnet that is gone gets another address.
        """
        meta, special = pod["metadata"], self._host_pool if pod["spec"].get("hostNetwork") else None
        host, pool = (meta.get("annotations") or {}).get(ADDRESS), special or self._pool
        name = meta["name"] if special is None else f"{meta['name']}{_HOST_NETWORK_SUFFIX}"
        if host and pool.contains(host):
            if (meta["namespace"], name) not in self._hosts:
                pool.claim(host)
                self._keep((meta["namespace"], name), host, _controller_of(meta))
        elif host and "startTime" not in (pod.get("status") or {}):
            again = {"annotations": {ADDRESS: self._reserve(meta, special)}}
            self._store.patch(PODS, Key(meta["namespace"], meta["name"]), {"metadata": again}, uid=meta["uid"])


def _controller_of(meta: Body) -> Body:
    """The owner of a pod's address: the pod's controller, or the pod if it has none."""
    owners = [one for one in meta.get("ownerReferences") or () if one.get("controller")]
    return owners[0] if owners else {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}


def _owner_of(body: Body) -> str:
    """The UID of the owner of stored reservations; empty if the owner was deleted without them."""
    owners = body["metadata"].get("ownerReferences") or ()
    return str(owners[0]["uid"]) if owners else ""
