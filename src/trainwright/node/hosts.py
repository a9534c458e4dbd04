# SPDX-License-Identifier: Apache-2.0
"""The hosts files of sandboxed pods: one per namespace, updated when pods and services change.

When the first container of a pod starts, the hosts file has all names that existed before the pod was created. The
files are bind-mounted into pods, so the agent rewrites them in place: a pod would not see a new file of the same name.

An agent that replaces a kubelet must not read the pods of other nodes. It reads the addresses of these pods from
EndpointSlices, which list all pods of a Service. So, as in DNS, a pod of another node has a name only if a Service
includes the pod.
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from trainwright.errors import ApiError
from trainwright.model.job import Body
from trainwright.model.meta import ADDRESS, Key
from trainwright.node.settings import AgentSettings
from trainwright.node.watches import ResourceFollower, end_tasks, object_key
from trainwright.runtime.ports import EVERYTHING, PODS, SERVICES, Cluster, ListPage, Resource, Selection, WatchEventType

DOMAIN = "cluster.local"
_LOCALHOST_LINES = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"

T = TypeVar("T")
Pairs = tuple[tuple[str, str], ...]


class PodHost(Struct, frozen=True, gc=False):
    """A pod that has an address."""

    namespace: str
    name: str
    address: str
    labels: Pairs = ()
    hostname: str = ""
    subdomain: str = ""
    #: Whether the pod is ready. If not, only services with `includes_unready` include the pod.
    ready: bool = True


class ServiceSelection(Struct, frozen=True, gc=False):
    """A service and the labels of its selector. A service without labels selects no pod."""

    namespace: str
    name: str
    labels: Pairs = ()
    #: Whether the service includes pods that are not ready (publishNotReadyAddresses).
    includes_unready: bool = False


class Endpoint(Struct, frozen=True, gc=False):
    """A pod of a service, from an EndpointSlice."""

    namespace: str
    service: str
    pod: str
    address: str
    #: The pod's `spec.hostname`; empty if this service is not the pod's `spec.subdomain`.
    hostname: str = ""
    ready: bool = True


def render_hosts(
    namespace: str, pods: Iterable[PodHost], services: Iterable[ServiceSelection], endpoints: Iterable[Endpoint] = ()
) -> str:
    """The text of the hosts file of a namespace. Only pods and services of this namespace have a short name.

    An endpoint whose pod is in `pods` is ignored, since the data in `pods` is newer.
    """
    pods, services = list(pods), list(services)
    known = {(pod.namespace, pod.name) for pod in pods}
    others = [one for one in endpoints if (one.namespace, one.pod) not in known]
    lines = [(pod.address, _pod_names(pod, namespace)) for pod in (*pods, *_pods_of(others))]
    lines += [
        (one.address, _name_forms(one.service, one.namespace, namespace))
        for one in dict.fromkeys(others)
        if one.ready and one.pod != one.service
    ]
    index = _index(pods, {key for service in services for key, _ in service.labels})
    for service in services:
        names = _name_forms(service.name, service.namespace, namespace)
        lines += [(pod.address, names) for pod in _selected(service, index) if pod.name != service.name]
    return _LOCALHOST_LINES + "".join([f"{address}\t{names}\n" for address, names in lines])


def _pods_of(endpoints: Iterable[Endpoint]) -> Iterable[PodHost]:
    """Each pod of the endpoints once; several services may include the same pod."""
    found: dict[tuple[str, str], PodHost] = {}
    for one in endpoints:
        subdomain = one.service if one.hostname else ""
        if one.hostname or (one.namespace, one.pod) not in found:
            host = PodHost(one.namespace, one.pod, one.address, (), one.hostname, subdomain)
            found[one.namespace, one.pod] = host
    return found.values()


def _pod_names(pod: PodHost, namespace: str) -> str:
    names = _name_forms(pod.name, pod.namespace, namespace)
    if pod.subdomain:
        names += " " + _name_forms(f"{pod.hostname or pod.name}.{pod.subdomain}", pod.namespace, namespace)
    if pod.hostname and pod.hostname != pod.name and pod.namespace == namespace:
        names += f" {pod.hostname}"
    return names


def _name_forms(name: str, namespace: str, own: str) -> str:
    longer = f"{name}.{namespace}"
    names = f"{longer} {longer}.svc {longer}.svc.{DOMAIN}"
    return f"{name} {names}" if namespace == own else names


def _index(pods: list[PodHost], keys: set[str]) -> dict[tuple[str, str, str], list[PodHost]]:
    """The pods by namespace, label key and label value. Labels whose key is not in `keys` are left out."""
    index: dict[tuple[str, str, str], list[PodHost]] = defaultdict(list)
    for pod in pods:
        for key, value in pod.labels:
            if key in keys:
                index[pod.namespace, key, value].append(pod)
    return index


def _selected(service: ServiceSelection, index: dict[tuple[str, str, str], list[PodHost]]) -> list[PodHost]:
    """The pods of a service. Only pods with the service's rarest label are checked, to keep the cost linear."""
    found = [index.get((service.namespace, key, value), []) for key, value in service.labels]
    fewest = min(found, key=len, default=[])
    wanted = set(service.labels)
    return [pod for pod in fewest if wanted.issubset(pod.labels) and (pod.ready or service.includes_unready)]


