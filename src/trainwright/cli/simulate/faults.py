# SPDX-License-Identifier: Apache-2.0
"""The faults and durations of a simulation: values, and the options that describe them.

An error names the option, what it has, what it should have, and the nearest replica or role of the job.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct

from trainwright.core.autosize import at_largest_size
from trainwright.errors import UsageError
from trainwright.model.job import Job
from trainwright.model.problem import nearest
from trainwright.model.rule import AllOf, AnyOf, Atom, Rule
from trainwright.model.units import parse_duration

#: How long a program runs before it succeeds, in seconds.
DEFAULT_DURATION = 600.0
#: The word for a program that does not end.
NEVER = "never"
_OUT_OF_MEMORY = "oom"
#: About a year. A longer time is a typing error.
_MAX_SECONDS = 366 * 86400.0
_TIMES = "a time such as 30s, 5m or 1h30m"
#: How many replicas an error lists.
_MAX_LISTED = 8

#: Role and index of a replica.
ReplicaId = tuple[str, int]


class FaultKind(StrEnum):
    """What happens; the value is the name of the option."""

    FAIL = "fail"
    EVICT = "evict"
    PREEMPT = "preempt"
    DELETE = "delete"
    LOSE_NODE = "lose-node"
    SUSPEND = "suspend"


class Fault(Struct, frozen=True):
    """One fault at one time of the job."""

    kind: FaultKind
    #: The option as the user wrote it.
    option: str
    #: Seconds since the job was submitted.
    at: float
    #: The replicas that it hits; several if the user named a role.
    replicas: tuple[ReplicaId, ...] = ()
    node: str = ""
    code: int = 0
    out_of_memory: bool = False
    #: Seconds until a lost node answers again or a suspended job is resumed; None: never.
    lasts: float | None = None


class Scenario(Struct, frozen=True):
    """Everything that a simulation assumes besides the manifest."""

    faults: tuple[Fault, ...]
    #: Seconds that the programs of each role run; None: until they are ended.
    durations: Mapping[str, float | None]
    nodes: int
    #: How many replicas fit on a node; 0: any number.
    replicas_per_node: int = 0
    start_time: float = 5.0
    until: float = 86400.0


def node_name(number: int) -> str:
    """The name of a simulated node. Nodes are counted from 1."""
    return f"node-{number}"


class FaultReader:
    """Reads the values of options for one job."""

    def __init__(self, job: Job, nodes: int) -> None:
        self._sizes = {role.name: role.replicas for role in at_largest_size(job).roles}
        self._nodes = nodes

    def fail(self, text: str) -> Fault:
        """Read `worker-1=137@30s` or `worker-1=oom@30s`."""
        option = f"--fail {text}"
        who, equals, rest = text.partition("=")
        word, at, when = rest.partition("@")
        if not (who and equals and word and at):
            raise UsageError(f"{option}: expected REPLICA=CODE@TIME, such as worker-1=137@30s")
        is_memory = word.lower() == _OUT_OF_MEMORY
        if not is_memory and not (word.isascii() and word.isdigit() and 1 <= int(word) <= 255):
            raise UsageError(f"{option}: expected an exit code from 1 to 255 or `oom`, found {word!r}")
        code = 137 if is_memory else int(word)
        return Fault(FaultKind.FAIL, option, _time(option, when), self._replicas(option, who), "", code, is_memory)

    def hit(self, kind: FaultKind, text: str) -> Fault:
        """Read `worker-0@20s`."""
        option = f"--{kind} {text}"
        who, at, when = text.partition("@")
        if not (who and at):
            raise UsageError(f"{option}: expected REPLICA@TIME, such as worker-0@20s")
        return Fault(kind, option, _time(option, when), self._replicas(option, who))

    def lose_node(self, text: str) -> Fault:
        """Read `1@60s` or `1@60s+30s`."""
        option = f"--lose-node {text}"
        which, at, when = text.partition("@")
        if not (which and at):
            raise UsageError(f"{option}: expected NODE@TIME or NODE@TIME+TIME, such as 1@60s+30s")
        number = which.lower().removeprefix("node-")
        if not (number.isascii() and number.isdigit() and 1 <= int(number) <= self._nodes):
            raise UsageError(f"{option}: expected a node from 1 to {self._nodes} (see --nodes), found {which!r}")
        begin, lasts = _span(option, when)
        return Fault(FaultKind.LOSE_NODE, option, begin, node=node_name(int(number)), lasts=lasts)

    def suspend(self, text: str) -> Fault:
        """Read `20s` or `20s+10s`."""
        option = f"--suspend {text}"
        begin, lasts = _span(option, text)
        return Fault(FaultKind.SUSPEND, option, begin, lasts=lasts)

    def duration(self, text: str) -> dict[str, float | None]:
        """Read `worker=10m`, `ps=never`, or `10m` for all roles."""
        option = f"--duration {text}"
        who, equals, when = text.rpartition("=")
        roles = [self._role(option, who)] if equals else list(self._sizes)
        if when.lower() == NEVER:
            return dict.fromkeys(roles)
        seconds = parse_duration(when)
        if seconds is None or seconds > _MAX_SECONDS:
            raise UsageError(f"{option}: expected {_TIMES}, or `{NEVER}`, found {when!r}")
        return dict.fromkeys(roles, seconds)

    def _role(self, option: str, word: str) -> str:
        found = self._find_role(word)
        if found is not None:
            return found
        raise UsageError(f"{option}: the job has no role {word!r}; it has {_listed(self._sizes)}" + self._hint(word))

    def _find_role(self, word: str) -> str | None:
        """The role with this name, in upper or lower case."""
        return next((name for name in self._sizes if name.lower() == word.lower()), None)

    def _replicas(self, option: str, word: str) -> tuple[ReplicaId, ...]:
        """The replica with this name, or all replicas of the role with this name."""
        role = self._find_role(word)
        if role is not None:
            return tuple((role, index) for index in range(self._sizes[role]))
        stem, _, number = word.rpartition("-")
        role = self._find_role(stem) if number.isascii() and number.isdigit() else None
        if role is None:
            names = [f"{name}-{index}" for name, size in self._sizes.items() for index in range(size)]
            raise UsageError(f"{option}: the job has no replica {word!r}; it has {_listed(names)}" + self._hint(word))
        size = self._sizes[role]
        if int(number) >= size:
            last = f"{role}-0 to {role}-{size - 1}" if size > 1 else f"{role}-0" if size else f"no {role}"
            raise UsageError(f"{option}: the job has no replica {word!r}; it has {last}")
        return ((role, int(number)),)

    def _hint(self, word: str) -> str:
        """The nearest role, with the index that the user wrote."""
        stem, dash, number = word.rpartition("-")
        is_replica = bool(dash) and number.isascii() and number.isdigit()
        meant = nearest(stem if is_replica else word, self._sizes)
        if not meant:
            return ""
        index = f"-{min(int(number), max(self._sizes[meant] - 1, 0))}" if is_replica else ""
        return f"; did you mean `{meant}{index}`?"


def default_durations(job: Job) -> dict[str, float | None]:
    """How long programs run without `--duration`.

    Roles that no success rule names, such as parameter servers, run until they are ended.
    """
    named = set(_roles_in(job.success))
    return {role.name: DEFAULT_DURATION if role.name in named or not named else None for role in job.roles}


def _roles_in(rule: Rule) -> Iterable[str]:
    match rule:
        case Atom(role, _, _):
            yield role
        case AllOf(rules, _) | AnyOf(rules, _):
            for part in rules:
                yield from _roles_in(part)


def _span(option: str, text: str) -> tuple[float, float | None]:
    """A time, and how long it lasts if that is given."""
    begin, plus, lasts = text.partition("+")
    return _time(option, begin), _time(option, lasts) if plus else None


def _time(option: str, text: str) -> float:
    seconds = parse_duration(text)
    if seconds is None or seconds > _MAX_SECONDS:
        raise UsageError(f"{option}: expected {_TIMES}, found {text!r}")
    return seconds


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    rest = len(known) - _MAX_LISTED
    return ", ".join(known[:_MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "") if known else "none"
