# SPDX-License-Identifier: Apache-2.0
"""The verbs of the background engine, in addition to the verbs of every engine: `status`, `submit`, …"""

from typing import Any, Literal, NotRequired, TypedDict

from trainwright.model.job import Body


class StatusRequest(TypedDict):
    """`status`: what the engine says about itself."""


class NodeReport(TypedDict):
    """One node."""

    name: str
    ready: bool
    #: Why the node is not ready; empty if it is ready.
    reason: str
    #: The number of pods that have not ended.
    pods: int
    #: The resources that pods may use, and the part of each that running pods have requested.
    allocatable: dict[str, str]
    requested: dict[str, str]


class DeviceReport(TypedDict):
    """The devices of one resource on one node."""

    node: str
    resource: str
    total: int
    used: int


class EngineStatus(TypedDict):
    """The answer to `status`."""

    pid: int
    version: str
    since: str
    socket: str
    folder: str
    runtime: str
    #: Why the engine uses this runtime.
    choice: str
    nodes: list[NodeReport]
    devices: list[DeviceReport]
    #: The number of jobs in each phase.
    jobs: dict[str, int]
    #: The number of unfinished pods that belong to no job. An older engine does not count them.
    pods: NotRequired[int]
    #: Problems that last, such as a full disk; and the last messages of the engine's parts.
    problems: list[str]
    notices: list[str]
    #: The URL of the Kubernetes API and its kubeconfig; both are empty if there is no API.
    api: str
    kubeconfig: str


class SubmitRequest(TypedDict):
    """`submit`: create one job, and before it the objects that it needs."""

    job: Body
    beside: NotRequired[list[Body]]
    #: The working directory, the variables and the visible folders of the shell: a `Submission`.
    submission: dict[str, Any]


class SubmitResult(TypedDict):
    """The answer to `submit`: the stored job and the folder of its logs."""

    job: Body
    run: str
    folder: str


class DownRequest(TypedDict):
    """`down`: end the engine. `keep` leaves the pods running; `end` ends all unfinished jobs and lone pods first.

    `idle` is refused with ConflictError if a job or a lone pod is unfinished; it ends pods that finished jobs keep.
    """

    jobs: Literal["keep", "end", "idle"]
    #: Seconds until replicas that do not end are killed; without it, the grace periods of the pods.
    grace: NotRequired[float]


class DownResult(TypedDict):
    """The answer to `down`: the jobs, and the pods of no job, that were ended or continue without the engine."""

    jobs: list[str]
    #: An older engine does not list them.
    pods: NotRequired[list[str]]
