# SPDX-License-Identifier: Apache-2.0
"""What the operator looks at before it begins: whether what it writes will be kept, and which gang APIs there are.

What a cluster asks of its operator over HTTP: `/healthz`, `/readyz` and `/metrics`. `operator` serves it.

It is answered by the loop that does the work: one that is stuck does not answer, and a probe takes that for a no.

The operator: the controller of `runtime` on a cluster, one of several at a time. `trainwright operator` starts it.

It answers health checks from the start, waits for an API server that is not there yet, looks whether what it would
write would be kept, waits for the lease, and works. Asked to end, it lets passes end and gives the lease back.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace

from trainwright import __version__
from trainwright.crd.compare import unusable
from trainwright.errors import (
    EngineError,
    NotFoundError,
    TooManyRequestsError,
    UnavailableError,
    UntrustedError,
    UsageError,
)
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.kube.cluster import KubeCluster
from trainwright.kube.config import Access
from trainwright.kube.etcd import Etcd
from trainwright.kube.http import HttpClient, RateLimit, RequestPolicy, WriteFence
from trainwright.kube.session import ApiSession
from trainwright.model.job import selected_gangs
from trainwright.model.meta import Key
from trainwright.model.site import Site
from trainwright.runtime.controller import Controller
from trainwright.runtime.election import Elector, LeaseConfig
from trainwright.runtime.ports import DEFINITIONS, Cluster, Resource, Selection, WallClock, groups_of
from trainwright.runtime.settings import ControllerSettings
from trainwright.runtime.telemetry import LogMessage, Telemetry

_INSTALL = "`trainwright crds | kubectl apply --server-side -f -`"


async def check(cluster: Cluster, kind: Kind) -> None:
    """A definition that does not know all of our durable state would drop it silently, and jobs would start anew."""
    name = f"{kind.plural}.{kind.group}"
    try:
        definition = await cluster.get(DEFINITIONS, Key("", name))
    except NotFoundError:
        raise UsageError(f"{name} is not installed; {_INSTALL} does that") from None
    if reason := unusable(kind, definition):
        raise UsageError(reason)


async def groups(cluster: Cluster, kinds: Iterable[Kind], namespace: str) -> tuple[Resource, ...]:
    """The pod groups of these kinds whose API is really there. One that is installed later is not seen."""
    found = []
    for resource in groups_of(kinds):
        with suppress(NotFoundError):
            await cluster.list(resource, Selection(namespace=namespace or "default"))
            found.append(resource)
    return tuple(found)


def check_gang(kinds: Iterable[Kind], word: str, found: Collection[str]) -> None:
    """The scheduler that the operator is told must be there: jobs that count on it would start pod by pod."""
    for kind in kinds:
        named = [gang for gang in kind.gangs if gang.word]
        for gang in selected_gangs(tuple(named), word) if word else ():
            if gang.api not in found:
                there = [f"{one.word} ({one.api})" for one in named if one.api in found and one.word != "*"]
                raise UsageError(
                    f"--gang-scheduler-name {word}: it needs PodGroups of {gang.api}, which are not installed"
                    + (f"; found {', '.join(there)}" if there else "")
                )


#: Says what is the matter; empty: nothing.
Check = Callable[[], str]
_Handler = Callable[[web.Request], Awaitable[web.Response]]
_TEXT = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


class HealthAddresses(Struct, frozen=True):
    """Where it is served, as `host:port`; empty or `0`: nowhere."""

    everything: str = ""
    metrics: str = ""
    probes: str = ""


class HealthSources(Struct, frozen=True):
    """Whom to ask."""

    healthy: Check
    ready: Check
    metrics: Callable[[], str]


@asynccontextmanager
async def serving(places: HealthAddresses, answers: HealthSources) -> AsyncIterator[None]:
    """Answer there until the end of the block."""
    async with AsyncExitStack() as stack:
        for address, routes in _routes(places, answers).items():
            await stack.enter_async_context(_at(address, routes))
        yield


def _routes(places: HealthAddresses, answers: HealthSources) -> dict[str, dict[str, _Handler]]:
    """What is served at each address."""
    probes = {"/healthz": _probe(answers.healthy), "/readyz": _probe(answers.ready)}
    found: dict[str, dict[str, _Handler]] = {}
    for address, routes in (
        (places.everything, {**probes, "/metrics": _metrics(answers.metrics)}),
        (places.metrics, {"/metrics": _metrics(answers.metrics)}),
        (places.probes, probes),
    ):
        if address not in ("", "0"):
            found.setdefault(address, {}).update(routes)
    return found


@asynccontextmanager
async def _at(address: str, routes: dict[str, _Handler]) -> AsyncIterator[None]:
    app = web.Application()
    app.add_routes([web.get(path, handler) for path, handler in routes.items()])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        host, port = split(address)
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise UsageError(f"{address} cannot be listened at: {error.strerror or error}") from None
        yield
    finally:
        await runner.cleanup()


def _probe(check: Check) -> _Handler:
    async def answer(_: web.Request) -> web.Response:
        wrong = check()
        return web.Response(text=f"{wrong or 'ok'}\n", status=503 if wrong else 200)

    return answer


def _metrics(metrics: Callable[[], str]) -> _Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=metrics(), headers=_TEXT)

    return answer


def split(address: str) -> tuple[str, int]:
    """`host:port`, `:port` for all addresses."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise UsageError(f"expected an address such as 127.0.0.1:8080 or :8080, found {address!r}")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - what `:port` means everywhere


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


