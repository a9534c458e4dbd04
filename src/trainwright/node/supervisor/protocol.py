# SPDX-License-Identifier: Apache-2.0
"""The messages between an agent and its supervisor, and between `trainwright exec` and the supervisor: lines of JSON.

    {"id": 1, "do": "start", "container": "…", …}   →   {"id": 1, "ok": true, "pid": 4711}
                                                or  →   {"id": 1, "error": "…", "code": 127}
    (nothing)                                       →   {"event": "ended", "container": "…", "code": 0, …}

The agent encodes and checks these types with msgspec; the supervisor reads the same objects with the standard library
only. A new field that the other side may leave out needs no new SUPERVISOR_PROTOCOL (in `handshake`); any other change
does. The supervisor imports this module only for type checking: to make these classes takes 1.5 ms of its start.
"""

from typing import Any, Literal, NotRequired, TypedDict

# -- the configuration, which is the supervisor's only argument -------------------------------------------------------


class NetworkConfig(TypedDict):
    """The network of the sandboxes of a node."""

    subnet: str
    #: Descriptors of the namespaces, by name, where several supervisors share one network.
    holder: NotRequired[dict[str, int] | None]


class Config(TypedDict):
    """How a supervisor is started."""

    protocol: int
    version: str
    #: The supervisor's own folder: its journal and its socket are in it.
    folder: str
    runtime: str
    #: What becomes of the containers when the agent hangs up.
    orphans: Literal["end", "keep"]
    network: NotRequired[NetworkConfig | None]
    outside: NotRequired[bool]
    #: Bytes of one log file, and how many files are kept.
    rotate: NotRequired[list[int]]
    #: Whether each line of a log begins with its time.
    stamps: NotRequired[bool]
    #: Seconds that a supervisor without an agent waits for one.
    linger: NotRequired[float]
    #: Inherited descriptors: the connection to the agent, and the socket of the leases.
    fd: NotRequired[int]
    leases: NotRequired[int | None]


# -- requests of the agent --------------------------------------------------------------------------------------------


class OpenPod(TypedDict):
    """`open`: make what the containers of a pod share."""

    pod: str
    host: str
    address: str
    network: Literal["own", "host"]
    #: The pod's /etc/hosts.
    hosts: NotRequired[str | None]
    #: The pod's own /tmp.
    tmp: NotRequired[str | None]
    #: Bytes of /dev/shm.
    shm: NotRequired[int | None]
    #: Folders below /tmp that stay visible.
    keep: NotRequired[list[str]]


class Mount(TypedDict):
    """One mount of a container: with a source and a tmpfs, memory that the pod's containers share."""

    target: str
    source: str | None
    readonly: NotRequired[bool]
    #: Bytes of memory.
    tmpfs: NotRequired[int | None]


class Limits(TypedDict, total=False):
    """Bytes of memory and number of CPUs."""

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


class Leased(TypedDict):
    """`leased`: whether the supervisor holds the locks of these devices."""

    devices: list[str]


class SignalContainer(TypedDict):
    """`signal`: signal the main process of a container."""

    container: str
    signal: int


class OneContainer(TypedDict):
    """`kill`, `forget`: SIGKILL a container, or remember its end no longer."""

    container: str


class OnePod(TypedDict):
    """`close`: kill what is left of a pod and drop what its containers shared."""

    pod: str


class Exec(TypedDict):
    """`exec`: run a command in a container; the answer comes when the command has ended."""

    container: str
    argv: list[str]
    env: NotRequired[dict[str, str] | None]
    cwd: NotRequired[str | None]
    #: Seconds until the command is killed.
    timeout: NotRequired[float | None]
    #: Only from `trainwright exec`: the descriptors that come along are a terminal.
    tty: NotRequired[bool]


# -- answers ----------------------------------------------------------------------------------------------------------


class Done(TypedDict):
    """The request was carried out."""

    ok: bool


class Started(Done):
    """The answer to `start`."""

    pid: int


class Executed(Done):
    """The answer to `exec`."""

    code: int
    signal: int
    #: Whether the command was killed because its time was over.
    timeout: bool
    #: The end of what it wrote.
    output: str


class HowEnded(TypedDict):
    """How a container ended: exit code (128 + n after a signal n), and when, as seconds since 1970."""

    code: int
    signal: int
    oom: bool
    at: float


class Entry(TypedDict):
    """One container in the journal."""

    container: str
    pod: str
    pid: int
    ended: HowEnded | None


class Forgotten(TypedDict):
    """A line of the journal: the end of this container is stored elsewhere."""

    container: str
    forgotten: Literal[True]


class Listed(Done):
    """The answer to `list`: every container whose end is not forgotten."""

    containers: list[Entry]


class Refusal(TypedDict):
    """The request was not carried out: a sentence, and the exit code that it stands for (126, 127 or 128)."""

    error: str
    code: int


Answer = Done | Started | Executed | Listed | Refusal

# -- events -----------------------------------------------------------------------------------------------------------


class Ready(TypedDict):
    """The first event: the supervisor takes requests."""

    event: Literal["ready"]
    protocol: int
    version: str
    runtime: str
    #: The version of the cgroups by which it limits: `v1`, `v2` or `none`.
    cgroup: str
    #: Whether pods reach the network outside this machine.
    outside: bool
    notices: list[str]


class Failed(TypedDict):
    """The first and only event of a supervisor that cannot start."""

    event: Literal["failed"]
    text: str


class Notice(TypedDict):
    """A sentence for people."""

    event: Literal["notice"]
    text: str


class Ended(HowEnded):
    """A container has ended."""

    event: Literal["ended"]
    container: str


Event = Ready | Failed | Notice | Ended

# -- other connections ------------------------------------------------------------------------------------------------


class TerminalExec(Exec):
    """The first line of `trainwright exec`, with its stdin, stdout and stderr."""

    do: Literal["exec"]
    protocol: int
    version: str


class Attach(TypedDict):
    """The first line of an agent that takes over a supervisor."""

    role: Literal["control"]
    protocol: int
    version: str


class TerminalSignal(TypedDict):
    """Every further line of `trainwright exec`."""

    signal: int


class TerminalEnd(TypedDict):
    """The last line to `trainwright exec`: the exit code."""

    code: int


class Lease(TypedDict):
    """A line of the engine on the socket of the leases: the descriptor of a lock comes with `hold`."""

    do: Literal["hold", "drop"]
    device: str


#: A request before its verb is known.
Request = dict[str, Any]
