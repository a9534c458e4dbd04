# SPDX-License-Identifier: Apache-2.0
"""The five `$(…)` variables of a GenericJob. `checks` finds bad references with `scan`, `dialect` fills in with `fill`.

Textual, several per string, no nesting. `$$` is Kubernetes' escape and stays as it is, and so does every `$(NAME)` that
is not one of the five: the kubelet expands those.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache

from msgspec import Struct

_VARIABLE = re.compile(
    r"\$\$"  # an escape: whatever follows is not a variable
    r"|\$\((?P<own>type|rank)\)"
    r"|\$\(replicas\[(?P<count>[^\[\]()]+)\]\)"
    r"|\$\(service\.(?P<host>[^\[\]().]+)\[(?P<rank>[0-9]{1,7})\]\.host\)"
    r"|\$\(service\.port\[(?P<port>[^\[\]()]+)\]\)"
    r"|(?P<odd>\$\((?:service\.|replicas\[)(?:[^()]|\$\([^()]*\))*\))"
)

#: Any `$(NAME)`, of this language or of Kubernetes', with what may follow the name in one of ours.
_NAME = re.compile(r"\$\$|\$\((?P<name>[A-Za-z_][A-Za-z0-9_-]*)(?P<rest>[.\[][^()\s]*)?\)")
#: What a shell puts in place of `$(…)` without arguments: no misspelling of a variable.
_COMMANDS = frozenset({"arch", "date", "hostname", "id", "ls", "nproc", "pwd", "tty", "uname", "whoami"})


class Reference(Struct, frozen=True):
    """One variable in a text: what it asks for, of which type, rank or port."""

    text: str
    asks: str
    name: str = ""
    rank: int = -1


def scan(text: str) -> Iterator[Reference]:
    """Every variable of ours in a text; `odd` ones look like ours but follow none of the five forms."""
    return (part for part in _parts(text) if isinstance(part, Reference))


def unknown(text: str, variables: Collection[str]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Every `$(NAME)` that nobody fills in: the name, the names that could be meant, and what follows the name.

    `variables` are the environment variables of the container, which the kubelet fills in.
    """
    for match in _NAME.finditer(text):
        name, rest = match["name"], match["rest"] or ""
        known = ("replicas", "service") if rest else ("type", "rank", *variables)
        if name is not None and name not in known and name not in _COMMANDS and f"{name}{rest}" not in variables:
            yield name, known, rest


@lru_cache(maxsize=256)
def _parts(text: str) -> tuple[str | Reference, ...]:
    """The text, split at its variables: once, however many replicas fill it in."""
    parts: list[str | Reference] = []
    end = 0
    for match in _VARIABLE.finditer(text):
        if (form := match.lastgroup) is not None:
            parts += [text[end : match.start()], _reference(match, form)]
            end = match.end()
    return (*parts, text[end:])


def _reference(match: re.Match[str], form: str) -> Reference:
    """`form` is the last group that matched, and so tells which of the forms it is."""
    if form == "own":
        return Reference(match[0], match["own"])
    if form == "rank":
        return Reference(match[0], "host", match["host"], int(match["rank"]))
    return Reference(match[0], form, match[form])


class ReplicaVariables(Struct, frozen=True):
    """What the variables of one replica stand for."""

    type: str
    rank: int
    counts: Mapping[str, int]
    ports: Mapping[str, int]
    host: Callable[[str, int], str] | None


def fill(text: str, facts: ReplicaVariables) -> str:
    """The text with its variables filled in; what cannot be is left as written."""
    return "".join([part if isinstance(part, str) else _value(part, facts) for part in _parts(text)])


def _value(ref: Reference, facts: ReplicaVariables) -> str:
    found: object = None
    match ref.asks:
        case "type":
            found = facts.type
        case "rank":
            found = facts.rank
        case "count":
            found = facts.counts.get(ref.name)
        case "port":
            found = facts.ports.get(ref.name)
        case "host" if facts.host is not None and ref.rank < facts.counts.get(ref.name, 0):
            found = facts.host(ref.name, ref.rank)
    return ref.text if found is None else str(found)
