# SPDX-License-Identifier: Apache-2.0
"""Who an object is: keys, owners, the metadata we read, and the names of our own labels.

Used by every other module of `model`; the labels are written by `core.render` and read by `core.observe`.
"""

from datetime import datetime

from msgspec import Struct

PREFIX = "trainwright.dev"
KIND = f"{PREFIX}/kind"
JOB_UID = f"{PREFIX}/job-uid"
ROLE = f"{PREFIX}/role"
INDEX = f"{PREFIX}/index"
ATTEMPT = f"{PREFIX}/attempt"
#: In place of the attempt: the pod is no replica, it holds a place for one that may come.
SPARE = "spare"
#: Annotation on pods of the embedded engine: the address that was reserved for their name.
ADDRESS = f"{PREFIX}/address"
#: What the id of a container begins with that our own supervisor ran: its end is known exactly.
CONTAINER_SCHEME = "trainwright://"
#: Annotation on pods of the embedded engine: the devices that they were given, as JSON: ids by resource name.
DEVICES = f"{PREFIX}/devices"
#: Annotation on children that are kept in step: what they were last made from.
DIGEST = f"{PREFIX}/digest"
#: Annotation on a ConfigMap that pods wait for: the attempt at the whole job that it speaks of.
WORLD = f"{PREFIX}/world"
#: On the same: a print of each pod's address, in the order of roles and indexes.
ADDRESS_HASHES = f"{PREFIX}/places"
#: Annotation on a job, `true`: it is handed over to us, although another controller wrote its status.
ADOPT = f"{PREFIX}/adopt"


class Wire(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Base of everything that is decoded from or written to an API server.

    Frozen and invisible to the garbage collector: decoded trees hold no cycles, and 40,000 must not cost a pause.
    """


class Key(Struct, frozen=True, gc=False, order=True):
    """Namespace and name, the way queues and caches address a job."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def replica_prefix(self, role: str) -> str:
        """What the names of all replicas of a role of this job begin with; the index follows."""
        return f"{self.name}-{role.lower()}-"

    def replica_name(self, role: str, index: int) -> str:
        """The name of a replica's pod and of its service, in every kind."""
        return f"{self.replica_prefix(role)}{index}"


class Owner(Wire, frozen=True, gc=False):
    """One ownerReference."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class Meta(Wire, frozen=True, gc=False):
    """The metadata of a child, narrow: no annotations, no managedFields."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    owner_references: tuple[Owner, ...] | None = None
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None

    @property
    def controller(self) -> Owner | None:
        """The one owner that controls this object, if any."""
        return next((owner for owner in self.owner_references or () if owner.controller), None)


class ObjectMeta(Meta, frozen=True, gc=False):
    """The metadata of a job, or of a child whose annotations we read."""

    generation: int = 0
    annotations: dict[str, str] | None = None
    finalizers: tuple[str, ...] | None = None
