# SPDX-License-Identifier: Apache-2.0
"""Leader election by a Lease. The operator runs its controller inside `Elector.lead`; a write asks `Elector.left`.

The API has no fencing: a write of a leader that was deposed a moment ago would be taken. So a lease is ours only for as
long as our own clock says since we last *asked* for its renewal, and a write is sent only while more of it is left than
the request may take. Others take over when the lease has not changed for its whole time by their own clock, so neither
clock needs to be right, and a leader that was stopped finds nothing left when it goes on.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from math import ceil, inf
from random import random
from typing import Any

from msgspec import Struct

from trainwright.errors import AlreadyExistsError, ApiError, ConflictError, ForbiddenError, NotFoundError
from trainwright.model.child import Lease, LeaseSpec
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.units import Time
from trainwright.runtime.ports import LEASES, NAMESPACES, Clock, Cluster
from trainwright.runtime.telemetry import LogMessage

_LOG = logging.getLogger(__name__)
#: Seconds for giving the lease back.
_FAREWELL = 3.0


class LeaseConfig(Struct, frozen=True, kw_only=True):
    """Which lease, who we are, and how long things take; the times are Kubernetes' own."""

    key: Key
    identity: str
    #: Seconds for which a lease is held without renewal.
    duration: float = 15.0
    #: A leader that could not renew it for so long gives up.
    renew: float = 10.0
    #: Seconds between two tries.
    retry: float = 2.0


