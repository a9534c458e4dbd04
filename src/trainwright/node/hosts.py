# SPDX-License-Identifier: Apache-2.0
"""The text of a hosts file: which names stand for which address, in the forms that Kubernetes resolves. Pure.

`hosts` keeps the entries and writes the text. Rendering costs as much as there are pods and services: a service's pods
are found by the rarest of the labels that it selects.

One hosts file per namespace, kept up to date while pods and services come and go. Only where pods are sandboxed.

`start` asks for the file of a pod before its first container starts: by then it holds everything that was there before
the pod. Files are bound into pods, so they are rewritten in place: another file of that name would not be seen there.

A node of somebody else's cluster may not see the pods of other nodes. It learns their addresses from EndpointSlices,
which have those of all pods behind a Service: the names that Kubernetes' own DNS resolves.
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct

from trainwright.errors import ApiError, ForbiddenError
from trainwright.model.job import Body
from trainwright.model.meta import ADDRESS
from trainwright.node.settings import AgentSettings
from trainwright.node.watches import ResourceFollower
from trainwright.runtime.ports import EVERYTHING, PODS, SERVICES, Cluster, ListPage, Resource, Selection, WatchEventType

DOMAIN = "cluster.local"
_HEAD = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"

Pairs = tuple[tuple[str, str], ...]


class PodHost(Struct, frozen=True, gc=False):
    """A pod that has an address."""

    namespace: str
    name: str
    address: str
    labels: Pairs = ()
    hostname: str = ""
    subdomain: str = ""
    #: Services lead to it.
    ready: bool = True


class ServiceSelection(Struct, frozen=True, gc=False):
    """A service and the labels that it selects by; none selects nothing."""

    namespace: str
    name: str
    labels: Pairs = ()
    #: It also leads to pods that are not ready.
    unready: bool = False


class Endpoint(Struct, frozen=True, gc=False):
    """A pod behind a service, as the cluster tells it to those who may not see the pod."""

    namespace: str
    service: str
    pod: str
    address: str
    #: Where the pod has one and the service is its subdomain.
    hostname: str = ""
    ready: bool = True


def render_hosts(
    namespace: str, pods: Iterable[PodHost], services: Iterable[ServiceSelection], endpoints: Iterable[Endpoint] = ()
) -> str:
    """The hosts file of a namespace: bare names for its own, longer ones for all.

    An endpoint whose pod is among `pods` adds nothing: what is known of the pod itself is newer.
    """
    pods, services = list(pods), list(services)
    known = {(pod.namespace, pod.name) for pod in pods}
    others = [one for one in endpoints if (one.namespace, one.pod) not in known]
    lines = [_line(pod.address, _of_pod(pod, namespace)) for pod in (*pods, *_behind(others))]
    lines += [
        _line(one.address, _forms(one.service, one.namespace, namespace))
        for one in dict.fromkeys(others)
        if one.ready and one.pod != one.service
    ]
    index = _index(pods, {key for service in services for key, _ in service.labels})
    for service in services:
        names = _forms(service.name, service.namespace, namespace)
        lines += [_line(pod.address, names) for pod in _selected(service, index) if pod.name != service.name]
    return _HEAD + "".join(lines)


def _behind(endpoints: Iterable[Endpoint]) -> Iterable[PodHost]:
    """Each pod of some endpoints once, though several services may lead to it."""
    found: dict[tuple[str, str], PodHost] = {}
    for one in endpoints:
        subdomain = one.service if one.hostname else ""
        if one.hostname or (one.namespace, one.pod) not in found:
            host = PodHost(one.namespace, one.pod, one.address, (), one.hostname, subdomain)
            found[one.namespace, one.pod] = host
    return found.values()


def _of_pod(pod: PodHost, namespace: str) -> str:
    names = _forms(pod.name, pod.namespace, namespace)
    if pod.subdomain:
        names += " " + _forms(f"{pod.hostname or pod.name}.{pod.subdomain}", pod.namespace, namespace)
    if pod.hostname and pod.hostname != pod.name and pod.namespace == namespace:
        names += f" {pod.hostname}"
    return names


def _forms(name: str, namespace: str, own: str) -> str:
    longer = f"{name}.{namespace}"
    names = f"{longer} {longer}.svc {longer}.svc.{DOMAIN}"
    return f"{name} {names}" if namespace == own else names


def _line(address: str, names: str) -> str:
    return f"{address}\t{names}\n"


def _index(pods: list[PodHost], keys: set[str]) -> dict[tuple[str, str, str], list[PodHost]]:
    """Pods by namespace and each of those labels."""
    index: dict[tuple[str, str, str], list[PodHost]] = defaultdict(list)
    for pod in pods:
        for key, value in pod.labels:
            if key in keys:
                index[pod.namespace, key, value].append(pod)
    return index


def _selected(service: ServiceSelection, index: dict[tuple[str, str, str], list[PodHost]]) -> list[PodHost]:
    found = [index.get((service.namespace, key, value), []) for key, value in service.labels]
    if not found:
        return []
    fewest = min(found, key=len)
    wanted = set(service.labels)
    return [pod for pod in fewest if wanted.issubset(pod.labels) and (pod.ready or service.unready)]


#: Of so many parts of the time, one may go into writing.
_REST = 10
_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
#: The label of an EndpointSlice that says whose it is.
_SERVICE = "kubernetes.io/service-name"
_Id = tuple[str, str]


class HostsFiles:
    """The files, below `folder`."""

    def __init__(
        self, cluster: Cluster, folder: Path, settings: AgentSettings, notice: Callable[[str], None] = lambda _: None
    ) -> None:
        self._cluster = cluster
        self._folder = folder
        self._settings = settings
        self._pace = settings.pace
        self._notice = notice
        #: The addresses that this agent has given, by UID: known before the API is told.
        self._given: dict[str, str] = {}
        self._pods: dict[_Id, PodHost] = {}
        self._services: dict[_Id, ServiceSelection] = {}
        self._slices: dict[_Id, tuple[Endpoint, ...]] = {}
        #: How far what is known of the services goes, and of the pods.
        self._version = 0
        self._seen = 0
        self._told: asyncio.Future[None] | None = None
        self._texts: dict[str, str] = {}
        #: How many changes there were, and how many of them are written.
        self._changes = 0
        self._written = 0
        #: Not before: a turn that took long is followed by a rest that is longer.
        self._next_at = 0.0
        self._turn: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to follow pods and services."""
        self._folder.mkdir(parents=True, exist_ok=True)
        kubelet = self._settings.kubelet
        scope = Selection(fields=f"spec.nodeName={self._settings.node}") if kubelet else EVERYTHING
        pods = ResourceFollower(self._cluster, PODS.whole(), scope, self._pace)
        services = ResourceFollower(self._cluster, SERVICES.whole(), EVERYTHING, self._pace)
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(pods.run(self._pods_listed, self._pod_changed)))
        self._tasks.append(loop.create_task(services.run(self._services_listed, self._service_changed)))
        if kubelet:
            slices = ResourceFollower(self._cluster, _SLICES, EVERYTHING, self._pace)
            slices.forbidden = self._unnamed
            self._tasks.append(loop.create_task(slices.run(self._slices_listed, self._slice_changed)))

    def _unnamed(self, error: ForbiddenError) -> None:
        self._notice(
            f"names of pods on other nodes are not known to pods of this one: {error};"
            " `trainwright manifests --nodes` prints the right that is missing"
        )

    async def close(self) -> None:
        """Follow no more; the files stay as they are."""
        tasks = [*self._tasks, *([self._turn] if self._turn is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def settled(self, pod: Body, given: str = "") -> str:
        """The path of the pod's hosts file, once that holds all that was made before the pod came here.

        `given` is the pod's address, where that is not written on it.
        """
        meta = pod["metadata"]
        if given:
            self._given[meta["uid"]] = given
        namespace = meta.get("namespace", "")
        self._add_pod(pod)
        if namespace not in self._texts:
            self._texts[namespace] = ""
            self._changes += 1
        needed = int(meta.get("resourceVersion") or 0)
        while self._seen < needed:
            await asyncio.shield(self._more())
        changes = self._changes
        while self._written < changes or self._version < needed:
            await asyncio.shield(self._next(needed))
        return str(self._folder / namespace)

    def left(self, uid: str) -> None:
        """A pod that was given an address has it no more."""
        self._given.pop(uid, None)

    def _next(self, needed: int = 0) -> "asyncio.Task[None]":
        """The turn that is coming: changes within a few milliseconds are one."""
        if self._turn is None or self._turn.done():
            self._turn = asyncio.get_running_loop().create_task(self._write(needed))
            self._turn.add_done_callback(lambda turn: turn.cancelled() or turn.exception())
        return self._turn

    def _more(self) -> "asyncio.Future[None]":
        """Done when the watch of the pods tells something."""
        if self._told is None:
            self._told = asyncio.get_running_loop().create_future()
        return self._told

    def _reached(self, version: str) -> None:
        self._seen = max(self._seen, int(version or 0))
        told, self._told = self._told, None
        if told is not None:
            told.set_result(None)

    async def _write(self, needed: int) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._next_at - loop.time()))
        if self._version < needed:
            await self._catch_up()
        changes = self._changes
        begun = loop.time()
        endpoints = [one for some in self._slices.values() for one in some]
        for namespace, before in self._texts.items():
            text = render_hosts(namespace, self._pods.values(), self._services.values(), endpoints)
            if text != before:
                rewrite(self._folder / namespace, text)
                self._texts[namespace] = text
        self._written = changes
        self._next_at = loop.time() + max(self._pace.debounce, _REST * (loop.time() - begun))

    async def _catch_up(self) -> None:
        """The watch of the services may be behind, or have nothing to tell: then only a list knows."""
        try:
            self._services_listed(await self._cluster.list(SERVICES.whole()))
        except ApiError as error:
            await asyncio.sleep(error.retry_after or self._pace.unavailable)

    def _pods_listed(self, page: ListPage) -> None:
        self._pods = {}
        for pod in page.items:
            self._add_pod(pod)
        self._reached(page.version)
        self._touch()

    def _pod_changed(self, what: WatchEventType, pod: Body, version: str) -> None:
        self._reached(version)
        if what is not WatchEventType.DELETED:
            self._add_pod(pod)
        elif self._pods.pop(_id(pod), None) is not None:
            self._touch()

    def _add_pod(self, pod: Body) -> None:
        meta, spec = pod["metadata"], pod.get("spec") or {}
        where = _id(pod)
        address, ready = self._standing(pod)
        if not address:
            if self._pods.pop(where, None) is not None:
                self._touch()
            return
        labels = tuple((meta.get("labels") or {}).items())
        host = PodHost(*where, address, labels, spec.get("hostname") or "", spec.get("subdomain") or "", ready)
        if self._pods.get(where) != host:
            self._pods[where] = host
            self._touch()

    def _standing(self, pod: Body) -> tuple[str, bool]:
        """A pod's address, if it has one, and whether services lead to it.

        On an engine of our own it was reserved before the pod began, and names must not wait for more.
        """
        meta, status = pod["metadata"], pod.get("status") or {}
        if not self._settings.kubelet:
            reserved = (meta.get("annotations") or {}).get(ADDRESS)
            return ("" if (pod.get("spec") or {}).get("hostNetwork") else reserved or ""), True
        if status.get("phase") in ("Succeeded", "Failed"):
            return "", False
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())
        return self._given.get(meta.get("uid", "")) or status.get("podIP") or "", ready

    def _services_listed(self, page: ListPage) -> None:
        version = int(page.version or 0)
        if version < self._version:
            return
        found = {_id(service): _selection(service) for service in page.items}
        changed, self._services, self._version = found != self._services, found, version
        if changed:
            self._touch()

    def _service_changed(self, what: WatchEventType, service: Body, version: str) -> None:
        if int(version) <= self._version:
            return
        self._version = int(version)
        if what is WatchEventType.DELETED:
            self._services.pop(_id(service), None)
        else:
            self._services[_id(service)] = _selection(service)
        self._touch()

    def _slices_listed(self, page: ListPage) -> None:
        found = {_id(one): _endpoints(one) for one in page.items}
        if found != self._slices:
            self._slices = found
            self._touch()

    def _slice_changed(self, what: WatchEventType, one: Body, version: str) -> None:  # noqa: ARG002 - the watch passes it
        found = () if what is WatchEventType.DELETED else _endpoints(one)
        if self._slices.get(_id(one), ()) != found:
            self._slices[_id(one)] = found
            self._touch()
        if not found:
            self._slices.pop(_id(one), None)

    def _touch(self) -> None:
        self._changes += 1
        if self._texts:
            self._next()


def rewrite(path: Path, text: str) -> None:
    """Put the text into the file as it is, without a moment at which the file is empty."""
    data = text.encode()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)


def _id(item: Body) -> _Id:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _selection(service: Body) -> ServiceSelection:
    spec = service.get("spec") or {}
    unready = bool(spec.get("publishNotReadyAddresses"))
    return ServiceSelection(*_id(service), tuple((spec.get("selector") or {}).items()), unready)


def _endpoints(one: Body) -> tuple[Endpoint, ...]:
    """The pods of an EndpointSlice."""
    meta = one["metadata"]
    service = (meta.get("labels") or {}).get(_SERVICE)
    if not service or one.get("addressType") == "FQDN":
        return ()
    namespace, found = meta.get("namespace", ""), []
    for endpoint in one.get("endpoints") or ():
        target = endpoint.get("targetRef") or {}
        if target.get("kind") == "Pod" and endpoint.get("addresses"):
            ready = (endpoint.get("conditions") or {}).get("ready") is not False
            address, hostname = endpoint["addresses"][0], endpoint.get("hostname") or ""
            found.append(Endpoint(namespace, service, target["name"], address, hostname, ready))
    return tuple(found)
