# SPDX-License-Identifier: Apache-2.0
"""The columns of the tables that `kubectl get` prints, by resource.

Names, types, formats, priorities and the order are those of kube-apiserver 1.36. The cells of a column with a `path`
are the values at that path. The cells of the other columns are computed by the functions of `cells` and `pod_cells`.
"""

from collections.abc import Iterable

from msgspec import Struct

from trainwright.kinds.base import Column
from trainwright.model.job import Body
from trainwright.runtime.ports import (
    CLAIMS,
    CONFIG_MAPS,
    DEFINITIONS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    POD_GROUPS,
    PODS,
    QUEUES,
    SECRETS,
    SERVICES,
)


class PrinterColumn(Struct, frozen=True):
    """One column of a table. kubectl shows a column with priority 1 only with `-o wide`."""

    name: str
    description: str = ""
    priority: int = 0
    type: str = "string"
    format: str = ""
    #: The JSONPath of the cells, in a resource whose columns come from a CRD.
    path: str = ""

    def definition(self) -> Body:
        """The entry of this column in `columnDefinitions`."""
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


NAME = PrinterColumn("Name", "The name of the object, which is unique in its namespace.", format="name")
AGE = PrinterColumn("Age", "The time since the object was created.")


def custom(columns: Iterable[Column]) -> tuple[PrinterColumn, ...]:
    """The columns of a custom resource: the name, and the printer columns of its CRD."""
    return (
        NAME,
        *(
            PrinterColumn(
                column.name,
                f"Custom resource definition column (in JSONPath format): {column.path}",
                column.priority,
                column.type,
                path=column.path,
            )
            for column in columns
        ),
    )


_PODS = (
    NAME,
    PrinterColumn("Ready", "The number of ready containers, and the number of all containers."),
    PrinterColumn("Status", "The state of the pod, from its phase and the states of its containers."),
    PrinterColumn("Restarts", "How often containers of the pod were restarted, and when the last restart was."),
    AGE,
    PrinterColumn("IP", "The IP address of the pod.", 1),
    PrinterColumn("Node", "The node that runs the pod.", 1),
    PrinterColumn("Nominated Node", "The node on which the scheduler frees resources for the pod.", 1),
    PrinterColumn("Readiness Gates", "The number of readiness gates that are true, and the number of all gates.", 1),
)
_NODES = (
    NAME,
    PrinterColumn("Status", "Whether the node is ready, and whether it accepts new pods."),
    PrinterColumn("Roles", "The roles of the node, from its labels."),
    AGE,
    PrinterColumn("Version", "The version that the agent of the node reports."),
    PrinterColumn("Internal-IP", "The first internal IP address of the node.", 1),
    PrinterColumn("External-IP", "The first external IP address of the node.", 1),
    PrinterColumn("OS-Image", "The operating system of the node.", 1),
    PrinterColumn("Kernel-Version", "The version of the kernel of the node.", 1),
    PrinterColumn("Container-Runtime", "The name and version of the program that runs containers.", 1),
)
_EVENTS = (
    PrinterColumn("Last Seen", "The time since the event occurred last."),
    PrinterColumn("Type", "Normal or Warning."),
    PrinterColumn("Reason", "A short reason for programs."),
    PrinterColumn("Object", "The object to which the event belongs."),
    PrinterColumn("Subobject", "The part of the object, for example a container.", 1),
    PrinterColumn("Source", "The component that reported the event.", 1),
    PrinterColumn("Message", "What occurred, for people."),
    PrinterColumn("First Seen", "The time since the event occurred first.", 1),
    PrinterColumn("Count", "How often the event occurred.", 1),
    PrinterColumn("Name", NAME.description, 1, format="name"),
)
_SERVICES = (
    NAME,
    PrinterColumn("Type", "How the service is reached: ClusterIP, NodePort, LoadBalancer or ExternalName."),
    PrinterColumn("Cluster-IP", "The IP address of the service; None for a headless service."),
    PrinterColumn("External-IP", "The addresses outside the cluster."),
    PrinterColumn("Port(s)", "The ports of the service."),
    AGE,
    PrinterColumn("Selector", "The labels of the pods that the service selects.", 1),
)
_CLAIMS = (
    NAME,
    PrinterColumn("Status", "The phase of the claim."),
    PrinterColumn("Volume", "The name of the volume that is bound to the claim."),
    PrinterColumn("Capacity", "The size of the volume."),
    PrinterColumn("Access Modes", "How pods may mount the volume: RWO, ROX, RWX or RWOP."),
    PrinterColumn("StorageClass", "The storage class of the claim."),
    PrinterColumn("VolumeAttributesClass", "The volume attributes class of the claim."),
    AGE,
    PrinterColumn("VolumeMode", "Whether the volume is a file system or a block device.", 1),
)
_STATUS = PrinterColumn("Status", "The phase of the namespace.")
_POD_GROUPS = (
    Column("Min Member", "integer", ".spec.minMember"),
    Column("Queue", "string", ".spec.queue"),
    Column("Age", "date", ".metadata.creationTimestamp"),
)
_QUEUES = (
    Column("Priority", "integer", ".spec.priority"),
    Column("Closed", "boolean", ".spec.closed"),
    Column("Preemptible", "boolean", ".spec.preemptible"),
    Column("CPU", "string", ".spec.quota.requests.cpu"),
    Column("Memory", "string", ".spec.quota.requests.memory"),
    Column("Max Duration", "string", ".spec.maxDuration"),
    Column("Age", "date", ".metadata.creationTimestamp"),
)
#: The printer columns of the custom resources that are no jobs, by the id of the resource.
CUSTOM_COLUMNS: dict[str, tuple[Column, ...]] = {POD_GROUPS.id: _POD_GROUPS, QUEUES.id: _QUEUES}

#: The columns by the id of the resource. The kinds of jobs have their columns in `Kind.columns`.
COLUMNS: dict[str, tuple[PrinterColumn, ...]] = {
    PODS.id: _PODS,
    NODES.id: _NODES,
    EVENTS.id: _EVENTS,
    SERVICES.id: _SERVICES,
    CLAIMS.id: _CLAIMS,
    CONFIG_MAPS.id: (NAME, PrinterColumn("Data", "The number of entries."), AGE),
    SECRETS.id: (
        NAME,
        PrinterColumn("Type", "The purpose of the secret."),
        PrinterColumn("Data", "The number of entries."),
        AGE,
    ),
    NAMESPACES.id: (NAME, _STATUS, AGE),
    LEASES.id: (NAME, PrinterColumn("Holder", "The identity of the holder of the lease."), AGE),
    DEFINITIONS.id: (NAME, PrinterColumn("Created At", "The time at which the object was created.", type="date")),
    **{resource: custom(columns) for resource, columns in CUSTOM_COLUMNS.items()},
}