class OperatorOptions(Struct, frozen=True, kw_only=True):
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
    places: HealthAddresses = HealthAddresses()
    #: Seconds after which an API server that does not answer at the start is given up; 0: never.
    patience: float = 0.0
    child_events: bool = False
    #: Seconds between two looks for children whose job is gone; 0: none.
    sweep: float = 300.0
    site: Site = Site()


async def operate(access: Access, options: OperatorOptions, stop: asyncio.Event) -> None:
    """Look after jobs until asked to stop. Raises TrainwrightError, also when the lease is lost: then another leads."""
    session = ApiSession(access)
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
    def __init__(self, session: ApiSession, options: OperatorOptions) -> None:
        self._options = options
        self._server = session.server
        self._clock = WallClock()
        self._telemetry = Telemetry()
        http = HttpClient(session, RequestPolicy(timeout=_TIMEOUT), count=self._telemetry.called)
        #: Does not wait for long: whoever uses it asks again.
        self._plain = KubeCluster(http.apart(RequestPolicy(timeout=_TIMEOUT, patience=1.0)))
        terms = LeaseConfig(
            key=options.lease,
            identity=options.identity,
            duration=options.lease_duration,
            renew=options.renew_deadline,
            retry=options.retry_period,
        )
        self._elector = Elector(self._plain, self._clock, terms) if options.elect else None
        limit = RateLimit(options.qps, options.burst or int(options.qps)) if options.qps else None
        self._fence = WriteFence(self._elector, _TIMEOUT, limit)
        self._cluster = KubeCluster(http.apart(RequestPolicy(timeout=_TIMEOUT, patience=_PATIENCE), gate=self._fence))
        self._controller: Controller | None = None
        #: Why it cannot work yet.
        self._waits = "it has just been started"
        self._ends = False

    async def run(self) -> None:
        options = self._options
        about = {"version": __version__, "server": self._server, "namespace": options.namespace or "all"}
        kinds = ",".join(kind.singular for kind in self._kinds())
        _LOG.info(
            LogMessage("the operator starts", **about, kinds=kinds, lease=options.lease, identity=options.identity)
        )
        async with serving(options.places, HealthSources(self._healthy, self._ready, self._telemetry.expose)):
            controller = self._controller = await self._prepared()
            await (self._elector.lead(lambda: self._work(controller)) if self._elector else self._work(controller))
        # Without a lease to lose, work ends only if it is cancelled.
        raise EngineError("the lease is lost: another operator leads now, or the API server was away for too long")

    async def wind_down(self) -> None:
        """Begin nothing new; let what is under way end, then at least what was sent."""
        _LOG.info(LogMessage("the operator ends"))
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
                _LOG.warning(LogMessage("the API server does not answer: it is waited for", error=error))
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
        settings = ControllerSettings(
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
