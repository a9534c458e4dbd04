# SPDX-License-Identifier: Apache-2.0
"""The text of a hosts file: which names stand for which address, in the forms that Kubernetes resolves. Pure.

`hosts` keeps the entries and writes the text. Rendering costs as much as there are pods and services: a service's pods
are found by the rarest of the labels that it selects.
"""

from collections import defaultdict
from collections.abc import Iterable

from msgspec import Struct

DOMAIN = "cluster.local"
_HEAD = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"

Pairs = tuple[tuple[str, str], ...]


class Host(Struct, frozen=True, gc=False):
    """A pod that has an address."""

    namespace: str
    name: str
    address: str
    labels: Pairs = ()
    hostname: str = ""
    subdomain: str = ""
    #: Services lead to it.
    ready: bool = True


class Selection(Struct, frozen=True, gc=False):
    """A service and the labels that it selects by; none selects nothing."""

    namespace: str
    name: str
    labels: Pairs = ()
    #: It also leads to pods that are not ready.
    unready: bool = False


def render(namespace: str, pods: Iterable[Host], services: Iterable[Selection]) -> str:
    """The hosts file of a namespace: bare names for its own, longer ones for all."""
    pods, services = list(pods), list(services)
    lines = [_line(pod.address, _of_pod(pod, namespace)) for pod in pods]
    index = _index(pods, {key for service in services for key, _ in service.labels})
    for service in services:
        names = _forms(service.name, service.namespace, namespace)
        lines += [_line(pod.address, names) for pod in _selected(service, index) if pod.name != service.name]
    return _HEAD + "".join(lines)


def _of_pod(pod: Host, namespace: str) -> str:
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


def _index(pods: list[Host], keys: set[str]) -> dict[tuple[str, str, str], list[Host]]:
    """Pods by namespace and each of those labels."""
    index: dict[tuple[str, str, str], list[Host]] = defaultdict(list)
    for pod in pods:
        for key, value in pod.labels:
            if key in keys:
                index[pod.namespace, key, value].append(pod)
    return index


def _selected(service: Selection, index: dict[tuple[str, str, str], list[Host]]) -> list[Host]:
    found = [index.get((service.namespace, key, value), []) for key, value in service.labels]
    if not found:
        return []
    fewest = min(found, key=len)
    wanted = set(service.labels)
    return [pod for pod in fewest if wanted.issubset(pod.labels) and (pod.ready or service.unready)]
