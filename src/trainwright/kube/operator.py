# SPDX-License-Identifier: Apache-2.0
"""The operator: it runs the controller of `runtime` on a cluster while it is the leader, and serves health checks.

The operator first serves health checks and waits until the API server answers. It checks that the installed CRDs have
all status fields that the operator writes. It waits for the lease, then runs the controller. When the operator is
asked to stop, it waits for the current passes and releases the lease.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable
from contextlib import suppress

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
from trainwright.kube.health import HealthAddresses, serve_health
from trainwright.kube.http import HttpClient, RateLimit, RequestPolicy, WriteFence
from trainwright.kube.session import ApiSession
from trainwright.model.job import selected_gangs
from trainwright.model.meta import Key
from trainwright.model.site import Site
from trainwright.runtime.controller import Controller
from trainwright.runtime.election import Elector, LeaseConfig
from trainwright.runtime.ports import (
    DEFINITIONS,
    Cluster,
    Registry,
    Resource,
    Selection,
    WallClock,
    autoscalers_of,
    groups_of,
)
from trainwright.runtime.settings import ControllerSettings
from trainwright.runtime.telemetry import LogMessage, Telemetry

_LOG = logging.getLogger(__name__)
#: Timeout of one request. The operator sends a write only if its lease lasts longer than this.
_TIMEOUT_SECONDS = 5.0
#: Seconds for which a request of the controller is retried. This time is short, because a waiting request blocks a
#: worker, and the controller repeats a failed pass in any case.
_RETRY_SECONDS = 2.0
#: At the start, the operator tries to reach the API server. The pause between tries doubles from the first value up to
#: the second value.
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 15.0
#: When the operator stops, current passes can still write for this many seconds.
_DRAIN_SECONDS = 3.0
#: If an operator still leads this many seconds after its lease expired, it is stuck, and its health check fails.
_STUCK_SECONDS = 20.0
_INSTALL = "`trainwright crds | kubectl apply --server-side -f -`"


class OperatorOptions(ControllerSettings, frozen=True, kw_only=True):
    """The settings of the controller and the options of the operator. Times are in seconds."""

    lease: Key
    identity: str
    elect: bool = True
    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0
    #: Requests per second; 0 means no limit.
    qps: float = 0.0
    burst: int = 0
    addresses: HealthAddresses = HealthAddresses()
    #: Seconds to wait at the start for an API server that does not answer; 0 means for ever.
    connect_timeout: float = 0.0
    orphan_period: float = 300.0
    site: Site = Site()


async def operate(access: Access, options: OperatorOptions, stop: asyncio.Event) -> None:
    """Run the operator until `stop` is set. Raises TrainwrightError after a failure or after the lease is lost."""
    session = ApiSession(access)
    operator = _Operator(session, options)
    running, stopping = asyncio.create_task(operator.run()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            await operator.wind_down()
    finally:
        running.cancel()
        stopping.cancel()
        await asyncio.gather(running, stopping, return_exceptions=True)
        await session.close()
    if not running.cancelled():
        running.result()


class _Operator:
    def __init__(self, session: ApiSession, options: OperatorOptions) -> None:
        self._options = options
        self._server = session.server
        self._clock = WallClock()
        self._telemetry = Telemetry()
        self._kinds = [kind for kind in KINDS if options.kinds is None or kind.id in options.kinds]
        #: The client for the checks at the start and for the lease. It uses no write fence. It retries for only
        #: one second, because its callers retry too.
        policy = RequestPolicy(timeout=_TIMEOUT_SECONDS, retry_seconds=1.0)
        self._unfenced = KubeCluster(HttpClient(session, policy, observer=self._telemetry.called))
        lease = LeaseConfig(
            key=options.lease,
            identity=options.identity,
            duration=options.lease_duration,
            renew=options.renew_deadline,
            retry=options.retry_period,
        )
        self._elector = Elector(self._unfenced, self._clock, lease) if options.elect else None
        limit = RateLimit(options.qps, options.burst or int(options.qps)) if options.qps else None
        self._fence = WriteFence(self._elector, _TIMEOUT_SECONDS, limit)
        policy = RequestPolicy(timeout=_TIMEOUT_SECONDS, retry_seconds=_RETRY_SECONDS)
        self._cluster = KubeCluster(HttpClient(session, policy, fence=self._fence, observer=self._telemetry.called))
        self._controller: Controller | None = None
        #: The reason why the operator cannot work yet; empty when it can work.
        self._not_prepared = "it has just been started"
        self._is_ending = False

    async def run(self) -> None:
        options = self._options
        about = {"version": __version__, "server": self._server, "namespace": options.namespace or "all"}
        kinds = ",".join(kind.id for kind in self._kinds)
        _LOG.info(
            LogMessage("the operator starts", **about, kinds=kinds, lease=options.lease, identity=options.identity)
        )
        async with serve_health(options.addresses, self._healthy, self._ready, self._telemetry.expose):
            controller = self._controller = await self._prepare()
            await (self._elector.lead(lambda: self._work(controller)) if self._elector else self._work(controller))
        # The code comes here only if the lease is lost. Without leader election, `_work` always ends with an exception.
        raise EngineError("the lease is lost: another operator leads now, or the API server was away for too long")

    async def wind_down(self) -> None:
        """Begin no new pass and wait for current passes. If these take too long, refuse new writes and wait again."""
        _LOG.info(LogMessage("the operator ends"))
        self._is_ending = True
        controller = self._controller
        if controller is not None and not await controller.drain(_DRAIN_SECONDS):
            self._fence.close()
            await controller.drain(_TIMEOUT_SECONDS)

    def _healthy(self) -> str:
        if self._controller is not None and self._controller.broken:
            return "a part of the controller has ended"
        elector, limit = self._elector, self._options.lease_duration + _STUCK_SECONDS
        if self._telemetry.leads and elector is not None and elector.unseen > limit:
            return f"the lease was last renewed {elector.unseen:.0f} s ago, and this operator still holds on to it"
        return ""

    def _ready(self) -> str:
        if self._is_ending or self._not_prepared:
            return "it ends" if self._is_ending else self._not_prepared
        if self._telemetry.leads:
            synced = self._controller is not None and self._controller.synced
            return "" if synced else "it leads, and has not listed everything yet"
        elector = self._elector
        if elector is None or elector.unseen > self._options.renew_deadline + self._options.retry_period:
            return "it stands by, and cannot reach the lease"
        return ""

    async def _prepare(self) -> Controller:
        """Wait until the API server answers, then create the controller."""
        loop, timeout, pause = asyncio.get_running_loop(), self._options.connect_timeout, _FIRST_PAUSE_SECONDS
        began = loop.time()
        while True:
            try:
                return await self._new_controller()
            except UntrustedError:
                raise
            except (UnavailableError, TooManyRequestsError) as error:
                self._not_prepared = f"it waits for the API server: {error}"
                if timeout and loop.time() + pause - began > timeout:
                    raise
                _LOG.warning(LogMessage("the API server does not answer; the operator waits for it", error=error))
            await asyncio.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)

    async def _new_controller(self) -> Controller:
        options = self._options
        for kind in self._kinds:
            await check_definition(self._unfenced, kind)
        pod_groups = await installed_pod_groups(self._unfenced, self._kinds, options.namespace)
        gang_apis = frozenset(resource.api_version for resource in pod_groups)
        check_gang_scheduler(self._kinds, options.site.gang_scheduler, gang_apis)
        settings = replace(options, extras=(*pod_groups, *autoscalers_of(self._kinds)))
        site, self._not_prepared = replace(options.site, gangs=gang_apis), ""
        registry = _registry(site.elastic_server) if site.elastic_server else None
        return Controller(self._cluster, self._clock, lambda _job: site, settings, self._telemetry, registry)

    async def _work(self, controller: Controller) -> None:
        self._telemetry.leads = True
        try:
            await controller.run()
        except ExceptionGroup as group:
            # The first exception is the cause; the other tasks were cancelled because of it.
            raise group.exceptions[0] from None
        finally:
            self._telemetry.leads = False


def _registry(servers: str) -> Registry:
    from trainwright.kube.etcd import Etcd  # noqa: PLC0415 - imports aiohttp, which needs 14 MiB

    return Etcd(servers)


# -- checks at the start -----------------------------------------------------------------------------------------------


async def check_definition(cluster: Cluster, kind: Kind) -> None:
    """Refuse a CRD without the fields of the ledger: API servers would drop the ledger, and jobs would start again."""
    name = f"{kind.plural}.{kind.group}"
    try:
        definition = await cluster.get(DEFINITIONS, Key("", name))
    except NotFoundError:
        raise UsageError(f"{name} is not installed; {_INSTALL} does that") from None
    if reason := unusable(kind, definition):
        raise UsageError(reason)


async def installed_pod_groups(cluster: Cluster, kinds: Iterable[Kind], namespace: str) -> tuple[Resource, ...]:
    """The pod group APIs of these kinds that are installed now. The operator does not see later installations."""
    found = []
    for resource in groups_of(kinds):
        with suppress(NotFoundError):
            await cluster.list(resource, Selection(namespace=namespace or "default"))
            found.append(resource)
    return tuple(found)


def check_gang_scheduler(kinds: Iterable[Kind], scheduler: str, gang_apis: Collection[str]) -> None:
    """Refuse a gang scheduler whose API is not installed: the pods of a job would start one by one, not as a gang."""
    for kind in kinds:
        named = [gang for gang in kind.gangs if gang.word]
        for gang in selected_gangs(tuple(named), scheduler) if scheduler else ():
            if gang.api not in gang_apis:
                usable = [f"{one.word} ({one.api})" for one in named if one.api in gang_apis and one.word != "*"]
                raise UsageError(
                    f"--gang-scheduler-name {scheduler}: it needs PodGroups of {gang.api}, which are not installed"
                    + (f"; found {', '.join(usable)}" if usable else "")
                )