#: The pause after a write is this number times the duration of the write, so writes take less than 1/10 of the time.
_MAX_BUSY_DIVISOR = 10
_ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
#: The label of an EndpointSlice with the name of its service.
_SERVICE_LABEL = "kubernetes.io/service-name"


class HostsFiles:
    """The hosts files of all namespaces, in `folder`. `notify` receives messages for the user."""

    def __init__(
        self, cluster: Cluster, folder: Path, settings: AgentSettings, notify: Callable[[str], None] = lambda _: None
    ) -> None:
        self._cluster = cluster
        self._folder = folder
        self._settings = settings
        self._notify = notify
        #: The addresses that this agent has assigned, by pod UID. The status of the pod gets its address later.
        self.assigned: dict[str, str] = {}
        self._pods: dict[Key, PodHost] = {}
        self._services: dict[Key, ServiceSelection] = {}
        self._slices: dict[Key, tuple[Endpoint, ...]] = {}
        #: The newest resource version that this agent has received for services, and for pods.
        self._services_version = 0
        self._pods_version = 0
        self._pods_progress = asyncio.Event()
        self._texts: dict[str, str] = {}
        #: The namespaces whose files exist already, and are written when everything is listed.
        self._followed: set[str] = set()
        #: The number of changes so far, and how many of these changes are in the files.
        self._changes = 0
        self._written = 0
        #: The earliest time of the next write, by the event loop's clock.
        self._next_write_at = 0.0
        self._write_task: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to watch pods and services."""
        self._folder.mkdir(parents=True, exist_ok=True)
        kubelet = self._settings.kubelet
        scope = Selection(fields=f"spec.nodeName={self._settings.node}") if kubelet else EVERYTHING
        pods = ResourceFollower(self._cluster, PODS.whole(), scope, self._settings.delays)
        services = ResourceFollower(self._cluster, SERVICES.whole(), EVERYTHING, self._settings.delays)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(pods.run(self._pods_listed, self._pod_changed)),
            loop.create_task(services.run(self._services_listed, self._service_changed)),
        ]
        if kubelet:
            slices = ResourceFollower(self._cluster, _ENDPOINT_SLICES, EVERYTHING, self._settings.delays)
            slices.on_forbidden = lambda error: self._notify(
                f"pods of this node cannot resolve the names of pods on other nodes: {error};"
                " `trainwright manifests --nodes` prints the missing permission"
            )
            self._tasks.append(loop.create_task(slices.run(self._slices_listed, self._slice_changed)))

    async def close(self) -> None:
        """Stop watching; the files stay as they are."""
        await end_tasks(*self._tasks, self._write_task)

    def follow(self, namespace: str) -> None:
        """Keep the file of a namespace up to date for pods that an earlier agent has started."""
        self._followed.add(namespace)
        self._follow_listed()

    def _follow_listed(self) -> None:
        """Begin to write followed files when all pods and services are known: a file must not lose names meanwhile."""
        if self._pods_version and self._services_version:
            for namespace in self._followed - self._texts.keys():
                self._texts[namespace] = ""
                self._mark_changed()
            self._followed.clear()

    async def file_for(self, pod: Body, address: str = "") -> str:
        """Wait until the hosts file has every name that existed when this version of the pod was written.

        Returns the path of the file. `address` is the pod's address, if the pod object does not have it.
        """
        meta = pod["metadata"]
        if address:
            self.assigned[meta["uid"]] = address
        namespace = meta.get("namespace", "")
        self._add_pod(pod)
        if namespace not in self._texts:
            self._texts[namespace] = ""
            self._changes += 1
        needed = int(meta.get("resourceVersion") or 0)
        while self._pods_version < needed:
            await self._pods_progress.wait()
        changes = self._changes
        while self._written < changes or self._services_version < needed:
            await asyncio.shield(self._scheduled_write(needed))
        return str(self._folder / namespace)

    def _scheduled_write(self, needed: int = 0) -> "asyncio.Task[None]":
        """The task that writes the files next. Changes within a few milliseconds become one write."""
        if self._write_task is None or self._write_task.done():
            self._write_task = asyncio.get_running_loop().create_task(self._write(needed))
            self._write_task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._write_task

    def _set_pods_version(self, version: str) -> None:
        self._pods_version = max(self._pods_version, int(version or 0))
        self._pods_progress.set()
        self._pods_progress.clear()

    async def _write(self, needed: int) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._next_write_at - loop.time()))
        if self._services_version < needed:
            await self._list_services()
        changes = self._changes
        begun = loop.time()
        endpoints = [one for some in self._slices.values() for one in some]
        for namespace, before in self._texts.items():
            text = render_hosts(namespace, self._pods.values(), self._services.values(), endpoints)
            if text != before:
                rewrite(self._folder / namespace, text)
                self._texts[namespace] = text
        self._written = changes
        pause = max(self._settings.delays.debounce, _MAX_BUSY_DIVISOR * (loop.time() - begun))
        self._next_write_at = loop.time() + pause

    async def _list_services(self) -> None:
        """List the services to get their newest resource version. The watch sends it only when a service changes."""
        try:
            self._services_listed(await self._cluster.list(SERVICES.whole()))
        except ApiError as error:
            await asyncio.sleep(error.retry_after or self._settings.delays.api_retry)

    def _pods_listed(self, page: ListPage) -> None:
        self._pods = {}
        for pod in page.items:
            self._add_pod(pod)
        self._set_pods_version(page.version)
        self._mark_changed()
        self._follow_listed()

    def _pod_changed(self, event: WatchEventType, pod: Body, version: str) -> None:
        self._set_pods_version(version)
        if event is not WatchEventType.DELETED:
            self._add_pod(pod)
        else:
            self._set(self._pods, object_key(pod), None)

    def _add_pod(self, pod: Body) -> None:
        key, spec = object_key(pod), pod.get("spec") or {}
        address, ready = self._address_and_ready(pod)
        labels = tuple((pod["metadata"].get("labels") or {}).items())
        names = spec.get("hostname") or "", spec.get("subdomain") or ""
        host = PodHost(key.namespace, key.name, address, labels, *names, ready) if address else None
        self._set(self._pods, key, host)

    def _address_and_ready(self, pod: Body) -> tuple[str, bool]:
        """A pod's address (empty: no address), and whether the pod is ready.

        In the embedded engine the address is reserved before the pod starts, and every pod counts as ready here. So the
        names of a pod resolve even before the pod starts.
        """
        meta, status = pod["metadata"], pod.get("status") or {}
        if not self._settings.kubelet:
            reserved = (meta.get("annotations") or {}).get(ADDRESS)
            return ("" if (pod.get("spec") or {}).get("hostNetwork") else reserved or ""), True
        if status.get("phase") in ("Succeeded", "Failed"):
            return "", False
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())
        return self.assigned.get(meta.get("uid", "")) or status.get("podIP") or "", ready

    def _services_listed(self, page: ListPage) -> None:
        version = int(page.version or 0)
        if version < self._services_version:
            return
        found = {object_key(service): _selection(service) for service in page.items}
        changed, self._services, self._services_version = found != self._services, found, version
        if changed:
            self._mark_changed()
        self._follow_listed()

    def _service_changed(self, event: WatchEventType, service: Body, version: str) -> None:
        if int(version) <= self._services_version:
            return
        self._services_version = int(version)
        found = None if event is WatchEventType.DELETED else _selection(service)
        self._set(self._services, object_key(service), found)

    def _slices_listed(self, page: ListPage) -> None:
        found = {object_key(one): _endpoints(one) for one in page.items}
        if found != self._slices:
            self._slices = found
            self._mark_changed()

    def _slice_changed(self, event: WatchEventType, one: Body, version: str) -> None:  # noqa: ARG002 - see `Changed`
        found = () if event is WatchEventType.DELETED else _endpoints(one)
        self._set(self._slices, object_key(one), found or None)

    def _set(self, table: dict[Key, T], key: Key, value: T | None) -> None:
        """Set an entry or, with None, remove the entry. If the entry has changed, plan a write of the files."""
        if table.get(key) != value:
            if value is None:
                del table[key]
            else:
                table[key] = value
            self._mark_changed()

    def _mark_changed(self) -> None:
        self._changes += 1
        if self._texts:
            self._scheduled_write()


def rewrite(path: Path, text: str) -> None:
    """Overwrite the file in place, so that it is never empty for a reader."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b", buffering=0) as file:
        file.write(text.encode())
        file.truncate()


def _selection(service: Body) -> ServiceSelection:
    spec = service.get("spec") or {}
    includes_unready = bool(spec.get("publishNotReadyAddresses"))
    key, labels = object_key(service), tuple((spec.get("selector") or {}).items())
    return ServiceSelection(key.namespace, key.name, labels, includes_unready)


def _endpoints(one: Body) -> tuple[Endpoint, ...]:
    """The pods of an EndpointSlice."""
    meta = one["metadata"]
    service = (meta.get("labels") or {}).get(_SERVICE_LABEL)
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
