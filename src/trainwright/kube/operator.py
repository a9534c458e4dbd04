# SPDX-License-Identifier: Apache-2.0
"""The operator: the controller of `runtime` on a cluster, one of several at a time. `trainwright operator` starts it.

It looks first whether what it would write would be kept, then answers health checks, waits for the lease, and works.
"""

from collections.abc import Coroutine
from typing import Any

from msgspec import Struct

from trainwright.errors import NotFoundError, UsageError
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.kube.cluster import KubeCluster
from trainwright.kube.config import Access
from trainwright.kube.gates import Fence, Limit
from trainwright.kube.health import serving
from trainwright.kube.http import Http, Manner
from trainwright.kube.session import Session
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.site import Site
from trainwright.runtime.clock import WallClock
from trainwright.runtime.controller import Controller
from trainwright.runtime.election import Elector, Terms
from trainwright.runtime.ports import Scope
from trainwright.runtime.resources import DEFINITIONS, POD_GROUPS
from trainwright.runtime.settings import Settings

#: Seconds for one answer. A lease must last longer for a write to be sent.
_TIMEOUT = 5.0
_INSTALL = "`trainwright crds | kubectl apply --server-side -f -`"


class Options(Struct, frozen=True, kw_only=True):
    """How the operator was asked to work."""

    lease: Key
    identity: str
    elect: bool = True
    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0
    kinds: frozenset[str] | None = None
    namespace: str = ""
    resync: float = 15.0
    workers: int = 16
    #: Requests a second; 0: as many as it takes.
    qps: float = 0.0
    burst: int = 0
    #: Where health and metrics are told; empty: nowhere.
    address: str = ""


async def operate(access: Access, options: Options) -> None:
    """Look after jobs until cancelled, or until the lease is lost: then another one does. Raises TrainwrightError."""
    session = Session(access)
    try:
        await _Operator(session, options).run()
    finally:
        await session.close()


class _Operator:
    def __init__(self, session: Session, options: Options) -> None:
        self._options = options
        self._clock = WallClock()
        plain = Http(session, Manner(timeout=_TIMEOUT))
        self._plain = KubeCluster(plain)
        terms = Terms(
            key=options.lease,
            identity=options.identity,
            duration=options.lease_duration,
            renew=options.renew_deadline,
            retry=options.retry_period,
        )
        self._elector = Elector(self._plain, self._clock, terms)
        limit = Limit(options.qps, options.burst or int(options.qps)) if options.qps else None
        gate = Fence(self._elector, _TIMEOUT, limit) if options.elect else limit
        self._cluster = KubeCluster(plain.apart(Manner(timeout=_TIMEOUT), gate=gate))
        self._controller: Controller | None = None

    async def run(self) -> None:
        for kind in self._kinds():
            await self._check(kind)
        gangs = await self._gangs()
        extras = (POD_GROUPS,) if gangs else ()
        options = self._options
        settings = Settings(
            extras=extras,
            kinds=options.kinds,
            namespace=options.namespace,
            resync=options.resync,
            workers=options.workers,
        )
        site = Site(gangs=gangs)
        controller = self._controller = Controller(self._cluster, self._clock, lambda: site, settings)
        async with serving(options.address, lambda: True, controller.telemetry.expose):
            await self._work(controller)

    async def _work(self, controller: Controller) -> None:
        def work() -> Coroutine[Any, Any, None]:
            return controller.run()

        await (self._elector.lead(work) if self._options.elect else work())

    def _kinds(self) -> list[Kind]:
        wanted = self._options.kinds
        return [kind for kind in KINDS if wanted is None or kind.singular in wanted]

    async def _check(self, kind: Kind) -> None:
        """A definition that does not know our durable state would drop it silently, and jobs would start anew."""
        name = f"{kind.plural}.{kind.group}"
        try:
            definition = await self._plain.get(DEFINITIONS, Key("", name))
        except NotFoundError:
            raise UsageError(f"{name} is not installed; {_INSTALL} does that") from None
        if not _keeps(definition, kind.version):
            raise UsageError(
                f"{name} is another one's: its status has no `trainwright`, so nothing would be remembered; "
                f"{_INSTALL} brings ours"
            )

    async def _gangs(self) -> frozenset[str]:
        """The gang APIs that are really there."""
        try:
            await self._plain.list(POD_GROUPS, Scope(namespace=self._options.namespace or "default"))
        except NotFoundError:
            return frozenset()
        return frozenset({POD_GROUPS.api_version})


def _keeps(definition: Body, version: str) -> bool:
    """Whether a definition's status has room for `status.trainwright`."""
    for one in definition["spec"]["versions"]:
        if one["name"] == version:
            schema = one.get("schema", {}).get("openAPIV3Schema", {})
            status = schema.get("properties", {}).get("status", {}).get("properties", {})
            return "trainwright" in status
    return False
