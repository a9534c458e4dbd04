# SPDX-License-Identifier: Apache-2.0
"""The resources we read and write, as values. Used wherever a `Cluster` is asked for something."""

from collections.abc import Iterable

from msgspec.structs import replace

from trainwright.kinds.base import Kind
from trainwright.kinds.gangs import T9K_GROUP, T9K_VERSION
from trainwright.kinds.registry import KINDS
from trainwright.model.child import ConfigMap, Event, Extra, Lease, Node, Pod, Service
from trainwright.runtime.ports import Resource

PODS = Resource("", "v1", "pods", "Pod", Pod)
SERVICES = Resource("", "v1", "services", "Service", Service)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", ConfigMap)
SECRETS = Resource("", "v1", "secrets", "Secret")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
EVENTS = Resource("", "v1", "events", "Event", Event)
NODES = Resource("", "v1", "nodes", "Node", Node, namespaced=False)
#: Read by the operator alone, to see that what it writes will be kept.
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", Lease)
#: Of the gang scheduler that the embedded engine has.
POD_GROUPS = Resource(T9K_GROUP, T9K_VERSION, "podgroups", "PodGroup", Extra)
#: Which host, and which ports, stand for a replica's name where names do not resolve: `local.network.addresses`.
ADDRESSES = Resource("trainwright.dev", "v1", "addresses", "Address")


def jobs_of(kind: Kind) -> Resource:
    """The resource of a kind; its objects are read whole, by `kinds.base.load`."""
    return Resource(kind.group, kind.version, kind.plural, kind.name)


JOBS: dict[str, Resource] = {kind.singular: jobs_of(kind) for kind in KINDS}
RESOURCES: tuple[Resource, ...] = (
    PODS,
    SERVICES,
    CONFIG_MAPS,
    SECRETS,
    CLAIMS,
    EVENTS,
    NODES,
    LEASES,
    POD_GROUPS,
    ADDRESSES,
    *JOBS.values(),
)
BY_ID = {resource.id: resource for resource in RESOURCES}


def groups_of(kinds: Iterable[Kind]) -> tuple[Resource, ...]:
    """The pod groups of every gang that jobs of these kinds may be, in whichever API."""
    apis = dict.fromkeys(tuple(gang.api.split("/")) for kind in kinds for gang in kind.gangs)
    return tuple(replace(POD_GROUPS, group=group, version=version) for group, version in apis)
