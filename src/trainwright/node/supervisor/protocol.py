# SPDX-License-Identifier: Apache-2.0
"""The messages between an agent and its supervisor, and between `trainwright exec` and the supervisor: lines of JSON.

    {"id": 1, "do": "start", "container": "…", …}   →   {"id": 1, "ok": true, "pid": 4711}
                                                or  →   {"id": 1, "error": "…", "code": 127}
    (nothing)                                       →   {"event": "ended", "container": "…", "code": 0, …}

The agent encodes and checks these types with msgspec; the supervisor reads the same objects with the standard library
only. A new optional field does not change SUPERVISOR_PROTOCOL (in `jsonlines`); any other change increases that number.
The supervisor imports this module only for type checking, because creating these classes takes 1.5 ms.
"""

from typing import Any, Literal, NotRequired, TypedDict

from trainwright.jsonlines import Hello

# -- the configuration: the supervisor's only argument ----------------------------------------------------------------


class NetworkConfig(TypedDict):
    """The network of the sandboxes of a node."""

    subnet: str
    #: Descriptors of the namespaces, by name, if several supervisors share one network.
    holder: NotRequired[dict[str, int] | None]
    #: The descriptor of the subnet's lease, which a supervisor that outlives its agent holds, too.
    lease: NotRequired[int | None]


class Config(Hello):
    """How a supervisor is started."""

    #: The supervisor's own folder, which has its journal and its socket.
    folder: str
    runtime: str
    #: Whether containers end or keep running when the agent disconnects.
    orphans: Literal["end", "keep"]
    network: NotRequired[NetworkConfig | None]
    outside: NotRequired[bool]
    #: The maximum size of one log file in bytes, and the number of files kept.
    rotate: NotRequired[list[int]]
    #: Whether each line of a log begins with its time.
    stamps: NotRequired[bool]
    #: Seconds between checks of a supervisor without an agent; it ends if no container runs.
    linger: NotRequired[float]
    #: Inherited descriptors: the connection to the agent, and the socket for leases.
    fd: NotRequired[int]
    leases: NotRequired[int | None]


class Identity(Hello):
    """The text of `supervisor.lock`. Every later version must be able to read it."""

    pid: int
    #: The start time of the process, in the clock ticks of the kernel.
    start: str
    #: The kernel's ID of the time since the machine was started.
    boot: str
    runtime: str


# -- requests of the agent --------------------------------------------------------------------------------------------

#: A request before its verb is known.
Request = dict[str, Any]


class OpenPod(TypedDict):
    """`open`: create the namespaces that the containers of a pod share."""

    pod: str
    host: str
    address: str
    network: Literal["own", "host"]
    #: Paths of the pod's /etc/hosts and of its private /tmp.
    hosts: NotRequired[str | None]
    tmp: NotRequired[str | None]
    #: The size of /dev/shm in bytes.
    shm: NotRequired[int | None]
    #: Folders of the host that stay visible, even if they are below /tmp.
    keep: NotRequired[list[str]]


class Mount(TypedDict):
    """One mount of a container. With both a source and `tmpfs`, the mount is memory that the pod's containers share."""

    target: str
    source: str | None
    readonly: NotRequired[bool]
    #: The size of a mount in memory, in bytes.
    tmpfs: NotRequired[int | None]


class Limits(TypedDict, total=False):
    """The limits of a container: bytes of memory and number of CPUs."""

    memory: int
    cpu: float


class StartContainer(TypedDict):
    """`start`: run the main process of a container."""

    pod: str
    container: str
    argv: list[str]
    env: dict[str, str]
    cwd: NotRequired[str | None]
    #: The path of the log.
    log: str
    mounts: NotRequired[list[Mount]]
    limits: NotRequired[Limits]
    #: The devices whose locks the container inherits.
    leases: NotRequired[list[str]]
    #: For an agent that attaches later: the container's name in the pod, its number of restarts, and the path of its
    #: termination message.
    name: NotRequired[str]
    restart: NotRequired[int]
    message: NotRequired[str]


class Leased(TypedDict):
    """`leased`: check that the supervisor holds the locks of these devices."""

    devices: list[str]


class PodRequest(TypedDict):
    """`close`: kill the remaining processes of a pod and release its namespaces."""

    pod: str


class ContainerRequest(TypedDict):
    """`kill`, `forget`: SIGKILL a container, or remove a container from the journal."""

    container: str


