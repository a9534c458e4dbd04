# SPDX-License-Identifier: Apache-2.0
"""Identity of objects: keys, owners, the metadata that we read, and the names of our labels and annotations."""

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct

PREFIX = "trainwright.dev"
KIND = f"{PREFIX}/kind"
JOB_UID = f"{PREFIX}/job-uid"
ROLE = f"{PREFIX}/role"
INDEX = f"{PREFIX}/index"
ATTEMPT = f"{PREFIX}/attempt"
#: Value of the attempt label of a spare: not a replica, but a pod that reserves a node for a replica.
SPARE = "spare"
#: Annotation on pods of the embedded engine: the address that was reserved for their name.
ADDRESS = f"{PREFIX}/address"
#: Prefix of the ids of containers that our own supervisor runs. The supervisor reports both exit codes and signals.
CONTAINER_SCHEME = "trainwright://"
#: Annotation on pods of the embedded engine: their devices, as JSON (ids by resource name).
DEVICES = f"{PREFIX}/devices"
#: Annotation on jobs and pods of the background engine: the id of the run, which is the name of the job's folder.
RUN = f"{PREFIX}/run"
#: Annotation on children of the whole job: a hash of the body with which the child was last written.
DIGEST = f"{PREFIX}/digest"
#: Annotation on a gate: the hash of the job's attempt (`Job.world`) to which the gate belongs.
WORLD = f"{PREFIX}/world"
#: Annotation on a gate: a hash of each pod's address, in the order of roles and indexes.
ADDRESS_HASHES = f"{PREFIX}/places"
#: Annotation on a job: `true` hands the job over to us although another controller wrote its status.
ADOPT = f"{PREFIX}/adopt"


def is_replica(labels: Mapping[str, str]) -> bool:
    """Whether a pod of a job with these labels is one of its replicas: no spare, and no pod that a user labelled."""
    index = labels.get(INDEX, "")
    return bool(labels.get(ROLE)) and index.isascii() and index.isdecimal() and labels.get(ATTEMPT) != SPARE


class Wire(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Base of all structs that are decoded from or sent to an API server.

    Python's garbage collector does not track these structs: they hold no cycles, and checking 40,000 of them is slow.
    """


class Key(Struct, frozen=True, gc=False, order=True):
    """Namespace and name of a job."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def replica_prefix(self, role: str) -> str:
        """Return the prefix of the names of a role's replicas; the index follows."""
        return f"{self.name}-{role.lower()}-"

    def replica_name(self, role: str, index: int) -> str:
        """Return the name of a replica's pod and service, in every kind."""
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
    """The metadata of a child, without annotations and managedFields."""

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
        """The owner that controls this object, if any."""
        return next((owner for owner in self.owner_references or () if owner.controller), None)


class ObjectMeta(Meta, frozen=True, gc=False):
    """The metadata of a job, or of a child whose annotations we read."""

    generation: int = 0
    annotations: dict[str, str] | None = None
    finalizers: tuple[str, ...] | None = None
