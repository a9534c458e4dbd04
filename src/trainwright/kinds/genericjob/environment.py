# SPDX-License-Identifier: Apache-2.0
"""The five `$(…)` variables of a GenericJob: find them in a text, and fill them in.

A text may have several variables; they cannot be nested. `$$`, the escape of Kubernetes, stays as it is. Every other
`$(NAME)` also stays, because the kubelet expands it.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache

from msgspec import Struct

from trainwright.kinds.genericjob.wire import GenericJobSpec
from trainwright.model.job import Body, Job, Replica
from trainwright.model.site import Site

_VARIABLE = re.compile(
    r"\$\$"  # an escape: what follows is not a variable
    r"|\$\((?P<own>type|rank)\)"
    r"|\$\(replicas\[(?P<count>[^\[\]()]+)\]\)"
    r"|\$\(service\.(?P<host>[^\[\]().]+)\[(?P<rank>[0-9]{1,7})\]\.host\)"
    r"|\$\(service\.port\[(?P<port>[^\[\]()]+)\]\)"
    r"|(?P<malformed>\$\((?:service\.|replicas\[)(?:[^()]|\$\([^()]*\))*\))"
)

#: Any `$(NAME)`, ours or of Kubernetes. Only ours can have text after the name, as in `$(replicas[worker])`.
_NAME = re.compile(r"\$\$|\$\((?P<name>[A-Za-z_][A-Za-z0-9_-]*)(?P<rest>[.\[][^()\s]*)?\)")
#: Commands that a script may call as `$(COMMAND)` in a shell: these are not misspelt variables.
_COMMANDS = frozenset({"arch", "date", "hostname", "id", "ls", "nproc", "pwd", "tty", "uname", "whoami"})


class ReplicaVariables(Struct, frozen=True):
    """The values of the variables for one replica. `host` takes a type and a rank; it is None without a service."""

    type: str
    rank: int
    counts: Mapping[str, int]
    ports: Mapping[str, int]
    host: Callable[[str, int], str] | None


def variables(job: Job, spec: GenericJobSpec, replica: Replica, site: Site) -> ReplicaVariables:
    """The values of the variables for one replica."""

    def host(role: str, rank: int) -> str:
        return site.host(job.key, job.key.replica_name(role, rank))

    return ReplicaVariables(
        type=replica.role.name,
        rank=replica.index,
        counts=job.sizes,
        ports={port.name: port.port for port in spec.service.ports} if spec.service is not None else {},
        host=host if spec.service is not None else None,
    )


def fill_container(container: Body, values: ReplicaVariables) -> Body:
    """The container with its variables filled in; a container without variables is not copied."""
    changed: Body = {}
    for key in ("command", "args"):
        texts = container.get(key)
        if texts and any("$(" in text for text in texts):
            changed[key] = [fill(text, values) for text in texts]
    env = container.get("env")
    if env and any("$(" in (entry.get("value") or "") for entry in env):
        changed["env"] = [
            entry | {"value": fill(entry["value"], values)} if entry.get("value") else entry for entry in env
        ]
    return container | changed if changed else container


def fill(text: str, values: ReplicaVariables) -> str:
    """The text with its variables filled in; a variable without a value stays as written."""
    return "".join([part if isinstance(part, str) else _value(part, values) for part in _parts(text)])


def _value(ref: "Reference", values: ReplicaVariables) -> str:
    found: object = None
    match ref.asks:
        case "type":
            found = values.type
        case "rank":
            found = values.rank
        case "count":
            found = values.counts.get(ref.name)
        case "port":
            found = values.ports.get(ref.name)
        case "host" if values.host is not None and ref.rank < values.counts.get(ref.name, 0):
            found = values.host(ref.name, ref.rank)
    return ref.text if found is None else str(found)


class Reference(Struct, frozen=True):
    """One variable in a text: what it asks for, and the type, rank or port in it."""

    text: str
    #: `type`, `rank`, `count`, `host`, `port`, or `malformed` for a text that resembles a variable.
    asks: str
    name: str = ""
    rank: int = -1


def scan(text: str) -> Iterator[Reference]:
    """Every variable of ours in a text."""
    return (part for part in _parts(text) if isinstance(part, Reference))


def escape(text: str) -> str:
    """The text with `$$` before each variable of ours, so that a program gets the text as it is."""
    return "".join(part if isinstance(part, str) else f"${part.text}" for part in _parts(text))


def unknown(text: str, variables: Collection[str]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Every `$(NAME)` without a value: the name, the names that would be valid here, and the text after the name.

    `variables` are the environment variables of the container; the kubelet fills in their values.
    """
    for match in _NAME.finditer(text):
        name, rest = match["name"], match["rest"] or ""
        known = ("replicas", "service") if rest else ("type", "rank", *variables)
        if name is not None and name not in known and name not in _COMMANDS and f"{name}{rest}" not in variables:
            yield name, known, rest


@lru_cache(maxsize=256)
def _parts(text: str) -> tuple[str | Reference, ...]:
    """The text, split at its variables. Cached, because every replica fills in the same texts."""
    parts: list[str | Reference] = []
    end = 0
    for match in _VARIABLE.finditer(text):
        if (form := match.lastgroup) is not None:
            parts += [text[end : match.start()], _reference(match, form)]
            end = match.end()
    return (*parts, text[end:])


def _reference(match: re.Match[str], form: str) -> Reference:
    """The reference of a match; `form` is the name of the last group that matched."""
    if form == "own":
        return Reference(match[0], match["own"])
    if form == "rank":
        return Reference(match[0], "host", match["host"], int(match["rank"]))
    return Reference(match[0], form, match[form])
