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


class Endpoint(Struct, frozen=True, gc=False):
    """A pod behind a service, as the cluster tells it to those who may not see the pod."""

    namespace: str
    service: str
    pod: str
    address: str
    #: Where the pod has one and the service is its subdomain.
    hostname: str = ""
    ready: bool = True


def render(
    namespace: str, pods: Iterable[Host], services: Iterable[Selection], endpoints: Iterable[Endpoint] = ()
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


def _behind(endpoints: Iterable[Endpoint]) -> Iterable[Host]:
    """Each pod of some endpoints once, though several services may lead to it."""
    found: dict[tuple[str, str], Host] = {}
    for one in endpoints:
        subdomain = one.service if one.hostname else ""
        if one.hostname or (one.namespace, one.pod) not in found:
            host = Host(one.namespace, one.pod, one.address, (), one.hostname, subdomain)
            found[one.namespace, one.pod] = host
    return found.values()


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
