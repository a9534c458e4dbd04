# SPDX-License-Identifier: Apache-2.0
"""The operator: the controller of `runtime` on a cluster, one of several at a time. `trainwright operator` starts it.

It answers health checks from the start, waits for an API server that is not there yet, looks whether what it would
write would be kept, waits for the lease, and works. Asked to end, it lets passes end and gives the lease back.
"""

import asyncio
import logging

from msgspec import Struct
from msgspec.structs import replace

from trainwright import __version__
from trainwright.errors import EngineError, TooManyRequestsError, UnavailableError, UntrustedError
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.kube.cluster import KubeCluster
from trainwright.kube.config import Access
from trainwright.kube.etcd import Etcd
from trainwright.kube.gates import Fence, Limit
from trainwright.kube.health import Answers, Places, serving
from trainwright.kube.http import Http, Manner
from trainwright.kube.preflight import check, check_gang, groups
from trainwright.kube.session import Session
from trainwright.model.meta import Key
from trainwright.model.site import Site
from trainwright.runtime.clock import WallClock
from trainwright.runtime.controller import Controller
from trainwright.runtime.election import Elector, Terms
from trainwright.runtime.line import Line
from trainwright.runtime.settings import Settings
from trainwright.runtime.telemetry import Telemetry

_LOG = logging.getLogger(__name__)
#: Seconds for one answer. A lease must last longer for a write to be sent.
_TIMEOUT = 5.0
#: Seconds for which a request is repeated by itself. Whoever waits for it keeps other jobs waiting: passes come again.
_PATIENCE = 2.0
#: An API server that is not there yet is asked again after so long, doubling.
_FIRST, _MOST = 1.0, 15.0
#: Seconds that passes have to end by themselves before nothing more is written.
_GRACE = 3.0
#: A leader that should have given up so many seconds ago and has not, never will.
_STUCK = 20.0


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
    #: Where health and metrics are told.
    places: Places = Places()
    #: Seconds after which an API server that does not answer at the start is given up; 0: never.
    patience: float = 0.0
    child_events: bool = False
    #: Seconds between two looks for children whose job is gone; 0: none.
    sweep: float = 300.0
    site: Site = Site()


async def operate(access: Access, options: Options, stop: asyncio.Event) -> None:
    """Look after jobs until asked to stop. Raises TrainwrightError, also when the lease is lost: then another leads."""
    session = Session(access)
    operator = _Operator(session, options)
    work, asked = asyncio.create_task(operator.run()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            await operator.wind_down()
    finally:
        work.cancel()
        asked.cancel()
        await asyncio.gather(work, asked, return_exceptions=True)
        await session.close()
    if not work.cancelled():
        work.result()


class _Operator:
    def __init__(self, session: Session, options: Options) -> None:
        self._options = options
        self._server = session.server
        self._clock = WallClock()
        self._telemetry = Telemetry()
        http = Http(session, Manner(timeout=_TIMEOUT), count=self._telemetry.called)
        #: Does not wait for long: whoever uses it asks again.
        self._plain = KubeCluster(http.apart(Manner(timeout=_TIMEOUT, patience=1.0)))
        terms = Terms(
            key=options.lease,
            identity=options.identity,
            duration=options.lease_duration,
            renew=options.renew_deadline,
            retry=options.retry_period,
        )
        self._elector = Elector(self._plain, self._clock, terms) if options.elect else None
        limit = Limit(options.qps, options.burst or int(options.qps)) if options.qps else None
        self._fence = Fence(self._elector, _TIMEOUT, limit)
        self._cluster = KubeCluster(http.apart(Manner(timeout=_TIMEOUT, patience=_PATIENCE), gate=self._fence))
        self._controller: Controller | None = None
        #: Why it cannot work yet.
        self._waits = "it has just been started"
        self._ends = False

    async def run(self) -> None:
        options = self._options
        about = {"version": __version__, "server": self._server, "namespace": options.namespace or "all"}
        kinds = ",".join(kind.singular for kind in self._kinds())
        _LOG.info(Line("the operator starts", **about, kinds=kinds, lease=options.lease, identity=options.identity))
        async with serving(options.places, Answers(self._healthy, self._ready, self._telemetry.expose)):
            controller = self._controller = await self._prepared()
            await (self._elector.lead(lambda: self._work(controller)) if self._elector else self._work(controller))
        # Without a lease to lose, work ends only if it is cancelled.
        raise EngineError("the lease is lost: another operator leads now, or the API server was away for too long")

    async def wind_down(self) -> None:
        """Begin nothing new; let what is under way end, then at least what was sent."""
        _LOG.info(Line("the operator ends"))
        self._ends = True
        controller = self._controller
        if controller is not None and not await controller.drain(_GRACE):
            self._fence.close()
            await controller.drain(_TIMEOUT)

    # -- how it is ---------------------------------------------------------------------------------------------------

    def _healthy(self) -> str:
        if self._controller is not None and self._controller.broken:
            return "a part of the controller has ended"
        elector, most = self._elector, self._options.lease_duration + _STUCK
        if self._telemetry.leads and elector is not None and elector.unseen > most:
            return f"the lease was last renewed {elector.unseen:.0f} s ago, and this operator still holds on to it"
        return ""

    def _ready(self) -> str:
        if self._ends or self._waits:
            return "it ends" if self._ends else self._waits
        if self._telemetry.leads:
            synced = self._controller is not None and self._controller.synced
            return "" if synced else "it leads, and has not listed everything yet"
        elector = self._elector
        if elector is None or elector.unseen > self._options.renew_deadline + self._options.retry_period:
            return "it stands by, and cannot reach the lease"
        return ""

    # -- what it does ------------------------------------------------------------------------------------------------

    async def _prepared(self) -> Controller:
        """The controller for what is there, once the API server answers."""
        loop, options, pause = asyncio.get_running_loop(), self._options, _FIRST
        began = loop.time()
        while True:
            try:
                return await self._made()
            except UntrustedError:
                raise
            except (UnavailableError, TooManyRequestsError) as error:
                self._waits = f"it waits for the API server: {error}"
                if options.patience and loop.time() + pause - began > options.patience:
                    raise
                _LOG.warning(Line("the API server does not answer: it is waited for", error=error))
            await asyncio.sleep(pause)
            pause = min(pause * 2, _MOST)

    async def _made(self) -> Controller:
        options = self._options
        kinds = self._kinds()
        for kind in kinds:
            await check(self._plain, kind)
        extras = await groups(self._plain, kinds, options.namespace)
        found = frozenset(resource.api_version for resource in extras)
        check_gang(kinds, options.site.gang_scheduler, found)
        settings = Settings(
            extras=extras,
            kinds=options.kinds,
            namespace=options.namespace,
            resync=options.resync,
            workers=options.workers,
            child_events=options.child_events,
            sweep=options.sweep,
        )
        site, self._waits = replace(options.site, gangs=found), ""
        registry = Etcd(site.elastic_server) if site.elastic_server else None
        return Controller(self._cluster, self._clock, lambda _job: site, settings, self._telemetry, registry)

    async def _work(self, controller: Controller) -> None:
        self._telemetry.leads = True
        try:
            await controller.run()
        except ExceptionGroup as group:
            # One says enough: the others were cancelled for it.
            raise group.exceptions[0] from None
        finally:
            self._telemetry.leads = False

    def _kinds(self) -> list[Kind]:
        wanted = self._options.kinds
        return [kind for kind in KINDS if wanted is None or kind.singular in wanted]
