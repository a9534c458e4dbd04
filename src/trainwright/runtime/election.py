# SPDX-License-Identifier: Apache-2.0
"""Leader election with a Lease. The operator runs its controller inside `Elector.lead`.

The Kubernetes API has no fencing: it accepts a write of an operator that has just lost the lease. So the leader
measures the lease duration by its own clock, from the time at which it *sent* the last renewal, and sends a write only
if the remaining time (`Elector.left`) is longer than the request's timeout. Another operator takes the lease after the
lease has not changed for the whole duration, measured by the clock of that operator. So the clocks need not agree, and
a leader whose process was paused finds no remaining time when it continues.
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
#: Timeout for releasing the lease at the end.
_RELEASE_TIMEOUT_SECONDS = 3.0


class LeaseConfig(Struct, frozen=True, kw_only=True):
    """The lease, the identity of this operator, and times in seconds, with the same defaults as in Kubernetes."""

    key: Key
    identity: str
    #: Another operator can take a lease that was not renewed for this time.
    duration: float = 15.0
    #: A leader that could not renew the lease for this time stops its work.
    renew: float = 10.0
    #: Time between two attempts to get or renew the lease.
    retry: float = 2.0


class Elector:
    """One candidate for the lease."""

    def __init__(self, cluster: Cluster, clock: Clock, config: LeaseConfig) -> None:
        self._cluster = cluster
        self._clock = clock
        self._config = config
        #: The time of the event loop until which this operator certainly holds the lease.
        self._held_until = 0.0
        #: The lease that was read last, and the time of the event loop at which this content was first read.
        self._seen: Lease | None = None
        self._unchanged_since = 0.0
        #: The time of the event loop at the last successful read or write of the lease.
        self._last_contact: float | None = None

    @property
    def unseen(self) -> float:
        """Seconds since the last successful read or write of the lease; infinite if none has succeeded yet."""
        return inf if self._last_contact is None else asyncio.get_running_loop().time() - self._last_contact

    @property
    def left(self) -> float:
        """The number of seconds for which this operator certainly still holds the lease."""
        return max(self._held_until - asyncio.get_running_loop().time(), 0.0)

    async def lead(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for the lease, then run `work` until `work` ends or the lease is lost. Releases the lease at the end."""
        while not await self._attempt(first=True):
            await asyncio.sleep(self._config.retry * (0.8 + 0.4 * random()))  # noqa: S311 - jitter, not a secret
        _LOG.info(LogMessage("this operator leads", **self._log_fields()))
        working, renewing = asyncio.ensure_future(work()), asyncio.ensure_future(self._renew())
        try:
            await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, renewing):
                task.cancel()
            await asyncio.gather(working, renewing, return_exceptions=True)
            await self._release()
        if not working.cancelled():
            working.result()

    async def _renew(self) -> None:
        """Renew the lease until renewals have failed for too long or another operator holds the lease."""
        while self.left > self._config.duration - self._config.renew:
            await asyncio.sleep(self._config.retry)
            await self._attempt()
        _LOG.warning(LogMessage("the lease is lost", **self._log_fields()))
        self._held_until = 0.0

    def _log_fields(self) -> dict[str, str]:
        return {"lease": str(self._config.key), "identity": self._config.identity}

    async def _attempt(self, *, first: bool = False) -> bool:
        """Get or renew the lease; return whether we hold it. If `first`, raise ForbiddenError and NotFoundError."""
        sent_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._config.renew):
                ours = await self._claim(first=first)
        except ConflictError:
            if self._seen is not None and self._is_other(self._seen.spec.holder_identity):
                self._held_until = 0.0
            return False
        except (ApiError, TimeoutError) as error:
            if first and isinstance(error, ForbiddenError | NotFoundError):
                raise type(error)(f"cannot get the lease {self._config.key}: {error}") from None
            reason = error if str(error) else f"no answer within {self._config.renew:g} s"
            _LOG.warning(LogMessage("the lease cannot be reached", **self._log_fields(), error=reason))
            return False
        self._last_contact = asyncio.get_running_loop().time()
        self._held_until = sent_at + self._config.duration if ours else 0.0
        return ours

    async def _claim(self, *, first: bool) -> bool:
        lease = await self._read()
        if lease is None:
            return await self._create(first=first)
        # The lease has expired if, by our own clock, it has not changed for the duration that its holder wrote into it.
        duration = lease.spec.lease_duration_seconds or self._config.duration
        expired = asyncio.get_running_loop().time() - self._unchanged_since > duration
        if self._is_other(lease.spec.holder_identity) and not expired:
            return False
        body = {"spec": self._claimed_spec(lease.spec)}
        self._observe(
            await self._cluster.patch(LEASES, self._config.key, body, version=lease.metadata.resource_version)
        )
        return True

    async def _read(self) -> Lease | None:
        try:
            lease: Lease = await self._cluster.get(LEASES, self._config.key)
        except NotFoundError:
            return None
        self._observe(lease)
        return lease

    async def _create(self, *, first: bool) -> bool:
        key = self._config.key
        body: Body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": key.name, "namespace": key.namespace},
            "spec": self._claimed_spec(LeaseSpec()),
        }
        try:
            self._observe(await self._cluster.create(LEASES, body))
        except AlreadyExistsError:
            return False
        except NotFoundError as missing:
            if not first:
                raise
            await self._create_namespace(missing)
            self._observe(await self._cluster.create(LEASES, body))
        return True

    async def _create_namespace(self, missing: NotFoundError) -> None:
        """Create the lease's namespace. If the namespace exists, `missing` has another cause, and is raised again.

        The elector calls this only after the API server has refused to create the lease. The namespace of an installed
        operator exists, so an installed operator does not need the permission to create namespaces.
        """
        name = self._config.key.namespace
        body: Body = {"apiVersion": NAMESPACES.api_version, "kind": NAMESPACES.kind, "metadata": {"name": name}}
        try:
            await self._cluster.create(NAMESPACES, body)
        except (AlreadyExistsError, NotFoundError):
            raise missing from None
        except ForbiddenError as error:
            raise ForbiddenError(
                f"{missing}, and this operator may not create it ({error});"
                f" ask a cluster administrator to run: kubectl create namespace {name}"
            ) from None
        _LOG.info(LogMessage("created the missing namespace of the lease", namespace=name, **self._log_fields()))

    def _claimed_spec(self, before: LeaseSpec) -> Body:
        """The spec of a lease that this operator holds and renews now. `leaseTransitions` counts new holders."""
        now, ours = _micro_time(self._clock.now()), before.holder_identity == self._config.identity
        transitions = before.lease_transitions or 0
        return {
            "holderIdentity": self._config.identity,
            # The API accepts only whole seconds. Round up: other operators must not wait less than our duration.
            "leaseDurationSeconds": ceil(self._config.duration),
            "acquireTime": _micro_time(before.acquire_time) if ours and before.acquire_time is not None else now,
            "renewTime": now,
            "leaseTransitions": transitions if ours or not before.holder_identity else transitions + 1,
        }

    def _observe(self, lease: Lease) -> None:
        before = self._seen.spec.holder_identity if self._seen is not None else None
        holder = lease.spec.holder_identity
        if holder != before and self._is_other(holder):
            _LOG.info(LogMessage("another operator leads", **self._log_fields(), leader=holder, before=before or ""))
        if self._seen is None or self._seen.spec != lease.spec:
            self._unchanged_since = asyncio.get_running_loop().time()
        self._seen = lease

    def _is_other(self, holder: str | None) -> bool:
        return holder not in (None, "", self._config.identity)

    async def _release(self) -> None:
        """Release the lease, so that the next leader need not wait. If the request fails, the lease expires later."""
        if self.left and self._seen is not None:
            try:
                async with asyncio.timeout(_RELEASE_TIMEOUT_SECONDS):
                    await self._clear_holder(self._seen)
                _LOG.info(LogMessage("the lease is released", **self._log_fields()))
            except (ApiError, TimeoutError) as error:
                _LOG.info(
                    LogMessage("the lease could not be released and will expire", **self._log_fields(), error=error)
                )
        self._held_until = 0.0

    async def _clear_holder(self, lease: Lease) -> None:
        """Remove the holder. A renewal that we cancelled can cause a conflict; then read the lease and retry once."""
        body = {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _micro_time(self._clock.now())}}
        try:
            await self._cluster.patch(LEASES, self._config.key, body, version=lease.metadata.resource_version)
        except ConflictError:
            found = await self._read()
            if found is not None and found.spec.holder_identity == self._config.identity:
                await self._cluster.patch(LEASES, self._config.key, body, version=found.metadata.resource_version)


def _micro_time(time: Time) -> str:
    """The time in the format of a Kubernetes MicroTime."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