class NoteContainer(ContainerRequest):
    """`note`: add facts about a container to the journal, for an agent that attaches later."""

    notes: "Notes"


class SignalContainer(ContainerRequest):
    """`signal`: signal the main process of a container."""

    signal: int


class Exec(ContainerRequest):
    """`exec`: run a command in a container. The supervisor answers when the command has ended."""

    argv: list[str]
    env: NotRequired[dict[str, str] | None]
    cwd: NotRequired[str | None]
    #: Seconds until the command is killed.
    timeout: NotRequired[float | None]
    #: Whether the descriptors that come with the request are a terminal; only `trainwright exec` sends descriptors.
    tty: NotRequired[bool]


# -- answers ----------------------------------------------------------------------------------------------------------


class Done(TypedDict):
    """The request succeeded."""

    ok: bool


class Started(Done):
    """The answer to `start`."""

    pid: int


class Executed(Done):
    """The answer to `exec`."""

    code: int
    signal: int
    #: Whether the command was killed at its timeout.
    timeout: bool
    #: The last 4 KiB of the command's output.
    output: str


class ExitStatus(TypedDict):
    """How a container ended: exit code (128 + n after signal n), and the time, in seconds since 1970."""

    code: int
    signal: int
    oom: bool
    at: float


class Notes(TypedDict, total=False):
    """What an agent has done with a container."""

    #: Whether the hooks were begun: they must not run a second time.
    post_start: bool
    pre_stop: bool
    #: The container got its stop signal. It is killed at this time, in seconds since 1970.
    stop_by: float
    stop_message: str


class JournalEntry(TypedDict):
    """One container in the journal. Every later version must be able to read it.

    A pid of 0: the supervisor was about to start the container.
    """

    container: str
    pod: str
    pid: int
    ended: ExitStatus | None
    #: The fields of `StartContainer`, and the time of the start in seconds since 1970.
    name: NotRequired[str]
    restart: NotRequired[int]
    log: NotRequired[str]
    message: NotRequired[str]
    started: NotRequired[float]
    notes: NotRequired[Notes]


class ForgottenEntry(TypedDict):
    """A line of the journal: the agent has stored how this container ended."""

    container: str
    forgotten: Literal[True]


class ContainerList(Done):
    """The answer to `list`: every container in the journal, and the open pods."""

    containers: list[JournalEntry]
    pods: NotRequired[list[str]]


class ErrorAnswer(TypedDict):
    """The request failed: the reason as a sentence, and the exit code to report (126, 127 or 128)."""

    error: str
    code: int


Answer = Done | Started | Executed | ContainerList | ErrorAnswer

# -- events -----------------------------------------------------------------------------------------------------------


class Ready(Hello):
    """The first event: the supervisor accepts requests."""

    event: Literal["ready"]
    runtime: str
    #: The version of the cgroups that enforce limits: `v1`, `v2` or `none`.
    cgroup: str
    #: Whether pods reach the network outside this machine.
    outside: bool
    notices: list[str]
    #: The process of a supervisor that outlives its agent; see `Identity`.
    pid: NotRequired[int]
    start: NotRequired[str]


class TextEvent(TypedDict):
    """A sentence for the user. A supervisor that cannot start sends one event, `failed`, and no other."""

    event: Literal["failed", "notice"]
    text: str


class Ended(ExitStatus):
    """A container has ended."""

    event: Literal["ended"]
    container: str


Event = Ready | TextEvent | Ended

# -- other connections ------------------------------------------------------------------------------------------------


class TerminalExec(Exec, Hello):
    """The first line from `trainwright exec`, sent with its stdin, stdout and stderr."""

    do: Literal["exec"]


class Attach(Hello):
    """The first line from an agent that takes over a supervisor.

    The agent sends the descriptor of its lock (`agent.lock`) with this line and, if `leases`, after it the descriptor
    of a socket for leases.
    """

    role: Literal["control"]
    leases: NotRequired[bool]


class TerminalSignal(TypedDict):
    """Every later line from `trainwright exec`: a signal for the command."""

    signal: int


class TerminalEnd(TypedDict):
    """The last line to `trainwright exec`: the exit code."""

    code: int


class LeaseMessage(TypedDict):
    """A line on the socket for leases. A line with `hold` comes with the descriptor of the lock.

    The engine sends `hold` and `drop`. If a socket is new to a living supervisor, the supervisor first sends the engine
    a line with `hold` for each lock that it has.
    """

    do: Literal["hold", "drop"]
    device: str