class Elector:
    """One candidate."""

    def __init__(self, cluster: Cluster, clock: Clock, terms: LeaseConfig) -> None:
        self._cluster = cluster
        self._clock = clock
        self._terms = terms
        self._until = 0.0
        #: What was last seen of the lease, and when that was first seen, by our own clock.
        self._seen: Lease | None = None
        self._since = 0.0
        #: When the lease was last read or written with success.
        self._looked: float | None = None

    @property
    def unseen(self) -> float:
        """Seconds since the lease was last read or written with success; for ever, if it never was."""
        return inf if self._looked is None else asyncio.get_running_loop().time() - self._looked

    @property
    def left(self) -> float:
        """Seconds for which the lease is still ours for certain."""
        return max(self._until - asyncio.get_running_loop().time(), 0.0)

    async def lead(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait until we lead, then work until the work ends or the lease is lost; it is given back at the end."""
        await self._win()
        _LOG.info(LogMessage("this operator leads", **self._about()))
        working, keeping = asyncio.ensure_future(work()), asyncio.ensure_future(self._keep())
        try:
            await asyncio.wait({working, keeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, keeping):
                task.cancel()
            await asyncio.gather(working, keeping, return_exceptions=True)
            await self._release()
        if not working.cancelled():
            working.result()

    async def _win(self) -> None:
        while not await self._try(first=True):
            await asyncio.sleep(self._terms.retry * (0.8 + 0.4 * random()))  # noqa: S311 - jitter, not a secret

    async def _keep(self) -> None:
        """Renew until that has failed for too long, or somebody else leads."""
        while self.left > self._terms.duration - self._terms.renew:
            await asyncio.sleep(self._terms.retry)
            await self._try()
        _LOG.warning(LogMessage("the lease is lost", **self._about()))
        self._until = 0.0

    def _about(self) -> dict[str, str]:
        return {"lease": str(self._terms.key), "identity": self._terms.identity}

    async def _try(self, *, first: bool = False) -> bool:
        """Take the lease or renew it; whether it is ours. What keeps us from ever having it is raised at `first`."""
        asked = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._terms.renew):
                ours = await self._take(first=first)
        except ConflictError:
            self._until = 0.0 if self._held_by_another() else self._until
            return False
        except (ApiError, TimeoutError) as error:
            if first and isinstance(error, ForbiddenError | NotFoundError):
                raise type(error)(f"the lease {self._terms.key} cannot be had: {error}") from None
            why = error if str(error) else f"no answer within {self._terms.renew:g} s"
            _LOG.warning(LogMessage("the lease cannot be reached", **self._about(), error=why))
            return False
        self._looked = asyncio.get_running_loop().time()
        self._until = asked + self._terms.duration if ours else 0.0
        return ours

    async def _take(self, *, first: bool) -> bool:
        lease = await self._look()
        if lease is None:
            return await self._make(first=first)
        if lease.spec.holder_identity not in (None, "", self._terms.identity) and not self._expired(lease):
            return False
        body = {"spec": self._claim(lease.spec)}
        self._observe(await self._cluster.patch(LEASES, self._terms.key, body, version=lease.metadata.resource_version))
        return True

    async def _look(self) -> Lease | None:
        try:
            lease: Lease = await self._cluster.get(LEASES, self._terms.key)
        except NotFoundError:
            return None
        self._observe(lease)
        return lease

    async def _make(self, *, first: bool) -> bool:
        key = self._terms.key
        body: Body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": key.name, "namespace": key.namespace},
            "spec": self._claim(LeaseSpec()),
        }
        try:
            self._observe(await self._cluster.create(LEASES, body))
        except AlreadyExistsError:
            return False
        except NotFoundError as missing:
            if not first:
                raise
            await self._make_namespace(missing)
            self._observe(await self._cluster.create(LEASES, body))
        return True

    async def _make_namespace(self, missing: NotFoundError) -> None:
        """Create the lease's namespace. Raises `missing` if the namespace exists: then something else is missing.

        It is tried only after the lease was refused, so an operator that was installed needs no right to namespaces.
        """
        name = self._terms.key.namespace
        body: Body = {"apiVersion": NAMESPACES.api_version, "kind": NAMESPACES.kind, "metadata": {"name": name}}
        try:
            await self._cluster.create(NAMESPACES, body)
        except (AlreadyExistsError, NotFoundError):
            raise missing from None
        except ForbiddenError as error:
            raise ForbiddenError(
                f"{missing}, and this operator may not create it ({error});"
                f" somebody who may has to run: kubectl create namespace {name}"
            ) from None
        _LOG.info(LogMessage("the namespace of the lease was missing, and is created", namespace=name, **self._about()))

    def _claim(self, before: LeaseSpec) -> Body:
        """The lease as ours, from now; a change of holder is counted."""
        now, ours = _micro(self._clock.now()), before.holder_identity == self._terms.identity
        transitions = before.lease_transitions or 0
        return {
            "holderIdentity": self._terms.identity,
            # In whole seconds, and never less than we count on.
            "leaseDurationSeconds": ceil(self._terms.duration),
            "acquireTime": _micro(before.acquire_time) if ours and before.acquire_time is not None else now,
            "renewTime": now,
            "leaseTransitions": transitions if ours or not before.holder_identity else transitions + 1,
        }

    def _observe(self, lease: Lease) -> None:
        before = self._seen.spec.holder_identity if self._seen is not None else None
        holder = lease.spec.holder_identity
        if holder not in (None, "", before, self._terms.identity):
            _LOG.info(LogMessage("another operator leads", **self._about(), leader=holder, before=before or ""))
        if self._seen is None or self._seen.spec != lease.spec:
            self._since = asyncio.get_running_loop().time()
        self._seen = lease

    def _expired(self, lease: Lease) -> bool:
        """By our own clock: it has not changed since we first saw it so, for as long as its holder asked for."""
        duration = lease.spec.lease_duration_seconds or self._terms.duration
        return asyncio.get_running_loop().time() - self._since > duration

    def _held_by_another(self) -> bool:
        return self._seen is not None and self._seen.spec.holder_identity not in (None, "", self._terms.identity)

    async def _release(self) -> None:
        """Give it back, so that nobody has to wait; if that fails, it runs out."""
        if self.left and self._seen is not None:
            try:
                async with asyncio.timeout(_FAREWELL):
                    await self._give_back(self._seen)
                _LOG.info(LogMessage("the lease is given back", **self._about()))
            except (ApiError, TimeoutError) as error:
                _LOG.info(LogMessage("the lease is not given back: it runs out", **self._about(), error=error))
        self._until = 0.0

    async def _give_back(self, lease: Lease) -> None:
        """Empty it. A renewal that was cut short may have been stored: then it has another version, and is ours."""
        body = {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _micro(self._clock.now())}}
        try:
            await self._cluster.patch(LEASES, self._terms.key, body, version=lease.metadata.resource_version)
        except ConflictError:
            found = await self._look()
            if found is None or found.spec.holder_identity != self._terms.identity:
                return
            await self._cluster.patch(LEASES, self._terms.key, body, version=found.metadata.resource_version)


def _micro(time: Time) -> str:
    """As Kubernetes writes a MicroTime."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
